"""What a log's callers are told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fsspec_cas import InvalidInput


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place in a log: the record of this offset, which is in this slot. As text: `slot:offset`.

    >>> str(lockprovider.wal.create("memory://docs/orders").append(b"first").position)
    '0:0'
    """

    slot: int
    offset: int

    def __str__(self) -> str:
        return f"{self.slot}:{self.offset}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Read the text form back.

        Raises:
            InvalidInput: it is none.

        >>> lockprovider.wal.Position.parse("17:1200")
        Position(slot=17, offset=1200)
        """
        slot, colon, offset = text.partition(":")
        if not (colon and slot.isdecimal() and offset.isdecimal()):
            raise InvalidInput(f"{text!r} is no position: write it as it was printed, e.g. 17:1200")
        return cls(int(slot), int(offset))


@dataclass(frozen=True, slots=True)
class Appended:
    """A record is in the log. `again`: it was there before; then `position` is None where it is not known any more.

    >>> log = lockprovider.wal.create("memory://docs/orders")
    >>> log.append(b"first")
    Appended(position=Position(slot=0, offset=0), again=False)
    """

    position: Position | None
    again: bool = False


@dataclass(frozen=True, slots=True)
class LogBatch:
    """The records of one slot, from `start` on; `end` is where to go on. `at_ms`: written when, by its writer.

    `sealed`: this is the end of the log, and nothing comes any more; without records. `successor`: the log that goes
    on, as `Wal.seal` was told it.

    >>> log = lockprovider.wal.create("memory://docs/orders")
    >>> done = log.append(b"first")
    >>> batch = next(log.read())
    >>> batch.records, str(batch.end)
    ([b'first'], '1:1')
    """

    start: Position
    end: Position
    records: list[bytes] = field(repr=False)
    epoch: int = 0
    at_ms: int = 0
    sealed: bool = False
    successor: str = ""


@dataclass(frozen=True, slots=True)
class LogInfo:
    """A log as it is.

    Attributes:
        slots, retain: see `Wal.create`.
        floor: the first slot that is kept.
        end: where the next record goes.
        epoch, led: the newest that has led, and whether it still does.
        producers: the last number of each that has a name.
        readers: where each goes on.
        sealed: it takes no more; `successor` is the log that goes on, if one was named.

    >>> info = lockprovider.wal.create("memory://docs/orders").info()
    >>> info.slots, info.retain, str(info.end)
    (65536, 'readers', '0:0')
    """

    slots: int | None
    retain: str
    floor: int
    end: Position
    epoch: int
    led: bool
    producers: Mapping[str, int]
    readers: Mapping[str, Position]
    sealed: bool = False
    successor: str = ""
