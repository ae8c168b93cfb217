"""Transactions on a table: begin, write, propose, decide, and retry after a conflict.

The life of a commit, in the order of the calls:

1. `retry.transact` creates a `Transaction` and runs a function with it. `states` has the table of its states.
2. An engine plans the rows (`engines.writer.plan_write`) and begins the transaction (`start_here`). `start.start`
   chooses a begin time, writes the heartbeat and `.requested`, and reads the lock record. It gives the time up if a
   later one is completed. An append may announce its files while this goes on (`start.EarlyStart`); its first data file
   waits for `confirm()`.
3. The engine writes markers and data files, and passes them to `Transaction.add`.
4. `Transaction.commit` makes the `Proposal` (what the commit does) and its `Basis` (what the writer knew).
   `commit.Committing` tries to get it decided; `states.next_try` chooses how.
5. By default the writer validates the proposal (`validate.validate`) and posts it as an intent. The writer that decides
   it validates it again (`decider.TableDecider`). Both use `validate.decide`: repeated batch, newer fence, broken
   snapshot, other columns, overlap. Once the lock record has the commit, readers see it.
6. If the log is not enough to decide, the writer holds the lock, validates once, and publishes the completed file
   itself.
7. A refused commit is rolled back, and `transact` begins again from a fresh snapshot. An unknown outcome is raised as
   `PublishUnknown`: the files stay, and a second `commit`, or `Transaction.resume`, finds the outcome.

May import: services, state and below. Promised: a commit happens once or never; see `transaction.Transaction`.
"""
