"""The same lock for tasks of an event loop: `AsyncLock` and `AsyncLease`.

May import: client and below. Promised: what `Lock` promises, and that a cancelled acquisition holds nothing.
"""

from lockprovider.aio.lock import Acquiring, AsyncLease, AsyncLock

__all__ = ["Acquiring", "AsyncLease", "AsyncLock"]
