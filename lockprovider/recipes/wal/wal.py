"""`Wal`, and `AsyncWal` for tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Literal

from fsspec_cas import Bytes, InvalidInput, Store, World
from fsspec_cas.arguments import LARGEST_NUMBER, check_seconds, check_whole, shown
from fsspec_cas.bridge.threads import EnteredByTasks, ForTasks, Later, awaited, converted, iterated, on_thread, threaded
from lockprovider.recipes.base import BatchedRecipe, RecipeForTasks
from lockprovider.recipes.broker import Broker, check_broker
from lockprovider.recipes.broker_rules import Bundle
from lockprovider.recipes.errors import CoordinationError
from lockprovider.recipes.values import UNNAMED, check_producer, check_storable, epoch_of
from lockprovider.recipes.wal.appending import Lead, LogCodec, LogOperation, Seal
from lockprovider.recipes.wal.contents import (
    RETAIN,
    SLOTS,
    Appended,
    LogBatch,
    LogInfo,
    LogManifest,
    Position,
    check_position,
)
from lockprovider.recipes.wal.objects import LogObjects, LogReader, follow, next_position, positions, trim
from lockprovider.recipes.wal.writer import Appender, Leader, LogWriter

_TIMEOUT_S = 60.0
Start = Position | int | Literal["oldest", "end"]


class Wal(BatchedRecipe[LogOperation | Bundle[LogOperation], Any]):
    """A log; `create` or `open` it by its URL. Thread-safe: the threads of a process share its writes.

    "Logs" in `lockprovider/recipes/README.md` has the promises.

    Args:
        timeout: seconds for each operation with all its tries.
        broker: see `Queue`.

    Raises:
        NoLog, MalformedObject, StoreError: any operation: nothing was done.
        OutcomeUnknown: any write: it may have been done.

    >>> log = lockprovider.wal.create("memory://docs/orders")
    >>> with log.appender("ingest-3") as out:
    ...     _ = out.append(b"one", seq=1), out.append(b"two", seq=2), out.append(b"two", seq=2)
    >>> [record for batch in log.read() for record in batch.records]
    [b'one', b'two']
    """

    def __init__(
        self,
        store: Store,
        path: str,
        *,
        timeout: float = _TIMEOUT_S,
        pace_s: float = 0.0,
        broker: bool | str = False,
        world: World | None = None,
    ) -> None:
        super().__init__(store, path, world, check_seconds(pace_s, "pace_s"))
        self._objects = LogObjects(self._store, self.path, check_seconds(timeout), self.world)
        self._broker = Broker(check_broker(broker), LogCodec(), self._batcher.submit, self.world)
        self._writer: LogWriter = LogWriter(self._objects, self._broker)
        self._init_state()

    def _reset(self) -> None:
        self._broker.reset()
        self._unnamed = Appender(self._batcher, self._objects, self._writer, None)

    @classmethod
    def create(
        cls,
        url: str,
        *,
        slots: int | None = SLOTS,
        retain: str = "readers",
        storage_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> Wal:
        """Create the log, or open it if it exists with the same settings.

        - `slots`: most objects; a place is used again once the floor has passed it. None: each is written once (for
          buckets that forbid overwriting), and the floor frees nothing.
        - `retain`: "readers" keeps slots for the slowest named reader (`LogFull`), "slots" for none.

        Raises:
            CoordinationError: the log exists with other settings.
            MalformedObject: `log.json` is of another kind.
            NotSupported: the store ignores write conditions.
            StoreError, OutcomeUnknown: it may exist; do it again.

        >>> lockprovider.wal.create("memory://docs/audit", slots=None).info().slots is None
        True
        """
        if slots is not None:
            check_whole(slots, "slots", least=1)
        if retain not in RETAIN:
            raise InvalidInput(f"retain={retain!r} must be one of {', '.join(RETAIN)}")
        log: Wal = cls.open(url, storage_options=storage_options, **options)
        created = log._objects.create(LogManifest(log.world.new_id(), slots, retain))
        stored = log._objects.manifest(fresh=True)
        if not created and (stored.slots, stored.retain) != (slots, retain):
            has = f"slots={stored.slots}, retain={stored.retain!r}"
            raise CoordinationError(
                f"the log at {url!r} already exists with {has}: open() it, or give the new log another path"
            )
        return log

    def append(self, data: Bytes) -> Appended:
        """Append a record: bytes, at most 1 MiB.

        >>> log.append(b"third").position.offset
        2
        """
        return self._unnamed.append(data)

    def append_later(self, data: Bytes) -> Later[Appended]:
        """Append without waiting for the write.

        >>> waiting = [log.append_later(b"%d" % n) for n in range(100)]  # they share writes
        >>> waiting[0].result().position < waiting[-1].result().position
        True
        """
        return self._unnamed.append_later(data)

    def append_many(self, records: Iterable[Bytes]) -> list[Appended]:
        """Append records in order, many to a write; after an error some may be in the log.

        >>> [one.position.offset for one in log.append_many([b"third", b"fourth"])]
        [2, 3]
        """
        return self._unnamed.append_many(records)

    def appender(self, producer: str) -> Appender:
        """`Appender`, without a request: each number of the producer is appended once.

        The first record takes the name, and fences its last client.

        >>> with log.appender("ingest-3") as out:
        ...     out.append(b"second", seq=2).again  # as after a crash
        True
        """
        return Appender(self._batcher, self._objects, self._writer, check_producer(producer, "producer"))

    def lead(self, *, fence: Any = None, producer: str | None = None) -> Leader:
        """Append alone: `with log.lead() as out:`. Other clients are refused until it ends, earlier ones for good.

        `fence` (lease, term or epoch) becomes the log's epoch, else the next one. With `producer` you number the
        records. After a leader's death no other client appends until the next `lead()`.

        Raises:
            Fenced: a newer epoch has led.
            OutcomeUnknown: do it again.

        >>> with log.lead() as out:
        ...     done = out.append(b"of the leader")
        >>> log.info().epoch, log.info().led
        (1, False)
        """
        epoch = epoch_of(fence)
        if producer is not None:
            check_producer(producer, "producer")
        led: int = self._batcher.do(Lead(epoch))
        return Leader(self._batcher, self._objects, self._writer, producer, epoch=led)

    def seal(self, successor: str | None = None, *, fence: Any = None) -> Position:
        """End the log for good; return its end. May be repeated.

        Clients that append or read later get `successor`. While a leader appends, `fence` must be its epoch or newer.

        Raises:
            Sealed: before, with another successor.
            Fenced: `fence` is over, or another client leads.
            LogFull: no slot is free for the seal.

        >>> old = lockprovider.wal.create("memory://docs/orders-2025")
        >>> str(old.seal("memory://docs/orders"))
        '0:0'
        >>> [(batch.sealed, batch.successor) for batch in old.follow()]  # it ends
        [(True, 'memory://docs/orders')]
        """
        named = None if successor is None else check_storable(successor, "successor")
        end: Position = self._batcher.do(Seal(epoch_of(fence), named))
        return end

    def read(self, start: Start = "oldest") -> Iterator[LogBatch]:
        """Iterate over the records from `start` to the end, one batch for each slot.

        Raises:
            Trimmed: `start` is no longer kept.
            InvalidInput: `start` is past the end.

        >>> [record for batch in log.read() for record in batch.records]
        [b'one', b'two']
        """
        return follow(self._objects, lambda: self.position(start), timeout=0.0)

    def follow(
        self, start: Start = "oldest", *, idle_s: float = 1.0, timeout: float | None = None
    ) -> Iterator[LogBatch]:
        """Read as `read` does, then wait for new records; ends at the seal, or after `timeout` s without any.

        Polls at growing intervals of at most `idle_s`, by conditional GETs.

        >>> sum(len(batch.records) for batch in log.follow(timeout=0.01))  # without `timeout` it does not end
        2
        """
        return follow(self._objects, lambda: self.position(start), idle_s, timeout)

    def reader(self, name: str, *, start: Start = "oldest") -> LogReader:
        """Open a reader whose position is kept in the log, and fence its last client.

        A new name begins at `start`. With `retain="readers"` the log keeps what it has not committed.

        >>> reader = log.reader("billing")
        >>> for batch in reader.read():
        ...     reader.commit(batch.end)
        >>> log.reader("billing").position.offset  # as in another process
        2
        """
        return LogReader(self._objects, name, lambda: self.position(start))

    def drop_reader(self, name: str) -> bool:
        """Remove a reader's name, so that the log keeps no slots for it; its object stays. Return whether it existed.

        >>> log.drop_reader("nobody")
        False
        """
        self._objects.reader_path(name)
        if name not in self._objects.manifest(fresh=True).readers:
            return False
        self._objects.change(
            lambda manifest: replace(
                manifest, readers={reader: slot for reader, slot in manifest.readers.items() if reader != name}
            )
        )
        return True

    def trim(self, before: Position | None = None) -> int:
        """Raise the floor to `before`, at most to the end; return the first kept slot. Those below may be overwritten.

        Without `before` it rises to the slowest named reader, which with `retain="readers"` it never passes. Raises
        InvalidInput with neither.

        >>> log.trim(before=log.end()) == log.end().slot
        True
        """
        if before is not None:
            check_position(before, "before")
        end = self.end()
        if before is None and not self._objects.manifest(fresh=True).readers:
            raise InvalidInput(
                "before=None trims up to the slowest reader, but the log has no readers: give a position"
            )
        slot = end.slot if before is None else min(before.slot, end.slot)
        return trim(self._objects, slot, spares_readers=before is None)

    def end(self) -> Position:
        """Position of the next record.

        >>> log.end() == log.position("end")
        True
        """
        return next_position(self._objects.last().head)

    def position(self, start: Start) -> Position:
        """Return the position of a slot's first record, of the `oldest` kept one, or of the `end`.

        A `Position` is returned as is.

        Raises:
            Trimmed: the slot is no longer kept.
            InvalidInput: `start` is none of these, or past the end.

        >>> str(log.position("oldest")), log.position("end").offset
        ('0:0', 2)
        """
        if isinstance(start, Position):
            return check_position(start, "start")
        if start == "end":
            return self.end()
        slot = self._kept_slot(start)
        place = self._objects.look(slot)
        if place is None or place.head.slot < slot:
            end = self.end()
            if slot > end.slot:
                raise InvalidInput(f"start={start!r} is behind the end, which is {end}")
            if slot == end.slot:
                return end
            place = self._objects.look(slot)  # it was written since
            if place is None or place.head.slot < slot:
                raise self._objects.gone_error(slot)
        if place.head.slot == slot:
            return Position(slot, place.head.first)
        trimmed = self._objects.trimmed_error(slot)
        if start == "oldest" and trimmed.first > slot:  # the floor was raised since
            return self.position(start)
        raise trimmed

    def _kept_slot(self, start: Start) -> int:
        """Return the slot, or the first kept one for `oldest`; raise InvalidInput for other starts, or Trimmed."""
        floor = self._objects.manifest(fresh=True).floor
        if start == "oldest":
            return floor
        if isinstance(start, bool) or not isinstance(start, int) or not 0 <= start <= LARGEST_NUMBER:
            raise InvalidInput(f"start={shown(start)} must be a position, a slot, 'oldest' or 'end'")
        if start < floor:
            raise self._objects.trimmed_error(start)
        return start

    def info(self) -> LogInfo:
        """Read the log's settings, end, leader, named producers and readers.

        >>> info = log.info()
        >>> info.end.offset, info.producers
        (2, {'ingest-3': 2})
        """
        manifest = self._objects.manifest(fresh=True)
        last = self._objects.last().head
        named = {name: producer.seq for name, producer in last.producers.items() if not name.startswith(UNNAMED)}
        readers = positions(self._objects, manifest)
        ring = (manifest.slots, manifest.retain, manifest.floor)
        sealed = last.sealed is not None
        return LogInfo(*ring, next_position(last), last.epoch, last.led, named, readers, sealed, last.sealed or "")

    def close(self, timeout: float | None = None) -> None:
        """Refuse operations, wait for waiting ones, at most `timeout` seconds, and stop the broker.

        >>> log.close(timeout=10)
        """
        super().close(timeout)
        self._broker.close()


class AsyncAppender(EnteredByTasks[Appender]):
    """`Appender` or `Leader`, for tasks. Leave it with `async with`.

    >>> log = await lockprovider.wal.AsyncWal.create("memory://docs/orders")
    >>> out = log.appender("ingest-3")
    >>> [one.again for one in await out.append_many([b"first", b"second"], first=1)]
    [False, False]
    """

    def __init__(self, appender: Appender) -> None:
        super().__init__(appender)
        self.producer, self.epoch = appender.producer, appender.epoch

    append = awaited(Appender.append, Appender.append_later)
    append_many = threaded(Appender.append_many)
    flush = threaded(Appender.flush)

    async def last_seq(self) -> int:
        """See `Appender.last_seq`.

        >>> await out.last_seq()
        2
        """
        return await on_thread(lambda: self._sync.last_seq)


class AsyncLogReader(ForTasks[LogReader]):
    """`LogReader`, for tasks.

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
        return self._sync.position


class AsyncWal(RecipeForTasks[Wal]):
    """Log, for tasks; arguments as `Wal`.

    A cancelled append is dropped, unless a write has taken it or a producer has numbered it.

    >>> log = await lockprovider.wal.AsyncWal.create("memory://docs/orders")
    >>> done = await log.append_many([b"first", b"second"])
    >>> [record async for batch in log.read() for record in batch.records]
    [b'first', b'second']
    """

    _of = Wal

    @classmethod
    async def create(cls, url: str, **options: Any) -> AsyncWal:
        """See `Wal.create`.

        >>> audit = await lockprovider.wal.AsyncWal.create("memory://docs/audit", slots=None)
        >>> async with await audit.lead() as out:
        ...     done = await out.append(b"of the leader")
        """
        return cls._over(await on_thread(lambda: Wal.create(url, **options)))

    append = awaited(Wal.append, Wal.append_later)
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
    lead = converted(Wal.lead, AsyncAppender, undo=Leader.resign)
    reader = converted(Wal.reader, AsyncLogReader)

    def appender(self, producer: str) -> AsyncAppender:
        """See `Wal.appender`.

        >>> async with log.appender("ingest-3") as out:
        ...     done = await out.append(b"third", seq=1)
        """
        return AsyncAppender(self._sync.appender(producer))
