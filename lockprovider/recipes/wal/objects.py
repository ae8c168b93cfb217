"""A log's objects in a store. None is ever removed, and each write is conditional.

orders/log.json              what is the same for all, the floor, a hint of the end (`manifest.py`)
orders/slots/00000017        the slot that is in this place (`slot.py`)
orders/readers/to-hudi       where a reader goes on
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace

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
    require_safe_for_locks,
)
from lockprovider.recipes.errors import CoordinationError, Fenced, MalformedObject, NoLog, Trimmed
from lockprovider.recipes.wal.manifest import READER, LogManifest, decode_log_manifest
from lockprovider.recipes.wal.reports import Position
from lockprovider.recipes.wal.slot import NOT_YET, Head, Slot, decode_slot

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
        self._store_is_safe = False

    # -- log.json ------------------------------------------------------------------------------------------------------

    def create(self, manifest: LogManifest) -> bool:
        """Whether the log was made; else there is one.

        Raises:
            OutcomeUnknown, StoreError: see `Store.put_if_absent`.
        """
        self._require_safe_store()
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
        self._require_safe_store()
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
        self._require_safe_store()
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

    def _require_safe_store(self) -> None:
        if not self._store_is_safe:
            require_safe_for_locks(self.store.below(self.path))
            self._store_is_safe = True


def behind(head: Head) -> Position:
    """Where the next record goes; where the seal is, if there is none."""
    return Position(head.slot + (head.sealed is None), head.end)
