"""Transactions on a table: begin, write, propose, decide, and retry after a conflict.

The life of a commit, in the order of the calls:

1. `transaction.transact` runs a function with a `Transaction`; `lifecycle` has its states.
2. An engine plans the rows (`engines.arrow.plan_write`) and begins (`start_here`). `lifecycle.start` chooses a begin
   time, writes the heartbeat, `.requested` and, in the background, `.inflight`, and reads the table. It repeats if a
   later instant is completed.
3. The engine writes markers and data files, and passes them to `Transaction.add`.
4. `Transaction.commit` makes the `Proposal` and its `Basis` (the writer's knowledge). `lifecycle.Committing` gets it
   decided, in up to eight tries.
5. By default the writer validates the proposal and asks `Lock.commit` for it. The client that writes the lock record,
   often this one, judges it by later log entries (`decision.TableDecider`), or leaves that to another try
   (`JudgeAnew`). Both use `decision.decide`. The record decides; readers see the commit once its completed file is
   stored.
6. The writer holds the lock, validates once, and publishes the completed file if the log does not cover the table, if
   other writers cannot judge the commit, if the record is too small for it, if it has `carried_keys`, or for a metadata
   table.
7. After an error `transact` rolls back what was not decided; after a conflict it begins again. In a transaction of
   your own, a second `commit` after `PublishUnknown` finds the outcome.
"""
