"""Reading a log from a position: many places at once where there is much, a conditional GET where there is nothing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from lockprovider.recipes.wal.objects import Found, LogObjects, behind
from lockprovider.recipes.wal.reports import LogBatch, Position

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
