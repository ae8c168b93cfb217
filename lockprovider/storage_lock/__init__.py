"""Hudi's storage lock (RFC-91), publishes fenced by it, and group commit.

Life of a publish:

1. `lock.Lock.acquire` waits in the process's queue (`acquire`). `polling.next_action` chooses by the record: wait, or
   take it. `driver.Driver` feeds `machine.step`, the pure protocol, and sends the read or conditional write that it
   returns. The last holder's pending publish is applied first (`Publisher.roll_forward`).
2. The lease starts its `client.Heartbeat`, which renews the record. If audited, the driver queues lines that
   `audit_log`'s thread writes.
3. `lease.Lease.publish` encloses the bytes, or stages a copy (`Publisher.stage`). `Publisher.commit` asks
   `machine.publish_next` for each step: `prepare` reads the path and missing bytes, then one conditional write names
   the publish in the record. That write decides.
4. `driver.apply` creates the object; the staged copy is deleted. After a lost answer the machine reads the record; if
   the lease has ended, `Publisher.settle` reads record and path.
5. `Lease.release` frees the record. A decided, unapplied publish is left to the next holder.

A group commit needs no lease: `committer.Committer` decides by `commit_rules`, and writes by `commit_writes`.
"""
