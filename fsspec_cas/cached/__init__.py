"""A read that was current between its call and its return, and that all who call at the same time share.

`read_state.py` decides who asks, who waits and what is known (pure); `reader.py` has `Cached` for threads and
`AsyncCached` for tasks. It imports `store` and what stands below.
"""

from fsspec_cas.cached.reader import AsyncCached, Cached

__all__ = ["AsyncCached", "Cached"]
