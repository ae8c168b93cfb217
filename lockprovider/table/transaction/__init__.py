"""Transactions on a table: begin, write, propose, decide, and retry after a conflict.

Life of a commit:

1. `transaction.transact` runs a function with a `Transaction`.
2. An engine plans the rows (`engines.arrow.plan_write`) and begins (`start_here`). `lifecycle.start` chooses a begin
   time, writes the heartbeat, `.requested` and, in the background, `.inflight`, and reads the table.
3. The engine writes markers and data files, and passes them to `Transaction.add`.
4. `Transaction.commit` makes `Proposal` and `Basis`; `lifecycle.Committing` gets it decided, in up to eight tries.
5. By default the writer validates the proposal and asks `Lock.commit`. The client that writes the lock record judges it
   by later log entries (`decision.TableDecider`), or leaves that to another try. Readers see the commit once its
   completed file is stored.
6. The writer holds the lock, validates and publishes the completed file if the log does not cover the table, other
   writers cannot judge the commit, the record is too small for it, or it has `carried_keys` or a metadata table.
7. After an error `transact` rolls back what was not decided; after a conflict it begins again. A second `commit` after
   `PublishUnknown` finds the outcome.
"""
