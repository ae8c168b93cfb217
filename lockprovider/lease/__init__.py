"""The lease protocol: a pure machine, the loop that drives it, the record in the store, the renewals.

    states       what a client can be in, what can happen to it, what it asks for
    machine      `step(me, state, event)`: the next state, and one effect; pure
    table        which event leads from which state to which: data that a test compares `step` with; pure
    driver       feeds the machine, and sends what it asks for
    record_file  the lock record in the store: read, and replaced conditionally
    heartbeat    renews a held lease from a thread of its own

May import: record and below. Promised: what is pure touches nothing; tests/model searches the machine exhaustively.
"""
