"""The open table: the state that one process reads and caches, with as few requests as possible.

Services, engines and transactions take a `context.TableContext`. May import: files, timeline, format and below. NOT
promised: that an answer is still true; a commit checks again under the lock.
"""
