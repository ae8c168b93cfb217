"""Hudi's storage lock (RFC-91), publishes that are fenced by it, and group commit.

The modules, lowest layer first (`FLOORS` in `tests/test_house.py` has the order of imports):

What the lock object holds; pure:
    commit_log, record                   publishes, the log of the last ones, the waiters, as JSON

The lease protocol:
    states, machine                      `step(me, state, event)`: the next state and one effect; pure
    driver, heartbeat                    reads and writes of the record for the machine; renewals

Acquiring the lock:
    polling                              when a waiting client reads the record again; pure
    acquire                              the queue of a process's threads; one acquisition

Observers, whose failures affect nothing else:
    metrics, otel, audit_log, audit, status, lanes

Fenced publish: an object appears only if its writer still held the lock when it was decided:
    steps, publisher                     stage, prepare, apply; the publishes of one client

Group commit: one conditional write of the record decides several writers' publishes:
    combine                              what one write decides, and what a client does next; pure
    commit_requests, record_writer, member, committer

What users hold:
    client, inspect, lease, lock, provider, async_lock
"""
