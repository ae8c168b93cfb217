"""`AsyncWal`: the same log for tasks of an event loop.

It is the very `Wal` of the threads: an append waits for its write without a thread, a read has one while it lasts. So
every promise is the same. A cancelled append is dropped, if no write has taken it yet; else it goes on. That of a
producer always goes on: its numbers have an order.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from types import TracebackType
from typing import Any

from fsspec_cas import Bytes, Store
from lockprovider.recipes.wal.appender import Appender
from lockprovider.recipes.wal.readers import LogReader
from lockprovider.recipes.wal.reports import Appended, LogBatch, LogInfo, Position
from lockprovider.recipes.wal.wal import Start, Wal


async def _batches(batches: Iterator[LogBatch]) -> AsyncIterator[LogBatch]:
    """Each is read on another thread, one at a time."""
    while (batch := await asyncio.to_thread(next, batches, None)) is not None:
        yield batch


class AsyncAppender:
    """Appends as one producer, or as a leader, for tasks; see `Appender` and `Leader`. Leave it with `async with`.

    >>> log = await lockprovider.wal.AsyncWal.create("memory://docs/orders")
    >>> out = log.appender("ingest-3")
    """

    def __init__(self, appender: Appender) -> None:
        self._appender = appender
        self.producer, self.epoch = appender.producer, appender.epoch

    async def last_seq(self) -> int:
        """See `Appender.last_seq`.

        >>> await out.last_seq()
        0
        """
        return await asyncio.to_thread(lambda: self._appender.last_seq)

    async def append(self, data: Bytes, *, seq: int | None = None) -> Appended:
        """See `Appender.append`.

        >>> done = await out.append(b"first", seq=1)
        >>> done.again
        False
        """
        return await asyncio.wrap_future(self._appender.append_later(data, seq=seq))

    async def append_many(self, records: Iterable[Bytes], *, first: int | None = None) -> list[Appended]:
        """See `Appender.append_many`.

        >>> [one.again for one in await out.append_many([b"first", b"second"], first=1)]
        [False, False]
        """
        return await asyncio.to_thread(self._appender.append_many, records, first=first)

    async def flush(self) -> None:
        """See `Appender.flush`.

        >>> await out.flush()
        """
        await asyncio.to_thread(self._appender.flush)

    def __repr__(self) -> str:
        return f"<Async{repr(self._appender)[1:]}"

    async def __aenter__(self) -> AsyncAppender:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._appender.__exit__, kind, error, trace)


class AsyncLogReader:
    """A reader whose position is kept in the log, for tasks; see `LogReader`.

    >>> log = await lockprovider.wal.AsyncWal.create("memory://docs/orders")
    >>> done = await log.append(b"first")
    >>> reader = await log.reader("billing")
    """

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self.name, self.epoch = reader.name, reader.epoch

    @property
    def position(self) -> Position:
        """See `LogReader`."""
        return self._reader.position

    def __repr__(self) -> str:
        return f"<Async{repr(self._reader)[1:]}"

    async def read(self) -> AsyncIterator[LogBatch]:
        """See `LogReader.read`.

        >>> async for batch in reader.read():
        ...     await reader.commit(batch.end)
        """
        async for batch in _batches(await asyncio.to_thread(self._reader.read)):
            yield batch

    async def follow(self, *, idle_s: float = 1.0, timeout: float | None = None) -> AsyncIterator[LogBatch]:
        """See `LogReader.follow`.

        >>> async for batch in reader.follow(timeout=0.01):
        ...     print(batch.records)
        [b'first']
        """
        batches = await asyncio.to_thread(self._reader.follow, idle_s=idle_s, timeout=timeout)
        async for batch in _batches(batches):
            yield batch

    async def commit(self, position: Position) -> None:
        """See `LogReader.commit`.

        >>> await reader.commit(await log.end())
        >>> str(reader.position)
        '1:1'
        """
        await asyncio.to_thread(self._reader.commit, position)


class AsyncWal:
    """A log, for tasks; the arguments are those of `Wal`.

    >>> log = await lockprovider.wal.AsyncWal.create("memory://docs/orders")
    >>> done = await log.append_many([b"first", b"second"])
    """

    def __init__(self, store: Store, path: str, **options: Any) -> None:
        self._log = Wal(store, path, **options)

    @classmethod
    async def create(cls, url: str, **options: Any) -> AsyncWal:
        """See `Wal.create`.

        >>> audit = await lockprovider.wal.AsyncWal.create("memory://docs/audit", slots=None)
        """
        return cls._of(await asyncio.to_thread(Wal.create, url, **options))

    @classmethod
    def open(cls, url: str, **options: Any) -> AsyncWal:
        """See `Wal.open`.

        >>> end = await lockprovider.wal.AsyncWal.open("memory://docs/orders").end()
        >>> end.offset
        2
        """
        return cls._of(Wal.open(url, **options))

    async def append(self, data: Bytes) -> Appended:
        """See `Wal.append`.

        >>> done = await log.append(b"third")
        >>> done.position.offset
        2
        """
        return await asyncio.wrap_future(self._log.append_later(data))

    async def append_many(self, records: Iterable[Bytes]) -> list[Appended]:
        """See `Wal.append_many`.

        >>> [one.position.offset for one in await log.append_many([b"third"])]
        [2]
        """
        return await asyncio.to_thread(self._log.append_many, records)

    def appender(self, producer: str) -> AsyncAppender:
        """See `Wal.appender`.

        >>> async with log.appender("ingest-3") as out:
        ...     done = await out.append(b"third", seq=1)
        """
        return AsyncAppender(self._log.appender(producer))

    async def lead(self, *, fence: Any = None, producer: str | None = None) -> AsyncAppender:
        """See `Wal.lead`: `async with await log.lead() as out:`.

        >>> async with await log.lead() as out:
        ...     done = await out.append(b"of the leader")
        """
        return AsyncAppender(await asyncio.to_thread(self._log.lead, fence=fence, producer=producer))

    async def seal(self, successor: str | None = None, *, fence: Any = None) -> Position:
        """See `Wal.seal`.

        >>> old = await lockprovider.wal.AsyncWal.create("memory://docs/orders-2025")
        >>> str(await old.seal("memory://docs/orders"))
        '0:0'
        """
        return await asyncio.to_thread(self._log.seal, successor, fence=fence)

    async def read(self, start: Start = "oldest") -> AsyncIterator[LogBatch]:
        """See `Wal.read`.

        >>> [record async for batch in log.read() for record in batch.records]
        [b'first', b'second']
        """
        async for batch in _batches(await asyncio.to_thread(self._log.read, start)):
            yield batch

    async def follow(
        self, start: Start = "oldest", *, idle_s: float = 1.0, timeout: float | None = None
    ) -> AsyncIterator[LogBatch]:
        """See `Wal.follow`.

        >>> [record async for batch in log.follow(timeout=0.01) for record in batch.records]
        [b'first', b'second']
        """
        batches = await asyncio.to_thread(self._log.follow, start, idle_s=idle_s, timeout=timeout)
        async for batch in _batches(batches):
            yield batch

    async def reader(self, name: str, *, start: Start = "oldest") -> AsyncLogReader:
        """See `Wal.reader`.

        >>> reader = await log.reader("billing")
        """
        return AsyncLogReader(await asyncio.to_thread(self._log.reader, name, start=start))

    async def drop_reader(self, name: str) -> bool:
        """See `Wal.drop_reader`.

        >>> await log.drop_reader("nobody")
        False
        """
        return await asyncio.to_thread(self._log.drop_reader, name)

    async def trim(self, before: Position | None = None) -> int:
        """See `Wal.trim`.

        >>> await log.trim(await log.position(0))
        0
        """
        return await asyncio.to_thread(self._log.trim, before)

    async def end(self) -> Position:
        """See `Wal.end`.

        >>> end = await log.end()
        >>> end.offset
        2
        """
        return await asyncio.to_thread(self._log.end)

    async def position(self, start: Start) -> Position:
        """See `Wal.position`.

        >>> str(await log.position("oldest"))
        '0:0'
        """
        return await asyncio.to_thread(self._log.position, start)

    async def info(self) -> LogInfo:
        """See `Wal.info`.

        >>> info = await log.info()
        >>> info.retain
        'readers'
        """
        return await asyncio.to_thread(self._log.info)

    async def close(self, timeout: float | None = None) -> None:
        """See `Wal.close`.

        >>> await log.close()
        """
        await asyncio.to_thread(self._log.close, timeout)

    def __repr__(self) -> str:
        return f"<Async{repr(self._log)[1:]}"

    async def __aenter__(self) -> AsyncWal:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @classmethod
    def _of(cls, log: Wal) -> AsyncWal:
        found = cls.__new__(cls)
        found._log = log  # noqa: SLF001 - its own
        return found
