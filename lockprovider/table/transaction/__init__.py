"""Transactions on a table: begin, write, propose, decide, and retry after a conflict.

The life of a commit, in the order of the calls:

1. `transaction.transact` runs a function with a `Transaction`; `lifecycle` has its states.
2. An engine plans the rows (`engines.writer.plan_write`) and begins (`start_here`). `lifecycle.start` chooses a begin
   time, writes the heartbeat and `.requested`, and reads the lock record; it repeats if a later instant is completed.
3. The engine writes markers and data files, and passes them to `Transaction.add`.
4. `Transaction.commit` makes the `Proposal` and its `Basis` (the writer's knowledge). `lifecycle.Committing` gets it
   decided, in up to eight tries.
5. By default the writer validates the proposal and posts it as an intent; the writer that decides it validates it again
   (`decision.TableDecider`). Both use `decision.decide`. The lock record decides; readers see the commit once its
   completed file is stored.
6. If the log is not enough, the writer holds the lock, validates once, and publishes the completed file.
7. After a refusal `transact` rolls back and begins again. After `PublishUnknown` the files stay; a second `commit`, or
   `Transaction.resume`, finds the outcome.
"""
