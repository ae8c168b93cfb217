"""What a store really does: the checks as a probe that users run on it, before they trust it.

May import: the store and below.
"""
