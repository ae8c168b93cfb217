"""Fenced publish: an object that appears only if its writer still held the lock when it was decided.

    steps      stage, look, apply: one publish, put where it belongs
    applier    what one client applies, and knows to be there
    publisher  the publishes of one client

May import: lease, record, acquire and below.
"""
