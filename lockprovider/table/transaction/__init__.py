"""One write: begin, write, propose, decide, and again after a conflict.

The life of a commit, in the order in which the code is called:

1. `retry.transact` makes a `Transaction` and runs a function of it. `states` has the table of its states.
2. An engine plans the rows (`engines.writer.plan_write`), and begins the transaction (`start_here`). `start.start`
   chooses a begin time, writes the heartbeat and `.requested`, reads the lock record, and gives the time up if a later
   one is completed. An append may announce its files while that goes on (`start.EarlyStart`); its first data file
   waits for `confirm()`.
3. The engine writes markers and data files, and `Transaction.add` takes them.
4. `Transaction.commit` makes the `Proposal` (what the commit does) and its `Basis` (what the writer knew), and
   `commit.Committing` tries to have it decided. `states.next_try` says how.
5. By default the proposal is judged (`validate.validate`), posted as an intent, and judged again by the writer that
   decides it (`decider.TableDecider`). Both judge by `validate.decide`: a batch that is there, a newer fence, a broken
   snapshot, other columns, overlap. Then the lock record has the commit, and readers see it.
6. Where the log cannot tell, the writer holds the lock, judges once, and publishes the completed file itself.
7. A refused commit is rolled back, and `transact` begins again from a fresh snapshot. An unknown outcome is raised as
   `PublishUnknown`: the files stay, and a second `commit`, or `Transaction.resume`, learns what became of it.

May import: services, state and below. Promised: a commit happens once or never; see `transaction.Transaction`.
"""
