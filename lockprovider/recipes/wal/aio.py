"""`AsyncWal`: the same log for tasks of an event loop.

It is the very `Wal` of the threads: an append waits for its write without a thread, any other call has one while it
lasts. So every promise is the same. A cancelled append is dropped, if no write has taken it yet; else it goes on. That
of a producer always goes on: its numbers have an order.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

from fsspec_cas import Bytes, Store
from fsspec_cas.bridge.tasks import ForTasks, iterated, on_thread, threaded
from lockprovider.recipes.wal.appender import Appender, Leader
from lockprovider.recipes.wal.readers import LogReader
from lockprovider.recipes.wal.reports import Appended, Position
from lockprovider.recipes.wal.wal import Start, Wal


class AsyncAppender(ForTasks[Appender]):
    """Appends as one producer, or as a leader, for tasks; see `Appender` and `Leader`. Leave it with `async with`.

    >>> log = await lockprovider.wal.AsyncWal.create("memory://docs/orders")
    >>> out = log.appender("ingest-3")
    >>> [one.again for one in await out.append_many([b"first", b"second"], first=1)]
    [False, False]
    """

    def __init__(self, appender: Appender) -> None:
        super().__init__(appender)
        self.producer, self.epoch = appender.producer, appender.epoch

    append_many = threaded(Appender.append_many)
    flush = threaded(Appender.flush)

    async def last_seq(self) -> int:
        """See `Appender.last_seq`.

        >>> await out.last_seq()
        2
        """
        return await on_thread(lambda: self._sync.last_seq)

    async def append(self, data: Bytes, *, seq: int | None = None) -> Appended:
        """See `Appender.append`.

        >>> done = await out.append(b"third", seq=3)
        >>> done.again
        False
        """
        return await asyncio.wrap_future(self._sync.append_later(data, seq=seq))

    async def __aenter__(self) -> AsyncAppender:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await on_thread(lambda: self._sync.__exit__(kind, error, trace), goes_on=True)


class AsyncLogReader(ForTasks[LogReader]):
    """A reader whose position is kept in the log, for tasks; see `LogReader`.

    >>> log = await lockprovider.wal.AsyncWal.create("memory://docs/orders")
    >>> done = await log.append(b"first")
    >>> reader = await log.reader("billing")
    >>> async for batch in reader.read():
    ...     await reader.commit(batch.end)
    >>> str(reader.position)
    '1:1'
    """

    def __init__(self, reader: LogReader) -> None:
        super().__init__(reader)
        self.name, self.epoch = reader.name, reader.epoch

    read = iterated(LogReader.read)
    follow = iterated(LogReader.follow)
    commit = threaded(LogReader.commit)

    @property
    def position(self) -> Position:
        """See `LogReader`."""
        return self._sync.position


class AsyncWal(ForTasks[Wal]):
    """A log, for tasks; the arguments are those of `Wal`.

    >>> log = await lockprovider.wal.AsyncWal.create("memory://docs/orders")
    >>> done = await log.append_many([b"first", b"second"])
    >>> [record async for batch in log.read() for record in batch.records]
    [b'first', b'second']
    """

    def __init__(self, store: Store, path: str, **options: Any) -> None:
        super().__init__(Wal(store, path, **options))

    @classmethod
    async def create(cls, url: str, **options: Any) -> AsyncWal:
        """See `Wal.create`.

        >>> audit = await lockprovider.wal.AsyncWal.create("memory://docs/audit", slots=None)
        """
        return cls._over(await on_thread(lambda: Wal.create(url, **options)))

    @classmethod
    def open(cls, url: str, **options: Any) -> AsyncWal:
        """See `Wal.open`.

        >>> end = await lockprovider.wal.AsyncWal.open("memory://docs/orders").end()
        >>> end.offset
        2
        """
        return cls._over(Wal.open(url, **options))

    append_many = threaded(Wal.append_many)
    seal = threaded(Wal.seal)
    read = iterated(Wal.read)
    follow = iterated(Wal.follow)
    drop_reader = threaded(Wal.drop_reader)
    trim = threaded(Wal.trim)
    end = threaded(Wal.end)
    position = threaded(Wal.position)
    info = threaded(Wal.info)
    close = threaded(Wal.close)

    async def append(self, data: Bytes) -> Appended:
        """See `Wal.append`.

        >>> done = await log.append(b"third")
        >>> done.position.offset
        2
        """
        return await asyncio.wrap_future(self._sync.append_later(data))

    def appender(self, producer: str) -> AsyncAppender:
        """See `Wal.appender`.

        >>> async with log.appender("ingest-3") as out:
        ...     done = await out.append(b"third", seq=1)
        """
        return AsyncAppender(self._sync.appender(producer))

    async def lead(self, *, fence: Any = None, producer: str | None = None) -> AsyncAppender:
        """See `Wal.lead`: `async with await log.lead() as out:`.

        >>> async with await log.lead() as out:
        ...     done = await out.append(b"of the leader")
        """
        leading = on_thread(lambda: self._sync.lead(fence=fence, producer=producer), undo=Leader.resign)
        return AsyncAppender(await leading)

    async def reader(self, name: str, *, start: Start = "oldest") -> AsyncLogReader:
        """See `Wal.reader`.

        >>> reader = await log.reader("billing")
        """
        return AsyncLogReader(await on_thread(lambda: self._sync.reader(name, start=start)))

    async def __aenter__(self) -> AsyncWal:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
