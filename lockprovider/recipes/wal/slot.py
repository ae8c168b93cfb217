"""What a slot of a log holds. Pure.

A line of JSON, the records, each behind its length (4 bytes, big-endian), and a CRC-32 of all that (4 bytes):

{"format": 1, "log": uuid, "slot": s, "first": offset, "count": n, "epoch": e, "led": false, "batch": uuid, "at": ms,
 "producers": {name: [epoch, seq, slot, offset, client, base]}}

`first` is the offset of its first record; offsets have no holes. Every slot carries the whole table of producers, so
whoever knows the last slot knows what the log has of each. `batch` is the identity of the write, by which a lost answer
is settled; it also makes the bytes of each write differ. "broker", where there is one, says who writes for others:
{host: [address, key]}. "sealed", in the last slot of a log that takes no more, names the log that goes on, or is empty;
such a slot has no records and another format, which versions that know no seal refuse. A format that is not known is
refused, and never written over.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lockprovider.bounded import (
    LARGEST_OBJECT,
    LATEST_MS,
    Undecodable,
    are_wholes,
    as_flag,
    as_text,
    parse_object,
    text_in,
    undecodable_as,
    whole_in,
)
from lockprovider.recipes.errors import MalformedObject

_FORMAT, _SEALED_FORMAT = 1, 2
_LENGTH = 4
NOT_YET = -1  # the slot before the first

_dump = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class Producer:
    """What the log has of a producer.

    Attributes:
        epoch: rises with each client that takes the name.
        seq: its last number; `slot` and `offset` are where that record is.
        client: who has the name.
        base: the last number that was there when the client took it.
    """

    epoch: int
    seq: int
    slot: int
    offset: int
    client: str
    base: int = 0


@dataclass(frozen=True, slots=True)
class Head:
    """A slot without its records.

    Attributes:
        first, count: the offset of its first record, and how many there are.
        epoch: the newest that has led; `led`: it still does, and nobody else appends.
        batch: the identity of its write.
        at_ms: when, by the writer's clock (epoch ms); for people.
        broker: who writes for others, as `recipes.broker` has it.
        sealed: the log that goes on, empty if none was named; None: this one does.
    """

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
        """The offset behind its last record."""
        return self.first + self.count


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot as it is stored; the records are looked at when they are asked for."""

    head: Head
    body: bytes = field(repr=False, default=b"")
    path: str = field(compare=False, default="")

    def records(self) -> list[bytes]:
        """The records, in their order.

        Raises:
            MalformedObject: there are fewer bytes than the records have, or more.
        """
        found, at = [], 0
        for _ in range(self.head.count):
            start = at + _LENGTH
            at = start + int.from_bytes(self.body[at:start], "big")
            found.append(self.body[start:at])
        if at != len(self.body):
            said = f"its {self.head.count} records do not fill its {len(self.body)} bytes"
            raise MalformedObject(f"{self.path!r} is no slot of a log, and is left as it is: {said}")
        return found


def encode_slot(head: Head, records: Iterable[bytes]) -> bytes:
    """The slot as it is stored."""
    format_ = _FORMAT if head.sealed is None else _SEALED_FORMAT
    said = {"format": format_, "log": head.log, "slot": head.slot, "first": head.first, "count": head.count}
    said |= {"epoch": head.epoch, "led": head.led, "batch": head.batch, "at": head.at_ms}
    said |= {} if head.broker is None else {"broker": head.broker}
    said |= {} if head.sealed is None else {"sealed": head.sealed}
    table = {name: [p.epoch, p.seq, p.slot, p.offset, p.client, p.base] for name, p in head.producers.items()}
    parts = [_dump({**said, "producers": table}).encode(), b"\n"]
    for record in records:
        parts += [len(record).to_bytes(_LENGTH, "big"), record]
    data = b"".join(parts)
    return data + zlib.crc32(data).to_bytes(_LENGTH, "big")


def decode_slot(data: bytes, path: str) -> Slot:
    """The slot in these bytes.

    Raises:
        MalformedObject: they are none, are torn, or are of a format that is not known.
    """
    with undecodable_as(MalformedObject, f"{path!r} is no slot of a log, or is torn, and is left as it is"):
        line, newline, body = data[:-_LENGTH].partition(b"\n")
        if len(data) > LARGEST_OBJECT:
            raise Undecodable(f"it has {len(data)} bytes")
        if not newline or zlib.crc32(data[:-_LENGTH]).to_bytes(_LENGTH, "big") != data[-_LENGTH:]:
            raise Undecodable("its checksum does not fit")
        found = parse_object(line, most=LARGEST_OBJECT)
        if found["format"] not in (_FORMAT, _SEALED_FORMAT):
            known = f"this version knows {_FORMAT} and {_SEALED_FORMAT}: use a newer one"
            raise MalformedObject(f"{path!r} has format {found['format']!r}, {known}")
        head = Head(
            log=text_in(found, "log"),
            slot=whole_in(found, "slot"),
            first=whole_in(found, "first"),
            count=whole_in(found, "count", most=len(body) // _LENGTH),
            epoch=whole_in(found, "epoch"),
            led=as_flag(found["led"], "led"),
            batch=text_in(found, "batch"),
            at_ms=whole_in(found, "at", most=LATEST_MS),
            producers={name: _producer(stored) for name, stored in found["producers"].items()},
            broker=found.get("broker"),
            sealed=text_in(found, "sealed") if found["format"] == _SEALED_FORMAT else None,
        )
        return Slot(head, body, path)


def _producer(stored: list[Any]) -> Producer:
    epoch, seq, slot, offset, client, base = stored
    if not are_wholes((epoch, seq, base)) or not are_wholes((slot, offset), least=NOT_YET):
        raise Undecodable("the numbers of a producer are not those of a log")
    return Producer(epoch, seq, slot, offset, as_text(client, "client"), base)
