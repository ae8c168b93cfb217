"""The one who writes a log for all callers of this process: operations in, a result or an error for each out."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from fsspec_cas import CasError, OutcomeUnknown, Unavailable, Won
from fsspec_cas.sender import delay_s
from lockprovider.recipes.batching import Numbers
from lockprovider.recipes.batching.line import NumberOf
from lockprovider.recipes.broker import Broker, Bundle, Foreign, NotHere, flat, left_in_doubt, own, regrouped
from lockprovider.recipes.errors import CoordinationError, LogFull
from lockprovider.recipes.wal.appending import (
    UNNAMED,
    Append,
    Appending,
    Forgotten,
    LogOperation,
    Need,
    NoMore,
    Seal,
)
from lockprovider.recipes.wal.objects import LogObjects
from lockprovider.recipes.wal.readers import make_room
from lockprovider.recipes.wal.slot import Head, encode_slot

SLOT_BYTES = 4 << 20
LogGiven = LogOperation | Foreign[LogOperation]


class Handover:
    """What is known of it: of each operation, whether another may have carried it out, and who was asked."""

    def __init__(self, given: Sequence[LogGiven], broker: Broker[LogOperation] | None) -> None:
        self._given = given
        self._broker = broker
        self._asked: set[str] = set()
        self._dropped: dict[int, NotHere] = {}
        self.handed = tuple(isinstance(one, Foreign) and one.sent for one in given)
        self.clients = {one.client for one in given if isinstance(one, Append)}

    def asked(self, turn: Appending, last: Head) -> Appending | None:
        """Another writes behind this slot: the batch with what came of that. None: it is carried out here."""
        if self._broker is None:
            return None
        handed = self._broker.hand_over(last.broker, self._given, turn.sent, self._asked)
        if handed is None:
            return None
        self.handed = handed.sent
        if handed.results is None:
            return replace(turn, need=Need.END, sent=handed.sent)
        return replace(turn, need=Need.DONE, results=tuple(handed.results))

    def wanted(self, turn: Appending, last: Head) -> Appending:
        """Without those of others who have hung up, or whose names are not in the table: that they add themselves."""
        operations = list(turn.operations)
        gone: dict[int, bool] = {}
        for n, one in enumerate(self._given):
            if isinstance(one, Foreign) and n not in self._dropped:
                name = one.operation.producer if isinstance(one.operation, Append) else ""
                if gone.setdefault(id(one.bundle), not one.bundle.wanted()) or name not in last.producers:
                    self._dropped[n] = NotHere("its name is to be added by its own client", sent=turn.sent[n])
                    operations[n] = NoMore()
        return replace(turn, operations=tuple(operations))

    def told(self, results: Sequence[Any]) -> Iterator[tuple[Any, bool]]:
        """The results, and of each whether it says too much: nobody can tell."""
        for n, (result, handed) in enumerate(zip(results, self.handed, strict=True)):
            answer = self._dropped.get(n, result)
            is_told = isinstance(answer, NotHere)
            yield answer, not is_told and (isinstance(answer, Forgotten) or left_in_doubt(answer, sent=handed))


def operations_of(given: Sequence[LogGiven]) -> tuple[LogOperation, ...]:
    """Without whose they are."""
    return tuple(own(one) for one in given)


class LogWriter:
    """Writes batches of operations, one at a time; knows the end of the log as it last wrote or read it.

    A batch is one PUT. Where another was faster, it looks at the place and finds the end again.
    """

    def __init__(self, objects: LogObjects, broker: Broker[LogOperation] | None = None) -> None:
        self._objects = objects
        self._broker = broker
        self._world = objects.world
        self._end: Head | None = None
        self._since: int | None = None
        self._took: dict[str, int] = {}  # by client: the epoch of the name that it has, or may have
        self._numbers = Numbers()

    def be_new(self) -> None:
        """In a forked child: nobody waits for anything."""
        if self._broker is not None:
            self._broker.be_new()

    def close(self) -> None:
        """Write for no others."""
        if self._broker is not None:
            self._broker.close()

    def commit(self, operations: Sequence[LogOperation | Bundle[LogOperation]]) -> list[Any]:
        """What each operation came to, in their order; more than a slot takes go to several."""
        results: list[Any] = []
        others: set[Hashable] = set()
        for batch in _slots_of(flat(operations)):
            named = [_numbered(one) for one in batch]
            gaps = self._numbers.held_up(named)
            taken = [self._now(one) for n, one in enumerate(batch) if n not in gaps]
            done = iter(self._append(taken) if taken else [])
            answers = [gaps[n] if n in gaps else next(done) for n in range(len(batch))]
            for one, answer in zip(named, answers, strict=True):
                self._numbers.note(one, answer)
            results += answers
            for one in named:
                if one is not None and isinstance(one[0], tuple):
                    others.add(one[0])
        for other in others:
            self._numbers.forget(other)
        return regrouped(operations, results)

    def forget(self, client: str) -> None:
        """A client that appends no more."""
        self._took.pop(client, None)
        self._numbers.forget(client)

    def _append(self, given: Sequence[LogGiven]) -> Sequence[Any]:
        deadline_s, failures = self._world.monotonic_s() + self._objects.timeout_s, 0
        handover = Handover(given, self._broker)
        turn = Appending(operations_of(given), self._world.new_id(), sent=handover.handed)
        if self._end is not None:
            turn = self._found(turn, handover, self._end)
        while turn.need is not Need.DONE:
            before = turn.need
            try:
                turn = self._step(turn, handover)
                failed = before is Need.LOOK and turn.need is not Need.DONE  # not there yet, or beaten
            except (CasError, CoordinationError) as error:
                failed = isinstance(error, Unavailable) and (turn.doubt or any(turn.sent))
                if not failed:
                    turn = turn.failed(error, self._unknown(str(error)))
            failures += failed
            if failed and self._world.monotonic_s() > deadline_s:
                why = f"others were faster, or the store was silent, at each of {failures} tries"
                turn = turn.failed(Unavailable(why, path=self._objects.path), self._unknown(why))
            elif failed and failures > 1:
                self._world.sleep(delay_s(failures - 1, self._world.random()))
        self._took.update({client: epoch for client, epoch in turn.taken().items() if client in handover.clients})
        return [self._unknown(str(one)) if is_unknown else one for one, is_unknown in handover.told(turn.results)]

    def _found(self, turn: Appending, handover: Handover, last: Head) -> Appending:
        """This is the last slot: another writes behind it, or this process does."""
        asked = handover.asked(turn, last)
        if asked is not None:
            return asked
        return handover.wanted(turn, last).found(last, self._world.now_ms(), self._since or 0)

    def _step(self, turn: Appending, handover: Handover) -> Appending:
        match turn.need:
            case Need.END:
                last = self._objects.last(turn.known).head
                if self._since is None:
                    self._since = last.epoch
                self._end = last
                return self._found(turn, handover, last)
            case Need.SEND:
                return self._send(turn)
            case Need.LOOK:
                there = self._objects.look(turn.slot)
                return turn.looked(None if there is None else there.slot.head)
            case Need.DONE:
                return turn

    def _send(self, turn: Appending) -> Appending:
        drafted, slot = turn.drafted, turn.slot
        assert drafted is not None  # noqa: S101 - there is one to send
        self._make_room(slot)
        condition = self._objects.condition(slot)
        if condition is None:
            there = self._objects.look(slot)
            turn = turn.looked(None if there is None else there.slot.head)
            condition = self._objects.condition(slot)
            if turn.need is not Need.SEND or condition is None:
                return turn
        head = drafted.head
        if self._broker is not None:
            head = replace(head, broker=self._broker.offers(head.broker))
        turn = turn.sending()
        if isinstance(self._objects.put(head, encode_slot(head, drafted.records), condition), Won):
            self._end = head
            return turn.won()
        return turn.not_won()

    def _make_room(self, slot: int) -> None:
        """See that the slot that this one replaces is below the floor.

        Raises:
            LogFull: it is not.
        """
        objects = self._objects
        if objects.manifest().has_room(slot) or objects.manifest(fresh=True).has_room(slot):
            return
        manifest, slowest = make_room(objects, slot)
        if not manifest.has_room(slot):
            whose = f"{slowest!r} has not read on: let it, or drop_reader({slowest!r})"
            whose = whose if slowest else "no reader has a name here: trim(before=), or make it with retain='slots'"
            raise LogFull(f"all {manifest.slots} slots of {objects.path!r} are kept; {whose}", slowest)

    def _now(self, operation: LogGiven) -> LogGiven:
        """Another's client says itself what it took."""
        if not isinstance(operation, Append):
            return operation
        return replace(operation, took=self._took.get(operation.client, 0), since=self._since)

    def _unknown(self, why: str) -> OutcomeUnknown:
        said = f"it is not known whether this was appended to the log {self._objects.path!r}: {why}"
        return OutcomeUnknown(f"{said}; with a producer's number, append it again", path=self._objects.path)


def _numbered(operation: LogGiven) -> NumberOf | None:
    """Those of a bundle are in order among themselves; beyond it, that is its process's to mind."""
    one = own(operation)
    if not isinstance(one, Append):
        return None
    if isinstance(operation, Foreign):
        return (id(operation.bundle), one.client), one.seq
    return None if one.producer.startswith(UNNAMED) else (one.client, one.seq)


def _slots_of(operations: Sequence[LogGiven]) -> Iterator[list[LogGiven]]:
    """As many to a slot as it takes; a seal has one of its own."""
    batch: list[LogGiven] = []
    size = 0
    for each in operations:
        one = own(each)
        more = len(one.data) if isinstance(one, Append) else 0
        alone = isinstance(one, Seal) or (bool(batch) and isinstance(own(batch[-1]), Seal))
        if batch and (alone or size + more > SLOT_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(each)
        size += more
    if batch:
        yield batch
