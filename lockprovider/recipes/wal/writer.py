"""`LogWriter`, which writes a log's slots for all callers of a process, and its `Appender`s."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

from fsspec_cas import Bytes, CasError, InvalidInput, OutcomeUnknown, Unavailable, Won, check_bytes
from fsspec_cas.arguments import check_items, check_whole
from fsspec_cas.bridge.threads import Later
from fsspec_cas.sender import delay_s
from lockprovider.recipes.base import Batcher, ProcessBound, repr_at
from lockprovider.recipes.broker import Broker, Handover
from lockprovider.recipes.broker_rules import Bundle, Foreign, flatten, regroup, without_bundle
from lockprovider.recipes.errors import CoordinationError, TooLarge
from lockprovider.recipes.values import UNNAMED, AcknowledgedNumbers, FailedNumbers, ProducerNumber
from lockprovider.recipes.wal.appending import Append, Appending, AppendStep, LogOperation, NoMore, Resign, Seal
from lockprovider.recipes.wal.contents import Appended, Head, encode_slot
from lockprovider.recipes.wal.objects import LogObjects, make_room

SLOT_BYTES = 4 << 20
LogGiven = LogOperation | Foreign[LogOperation]


class LogWriter:
    def __init__(self, objects: LogObjects, broker: Broker[LogOperation]) -> None:
        self._objects = objects
        self._broker = broker
        self._world = objects.world
        self._end: Head | None = None
        self._since: int | None = None
        self._took: dict[str, int] = {}  # epoch of the name, by client
        self._numbers = FailedNumbers()

    def commit(self, operations: Sequence[LogOperation | Bundle[LogOperation]]) -> list[Any]:
        """Write operations in slots, maybe by a broker; return results and errors, a list for each bundle.

        Raises no store errors. Remembers failed numbers outside bundles: until a repeat, a producer's higher ones get
        SequenceGap.
        """
        results: list[Any] = []
        flattened = flatten(operations)
        try:
            for batch in _slots_of(flattened):
                results += self._numbers.run_allowed(batch, [*map(_numbered, batch)], self._append)
        finally:
            for other in map(_numbered, flattened):
                if other is not None and isinstance(other[0], tuple):  # a bundle never comes again
                    self._numbers.forget(other[0])
        return regroup(operations, results)

    def forget(self, client: str) -> None:
        self._took.pop(client, None)
        self._numbers.forget(client)

    def _append(self, batch: Sequence[LogGiven]) -> Sequence[Any]:
        """Write one slot's batch, or let a broker do it; return each operation's result or error.

        Repeats lost or doubtful writes until the timeout; what may be in the log gets OutcomeUnknown. Caches the end
        and the names' epochs.
        """
        deadline_s, failures = self._world.monotonic_s() + self._objects.timeout_s, 0
        operations = [self._now(operation) for operation in batch]
        handover = Handover(operations, self._broker)
        turn = Appending(tuple(map(without_bundle, operations)), self._world.new_id(), sent=handover.handed)
        end = self._end
        if end is not None and not (end.led and any(map(_leads_not, turn.operations))):  # the leader may have resigned
            turn = self._draft_after(turn, handover, end)
        while turn.need is not AppendStep.DONE:
            before = turn.need
            try:
                turn = self._step(turn, handover)
                failed = before is AppendStep.LOOK and turn.need is not AppendStep.DONE
            except (CasError, CoordinationError) as error:
                failed = isinstance(error, Unavailable) and (turn.doubt or any(turn.sent))
                if not failed:
                    turn = turn.failed(error, self._unknown(str(error)))
            failures += failed
            if failed and self._world.monotonic_s() > deadline_s:
                why = f"in each of {failures} tries another writer was faster or the store did not answer"
                turn = turn.failed(Unavailable(why, path=self._objects.path), self._unknown(why))
            elif failed and failures > 1:
                self._world.sleep(delay_s(failures - 1, self._world.random()))
        own_clients = {operation.client for operation in operations if isinstance(operation, Append)}
        self._took.update({client: epoch for client, epoch in turn.taken().items() if client in own_clients})
        return handover.outcomes(handover.with_left_out(turn.results), self._unknown)

    def _draft_after(self, turn: Appending, handover: Handover[LogOperation], last: Head) -> Appending:
        """Let the broker that `last` names do the batch, or draft `to_carry_out` as the slot after `last`.

        Returns the batch's next state: done, write, or, if the broker left any undone, find the end again. `handover`
        notes what is left out or sent.
        """

        def adds_a_name(operation: LogOperation) -> bool:
            return not isinstance(operation, Append) or operation.producer not in last.producers

        handed = handover.ask(last.broker, turn.sent)
        if handed is None:
            turn = replace(turn, operations=tuple(handover.to_carry_out(turn.sent, NoMore(), adds_a_name)))
            return turn.draft_after(last, self._world.now_ms(), self._since or 0)
        if handed.results is None:
            return replace(turn, need=AppendStep.END, sent=handed.sent)
        return replace(turn, need=AppendStep.DONE, results=tuple(handed.results))

    def _step(self, turn: Appending, handover: Handover[LogOperation]) -> Appending:
        """Do what the batch needs next: find the end and draft or hand it over, write, or read its place.

        Returns its next state. Caches the end, and its first epoch.
        """
        match turn.need:
            case AppendStep.END:
                last = self._objects.last(turn.search_from).head
                if self._since is None:
                    self._since = last.epoch
                self._end = last
                return self._draft_after(turn, handover, last)
            case AppendStep.SEND:
                return self._send(turn)
            case AppendStep.LOOK:
                place = self._objects.look(turn.slot)
                return turn.looked(None if place is None else place.head)
            case AppendStep.DONE:
                return turn

    def _send(self, turn: Appending) -> Appending:
        """Make room and write the draft; return the batch's next state. May start a broker.

        Caches a won end. With an unknown condition it reads the place first, and may not write. Raises LogFull and
        store errors.
        """
        drafted, slot = turn.drafted, turn.slot
        assert drafted is not None  # noqa: S101 - a batch to send has a draft
        make_room(self._objects, slot)
        condition = self._objects.condition(slot)
        if condition is None:
            place = self._objects.look(slot)
            turn = turn.looked(None if place is None else place.head)
            condition = self._objects.condition(slot)
            if turn.need is not AppendStep.SEND or condition is None:
                return turn
        head = replace(drafted.head, broker=self._broker.offers(drafted.head.broker))
        turn = turn.sending()
        if isinstance(self._objects.put(head, encode_slot(head, drafted.records), condition), Won):
            self._end = head
            return turn.won()
        return turn.not_won()

    def _now(self, operation: LogGiven) -> LogGiven:
        if not isinstance(operation, Append):
            return operation
        return replace(operation, took=self._took.get(operation.client, 0), since=self._since)

    def _unknown(self, why: str) -> OutcomeUnknown:
        message = f"the records may have been appended to the log {self._objects.path!r}: {why}"
        return OutcomeUnknown(
            f"{message}; a record with a producer's number can be appended again safely", path=self._objects.path
        )


def _numbered(operation: LogGiven) -> ProducerNumber | None:
    append = without_bundle(operation)
    if not isinstance(append, Append):
        return None
    if isinstance(operation, Foreign):
        return (id(operation.bundle), append.client), append.seq
    return None if append.producer.startswith(UNNAMED) else (append.client, append.seq)


def _leads_not(operation: LogOperation) -> bool:
    return isinstance(operation, (Append, Seal)) and not operation.epoch


def _slots_of(operations: Sequence[LogGiven]) -> Iterator[list[LogGiven]]:
    """Group operations, in order, into slots of up to 4 MiB of appended data.

    A seal or a larger append gets a slot alone.
    """
    batch: list[LogGiven] = []
    size = 0
    for each in operations:
        operation = without_bundle(each)
        more = len(operation.data) if isinstance(operation, Append) else 0
        alone = isinstance(operation, Seal) or (bool(batch) and isinstance(without_bundle(batch[-1]), Seal))
        if batch and (alone or size + more > SLOT_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(each)
        size += more
    if batch:
        yield batch


_RECORD_BYTES = 1 << 20
_CHUNK = 1000


class Appender(ProcessBound):
    """Appends as one producer, in call order. Thread-safe.

    `with`, left without error, waits for all records.

    Attributes:
        producer: its name; None: the client numbers its records, and no other can repeat them.

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
        epoch: int = 0,
    ) -> None:
        self.producer = producer
        self.epoch = epoch
        self._batcher = batcher
        self._objects = objects
        self._writer = writer
        self._init_state()

    def _reset(self) -> None:
        """Become a new client: records of parent and child would count as repeats."""
        self._client = self._objects.world.new_id()
        self._name = self.producer or f"{UNNAMED}{self._client}"
        self._highest = 0
        self._acknowledged = AcknowledgedNumbers()
        self._guard = threading.Lock()  # numbers arrive in order

    @property
    def last_seq(self) -> int:
        """Last number of this producer, from the store; 0 if none."""
        last = self._objects.last().head.producers.get(self._name)
        return 0 if last is None else last.seq

    def append(self, data: Bytes, *, seq: int | None = None) -> Appended:
        """Append a record: bytes, at most 1 MiB. A producer's numbers rise, and may have gaps.

        Raises:
            SequenceGap: a higher number is in the log, and not this one; or an earlier one failed.
            Fenced: another client has taken the name, or leads.
            Sealed, LogFull, TooLarge, Overloaded: it was not taken.
            OutcomeUnknown: with a producer's number, append it again.

        >>> out.append(b"first", seq=1).again, out.append(b"second", seq=2).again
        (True, False)
        """
        appended: Appended = self._batcher.wait(self.append_later(data, seq=seq))
        return appended

    def append_later(self, data: Bytes, *, seq: int | None = None) -> Later[Appended]:
        """Append on a thread, started if needed; return a future, uncancellable for a named producer.

        InvalidInput: a named producer needs `seq`, others have none. TooLarge: above 1 MiB. Overloaded: 10,000 wait.
        CoordinationError: closed.

        >>> waiting = [out.append_later(b"%d" % n, seq=n) for n in (2, 3)]
        >>> [one.result().again for one in waiting]
        [False, False]
        """
        record = bytes(check_bytes("a record", data))
        if len(record) > _RECORD_BYTES:
            raise TooLarge(
                f"a record of {len(record)} bytes: store it in its own object, and append the name of that object"
            )
        if (seq is None) is not (self.producer is None):
            raise InvalidInput(f"seq={seq!r}: give `seq` with a producer's name, and leave it out without one")
        with self._guard:
            number = self._highest + 1 if seq is None else check_whole(seq, "seq", least=1)
            acknowledged = number if self._acknowledged.note_ended(number) else 0
            self._highest = max(self._highest, number)  # first: an interrupt must not reuse the number
            answer: Later[Appended] = self._batcher.submit(
                Append(record, self._name, number, self._client, known=acknowledged, epoch=self.epoch),
                uncancellable=self.producer is not None,
            )
            self._acknowledged.add_waiting(number, answer)
        return answer

    def append_many(self, records: Iterable[Bytes], *, first: int | None = None) -> list[Appended]:
        """Append records, many to a write; return results, both in order. A named producer needs `first`.

        After an error some may be in the log: a named producer repeats the same call; others would append twice.

        >>> [one.again for one in out.append_many([b"first", b"second"], first=1)]
        [True, False]
        """
        if self.producer is not None:
            check_whole(first, "first", least=1)
        results: list[Appended] = []
        waiting: list[Later[Appended]] = []
        try:
            for n, data in enumerate(check_items(records, "records", "bytes")):
                waiting.append(self.append_later(data, seq=None if first is None else first + n))
                if len(waiting) >= _CHUNK:
                    results += self._batcher.wait_all(waiting)
                    waiting = []
        except Exception:
            self._batcher.await_end(waiting)
            raise
        return results + self._batcher.wait_all(waiting)

    def flush(self) -> None:
        """Wait for all records of `append_later`, and raise their first error.

        >>> later = out.append_later(b"second", seq=2)
        >>> out.flush()
        >>> out.last_seq
        2
        """
        with self._guard:
            waiting = self._acknowledged.waiting()
        self._batcher.await_end(waiting)  # `wait_all` would cancel other threads' records
        for answer in waiting:
            answer.result()

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
        """Let other clients append, as the next leader does. May be repeated.

        >>> leader.resign()
        >>> log.info().led
        False
        """
        self._batcher.do(Resign(self.epoch))
