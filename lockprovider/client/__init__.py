"""What users hold: `Lock`, `Lease`, `LockProvider`; and `Client`, which wires what is below.

May import: everything of the lock but `aio` and the commands.
"""
