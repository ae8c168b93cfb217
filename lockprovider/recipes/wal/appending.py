"""Decisions of a log's writer: what a batch does, and how its write ends. Pure.

1. A batch is written at slot s, if its place is empty, or still has slot s - R of a ring of R places.
2. After a refusal the writer reads the place. If a later slot has used it, the table of producers in the last slot
   decides, number by number.
3. A writer that lost searches the end again: slot by slot, it would never win.

Numbers in the log when a client takes the producer's name may be repeated. Others out of order are refused: taken for a
repeat, a record would be lost.
"""

from __future__ import annotations

import base64
import enum
import operator
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from lockprovider.recipes.broker_rules import Forgotten
from lockprovider.recipes.errors import Fenced, Overloaded, Sealed, SequenceGap
from lockprovider.recipes.values import UNNAMED
from lockprovider.recipes.wal.contents import NOT_YET, Appended, Head, Position, Producer

NAMED_MOST, UNNAMED_MOST = 1000, 64


@dataclass(frozen=True, slots=True)
class Append:
    """Append a record once.

    Attributes:
        took: epoch of the name that the client took, or may have; 0: has sent nothing.
        known: numbers up to this are in the log.
        epoch: under which the client leads; 0: none.
        since: epoch of a client that does not lead; None: the writer's.
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
    """Let only this epoch (0: the next) append."""

    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Resign:
    epoch: int


@dataclass(frozen=True, slots=True)
class Seal:
    """End the log, in a slot without other operations."""

    epoch: int = 0
    successor: str | None = None


@dataclass(frozen=True, slots=True)
class NoMore:
    """Stands for an operation not carried out here."""


LogOperation = Append | Lead | Resign | Seal | NoMore
Result = Appended | Position | int | Exception | None


@dataclass(frozen=True, slots=True)
class Drafted:
    """Next slot; `carried` operations need its write."""

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
    """Build the slot after `last` from operations in their order, with each one's result or error.

    Lead: its epoch. Seal: its position. Resign: None. `carried`: which need the slot's write, unlike repeats. `batch`:
    the write's id. `since`: this writer's epoch. `sent` marks operations that may be in the log.
    """
    table = dict(last.producers)
    head = replace(last, slot=last.slot + 1, first=last.end, count=0, batch=batch, at_ms=at_ms, producers=table)
    records: list[bytes] = []
    results: list[Result] = []
    carried: list[bool] = []
    for n, operation in enumerate(operations):
        result: Result = None
        before, written = (head.epoch, head.led, head.sealed), False
        try:
            match operation:
                case Append():
                    result = _repeated(table, operation, sent=bool(sent) and sent[n])
                    if result is None:
                        _must_not_be_over(head, operation.epoch, since if operation.since is None else operation.since)
                        result = _append(head, table, operation, len(records))
                        records.append(operation.data)
                        written = True
                case Lead(epoch):
                    head = replace(head, epoch=_leads(head, epoch), led=True)
                    result = head.epoch
                case Seal(epoch, successor):
                    head = _sealed(head, epoch, since, successor)
                    result = Position(head.slot - (last.sealed is not None), head.first)
                case Resign(epoch):
                    head = replace(head, led=head.led and head.epoch != epoch)
        except Exception as error:  # noqa: BLE001 - the operation's caller raises it
            result = error
        results.append(result)
        carried.append(written or (head.epoch, head.led, head.sealed) != before)
    return Drafted(replace(head, count=len(records)), tuple(records), tuple(results), tuple(carried))


def _append(head: Head, table: dict[str, Producer], append: Append, before: int) -> Appended:
    """Record the append in `table`; return its position, after `before` records of the slot.

    A new client raises the name's epoch. Raises Overloaded beyond 1000 names; forgets idle unnamed producers.
    """
    previous = table.pop(append.producer, None)  # the longest idle are first
    if previous is None:
        _make_room(table, append.producer)
    position = Position(head.slot, head.first + before)
    epoch, base = (0, 0) if previous is None else (previous.epoch, previous.base)
    if previous is None or previous.client != append.client:
        epoch, base = epoch + 1, 0 if previous is None else previous.seq
    table[append.producer] = Producer(epoch, append.seq, position.slot, position.offset, append.client, base)
    return Appended(position)


def _repeated(table: dict[str, Producer], append: Append, *, sent: bool) -> Appended | None:
    """Return the result of an append that the table shows as done (position None: unknown), None for a new one.

    Fenced: another took the name. SequenceGap: a lower number, no repeat. Forgotten: a `sent` one without a name is
    unclear.
    """
    has = table.get(append.producer)
    if has is None:
        if sent and append.producer.startswith(UNNAMED) and len(_unnamed(table)) >= UNNAMED_MOST:
            raise Forgotten(
                f"{UNNAMED_MOST} unnamed producers have appended since, so this one is forgotten: give producers names"
            )
        return None
    is_own = has.client == append.client
    if not is_own and append.took:
        if sent and append.seq <= has.base:
            return Appended(None, again=True)
        if has.epoch >= append.took:
            raise Fenced(
                f"another client has taken the producer name {append.producer!r}: stop, or take the name again",
                has.epoch,
            )
    if append.seq > has.seq:
        return None
    if append.seq == has.seq:
        return Appended(Position(has.slot, has.offset), again=True)
    if append.seq <= max(append.known, has.base if is_own else has.seq) or (sent and is_own):
        return Appended(None, again=True)
    message = f"{append.producer!r} has appended {has.seq}, and {append.seq} does not repeat one of them"
    raise SequenceGap(f"{message}: number records in the order of their appends")


def _unnamed(table: dict[str, Producer]) -> list[str]:
    return [name for name in table if name.startswith(UNNAMED)]


def _make_room(table: dict[str, Producer], producer: str) -> None:
    unnamed = _unnamed(table)
    if producer.startswith(UNNAMED):
        for name in unnamed[: max(0, len(unnamed) - UNNAMED_MOST + 1)]:
            del table[name]
    elif len(table) - len(unnamed) >= NAMED_MOST:
        raise Overloaded(f"{NAMED_MOST} named producers have appended, which is the limit: use fewer names")


def _must_not_be_over(head: Head, leads: int, since: int) -> None:
    """Raise Sealed, or Fenced if the log's epoch is newer than `leads`, under which the client leads.

    `leads` 0, no leader: Fenced if it is newer than `since`, or another client leads.
    """
    if 0 < leads < head.epoch:
        raise _over(leads, head.epoch)
    _must_be_open(head)
    if not leads and since < head.epoch:
        raise _over(since, head.epoch)
    if head.led and not leads:
        raise Fenced(
            f"epoch {head.epoch} leads the log, so no other writer may append: call lead() to take over", head.epoch
        )


def _must_be_open(head: Head) -> None:
    if head.sealed is not None:
        on = f"continue in {head.sealed}" if head.sealed else "no successor was named"
        raise Sealed(f"the log is sealed and takes no more records: {on}", head.sealed)


def _leads(head: Head, epoch: int) -> int:
    if 0 < epoch < head.epoch:
        raise _over(epoch, head.epoch)
    _must_be_open(head)
    return epoch or head.epoch + 1


def _sealed(head: Head, epoch: int, since: int, successor: str | None) -> Head:
    if 0 < epoch < head.epoch:
        raise _over(epoch, head.epoch)
    if head.sealed is not None and successor in (None, head.sealed):
        return head
    _must_not_be_over(head, epoch, since)
    return replace(head, epoch=max(head.epoch, epoch), led=False, sealed=successor or "")


def _over(epoch: int, newest: int) -> Fenced:
    return Fenced(
        f"epoch {epoch} is over, because epoch {newest} has led since: stop the work under the old epoch", newest
    )


class AppendStep(enum.Enum):
    END = "find the end"
    SEND = "write the draft"
    LOOK = "read the place of the draft"
    DONE = "nothing more"


@dataclass(frozen=True, slots=True)
class Appending:
    """Batch, until each operation has its result.

    Attributes:
        search_from: written slot, where the search for the end starts.
        doubt: the draft may be on its way, or written.
        sent: marks operations that may be in the log, in a place used again.
        took: epochs of the names that clients have taken by the operations in `sent`.
    """

    operations: tuple[LogOperation, ...]
    batch: str
    need: AppendStep = AppendStep.END
    search_from: int = NOT_YET
    drafted: Drafted | None = None
    doubt: bool = False
    sent: tuple[bool, ...] = ()
    took: tuple[tuple[str, int], ...] = ()
    results: tuple[Result, ...] = ()

    @property
    def slot(self) -> int:
        assert self.drafted is not None  # noqa: S101 - callers have a draft
        return self.drafted.head.slot

    def draft_after(self, last: Head, at_ms: int, since: int) -> Appending:
        drafted = draft(last, self.operations, self.batch, at_ms=at_ms, since=since, sent=self.sent)
        if not any(drafted.carried):
            return replace(self, need=AppendStep.DONE, results=drafted.results)
        return replace(self, need=AppendStep.SEND, drafted=drafted, doubt=False)

    def sending(self) -> Appending:
        return replace(self, doubt=True)

    def won(self) -> Appending:
        assert self.drafted is not None  # noqa: S101 - a sent batch has a draft
        return replace(self, need=AppendStep.DONE, results=self.drafted.results)

    def not_won(self) -> Appending:
        return replace(self, need=AppendStep.LOOK)

    def looked(self, stored: Head | None) -> Appending:
        """Return the batch after a read of the draft's place. Empty or an earlier slot: send again. This batch: done.

        Else find the end again; if a later slot may have overwritten the draft, mark its operations as `sent`.
        """
        assert self.drafted is not None  # noqa: S101
        if stored is None or stored.slot < self.slot:
            return replace(self, need=AppendStep.SEND)  # the condition still holds
        if stored.slot == self.slot and stored.batch == self.batch:
            return self.won()
        sent, took = self.sent, self.took
        if stored.slot > self.slot and self.doubt:
            before = sent or (False,) * len(self.operations)
            sent = tuple(was or carried for was, carried in zip(before, self.drafted.carried, strict=True))
            took = tuple(self.taken().items())
        return replace(
            self, need=AppendStep.END, search_from=stored.slot, drafted=None, doubt=False, sent=sent, took=took
        )

    def taken(self) -> dict[str, int]:
        """Return each client's epoch of its producer's name, as taken by drafts that may be written."""
        epochs = dict(self.took)
        if self.drafted is not None and self.doubt:
            table = self.drafted.head.producers
            for operation, is_in in zip(self.operations, self.drafted.carried, strict=True):
                if is_in and isinstance(operation, Append):
                    taken = table.get(operation.producer)  # None: later operations needed its room
                    if taken is not None and taken.client == operation.client:
                        epochs[operation.client] = taken.epoch
        return epochs

    def failed(self, error: Exception, unknown: Exception) -> Appending:
        """Finish: operations that may be in the log get `unknown`, others `error`.

        Those of a draft that need no write keep their results.
        """
        if self.drafted is None:
            sent = self.sent or (False,) * len(self.operations)
            results: tuple[Result, ...] = tuple(unknown if may_be_done else error for may_be_done in sent)
        else:
            outcome = unknown if self.doubt else error
            answers = zip(self.drafted.results, self.drafted.carried, strict=True)
            results = tuple(outcome if needs_write else result for result, needs_write in answers)
        return replace(self, need=AppendStep.DONE, results=results)


class LogCodec:
    """Codec of appends, except a client's first."""

    @staticmethod
    def may_hand_over(operation: LogOperation) -> bool:
        return isinstance(operation, Append) and operation.took > 0 and operation.since is not None

    @staticmethod
    def encode(operation: LogOperation) -> list[Any]:
        match operation:
            case Append(data, producer, seq, client, took, known, epoch, int(since)):
                text = base64.b64encode(data).decode()
                return ["append", text, producer, seq, client, took, known, epoch, since]
            case _:
                raise TypeError(f"{operation!r} is not handed over")

    @staticmethod
    def decode(encoded: list[Any]) -> LogOperation:
        """Decode an append that `encode` made; others raise ValueError or TypeError."""
        match encoded:
            case ["append", str(text), str(producer), int(seq), str(client), int(took), *rest] if took > 0:
                known, epoch, since = map(operator.index, rest)
                data = base64.b64decode(text, validate=True)
                return Append(data, producer, seq, client, took, known, epoch, since)
            case _:
                raise ValueError(f"{encoded!r} is no operation")

    @staticmethod
    def encode_result(result: Any) -> Any:
        position = result.position
        return [None, None, result.again] if position is None else [position.slot, position.offset, result.again]

    @staticmethod
    def decode_result(operation: LogOperation, encoded: Any) -> Any:
        """Decode an append's result; others raise ValueError."""
        del operation
        match encoded:
            case [None, None, bool(again)]:
                return Appended(None, again)
            case [int(slot), int(offset), bool(again)]:
                return Appended(Position(slot, offset), again)
            case _:
                raise ValueError(f"{encoded!r} is no result")
