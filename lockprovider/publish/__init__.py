"""Fenced publish: an object that appears only if its writer still held the lock when it was decided.

    steps      stage, look, apply: one publish, put where it belongs
    publisher  the publishes of one client: staged, decided, applied, settled

May import: lease, record, acquire and below.
"""
