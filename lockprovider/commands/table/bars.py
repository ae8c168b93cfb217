"""A table's timeline as it is drawn, with what is known of its writers' waits for the lock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lockprovider.commands.table.picture import Bar, BarKind
from lockprovider.storage_lock.audit import Tenure
from lockprovider.table.errors import Corrupt
from lockprovider.table.format.instant import Action, Instant, to_ms
from lockprovider.table.format.layout import TIMELINE
from lockprovider.table.format.metadata import CommitMetadata, decode_rollback
from lockprovider.table.table import Table
from lockprovider.table.timeline.timeline import Timeline

_KINDS: dict[Action, BarKind] = {
    Action.REPLACECOMMIT: "replace",
    Action.CLEAN: "clean",
    Action.ROLLBACK: "rollback",
    Action.RESTORE: "restore",
}
_WRITER = "writer"  # the key of a commit's extra metadata that names its lane


def bars(table: Table, tenures: Sequence[Tenure], last: int | None = None) -> list[Bar]:
    """All instants, or those that began last; `tenures` tell who held the lock when, as far as that is known."""
    now = table.timeline()
    ends = [to_ms(i.completion or i.begin) for i in now.instants]
    made_ms = {entry.path: entry.modified_ms for entry in table.data_files() if entry.modified_ms} if tenures else {}
    kept = {i.begin for i in now.instants if i.action is Action.SAVEPOINT and i.is_completed}
    done = sorted((instant for instant in now.instants if _is_drawn(instant)), key=lambda i: i.begin)
    done = done[-last:] if last else done
    found = [replace(_done(table, one, made_ms, tenures), savepoint=one.begin in kept) for one in done]
    pending = (begin for action in (*Action,) if action is not Action.SAVEPOINT for begin in now.pending(action))
    still = [Bar(to_ms(b), max(ends, default=0), "pending", f"{b} is pending") for b in sorted({*pending})]
    every = sorted(found + still + _undone(table, now), key=lambda bar: bar.start_ms)
    return every[-last:] if last else every


def with_lock(bar: Bar, ready_ms: int | None, tenures: Sequence[Tenure]) -> Bar:
    """The bar, with the holding of the lock that its commit fell into: completion times are made under the lock.

    Its files carry the store's clock, which may be another, and often tells whole seconds only.
    """
    mine = [tenure for tenure in tenures if tenure.start_ms <= bar.end_ms <= tenure.end_ms]
    if len(mine) != 1:
        return bar  # no record of it, or clocks that differ: not known
    held_ms = max(bar.start_ms, mine[0].start_ms)
    ready = None if ready_ms is None else min(max(ready_ms, bar.start_ms), held_ms)
    return replace(bar, ready_ms=ready, held_ms=held_ms)


def _is_drawn(instant: Instant) -> bool:
    return instant.is_completed and instant.action is not Action.SAVEPOINT


def _done(table: Table, instant: Instant, made_ms: Mapping[str, int], tenures: Sequence[Tenure]) -> Bar:
    kind = _KINDS.get(instant.action, "write")
    bar = Bar(to_ms(instant.begin), to_ms(instant.completion or instant.begin), kind, instant.file_name)
    if not instant.changes_rows:
        return bar
    metadata = table.metadata_of(instant)
    label = f"{bar.label} {metadata.operation}, {len(metadata.file_groups)} file groups"
    bar = replace(bar, label=label, lane=metadata.extra.get(_WRITER, ""))
    return with_lock(bar, _ready_ms(metadata, made_ms), tenures)


def _ready_ms(metadata: CommitMetadata, made_ms: Mapping[str, int]) -> int | None:
    """When the last of its files was there; None if it wrote none, or one was cleaned since."""
    paths = [stat.path for stats in metadata.stats.values() for stat in stats]
    known = [made_ms[path] for path in paths if path in made_ms]
    return max(known) if known and len(known) == len(paths) else None


def _undone(table: Table, now: Timeline) -> list[Bar]:
    found: list[Bar] = []
    for instant in now.instants:
        if instant.action is Action.ROLLBACK and instant.is_completed:
            name = instant.file_name
            try:
                victims = decode_rollback(table.store.read(f"{TIMELINE}/{name}").data, name).victims
            except Corrupt:
                continue  # the doctor says so
            ended = to_ms(instant.begin)
            found += [Bar(to_ms(b), ended, "undone", f"{b}.{a} was rolled back by {name}") for b, a in victims]
    return found
