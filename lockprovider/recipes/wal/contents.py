"""Contents of a log's manifest and slots. Pure."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fsspec_cas import Content, InvalidInput
from fsspec_cas.arguments import check_text, check_whole
from lockprovider.bounded import (
    LARGEST_OBJECT,
    LATEST_MS,
    Undecodable,
    are_wholes,
    as_flag,
    as_text,
    as_whole,
    parse_object,
    text_in,
    undecodable_as,
    whole_in,
)
from lockprovider.recipes.errors import MalformedObject
from lockprovider.recipes.values import check_format

NOT_YET = -1  # the slot before the first


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """Record's slot, and its number in the log (`offset`). As text: `slot:offset`.

    >>> str(lockprovider.wal.create("memory://docs/orders").append(b"first").position)
    '0:0'
    """

    slot: int
    offset: int

    def __str__(self) -> str:
        return f"{self.slot}:{self.offset}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Parse the text form, or raise InvalidInput.

        >>> lockprovider.wal.Position.parse("17:1200")
        Position(slot=17, offset=1200)
        """
        parts = _POSITION.fullmatch(check_text(text, "position"))
        if parts is None:
            raise InvalidInput(f"{text[:200]!r} is not a position: write SLOT:OFFSET, e.g. 17:1200")
        return check_position(cls(int(parts[1]), int(parts[2])), "position")


_POSITION = re.compile(r"(\d{1,16}):(\d{1,16})")


def check_position(value: Any, argument: str) -> Position:
    if not isinstance(value, Position):
        raise InvalidInput(f"{argument}={value!r} must be a position: of an append, a batch, or Position.parse(text)")
    check_whole(value.slot, f"{argument}.slot")
    check_whole(value.offset, f"{argument}.offset")
    return value


@dataclass(frozen=True, slots=True)
class Appended:
    """`again`: the record was there before; `position` is None if unknown by now.

    >>> log = lockprovider.wal.create("memory://docs/orders")
    >>> log.append(b"first")
    Appended(position=Position(slot=0, offset=0), again=False)
    """

    position: Position | None
    again: bool = False


@dataclass(frozen=True, slots=True)
class LogBatch:
    """One slot's records from `start` on; go on at `end`. `at_ms`: writer's clock (epoch ms).

    `sealed`: the log ends, without records; `successor` goes on.

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
    """State of a log; `slots` and `retain` as in `Wal.create`.

    Attributes:
        floor: first kept slot.
        epoch, led: newest epoch that has led, and whether it still leads.
        producers: last number of each named producer.
        successor: next log.

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


# `log.json`:
#
# {"format":1, "id":uuid, "slots":R, "retain":"readers", "floor":slot, "hint":slot, "readers":{name:slot},
# "rev":n}
#
# `floor`, the first kept slot, only rises. `hint` is a written slot (-1: none), where the search for the end starts.
# `readers` has the slot where each began. `rev` rises with each write, so no bytes repeat.
_MANIFEST_FORMAT = 1
READER = re.compile(r"[\w-][\w.-]{0,199}")
SLOTS = 65536
RETAIN = ("readers", "slots")
_KNOWN = {"format", "id", "slots", "retain", "floor", "hint", "readers", "rev"}


@dataclass(frozen=True, slots=True)
class LogManifest:
    id: str
    slots: int | None = SLOTS
    retain: str = "readers"
    floor: int = 0
    hint: int = NOT_YET
    readers: Mapping[str, int] = field(default_factory=dict)
    rev: int = 0
    more: Mapping[str, Any] = field(default_factory=dict)

    def place(self, slot: int) -> int:
        return slot if self.slots is None else slot % self.slots

    def has_room(self, slot: int) -> bool:
        return self.slots is None or slot < self.slots or slot - self.slots < self.floor

    def encode(self) -> bytes:
        fields = {"format": _MANIFEST_FORMAT, "id": self.id, "slots": self.slots, "retain": self.retain}
        fields |= {"floor": self.floor, "hint": self.hint, "readers": dict(self.readers), "rev": self.rev}
        return json.dumps({**self.more, **fields}).encode()


def decode_log_manifest(data: bytes, path: str) -> LogManifest:
    """Decode `log.json`; other bytes and newer formats raise MalformedObject, naming `path`.

    Unknown fields go to `more`.
    """
    with undecodable_as(
        MalformedObject, f"{path!r} is not the manifest of a log and was not changed", "give the log another path"
    ):
        fields = parse_object(data, most=LARGEST_OBJECT)
        check_format(fields, path, _MANIFEST_FORMAT)
        if fields["retain"] not in RETAIN:
            raise Undecodable(f"retain must be one of {', '.join(RETAIN)}")
        return LogManifest(
            id=text_in(fields, "id"),
            slots=None if fields["slots"] is None else whole_in(fields, "slots", least=1),
            retain=fields["retain"],
            floor=whole_in(fields, "floor"),
            hint=whole_in(fields, "hint", least=NOT_YET),
            readers={_reader(name): as_whole(slot, name) for name, slot in fields["readers"].items()},
            rev=whole_in(fields, "rev"),
            more={name: value for name, value in fields.items() if name not in _KNOWN},
        )


def _reader(name: str) -> str:
    if not READER.fullmatch(name):
        raise Undecodable(f"a reader has the name {name[:200]!r}")
    return name


# A slot is a line of JSON, the records, each after its length, and a CRC-32 of all that (4 bytes, big-endian):
#
# {"format":1, "log":uuid, "slot":s, "first":offset, "count":n, "epoch":e, "led":false, "batch":uuid, "at":ms,
# "producers":{name:[epoch,seq,slot,offset,client,base]}}
#
# The last slot alone shows what the log has of each producer. `batch`, the write's id, settles a lost answer, and makes
# each write's bytes differ. An optional "broker" names the processes that write for others: {host:[address,key]}.
#
# A sealed log's last slot has "sealed" (the next log, or ""), no records, and format 2.
_FORMAT, _SEALED_FORMAT = 1, 2
_LENGTH = 4

_dump = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class Producer:
    """Producer's last number, its place, and the client with the name.

    `epoch` rises with each client; `base` was the last number when it took the name.
    """

    epoch: int
    seq: int
    slot: int
    offset: int
    client: str
    base: int = 0


@dataclass(frozen=True, slots=True)
class Head:
    """Slot without records. `led`: the leader of `epoch` still leads. `sealed`: next log, "", or None: open."""

    log: str
    slot: int = NOT_YET
    first: int = 0
    count: int = 0
    epoch: int = 0
    led: bool = False
    batch: str = ""
    at_ms: int = 0
    producers: Mapping[str, Producer] = field(default_factory=dict, hash=False)
    broker: object = field(default=None, hash=False)
    sealed: str | None = None

    @property
    def end(self) -> int:
        return self.first + self.count


@dataclass(frozen=True, slots=True)
class Slot:
    head: Head
    body: bytes = field(repr=False, default=b"")
    path: str = field(compare=False, default="")
    content: Content | None = field(compare=False, repr=False, default=None)

    def records(self) -> list[bytes]:
        """Return the records in order; raise MalformedObject if they do not fill the slot's bytes."""
        records, at = [], 0
        for _ in range(self.head.count):
            start = at + _LENGTH
            at = start + int.from_bytes(self.body[at:start], "big")
            records.append(self.body[start:at])
        if at != len(self.body):
            message = f"its {self.head.count} records do not match its {len(self.body)} bytes"
            raise MalformedObject(f"{self.path!r} is not a slot of a log and was not changed: {message}")
        return records


def encode_slot(head: Head, records: Iterable[bytes]) -> bytes:
    """Encode `head` as JSON, the records behind their lengths, and a CRC-32. `head.count` must be their number."""
    format_ = _FORMAT if head.sealed is None else _SEALED_FORMAT
    fields = {"format": format_, "log": head.log, "slot": head.slot, "first": head.first, "count": head.count}
    fields |= {"epoch": head.epoch, "led": head.led, "batch": head.batch, "at": head.at_ms}
    fields |= {} if head.broker is None else {"broker": head.broker}
    fields |= {} if head.sealed is None else {"sealed": head.sealed}
    table = {name: [p.epoch, p.seq, p.slot, p.offset, p.client, p.base] for name, p in head.producers.items()}
    parts = [_dump({**fields, "producers": table}).encode(), b"\n"]
    for record in records:
        parts += [len(record).to_bytes(_LENGTH, "big"), record]
    data = b"".join(parts)
    return data + zlib.crc32(data).to_bytes(_LENGTH, "big")


def decode_slot(data: bytes, path: str) -> Slot:
    """Decode a slot's head; its records stay encoded.

    A wrong checksum, other bytes and newer formats raise MalformedObject, naming `path`.
    """
    with undecodable_as(MalformedObject, f"{path!r} is not a whole slot of a log and was not changed"):
        line, newline, body = data[:-_LENGTH].partition(b"\n")
        if len(data) > LARGEST_OBJECT:
            raise Undecodable(f"it has {len(data)} bytes")
        if not newline or zlib.crc32(data[:-_LENGTH]).to_bytes(_LENGTH, "big") != data[-_LENGTH:]:
            raise Undecodable("its checksum does not match")
        fields = parse_object(line, most=LARGEST_OBJECT)
        check_format(fields, path, _FORMAT, _SEALED_FORMAT)
        head = Head(
            log=text_in(fields, "log"),
            slot=whole_in(fields, "slot"),
            first=whole_in(fields, "first"),
            count=whole_in(fields, "count", most=len(body) // _LENGTH),
            epoch=whole_in(fields, "epoch"),
            led=as_flag(fields["led"], "led"),
            batch=text_in(fields, "batch"),
            at_ms=whole_in(fields, "at", most=LATEST_MS),
            producers={name: _producer(stored) for name, stored in fields["producers"].items()},
            broker=fields.get("broker"),
            sealed=text_in(fields, "sealed") if fields["format"] == _SEALED_FORMAT else None,
        )
        return Slot(head, body, path)


def _producer(stored: list[Any]) -> Producer:
    epoch, seq, slot, offset, client, base = stored
    if not are_wholes((epoch, seq, base)) or not are_wholes((slot, offset), least=NOT_YET):
        raise Undecodable("the numbers of a producer are not those of a log")
    return Producer(epoch, seq, slot, offset, as_text(client, "client"), base)
