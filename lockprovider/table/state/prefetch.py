"""Several requests at a time, and reads that begin before the lock is there.

The lock is taken by a write that succeeds only at the version at which it was seen free. If it does, nobody has held
the lock between that look and the write: so what was read meanwhile is what would be read under the lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import chain, islice
from typing import Generic, TypeVar

from fsspec_cas import Store
from fsspec_cas.bridge.background import submit
from lockprovider import LockRecord

T = TypeVar("T")
_MOST = 8  # requests at a time


def at_once(store: Store, calls: Sequence[Callable[[], T]]) -> list[T]:
    """The answers of all calls; where a request does not wait for a network they are made one after the other."""
    return list(in_order(calls, 1 if store.backend.blocking else min(_MOST, max(1, len(calls)))))


def in_order(jobs: Iterable[Callable[[], T]], limit: int) -> Iterator[T]:
    """What the jobs return, in their order, with up to `limit` of them running; none runs any more when this ends."""
    jobs = iter(jobs)
    first = list(islice(jobs, 2))
    if limit == 1 or len(first) <= 1:
        yield from (job() for job in chain(first, jobs))
        return
    with ThreadPoolExecutor(limit) as threads:
        try:
            running: deque[Future[T]] = deque()
            for job in chain(first, jobs):  # which may be made here, one after the other, and be large
                if len(running) == 2 * limit:
                    yield running.popleft().result()
                running.append(submit(threads, job))
            yield from (one.result() for one in running)
        finally:
            threads.shutdown(cancel_futures=True)


class Prefetch(Generic[T]):
    """A read that accompanies one acquisition (see `Lock.acquire`).

    The first try to take a lock may go by what its client saw last, which is old where others use it too: it is not
    read along with that one if `skips_first`.
    """

    def __init__(self, store: Store, read: Callable[[LockRecord], T], *, skips_first: bool) -> None:
        self.tries = 0
        self._store = store
        self._read = read
        self._skips_first = skips_first
        self._answer: Future[T] | None = None

    def start(self, seen: LockRecord) -> None:
        """Begin to read, from the start."""
        self.tries += 1
        if self._skips_first and self.tries == 1:
            return
        self._answer = self._store.in_background(partial(self._read, seen))

    def drop(self) -> None:
        """Forget what was read."""
        self._answer = None

    def result(self, held: LockRecord) -> T:
        """What was read; read now, under the lock, if nothing was that can be relied on.

        Raises:
            whatever the read does.
        """
        return self._read(held) if self._answer is None else self._answer.result()
