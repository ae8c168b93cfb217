"""Reading a log from a position, and named readers: where each goes on, and what they hold the floor at.

{"format": 1, "log": uuid, "slot": s, "offset": o, "epoch": e, "rev": n}

`epoch` rises with each process that opens the reader: whoever had it before is fenced. `rev` rises with each write, so
that no bytes come back.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from fsspec_cas import InvalidInput
from fsspec_cas.given import seconds
from lockprovider.bounded import parse_object, text_in, undecodable_as, whole_in
from lockprovider.recipes.errors import Fenced, MalformedObject
from lockprovider.recipes.place import OfThisProcess, repr_at
from lockprovider.recipes.wal.manifest import LogManifest
from lockprovider.recipes.wal.objects import Found, LogObjects, behind
from lockprovider.recipes.wal.reports import LogBatch, Position

_FORMAT = 1
_LARGEST = 1 << 16  # bytes
_NEW: Mapping[str, Any] = {"slot": 0, "offset": 0, "epoch": 0, "rev": 0}
_SPARE = 8  # part of a ring that is freed at once, where nobody's reading is waited for
_AT_ONCE = 8
_FIRST_POLL_S = 0.05


def read_from(objects: LogObjects, start: Position) -> Iterator[LogBatch]:
    """What is there from a position to the end, slot by slot; slots without records are passed over, but for the seal.

    Raises:
        Trimmed: it is not kept any more, or others have written over it before it was read.
        InvalidInput: the log ends before it.
        MalformedObject, StoreError: it cannot be read.
    """
    if start.slot < objects.manifest(fresh=True).floor:
        raise objects.trimmed(start.slot)
    objects.require_reached(start)
    return (batch for batch in _slots(objects, start) if batch.records or batch.sealed)


def follow_from(
    objects: LogObjects, start: Position, *, idle_s: float, timeout_s: float | None = None
) -> Iterator[LogBatch]:
    """The same, and then what comes; ends at the seal, or if nothing came for `timeout_s`.

    An idle look moves no body.
    """
    if start.slot < objects.manifest(fresh=True).floor:
        raise objects.trimmed(start.slot)
    objects.require_reached(start)
    return _followed(objects, start, idle_s, timeout_s)


def _followed(objects: LogObjects, position: Position, idle_s: float, timeout_s: float | None) -> Iterator[LogBatch]:
    world = objects.world
    came_s, poll_s, known = world.monotonic_s(), _FIRST_POLL_S, None
    while True:
        place = objects.look(position.slot, known)
        if place is not None and place.slot.head.slot >= position.slot:
            for batch in _slots(objects, position):
                position = batch.end
                if batch.records or batch.sealed:
                    yield batch
                if batch.sealed:
                    return
            came_s, poll_s, known = world.monotonic_s(), _FIRST_POLL_S, None
        else:
            known = place
            left_s = poll_s if timeout_s is None else came_s + timeout_s - world.monotonic_s()
            if left_s <= 0:
                return
            world.sleep(min(poll_s, left_s))
            poll_s = min(poll_s * 2, idle_s)


def _slots(objects: LogObjects, start: Position) -> Iterator[LogBatch]:
    slot, at_once = start.slot, 1
    while True:
        looks = [objects.store.in_background(partial(objects.look, slot + n)) for n in range(1, at_once)]
        for look in (None, *looks):
            place = objects.look(slot) if look is None else look.result()
            if place is None or place.slot.head.slot < slot:
                return
            yield (batch := _batch(objects, place, slot, start.offset))
            if batch.sealed:
                return
            slot += 1
        at_once = min(at_once * 2, _AT_ONCE)


def _batch(objects: LogObjects, place: Found, slot: int, offset: int) -> LogBatch:
    head = place.slot.head
    if head.slot > slot:
        raise objects.trimmed(slot)
    if offset > head.end:
        raise objects.past_the_end(Position(slot, offset))
    records = place.slot.records()[max(0, offset - head.first) :]
    start = Position(slot, head.end - len(records))
    sealed = head.sealed is not None
    return LogBatch(start, behind(head), records, head.epoch, head.at_ms, sealed, head.sealed or "")


class LogReader(OfThisProcess):
    """A reader whose position is kept in the log: it goes on where it had committed, in another process too.

    Attributes:
        position: where it goes on, as it was opened, or last committed.
        epoch: rises with each process that opens it.

    >>> log = lockprovider.wal.create("memory://docs/orders")
    >>> done = log.append_many([b"first", b"second"])
    >>> reader = log.reader("billing")
    """

    def __init__(self, objects: LogObjects, name: str, start: Callable[[], Position]) -> None:
        self.name = name
        self._objects = objects
        self._path = objects.reader_path(name)
        self.epoch = 0
        self.position = Position(0, 0)
        if name in objects.manifest(fresh=True).readers:
            self._write(None, opens=True)
            return
        begins = start()
        made = objects.change(lambda old: replace(old, readers={name: max(begins.slot, old.floor), **old.readers}))
        if begins.slot < made.floor:  # it was raised meanwhile, and now waits for this one
            begins = start()
        self._write(begins, opens=True)

    def __repr__(self) -> str:
        return repr_at(self, self._objects.store, self._objects.path, f", name={self.name!r}, at {self.position}")

    def read(self) -> Iterator[LogBatch]:
        """What is there from its position to the end of the log.

        Raises:
            Trimmed: it was overtaken, where the log does not wait for its readers.
            MalformedObject, StoreError: it cannot be read.

        >>> [record for batch in reader.read() for record in batch.records]
        [b'first', b'second']
        """
        return read_from(self._objects, self.position)

    def follow(self, *, idle_s: float = 1.0, timeout: float | None = None) -> Iterator[LogBatch]:
        """The same, and then what comes: see `Wal.follow`.

        >>> sum(len(batch.records) for batch in reader.follow(timeout=0.01))
        2
        """
        limit_s = None if timeout is None else seconds(timeout)
        return follow_from(self._objects, self.position, idle_s=seconds(idle_s, "idle_s"), timeout_s=limit_s)

    def commit(self, position: Position) -> None:
        """Go on there from now on; what is before it may be trimmed. May be repeated.

        Raises:
            Fenced: the reader was opened elsewhere since.
            InvalidInput: the position is before the one that was committed.
            OutcomeUnknown, StoreError: do it again.

        >>> reader.commit(log.end())
        >>> [*reader.read()]
        []
        """
        if not isinstance(position, Position):
            raise InvalidInput(f"position={position!r} must be a position: of a batch, or Position.parse(text)")
        if position < self.position:
            raise InvalidInput(f"position={position} is before {self.position}, which is committed: readers only go on")
        self._objects.require_reached(position)
        self._write(position)

    def _write(self, position: Position | None, *, opens: bool = False) -> None:
        made: dict[str, Any] = {}

        def write(data: bytes | None) -> bytes:
            old = decode_reader(data, self._path) if data is not None else dict(_NEW)
            if not opens and old["epoch"] != self.epoch:
                raise Fenced(
                    f"the reader {self.name!r} was opened elsewhere since: stop, or open it again", old["epoch"]
                )
            there = position or _kept(old, self._objects.manifest().readers[self.name])
            made.update(format=_FORMAT, log=self._objects.manifest().id, slot=there.slot, offset=there.offset)
            made.update(epoch=old["epoch"] + opens, rev=old["rev"] + 1)
            return json.dumps(made).encode()

        self._objects.store.update(self._path, write, timeout=self._objects.timeout_s)
        self.epoch = made["epoch"]
        self.position = Position(made["slot"], made["offset"])


def positions(objects: LogObjects, manifest: LogManifest) -> dict[str, Position]:
    """Where each reader goes on."""
    found = {}
    for name, start in manifest.readers.items():
        path = objects.reader_path(name)
        content = objects.store.read_or_none(path, timeout=objects.timeout_s)
        found[name] = _kept(_NEW if content is None else decode_reader(content.data, path), start)
    return found


def _kept(found: Mapping[str, Any], began: int) -> Position:
    """What is kept may be of a reader of this name that was dropped before this one `began`."""
    return max(Position(found["slot"], found["offset"]), Position(began, 0))


class _OtherReaders(Exception):
    """Others read than those that were asked where they are."""


def trim(objects: LogObjects, before: int) -> int:
    """Raise the floor to this slot, or to the slowest reader, where the log waits for them; the floor that it has."""
    while True:
        manifest = objects.manifest(fresh=True)
        slots = [one.slot for one in positions(objects, manifest).values()] if manifest.retain == "readers" else []
        floor = min([before, *slots])
        if floor <= manifest.floor:
            return manifest.floor
        with contextlib.suppress(_OtherReaders):
            return objects.change(partial(_trimmed, seen=manifest, floor=floor)).floor


def _trimmed(old: LogManifest, *, seen: LogManifest, floor: int) -> LogManifest:
    if old.readers != seen.readers:
        raise _OtherReaders
    return old.trimmed(floor)


def make_room(objects: LogObjects, slot: int) -> tuple[LogManifest, str]:
    """Raise the floor for a slot of a ring that is full, if it may be; and the name of the slowest reader."""
    manifest = objects.manifest()
    slots = manifest.slots or 0
    if manifest.retain == "slots":
        trim(objects, min(slot, slot - slots + 1 + slots // _SPARE))
        return objects.manifest(), ""
    there = positions(objects, manifest)
    slowest = min(there, key=lambda name: there[name], default="")
    if slowest:
        trim(objects, min(slot, there[slowest].slot))
    return objects.manifest(), slowest


def decode_reader(data: bytes, path: str) -> dict[str, Any]:
    """The fields of a reader's position.

    Raises:
        MalformedObject: they are none, or of a format that is not known.
    """
    with undecodable_as(MalformedObject, f"{path!r} is no reader's position, and is left as it is"):
        found = parse_object(data, most=_LARGEST)
        if found["format"] != _FORMAT:
            raise MalformedObject(
                f"{path!r} has format {found['format']!r}, this version knows {_FORMAT}: use a newer one"
            )
        return {"log": text_in(found, "log"), **{name: whole_in(found, name) for name in _NEW}}
