"""All formats of stored objects: a sample, how it is decoded, and what a decoder may raise."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lockprovider import Holder, LockRecord, Log, MalformedRecord, Pending
from lockprovider.bounded import Undecodable
from lockprovider.recipes.election.decide import ElectionRecord, decode_election
from lockprovider.recipes.errors import MalformedObject
from lockprovider.recipes.queue.contents import Claim, Contents, Dead, Message, Segment, decode_queue, decode_segment
from lockprovider.recipes.state.document import Document, EditMark, decode
from lockprovider.recipes.state.terraform import TerraformState
from lockprovider.recipes.wal.contents import (
    Head,
    LogManifest,
    Producer,
    Slot,
    decode_log_manifest,
    decode_slot,
    encode_slot,
)
from lockprovider.recipes.wal.objects import decode_reader
from lockprovider.storage_lock.audit import AuditRecord
from lockprovider.table.files.place import FooterNote, decode_notes, encode_notes
from lockprovider.table.format.layout import Action, Instant, InstantState
from lockprovider.table.state.checkpoint import Checkpoint
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.view import FileSlice

PATH = "folder/object-of-this-test"
LOG = Log("trips").plus(
    Pending.of_bytes("state/7", b"seven"), Pending("state/8", "", "digest", b"eight", True, Pending.of_bytes("f", b"1"))
)


@dataclass(frozen=True, slots=True)
class Format:
    """One format.

    Attributes:
        decode: all that readers do with the bytes.
        error: the one error that it raises; None: it is a cache, and damage reads as `absent`.
        named: what the error has to name.
        unwrap, wrap: from the bytes to the JSON in them, and back, so that damage comes past checksums and deflating.
        encode: what was decoded, as it is written again.
    """

    sample: bytes
    decode: Callable[[bytes], Any]
    error: type[Exception] | None = MalformedObject
    named: str = PATH
    unwrap: Callable[[bytes], bytes] = bytes
    wrap: Callable[[bytes], bytes] = bytes
    encode: Callable[[Any], bytes] | None = None
    absent: Any = None


def _record(data: bytes) -> LockRecord:
    record = LockRecord.decode(data, PATH)
    if record.log is not None:
        assert isinstance(record.log.entries, tuple)
    assert isinstance(record.log_has_pending, bool)
    return record


def _slot(data: bytes) -> Slot:
    slot = decode_slot(data, PATH)
    slot.records()
    return slot


def _line(data: bytes) -> bytes:
    return data[:-4].partition(b"\n")[0]


def _with_line(line: bytes) -> bytes:
    data = line + b"\n" + SLOT[:-4].partition(b"\n")[2]
    return data + zlib.crc32(data).to_bytes(4, "big")


def _checkpoint(data: bytes) -> Any:
    found = Checkpoint.decode(data)
    return None if found is None else (found.slices, found.timeline.instants, found.position)


def _notes(data: bytes) -> Any:
    notes = decode_notes(data)
    for note in notes.values():
        assert note.size >= 0
        note.may_have("a", "b", None)
    return notes


def _log(data: bytes) -> Any:
    return Log(LOG.name, LOG.first, LOG.next, data).entries


def _claim(n: int) -> Claim:
    return Claim(Message(n, -1, 5, 1, "key", {"a": [1]}), "token", "me", 3, 60_000, 60_000, 1)


RECORD = LockRecord(
    "owner", 1_700_000_000_000, False, 7, "nonce", LOG.entries[-1].pending, Holder("host", 7, 1_700_000_000_000),
    ("one", "two"), 12, 13, False, 15, LOG, (LOG.entries[0].pending,), 16, 17, 18,
).encode()  # fmt: skip
ENCLOSED = LockRecord("owner", 5, True, pending=Pending.of_bytes("a", b"x" * 100)).encode()
QUEUE = Contents(
    "queue-id", ready=[Message(4, 1, 0, 0, "", b"bytes", "why")], claims={3: _claim(3)},
    segments=[Segment("seg-1", 7, 100, (-1, 9), 5)],
    dead={2: Dead(Message(2, 0, 0, 5, "", "x"), "w", 9)},
    producers={"p": (1, 2, "c")}, settled={"t": "ack"}, recent=("a",), more={"later": [1]},
).encode()  # fmt: skip
SEGMENT = Segment("seg-1", 1, 9, (0, 1), 0, (Message(1, 0, 0, 0, "", {"b": 1.5}),)).encode("queue-id")
HEAD = Head("log-id", 17, 5, 2, 3, False, "batch", 9, {"p": Producer(1, 2, 16, 5, "client", 1)}, {"h": ["a:1", "k"]})
SLOT = encode_slot(HEAD, [b"one", b""])
STATE = Document("lineage", 7, "write", "me", 9, {"a": [1, "x"]}, 3, "why", EditMark(3, "me", 9, "why"), {"more": 1})
ELECTION = ElectionRecord(3, "owner", "name", 15_000, "write", False, "heir", 9, {"v": 1}, (("more", 1),))
READER = {"format": 1, "log": "log-id", "slot": 3, "offset": 9, "epoch": 1, "rev": 4}
MANIFEST = LogManifest("log-id", 64, "readers", 3, 8, {"billing": 3}, 5, {"more": 1})
_DONE = Instant("20260105010203004", Action.COMMIT, InstantState.COMPLETED, "20260105010203104")
_FILES = (FileSlice("p", "f-0", "20260105010203004", "p/f-0_0-0-0_20260105010203004.parquet", 100),)
CHECKPOINT = Checkpoint("trips", 2, Timeline.of_done([_DONE], []), _FILES)
NOTES = {"p/f.parquet": FooterNote(("a", "z"), "ZmlsdGVy")}
AUDIT = AuditRecord("owner", 1, 2, "START", 3, True)
TERRAFORM = {"version": 4, "serial": 3, "lineage": "0f6e", "resources": []}

FORMATS = {
    "lock record": Format(RECORD, _record, MalformedRecord, encode=LockRecord.encode),
    "enclosed publish": Format(ENCLOSED, _record, MalformedRecord, encode=LockRecord.encode),
    "log in the record": Format(
        LOG.packed, _log, MalformedRecord, "the log in the lock record is damaged", zlib.decompress, zlib.compress
    ),
    "queue": Format(QUEUE, lambda data: decode_queue(data, PATH), encode=Contents.encode),
    "segment": Format(SEGMENT, lambda data: decode_segment(data, "queue-id", PATH)),
    "slot": Format(SLOT, _slot, unwrap=_line, wrap=_with_line),
    "manifest": Format(MANIFEST.encode(), lambda data: decode_log_manifest(data, PATH), encode=LogManifest.encode),
    "reader": Format(json.dumps(READER).encode(), lambda data: decode_reader(data, PATH)),
    "election": Format(ELECTION.encode(), lambda data: decode_election(data, PATH), encode=ElectionRecord.encode),
    "state": Format(STATE.encode(), lambda data: decode(data, PATH), encode=Document.encode),
    "terraform": Format(json.dumps(TERRAFORM).encode(), TerraformState.decode, named="not a state of Terraform"),
    "audit": Format(AUDIT.encode().rstrip(), AuditRecord.decode, Undecodable, "not an audit record"),
    "checkpoint": Format(CHECKPOINT.encode(), _checkpoint, None, "", zlib.decompress, zlib.compress),
    "notes": Format(encode_notes(NOTES), _notes, None, "", zlib.decompress, zlib.compress, absent={}),
}


def deflated_zeros(size: int) -> bytes:
    """So many zeros, deflated, without ever having them: one block again and again."""
    packing = zlib.compressobj(9)
    head = packing.compress(b"") + packing.flush(zlib.Z_FULL_FLUSH)
    block = packing.compress(bytes(1 << 20)) + packing.flush(zlib.Z_FULL_FLUSH)
    return head + block * (size >> 20) + packing.flush()


def bombs() -> dict[str, list[bytes]]:
    """Objects of each format that would take gigabytes, if a reader believed them."""
    zeros = deflated_zeros(1 << 31)
    text = base64.b64encode(zeros).decode()
    log = {"name": "trips", "first": 0, "next": 2, "packed": text}
    pending = {"path": "a", "staged": "", "digest": "d", "enclosed": text, "unshared": True}
    record = {"owner": "o", "validUntil": 5, "expired": True, "epoch": 1, "nonce": "n"}
    small = {**pending, "enclosed": base64.b64encode(deflated_zeros(64 << 20)).decode()}
    counted = {**json.loads(_line(SLOT)), "count": 1 << 40}
    return {
        "lock record": [
            json.dumps({**record, "pending": pending}).encode(),
            json.dumps({**record, "pending": {**pending, "enclosed": None, "first": pending}}).encode(),
            json.dumps({**record, "log": log, "pending": {**pending, "enclosed": None}}).encode(),
            json.dumps({**record, "log": log}).encode(),
            json.dumps({**record, "pending": small, "pendingBefore": [small] * 60}).encode(),
            json.dumps({**record, "pending": {**small, "enclosed": None}, "pendingBefore": 1 << 50}).encode(),
            json.dumps({**record, "waiters": ["name"] * 800_000}).encode(),
        ],
        "log in the record": [zeros],
        "checkpoint": [zeros],
        "notes": [zeros],
        "slot": [_with_line(json.dumps(counted).encode())],
        "queue": [QUEUE.replace(b'"why"', b'"' + b"x" * (70 << 20) + b'"')],
    }


__all__ = ["FORMATS", "PATH", "Format"]
