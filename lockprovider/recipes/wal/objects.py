"""Requests on a log's objects, and its readers. No object is removed; each write is conditional.

orders/log.json              settings, floor, hint of the end, readers' names and first slots
orders/slots/00000017        slot in this place
orders/readers/to-hudi       position of a reader
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from fsspec_cas import ABSENT, Absent, CasError, InvalidInput, Outcome, Store, Version, Won, World
from fsspec_cas.arguments import check_seconds
from lockprovider.bounded import parse_object, text_in, undecodable_as, whole_in
from lockprovider.recipes.base import ProcessBound, StoreCheck, repr_at
from lockprovider.recipes.errors import CoordinationError, Fenced, LogFull, MalformedObject, NoLog, Trimmed
from lockprovider.recipes.values import check_format
from lockprovider.recipes.wal.contents import (
    NOT_YET,
    READER,
    Head,
    LogBatch,
    LogManifest,
    Position,
    Slot,
    check_position,
    decode_log_manifest,
    decode_slot,
)

_KEPT = 65536  # versions
_HINT_EVERY = 64  # slots


def last_slot(look: Callable[[int], int], written: int, slots: int | None) -> int:
    """Return a log's last slot, -1 if none. If `written`, a known slot or -1, is gone, it may be below that.

    `look` returns the slot in a slot's place, -1 if empty. `slots`: ring size or None.
    """
    low = written if written == NOT_YET else look(written)
    while True:
        step = 1
        while (read_slot := look(low + step)) >= low + step:
            low, step = read_slot, step * 2 if slots is None else min(step * 2, slots)
        high = low + step
        while high - low > 1:
            middle = (low + high) // 2
            read_slot = look(middle)
            if read_slot >= middle:
                low = read_slot
            else:
                high = middle
        if high - low == 1:
            return low


class LogObjects:
    """Caches manifest and versions. Thread-safe."""

    def __init__(self, store: Store, path: str, timeout_s: float, world: World) -> None:
        self.store = store
        self.path = path
        self.world = world
        self.timeout_s = timeout_s
        self._manifest: LogManifest | None = None
        self._versions: dict[int, tuple[int, Version]] = {}
        self._reached = Position(0, 0)  # of the log, or less
        self._manifest_path = f"{path}/log.json"
        self._store_check = StoreCheck(store, self._manifest_path)

    def create(self, manifest: LogManifest) -> bool:
        return self._store_check.create(self._manifest_path, manifest.encode(), self.timeout_s)

    def manifest(self, *, fresh: bool = False) -> LogManifest:
        if self._manifest is None or fresh:
            content = self.store.read_or_none(self._manifest_path, timeout=self.timeout_s)
            self._manifest = self._decoded(None if content is None else content.data)
        return self._manifest

    def change(self, fn: Callable[[LogManifest], LogManifest]) -> LogManifest:
        """Store and cache `fn(manifest)` with the next `rev`; return it.

        Tests the store once. After a lost race `fn` runs again, rarely even if it was written. Raises OutcomeUnknown
        for an unsettled lost answer.
        """
        self._store_check.require()
        changed = self.manifest()

        def write(data: bytes | None) -> bytes:
            nonlocal changed
            stored = self._decoded(data)
            changed = replace(fn(stored), rev=stored.rev + 1)
            return changed.encode()

        self.store.update(self._manifest_path, write, timeout=self.timeout_s)
        self._manifest = changed
        return changed

    def _decoded(self, data: bytes | None) -> LogManifest:
        if data is None:
            raise NoLog(f"no log exists at {self.path!r}: create it with `lockprovider wal create URL` or Wal.create()")
        manifest = decode_log_manifest(data, self._manifest_path)
        if self._manifest is not None and self._manifest.id != manifest.id:
            raise Fenced(f"the log at {self.path!r} was removed and created anew: open it again")
        return manifest

    def look(self, slot: int, cached: Slot | None = None) -> Slot | None:
        """Read the place of `slot`, whichever slot it holds (None: empty); cache its version.

        Returns an unchanged `cached`. Raises MalformedObject for another log's slot.
        """
        path = self.slot_path(slot)
        before = None if cached is None else cached.content
        content = self.store.read_or_none(path, before, timeout=self.timeout_s)
        if content is None or content is before:
            return None if content is None else cached
        decoded = decode_slot(content.data, path)
        if decoded.head.log != self.manifest().id:
            raise MalformedObject(f"{path!r} belongs to another log and was not changed: give this log another path")
        self._cache_version(decoded.head, content.version)
        return replace(decoded, content=content)

    def require_reached(self, start: Position) -> None:
        """Raise InvalidInput if the log ends before `start`, by up to two reads.

        Offsets within earlier slots are not checked.
        """
        if start <= self._reached:
            return
        place = self.look(start.slot)
        if (place is None or place.head.slot < start.slot) and start.slot:
            place = self.look(start.slot - 1)
        end = Position(0, 0) if place is None else next_position(place.head)
        if start > end:
            raise self.past_the_end(start)

    def past_the_end(self, position: Position) -> InvalidInput:
        message = f"position={position} is past the end of the log at {self.path!r}, or of its slot"
        return InvalidInput(f"{message}: give a position of this log, e.g. from `end()` or a batch")

    def slot_path(self, slot: int) -> str:
        return f"{self.path}/slots/{self.manifest().place(slot):08d}"

    def condition(self, slot: int) -> Version | Absent | None:
        """Condition for writing a slot; None: read its place first."""
        slots = self.manifest().slots
        if slots is None or slot < slots:
            return ABSENT
        before, version = self._versions.get(slot % slots, (NOT_YET, None))
        return version if before == slot - slots else None

    def put(self, head: Head, data: bytes, condition: Version | Absent) -> Outcome:
        """Write if the slot's place is absent or has version `condition`; cache won versions.

        Tests the store once; raises store errors. Each 64th slot won updates the manifest's hint in the background.
        """
        self._store_check.require()
        path = self.slot_path(head.slot)
        if isinstance(condition, Absent):
            once = self.manifest().slots is None
            outcome = self.store.put_if_absent(path, data, create_once=once, timeout=self.timeout_s)
        else:
            outcome = self.store.put_if_match(path, data, condition, timeout=self.timeout_s)
        if isinstance(outcome, Won):
            self._cache_version(head, outcome.version)
            if head.slot % _HINT_EVERY == 0:
                self.store.in_background(lambda: self._hint(head.slot))
        return outcome

    def last(self, written: int = NOT_YET) -> Slot:
        """Read on from `written`, or the manifest's greater hint; return the last slot (number -1: none).

        Caches the manifest and a ring's versions. Raises MalformedObject if the start slot is gone.
        """
        manifest = self.manifest()
        slots = {NOT_YET: Slot(Head(manifest.id))}

        def look(slot: int) -> int:
            place = self.look(slot)
            if place is None:
                return NOT_YET
            slots[place.head.slot] = place
            return place.head.slot

        written = max(written, manifest.hint)
        end = last_slot(look, written, manifest.slots)
        if end < written:
            raise self.gone_error(written)
        return slots[end]

    def gone_error(self, slot: int) -> MalformedObject:
        return MalformedObject(
            f"slot {slot} of {self.path!r} was written and is gone: another program removes objects of this log"
        )

    @property
    def written(self) -> int:
        """Highest slot known to be written (-1: none); no request."""
        return max(self.manifest().hint, self._reached.slot - 1)

    def trimmed_error(self, slot: int) -> Trimmed:
        floor = self.manifest(fresh=True).floor
        return Trimmed(f"slot {slot} of {self.path!r} was trimmed: the first kept slot is {floor}", floor)

    def _cache_version(self, head: Head, version: Version) -> None:
        """Record that the log reaches beyond this slot, and in a ring the version of its place."""
        slot, manifest = head.slot, self.manifest()
        self._reached = max(self._reached, next_position(head))
        if manifest.slots is not None:
            self._versions[manifest.place(slot)] = (slot, version)
            if len(self._versions) > _KEPT:
                with contextlib.suppress(KeyError, RuntimeError, StopIteration):  # another thread's
                    del self._versions[next(iter(self._versions))]

    def _hint(self, slot: int) -> None:
        with contextlib.suppress(CasError, CoordinationError):
            self.change(lambda manifest: replace(manifest, hint=max(manifest.hint, slot)))

    def reader_path(self, name: str) -> str:
        if not isinstance(name, str) or not READER.fullmatch(name):
            raise InvalidInput(f"name={name!r} must be letters, digits, and any of - _ . (200 at most)")
        return f"{self.path}/readers/{name}"


def next_position(head: Head) -> Position:
    return Position(head.slot + (head.sealed is None), head.end)


# A reader: {"format":1, "log":uuid, "slot":s, "offset":o, "epoch":e, "rev":n}. `epoch` rises with each client that
# opens it, and fences the last.
_FORMAT = 1
_LARGEST = 1 << 16  # bytes
_NEW: Mapping[str, Any] = {"slot": 0, "offset": 0, "epoch": 0, "rev": 0}
_SPARE = 8  # a full ring frees 1/8 at once
_AT_ONCE = 8
_FIRST_POLL_S = 0.05


def follow(
    objects: LogObjects, start: Callable[[], Position], idle_s: float = 1.0, timeout: float | None = None
) -> Iterator[LogBatch]:
    """Check by reads the position that `start` returns; return `_followed` from it."""
    idle_s, timeout_s = check_seconds(idle_s, "idle_s"), None if timeout is None else check_seconds(timeout)
    position = start()
    if position.slot < objects.manifest(fresh=True).floor:
        raise objects.trimmed_error(position.slot)
    objects.require_reached(position)
    return _followed(objects, position, idle_s, timeout_s)


def _followed(objects: LogObjects, position: Position, idle_s: float, timeout_s: float | None) -> Iterator[LogBatch]:
    """Yield slots with records, and the seal, then poll for new ones at intervals growing to `idle_s`.

    Ends after the seal, or after `timeout_s` (None: never) without a new slot. Raises as `_slots`.
    """
    world = objects.world
    while True:
        for batch in _slots(objects, position):
            position = batch.end
            if batch.records or batch.sealed:
                yield batch
            if batch.sealed:
                return
        ended_s, poll_s, place = world.monotonic_s(), min(_FIRST_POLL_S, idle_s), None
        while place is None or place.head.slot < position.slot:
            left_s = math.inf if timeout_s is None else ended_s + timeout_s - world.monotonic_s()
            if left_s <= 0:
                return
            world.sleep(min(poll_s, left_s))
            poll_s = min(poll_s * 2, idle_s)
            place = objects.look(position.slot, place)


def _slots(objects: LogObjects, start: Position) -> Iterator[LogBatch]:
    """Yield the slots from `start` to the end or the seal, also empty ones. Reads up to 8 concurrently.

    Raises as `_batch`, or MalformedObject for a removed slot.
    """
    slot, at_once = start.slot, 1
    while True:
        written = objects.written
        looks = [objects.store.in_background(partial(objects.look, slot + n)) for n in range(1, at_once)]
        for look in (None, *looks):
            place = objects.look(slot) if look is None else look.result()
            if place is None or place.head.slot < slot:
                if slot <= written:
                    raise objects.gone_error(slot)
                return
            yield (batch := _batch(objects, place, slot, start.offset))
            if batch.sealed:
                return
            slot += 1
        at_once = min(at_once * 2, _AT_ONCE)


def _batch(objects: LogObjects, place: Slot, slot: int, offset: int) -> LogBatch:
    """Return the records of `slot`, read as `place`, from `offset` in the log on.

    Raises Trimmed if `place` has a later slot, InvalidInput if `offset` is past its end.
    """
    head = place.head
    if head.slot > slot:
        raise objects.trimmed_error(slot)
    if offset > head.end:
        raise objects.past_the_end(Position(slot, offset))
    records = place.records()[max(0, offset - head.first) :]
    start = Position(slot, head.end - len(records))
    sealed = head.sealed is not None
    return LogBatch(start, next_position(head), records, head.epoch, head.at_ms, sealed, head.sealed or "")


class LogReader(ProcessBound):
    """Reader whose position is kept in the log: any process goes on where it had committed.

    Opening it fences its last client, and adds a new name to the manifest.

    Attributes:
        position: opened at, or committed last.
        epoch: rises each time it is opened.

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
        self._rev = 0
        began = objects.manifest(fresh=True).readers.get(name)
        if began is None:
            self._rev = _stored(objects, self._path)["rev"]
            began = objects.manifest(fresh=True).readers.get(name)  # If still None, later openers change `rev`.
        if began is not None:
            self._write(lambda stored: _kept(stored, began), opens=True)
            return
        begins = start()

        def begin(stored: Mapping[str, Any]) -> Position:
            return begins if stored["rev"] == self._rev else _kept(stored, 0)  # Another client opened it meanwhile.

        self._write(begin, opens=True)  # First: a dropped reader's position may be later.
        slot = self.position.slot
        changed = objects.change(
            lambda manifest: replace(manifest, readers={name: max(slot, manifest.floor), **manifest.readers})
        )
        if slot < changed.floor:  # before the log knew this reader
            begins = start()
            self._write(begin, opens=True)

    def __repr__(self) -> str:
        return repr_at(self, self._objects.store, self._objects.path, f", name={self.name!r}, at {self.position}")

    def read(self) -> Iterator[LogBatch]:
        """Iterate over the records from its position to the end.

        Raises:
            Trimmed: writers have overtaken it; only with `retain="slots"`.

        >>> [record for batch in reader.read() for record in batch.records]
        [b'first', b'second']
        """
        return follow(self._objects, lambda: self.position, timeout=0.0)

    def follow(self, *, idle_s: float = 1.0, timeout: float | None = None) -> Iterator[LogBatch]:
        """See `Wal.follow`.

        >>> sum(len(batch.records) for batch in reader.follow(timeout=0.01))
        2
        """
        return follow(self._objects, lambda: self.position, idle_s, timeout)

    def commit(self, position: Position) -> None:
        """Store the position to go on from; records before it may be trimmed. May be repeated.

        Raises:
            Fenced: the reader was opened elsewhere.
            InvalidInput: `position` is before the committed one, or past the end.

        >>> reader.commit(log.end())
        >>> [*reader.read()]
        []
        """
        if check_position(position, "position") < self.position:
            raise InvalidInput(
                f"position={position} is before {self.position}, which is committed: a reader cannot go back"
            )
        self._objects.require_reached(position)
        self._write(lambda _: position)

    def _write(self, position: Callable[[Mapping[str, Any]], Position], *, opens: bool = False) -> None:
        """Store what `position(stored fields)` returns, and make it the reader's own; `opens` raises the epoch.

        Else raises Fenced if another client has opened the reader.
        """
        fields: dict[str, Any] = {}

        def write(data: bytes | None) -> bytes:
            """Return the reader's next JSON, and set `fields` to it. `data`: the stored one, if any.

            Raises Fenced if another process opened the reader.
            """
            stored = decode_reader(data, self._path) if data is not None else dict(_NEW)
            if not opens and stored["epoch"] != self.epoch:
                raise Fenced(
                    f"the reader {self.name!r} has been opened by another process: stop, or open it again",
                    stored["epoch"],
                )
            target = position(stored)
            fields.update(format=_FORMAT, log=self._objects.manifest().id, slot=target.slot, offset=target.offset)
            fields.update(epoch=stored["epoch"] + opens, rev=stored["rev"] + 1)
            return json.dumps(fields).encode()

        self._objects.store.update(self._path, write, timeout=self._objects.timeout_s)
        self.epoch, self._rev = fields["epoch"], fields["rev"]
        self.position = Position(fields["slot"], fields["offset"])


def positions(objects: LogObjects, manifest: LogManifest) -> dict[str, Position]:
    by_reader = {}
    for name, start in manifest.readers.items():
        by_reader[name] = _kept(_stored(objects, objects.reader_path(name)), start)
    return by_reader


def _stored(objects: LogObjects, path: str) -> Mapping[str, Any]:
    content = objects.store.read_or_none(path, timeout=objects.timeout_s)
    return _NEW if content is None else decode_reader(content.data, path)


def _kept(stored: Mapping[str, Any], began: int) -> Position:
    return max(Position(stored["slot"], stored["offset"]), Position(began, 0))


class _OtherReaders(Exception):
    """The named readers have changed."""


def trim(objects: LogObjects, before: int, *, spares_readers: bool = False) -> int:
    """Raise the floor up to `before`, never lower it; return it.

    With `spares_readers` or `retain="readers"` it does not pass the slowest reader.
    """
    while True:
        manifest = objects.manifest(fresh=True)
        is_bound = spares_readers or manifest.retain == "readers"
        slots = [position.slot for position in positions(objects, manifest).values()] if is_bound else []
        floor = min([before, *slots])
        if floor <= manifest.floor:
            return manifest.floor
        with contextlib.suppress(_OtherReaders):
            return objects.change(partial(_trimmed, read=manifest, floor=floor)).floor


def _trimmed(manifest: LogManifest, *, read: LogManifest, floor: int) -> LogManifest:
    if manifest.readers != read.readers:
        raise _OtherReaders
    return replace(manifest, floor=max(manifest.floor, floor))


def make_room(objects: LogObjects, slot: int) -> None:
    """Free the place of `slot` in a ring by raising the floor, if needed; raise LogFull if still kept.

    It rises with `retain="readers"` to the slowest reader (none: LogFull), with "slots" past readers, by one slot and
    up to an eighth of the ring.
    """
    if objects.manifest().has_room(slot) or (manifest := objects.manifest(fresh=True)).has_room(slot):
        return
    slots, slowest = manifest.slots or 0, ""
    if manifest.retain == "slots":
        trim(objects, min(slot, slot - slots + 1 + slots // _SPARE))
    elif by_reader := positions(objects, manifest):
        slowest = min(by_reader, key=lambda name: by_reader[name])
        trim(objects, min(slot, by_reader[slowest].slot))
    if not objects.manifest().has_room(slot):
        step = "the log has no named reader: call trim(before=), or create the log with retain='slots'"
        if slowest:
            step = f"{slowest!r} has not read further: let it read, or call drop_reader({slowest!r})"
        raise LogFull(f"all {slots} slots of {objects.path!r} are in use; {step}", slowest)


def decode_reader(data: bytes, path: str) -> dict[str, Any]:
    with undecodable_as(MalformedObject, f"{path!r} is not a reader's position and was not changed"):
        fields = parse_object(data, most=_LARGEST)
        check_format(fields, path, _FORMAT)
        return {"log": text_in(fields, "log"), **{name: whole_in(fields, name) for name in _NEW}}
