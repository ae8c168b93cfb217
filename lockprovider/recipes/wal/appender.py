"""Who appends: as a producer, whose numbers are in the log once; and as a leader, alone."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future
from types import TracebackType
from typing import Any

from fsspec_cas import Bytes, CasError, InvalidInput, check_bytes
from fsspec_cas.bridge.background import Later
from fsspec_cas.given import several, whole
from lockprovider.recipes.batching import Batcher
from lockprovider.recipes.broker import Bundle
from lockprovider.recipes.errors import CoordinationError, TooLarge
from lockprovider.recipes.place import OfThisProcess, repr_at
from lockprovider.recipes.wal.appending import UNNAMED, Append, LogOperation, Resign
from lockprovider.recipes.wal.objects import LogObjects
from lockprovider.recipes.wal.reports import Appended
from lockprovider.recipes.wal.writer import LogWriter

_RECORD_BYTES = 1 << 20
_TOLD = 1000  # numbers that were acknowledged here are remembered
_CHUNK = 1000


class Appender(OfThisProcess):
    """Appends as one producer. Thread-safe, and the numbers are in the order of the calls. `with` waits for all of it.

    Attributes:
        producer: its name; None: each record is numbered by this client, and cannot be repeated by another.

    >>> log = lockprovider.wal.create("memory://docs/orders")
    >>> out = log.appender("ingest-3")
    >>> first = out.append(b"first", seq=1)
    """

    def __init__(
        self,
        batcher: Batcher[LogOperation | Bundle[LogOperation], Any],
        objects: LogObjects,
        writer: LogWriter,
        producer: str | None,
        *,
        client: str,
        epoch: int = 0,
    ) -> None:
        self.producer = producer
        self.epoch = epoch
        self._batcher = batcher
        self._objects = objects
        self._writer = writer
        self._client = client
        self._name = producer or f"{UNNAMED}{client}"
        self._highest = 0
        self._told: OrderedDict[int, None] = OrderedDict()
        self._waiting: set[Later[Appended]] = set()
        self._guard = threading.Lock()  # a number and its place in the line are given together

    @property
    def last_seq(self) -> int:
        """The last number that the log has of this producer; 0 if there is none. Where to go on after a crash."""
        there = self._objects.last().head.producers.get(self._name)
        return 0 if there is None else there.seq

    def append(self, data: Bytes, *, seq: int | None = None) -> Appended:
        """Append a record: bytes, at most 1 MiB. The numbers of a producer rise, and may have gaps.

        Raises:
            SequenceGap: a higher number is there, and this one was not appended before; or one before it came to
                nothing, and has to be appended again first.
            Fenced: another has taken the name, or leads.
            Sealed: the log takes no more.
            LogFull, TooLarge, Overloaded: it has no room.
            OutcomeUnknown: nobody can tell; with a producer's number, append it again.
            NoLog, StoreError: it was not appended.

        >>> out.append(b"first", seq=1).again, out.append(b"second", seq=2).again
        (True, False)
        """
        told: Appended = self._batcher.wait(self.append_later(data, seq=seq))
        return told

    def append_later(self, data: Bytes, *, seq: int | None = None) -> Later[Appended]:
        """The same, without waiting for the write that takes it. Of a producer it cannot be cancelled any more.

        Raises:
            TooLarge, Overloaded, NotBytes, InvalidInput: it was not taken.

        >>> waiting = [out.append_later(b"%d" % n, seq=n) for n in (2, 3)]
        >>> [one.result().again for one in waiting]
        [False, False]
        """
        given = bytes(check_bytes("a record", data))
        if len(given) > _RECORD_BYTES:
            raise TooLarge(f"a record of {len(given)} bytes: keep it in an object of its own, and append its name")
        if (seq is None) is not (self.producer is None):
            raise InvalidInput(f"seq={seq!r}: with a producer's name each record has a number, else none has")
        with self._guard:
            number = self._highest + 1 if seq is None else whole(seq, "seq", least=1)
            known = number if number <= self._highest and number in self._told else 0
            self._highest = max(self._highest, number)  # first: an interrupt must not let it be given again
            answer: Later[Appended] = self._batcher.submit(
                Append(given, self._name, number, self._client, known=known, epoch=self.epoch),
                kept=self.producer is not None,
            )
            self._waiting.add(answer)
        answer.add_done_callback(lambda done: self._done(number, done))
        return answer

    def append_many(self, records: Iterable[Bytes], *, first: int | None = None) -> list[Appended]:
        """Append records in their order, many to a write; those of a producer are numbered from `first`.

        With the same `first` and the same records it may be repeated after a crash or an error.

        Raises:
            What `append` raises; some may be there.

        >>> [one.again for one in out.append_many([b"first", b"second"], first=1)]
        [True, False]
        """
        if self.producer is not None:
            whole(first, "first", least=1)
        told: list[Appended] = []
        waiting: list[Later[Appended]] = []
        for n, data in enumerate(several(records, "records", "bytes")):
            waiting.append(self.append_later(data, seq=None if first is None else first + n))
            if len(waiting) >= _CHUNK:
                told += [self._batcher.wait(one) for one in waiting]
                waiting = []
        return told + [self._batcher.wait(one) for one in waiting]

    def flush(self) -> None:
        """Wait for all that was given to `append_later`; the first error of it is raised.

        >>> later = out.append_later(b"second", seq=2)
        >>> out.flush()
        >>> out.last_seq
        2
        """
        with self._guard:
            waiting = [*self._waiting]
        for one in waiting:
            self._batcher.wait(one)

    def __repr__(self) -> str:
        return repr_at(self, self._objects.store, self._objects.path, f", producer={self.producer!r}")

    def __enter__(self) -> Appender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.flush()
        self._writer.forget(self._client)

    def _done(self, number: int, answer: Future[Appended]) -> None:
        with self._guard:
            self._waiting.discard(answer)
            if not answer.cancelled() and answer.exception() is None:
                self._told[number] = None
                if len(self._told) > _TOLD:
                    self._told.popitem(last=False)


class Leader(Appender):
    """Appends alone, under its `epoch`; a newer leader's first write fences it. Leave it with `with`, or `resign`.

    >>> log = lockprovider.wal.create("memory://docs/orders")
    >>> leader = log.lead()
    >>> done = leader.append(b"of the leader")
    """

    def __enter__(self) -> Leader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            super().__exit__(kind, error, trace)
        finally:
            with contextlib.suppress(*(() if kind is None else (CasError, CoordinationError))):
                self.resign()

    def resign(self) -> None:
        """Let others append; may be repeated, and is done also by whoever leads next.

        >>> leader.resign()
        >>> log.info().led
        False
        """
        self._batcher.do(Resign(self.epoch))
