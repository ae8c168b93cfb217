"""What becomes of a batch of operations on a log, and how its write comes to its end. Pure: no store, no clock.

1. The batch is written at slot s, behind the last slot s - 1 that is known, on the condition that the place still is
   as it was: empty, or with slot s - R of the round before. No object is ever removed, so whoever was stalled for a
   day finds a newer version there, and is refused.
2. A refusal is never believed without a look: something on the way may have sent the write twice and handed back the
   second answer. The place tells which slot it holds. Slot s with my batch: mine. Slot s of another: mine never will
   be. An earlier one: mine is not there yet, the same bytes again.
3. A later slot: the place was used again, and mine may have been there. Then the table of producers in the last slot
   tells, number by number.
4. Whoever was beaten finds the end again. Walking behind it slot by slot, one never gets a turn.

Numbers. Those of a producer rise, and may have gaps. A client takes the name of a producer with the first record that
it appends: that raises the name's epoch, and whoever had it before is fenced. What was there then are the numbers that
a repeat may have. Any other that is out of order is refused: taken for a repeat, a record would be lost.

Epochs. Whoever leads raises the log's; nothing of an older one follows. Who does not lead is of the epoch that it found
at its first write, and appends while nobody leads.

The seal is a slot of its own, the last one: whoever would append has to read it, as any slot before its own. What was
appended before it may be repeated; anything else is refused, by all, for good.
"""

from __future__ import annotations

import base64
import enum
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from lockprovider.recipes.errors import Fenced, Overloaded, Sealed, SequenceGap
from lockprovider.recipes.handing import Forgotten
from lockprovider.recipes.values import UNNAMED
from lockprovider.recipes.wal.contents import NOT_YET, Appended, Head, Position, Producer

NAMED_MOST, UNNAMED_MOST = 1000, 64


@dataclass(frozen=True, slots=True)
class Append:
    """Append a record once.

    Attributes:
        client: who appends. `took`: the epoch of the name that it took, or may have; 0: it has sent nothing yet.
        known: numbers up to this one are known to be there.
        epoch: under which it leads; 0: it does not.
        since: of one who does not, the epoch that the client is of; None: that of who writes.
    """

    data: bytes
    producer: str
    seq: int
    client: str
    took: int = 0
    known: int = 0
    epoch: int = 0
    since: int | None = None


@dataclass(frozen=True, slots=True)
class Lead:
    """From now on nobody appends but under this epoch; 0: the next one. The result is the epoch."""

    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Resign:
    """Lead no more under this epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Seal:
    """Nothing is appended any more; alone in its slot. The result is where.

    `epoch`: under which it is sealed, as `Lead` has it; 0: as one who does not lead. None as `successor`: not named.
    """

    epoch: int = 0
    successor: str | None = None


@dataclass(frozen=True, slots=True)
class NoMore:
    """What another process had handed over, and is not to be carried out here."""


LogOperation = Append | Lead | Resign | Seal | NoMore
Result = Appended | Position | int | Exception | None


@dataclass(frozen=True, slots=True)
class Drafted:
    """What operations make of the end of a log: the next slot, and what each comes to if that is written.

    `carried` are those that it is written for; without any, nothing is to be written.
    """

    head: Head
    records: tuple[bytes, ...]
    results: tuple[Result, ...]
    carried: tuple[bool, ...]


def draft(
    last: Head,
    operations: Iterable[LogOperation],
    batch: str,
    *,
    at_ms: int = 0,
    since: int = 0,
    sent: tuple[bool, ...] = (),
) -> Drafted:
    """The slot behind `last`. `since`: the epoch that who does not lead is of; `sent`: what may be there already."""
    table = dict(last.producers)
    head = replace(last, slot=last.slot + 1, first=last.end, count=0, batch=batch, at_ms=at_ms, producers=table)
    records: list[bytes] = []
    results: list[Result] = []
    carried: list[bool] = []
    for n, operation in enumerate(operations):
        done: Result = None
        before, written = (head.epoch, head.led, head.sealed), False
        try:
            match operation:
                case Append():
                    done = _repeated(table, operation, sent=bool(sent) and sent[n])
                    if done is None:
                        _must_not_be_over(head, operation.epoch, since if operation.since is None else operation.since)
                        done = _append(head, table, operation, len(records))
                        records.append(operation.data)
                        written = True
                case Lead(epoch):
                    head = replace(head, epoch=_leads(head, epoch), led=True)
                    done = head.epoch
                case Seal(epoch, successor):
                    head = _sealed(head, epoch, since, successor)
                    done = Position(head.slot - (last.sealed is not None), head.first)
                case Resign(epoch):
                    head = replace(head, led=head.led and head.epoch != epoch)
        except Exception as error:  # noqa: BLE001 - it is raised where it was called
            done = error
        results.append(done)
        carried.append(written or (head.epoch, head.led, head.sealed) != before)
    return Drafted(replace(head, count=len(records)), tuple(records), tuple(results), tuple(carried))


def _append(head: Head, table: dict[str, Producer], append: Append, before: int) -> Appended:
    old = table.pop(append.producer, None)  # to the end: the longest idle are first
    if old is None:
        _make_room(table, append.producer)
    position = Position(head.slot, head.first + before)
    epoch, base = (0, 0) if old is None else (old.epoch, old.base)
    if old is None or old.client != append.client:
        epoch, base = epoch + 1, 0 if old is None else old.seq
    table[append.producer] = Producer(epoch, append.seq, *_both(position), append.client, base)
    return Appended(position)


def _both(position: Position) -> tuple[int, int]:
    return position.slot, position.offset


def _repeated(table: dict[str, Producer], append: Append, *, sent: bool) -> Appended | None:
    """That it is there already; None: it is not, and may be appended.

    Raises:
        Fenced: another has taken the name.
        SequenceGap: the number is too low, and is no repeat.
        Forgotten: see there.
    """
    has = table.get(append.producer)
    if has is None:
        if sent and append.producer.startswith(UNNAMED) and len(_unnamed(table)) >= UNNAMED_MOST:
            raise Forgotten(f"{UNNAMED_MOST} others without a name have appended since: give producers names")
        return None
    mine = has.client == append.client
    if not mine and append.took:
        if sent and append.seq <= has.base:
            return Appended(None, again=True)
        if has.epoch >= append.took:
            raise Fenced(f"another appends as {append.producer!r} since: stop, or take the name again", has.epoch)
    if append.seq > has.seq:
        return None
    if append.seq == has.seq:
        return Appended(Position(has.slot, has.offset), again=True)
    if append.seq <= max(append.known, has.base if mine else has.seq) or (sent and mine):
        return Appended(None, again=True)
    what = f"{append.producer!r} has appended {has.seq}, and {append.seq} is no repeat"
    raise SequenceGap(f"{what}: number records as they are appended")


def _unnamed(table: dict[str, Producer]) -> list[str]:
    return [name for name in table if name.startswith(UNNAMED)]


def _make_room(table: dict[str, Producer], producer: str) -> None:
    """Of producers without a name the longest idle goes; one with a name must be remembered."""
    unnamed = _unnamed(table)
    if producer.startswith(UNNAMED):
        for name in unnamed[: len(unnamed) - UNNAMED_MOST + 1]:
            del table[name]
    elif len(table) - len(unnamed) >= NAMED_MOST:
        raise Overloaded(f"{NAMED_MOST} named producers have appended here, and each is remembered: use fewer names")


def _must_not_be_over(head: Head, leads: int, since: int) -> None:
    """`leads`: the epoch under which it does, or 0; `since`: that of who does not."""
    if 0 < leads < head.epoch:
        raise _over(leads, head.epoch)
    _must_be_open(head)
    if not leads and since < head.epoch:
        raise _over(since, head.epoch)
    if head.led and not leads:
        raise Fenced(f"epoch {head.epoch} leads, and nobody else appends: lead() takes over", head.epoch)


def _must_be_open(head: Head) -> None:
    if head.sealed is not None:
        on = f"go on in {head.sealed}" if head.sealed else "no log was named that goes on"
        raise Sealed(f"the log is sealed and takes no more: {on}", head.sealed)


def _leads(head: Head, epoch: int) -> int:
    if 0 < epoch < head.epoch:
        raise _over(epoch, head.epoch)
    _must_be_open(head)
    return epoch or head.epoch + 1


def _sealed(head: Head, epoch: int, since: int, successor: str | None) -> Head:
    """The same, sealed; one that names no other successor is a repeat."""
    if 0 < epoch < head.epoch:
        raise _over(epoch, head.epoch)
    if head.sealed is not None and successor in (None, head.sealed):
        return head
    _must_not_be_over(head, epoch, since)
    return replace(head, epoch=max(head.epoch, epoch), led=False, sealed=successor or "")


def _over(epoch: int, newest: int) -> Fenced:
    return Fenced(f"epoch {epoch} is over: {newest} has led since; stop what goes on under it", newest)


class Need(enum.Enum):
    """What is to be asked of the store."""

    END = "find the end"
    SEND = "write the draft"
    LOOK = "read the place of the draft"
    DONE = "nothing more"


@dataclass(frozen=True, slots=True)
class Appending:
    """A batch of operations, until each has its result.

    Attributes:
        known: a slot that is there; where the search for the end begins.
        drafted: what is written, or to be written.
        doubt: a copy of it may be on its way, or have landed.
        sent: the operations that may be in the log, in a place that was used again since; `took` are the clients that
            have taken a name by that, and under which epoch.
    """

    operations: tuple[LogOperation, ...]
    batch: str
    need: Need = Need.END
    known: int = NOT_YET
    drafted: Drafted | None = None
    doubt: bool = False
    sent: tuple[bool, ...] = ()
    took: tuple[tuple[str, int], ...] = ()
    results: tuple[Result, ...] = ()

    @property
    def slot(self) -> int:
        """Where the draft is to stand."""
        assert self.drafted is not None  # noqa: S101 - it is asked of a draft
        return self.drafted.head.slot

    def found(self, last: Head, at_ms: int, since: int) -> Appending:
        """This is the last slot."""
        drafted = draft(last, self.operations, self.batch, at_ms=at_ms, since=since, sent=self.sent)
        if not any(drafted.carried):
            return replace(self, need=Need.DONE, results=drafted.results)
        return replace(self, need=Need.SEND, drafted=drafted, doubt=False)

    def sending(self) -> Appending:
        """From here on a copy may be on its way."""
        return replace(self, doubt=True)

    def won(self) -> Appending:
        """The store took it."""
        assert self.drafted is not None  # noqa: S101 - likewise
        return replace(self, need=Need.DONE, results=self.drafted.results)

    def not_won(self) -> Appending:
        """The store refused it, or did not answer."""
        return replace(self, need=Need.LOOK)

    def looked(self, there: Head | None) -> Appending:
        """This is in the place; None: nothing."""
        assert self.drafted is not None  # noqa: S101 - likewise
        if there is None or there.slot < self.slot:
            return replace(self, need=Need.SEND)  # not yet: the condition still holds
        if there.slot == self.slot and there.batch == self.batch:
            return self.won()
        sent, took = self.sent, self.took
        if there.slot > self.slot and self.doubt:
            before = sent or (False,) * len(self.operations)
            sent = tuple(was or now for was, now in zip(before, self.drafted.carried, strict=True))
            took = tuple(self.taken().items())
        return replace(self, need=Need.END, known=there.slot, drafted=None, doubt=False, sent=sent, took=took)

    def taken(self) -> dict[str, int]:
        """By client: the epoch of the name that it has taken by this batch, or may have."""
        found = dict(self.took)
        if self.drafted is not None and self.doubt:
            table = self.drafted.head.producers
            for one, is_in in zip(self.operations, self.drafted.carried, strict=True):
                if is_in and isinstance(one, Append) and table[one.producer].client == one.client:
                    found[one.client] = table[one.producer].epoch
        return found

    def failed(self, error: Exception, unknown: Exception) -> Appending:
        """It goes no further: who was to be written gets the error, or, in doubt, that nobody knows."""
        if self.drafted is None:
            sent = self.sent or (False,) * len(self.operations)
            return replace(self, need=Need.DONE, results=tuple(unknown if one else error for one in sent))
        said = unknown if self.doubt else error
        answers = zip(self.drafted.results, self.drafted.carried, strict=True)
        return replace(self, need=Need.DONE, results=tuple(said if one else result for result, one in answers))


class LogCodec:
    """See `WireCodec`. A client's first record takes its name: that it appends itself."""

    @staticmethod
    def may_hand_over(operation: LogOperation) -> bool:
        """See `WireCodec`."""
        return isinstance(operation, Append) and operation.took > 0 and operation.since is not None

    @staticmethod
    def say(operation: LogOperation) -> list[Any]:
        """An operation that may be handed over."""
        match operation:
            case Append(data, producer, seq, client, took, known, epoch, int(since)):
                text = base64.b64encode(data).decode()
                return ["append", text, producer, seq, client, took, known, epoch, since]
            case _:
                raise TypeError(f"{operation!r} is not handed over")

    @staticmethod
    def understand(said: list[Any]) -> LogOperation:
        """See `WireCodec`."""
        match said:
            case [
                "append",
                str(text),
                str(producer),
                int(seq),
                str(client),
                int(took),
                int(known),
                int(epoch),
                int(since),
            ] if took > 0:
                data = base64.b64decode(text, validate=True)
                return Append(data, producer, seq, client, took, known, epoch, since)
            case _:
                raise ValueError(f"{said!r} is no operation")

    @staticmethod
    def say_result(operation: LogOperation, result: Any) -> Any:
        """See `WireCodec`."""
        del operation
        position = result.position
        return [None, None, result.again] if position is None else [position.slot, position.offset, result.again]

    @staticmethod
    def understand_result(operation: LogOperation, said: Any) -> Any:
        """See `WireCodec`."""
        del operation
        match said:
            case [None, None, bool(again)]:
                return Appended(None, again)
            case [int(slot), int(offset), bool(again)]:
                return Appended(Position(slot, offset), again)
            case _:
                raise ValueError(f"{said!r} is no result")
