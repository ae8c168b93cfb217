"""One write: begin, write, validate, commit, and again after a conflict.

May import: services, state and below. Promised: a commit happens once or never; see `transaction.Transaction`.
"""
