"""Hudi's storage lock (RFC-91), publishes that are fenced by it, and group commit.

Imports point from what stands below here to what stands above (`FLOORS` in `tests/test_house.py` has the order).

What the lock object holds; pure:
    commit_log, record                   what was decided and is being published, who waits; all of it as JSON

The lease protocol:
    states, machine                      `step(me, state, event)`: the next state and one effect; pure
    driver, heartbeat                    the record in the store, the loop that feeds the machine; the renewals

Getting the lock:
    polling                              when to look at the record again; pure
    acquire                              threads in the order in which they came; one acquisition

Who looks on. What fails here fails nothing else:
    metrics, otel, audit_log, audit, status, lanes

Fenced publish: an object that appears only if its writer still held the lock when the publish was decided:
    steps, publisher                     stage, look, apply; the publishes of one client

Group commit: one conditional write of the record decides for all that wait:
    combine                              what is to be decided, and which intents one write decides; pure
    commit_requests, record_writer, member, committer

What users hold:
    client, inspect, lease, lock, provider, async_lock
"""
