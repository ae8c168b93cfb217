"""A log's objects in a store. None is ever removed, and each write is conditional.

orders/log.json              what is the same for all, the floor, a hint of the end (`LogManifest`)
orders/slots/00000017        the slot that is in this place (`Slot`)
orders/readers/to-hudi       where a reader goes on
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fsspec_cas import (
    ABSENT,
    Absent,
    CasError,
    Content,
    InvalidInput,
    Outcome,
    Store,
    Unknown,
    Version,
    Won,
    World,
)
from fsspec_cas.given import seconds
from lockprovider.bounded import parse_object, text_in, undecodable_as, whole_in
from lockprovider.recipes.errors import CoordinationError, Fenced, MalformedObject, NoLog, Trimmed
from lockprovider.recipes.place import OfThisProcess, Proof, repr_at
from lockprovider.recipes.values import check_format
from lockprovider.recipes.wal.contents import (
    NOT_YET,
    READER,
    Head,
    LogBatch,
    LogManifest,
    Position,
    Slot,
    decode_log_manifest,
    decode_slot,
)

_KEPT = 65536  # versions of places that are remembered
_HINT_EVERY = 64  # slots


# Where a log ends, found without a listing. Pure but for the looks, which are an argument.
#
# Slots are written one after the other, and each place says which slot it holds. So whether slot s was written can be
# asked of its place alone, however many rounds ago, and the answer is the same for all before it: what is there is
# found by steps that double, then by halves. What is written meanwhile only moves the end on.
def last_slot(look: Callable[[int], int], known: int, slots: int | None) -> int:
    """The last slot, as it was at some moment of the search; -1 if there is none.

    `look` says which slot is in the place of this one, -1 if none is. `known` is a slot that was written, however long
    ago, or -1; one that is not there any more was removed by somebody, and the result is below it.
    """
    low = known if known == NOT_YET else look(known)
    while True:
        step = 1
        while (there := look(low + step)) >= low + step:
            low, step = there, step * 2 if slots is None else min(step * 2, slots)
        high = low + step
        while high - low > 1:
            middle = (low + high) // 2
            there = look(middle)
            if there >= middle:
                low = there
            else:
                high = middle
        if high - low == 1:
            return low


@dataclass(frozen=True, slots=True)
class Found:
    """What a place holds."""

    slot: Slot
    content: Content


class LogObjects:
    """Reads and writes them; knows the manifest as it last saw it. Thread-safe."""

    def __init__(self, store: Store, path: str, timeout_s: float, world: World) -> None:
        self.store = store
        self.path = path
        self.world = world
        self.timeout_s = timeout_s
        self._manifest: LogManifest | None = None
        self._versions: dict[int, tuple[int, Version]] = {}
        self._reached = Position(0, 0)  # up to which the log has been seen
        self._proof = Proof(store, f"{path}/log.json")

    # -- log.json ------------------------------------------------------------------------------------------------------

    def create(self, manifest: LogManifest) -> bool:
        """Whether the log was made; else there is one.

        Raises:
            OutcomeUnknown, StoreError: see `Store.put_if_absent`.
        """
        self._proof.require()
        outcome = self.store.put_if_absent(self._manifest_path, manifest.encode(), timeout=self.timeout_s)
        if isinstance(outcome, Unknown):
            outcome.unwrap()
        return isinstance(outcome, Won)

    def manifest(self, *, fresh: bool = False) -> LogManifest:
        """What is in `log.json`, or was; its floor and its hint only rise.

        Raises:
            NoLog: there is no log.
            Fenced: it is another than it was: it was removed and made anew.
            MalformedObject, StoreError: it cannot be read.
        """
        if self._manifest is None or fresh:
            content = self.store.read_or_none(self._manifest_path, timeout=self.timeout_s)
            self._manifest = self._decoded(None if content is None else content.data)
        return self._manifest

    def change(self, fn: Callable[[LogManifest], LogManifest]) -> LogManifest:
        """Write what `fn` makes of the manifest. It may be called several times, also where it was done.

        Raises:
            What `manifest` and `fn` raise; OutcomeUnknown, Unavailable: do it again.
        """
        self._proof.require()
        made = self.manifest()

        def write(data: bytes | None) -> bytes:
            nonlocal made
            old = self._decoded(data)
            made = replace(fn(old), rev=old.rev + 1)
            return made.encode()

        self.store.update(self._manifest_path, write, timeout=self.timeout_s)
        self._manifest = made
        return made

    def _decoded(self, data: bytes | None) -> LogManifest:
        if data is None:
            raise NoLog(f"there is no log at {self.path!r}: make it: `lockprovider wal create URL`, or create()")
        manifest = decode_log_manifest(data, self._manifest_path)
        if self._manifest is not None and self._manifest.id != manifest.id:
            raise Fenced(f"the log at {self.path!r} was removed and made anew: open it again")
        return manifest

    # -- slots ---------------------------------------------------------------------------------------------------------

    def look(self, slot: int, known: Found | None = None) -> Found | None:
        """What the place of this slot holds; None: nothing. `known`: while it still is that, no body is moved.

        Raises:
            MalformedObject: something else is there.
            StoreError: the store did not answer.
        """
        path = self.slot_path(slot)
        before = None if known is None else known.content
        content = self.store.read_or_none(path, before, timeout=self.timeout_s)
        if content is None or content is before:
            return None if content is None else known
        found = decode_slot(content.data, path)
        if found.head.log != self.manifest().id:
            raise MalformedObject(f"{path!r} is of another log, and is left as it is: give this one another path")
        self._know(found.head, content.version)
        return Found(found, content)

    def require_reached(self, start: Position) -> None:
        """Check that the log goes at least as far as this position; asks for one or two slots, if that is not known.

        Raises:
            InvalidInput: the log ends before it.
            MalformedObject, StoreError: as `look`.
        """
        if start <= self._reached:
            return
        there = self.look(start.slot)
        if (there is None or there.slot.head.slot < start.slot) and start.slot:
            there = self.look(start.slot - 1)
        end = Position(0, 0) if there is None else behind(there.slot.head)
        if start > end:
            raise self.past_the_end(start)

    def past_the_end(self, position: Position) -> InvalidInput:
        """That no record of the log ends at this position, or after it."""
        said = f"position={position} is past the end of the log at {self.path!r}, or of its slot"
        return InvalidInput(f"{said}: give one of this log, as `end()` or a batch has it")

    def slot_path(self, slot: int) -> str:
        """Where it is."""
        return f"{self.path}/slots/{self.manifest().place(slot):08d}"

    def condition(self, slot: int) -> Version | Absent | None:
        """On which a slot may be written, as far as is known without a look; None: it is not known."""
        slots = self.manifest().slots
        if slots is None or slot < slots:
            return ABSENT
        before, version = self._versions.get(slot % slots, (NOT_YET, None))
        return version if before == slot - slots else None

    def put(self, head: Head, data: bytes, condition: Version | Absent) -> Outcome:
        """One conditional write."""
        self._proof.require()
        path = self.slot_path(head.slot)
        if isinstance(condition, Absent):
            once = self.manifest().slots is None
            outcome = self.store.put_if_absent(path, data, create_once=once, timeout=self.timeout_s)
        else:
            outcome = self.store.put_if_match(path, data, condition, timeout=self.timeout_s)
        if isinstance(outcome, Won):
            self._know(head, outcome.version)
            if head.slot % _HINT_EVERY == 0:
                self.store.in_background(lambda: self._hint(head.slot))
        return outcome

    def last(self, known: int = NOT_YET) -> Slot:
        """The last slot, as it was at some moment of the search; `known`: one that was written."""
        manifest = self.manifest()
        found = {NOT_YET: Slot(Head(manifest.id))}

        def look(slot: int) -> int:
            there = self.look(slot)
            if there is None:
                return NOT_YET
            found[there.slot.head.slot] = there.slot
            return there.slot.head.slot

        known = max(known, manifest.hint)
        end = last_slot(look, known, manifest.slots)
        if end < known:
            raise MalformedObject(
                f"slot {known} of {self.path!r} was written and is gone: somebody removes objects here"
            )
        return found[end]

    def trimmed(self, slot: int) -> Trimmed:
        """That this slot is not there any more."""
        floor = self.manifest(fresh=True).floor
        return Trimmed(f"slot {slot} of {self.path!r} is gone: the first is {floor}", floor)

    def _know(self, head: Head, version: Version) -> None:
        slot, manifest = head.slot, self.manifest()
        self._reached = max(self._reached, behind(head))
        if manifest.slots is not None:
            self._versions[manifest.place(slot)] = (slot, version)
            if len(self._versions) > _KEPT:
                with contextlib.suppress(KeyError, RuntimeError, StopIteration):  # another thread was faster
                    del self._versions[next(iter(self._versions))]

    def _hint(self, slot: int) -> None:
        with contextlib.suppress(CasError, CoordinationError):  # whoever searches takes a few steps more
            self.change(lambda old: replace(old, hint=max(old.hint, slot)))

    # -- readers -------------------------------------------------------------------------------------------------------

    def reader_path(self, name: str) -> str:
        """Where a reader's position is."""
        if not isinstance(name, str) or not READER.fullmatch(name):
            raise InvalidInput(f"name={name!r} must be letters, digits, and any of - _ . (200 at most)")
        return f"{self.path}/readers/{name}"

    # -- both ----------------------------------------------------------------------------------------------------------

    @property
    def _manifest_path(self) -> str:
        return f"{self.path}/log.json"


def behind(head: Head) -> Position:
    """Where the next record goes; where the seal is, if there is none."""
    return Position(head.slot + (head.sealed is None), head.end)


# Reading a log from a position, and named readers: where each goes on, and what they hold the floor at.
#
# A position is kept as {"format": 1, "log": uuid, "slot": s, "offset": o, "epoch": e, "rev": n}.
#
# `epoch` rises with each process that opens the reader: whoever had it before is fenced. `rev` rises with each write,
# so that no bytes come back.


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
    _must_be_kept(objects, start)
    return (batch for batch in _slots(objects, start) if batch.records or batch.sealed)


def follow_from(
    objects: LogObjects, start: Position, *, idle_s: float, timeout_s: float | None = None
) -> Iterator[LogBatch]:
    """The same, and then what comes; ends at the seal, or if nothing came for `timeout_s`.

    An idle look moves no body.
    """
    _must_be_kept(objects, start)
    return _followed(objects, start, idle_s, timeout_s)


def _must_be_kept(objects: LogObjects, start: Position) -> None:
    if start.slot < objects.manifest(fresh=True).floor:
        raise objects.trimmed(start.slot)
    objects.require_reached(start)


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
        check_format(found, path, _FORMAT)
        return {"log": text_in(found, "log"), **{name: whole_in(found, name) for name in _NEW}}
