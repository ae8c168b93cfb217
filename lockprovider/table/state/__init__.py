"""The open table: state that one process reads and caches, for services, engines and transactions.

They take a `context.TableContext`. An answer may be out of date; a commit checks again under the lock. May import:
files, timeline, format and below.
"""
