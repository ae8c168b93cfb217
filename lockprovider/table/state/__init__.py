"""The open table: what one process finds it to be, asking the store for no more of it than it must.

`context.TableContext` is what services, engines and transactions take. May import: files, timeline, format and below.
NOT promised: that an answer still holds when it is there; who commits by it looks again under the lock.
"""
