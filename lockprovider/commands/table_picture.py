"""Picture of a timeline: a lane for each writer, boxes from begin to completion.

A red box was rolled back. With the lock's audit, a box is pale from its last file to the acquisition of the lock, the
longest possible wait. From there to its commit it is black.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from lockprovider.storage_lock.audit import Tenure
from lockprovider.storage_lock.lanes import FAINT, INK, RED, Box, Lane, Mark, draw_lanes
from lockprovider.table.errors import Corrupt
from lockprovider.table.format.instant import Action, Instant, to_ms
from lockprovider.table.format.layout import TIMELINE
from lockprovider.table.format.metadata import CommitMetadata, decode_rollback
from lockprovider.table.table import Table
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.words import count, span

BarKind = Literal["write", "replace", "clean", "rollback", "restore", "undone", "pending"]
Holding = tuple[int, int, str]  # from, until, owner
_WAIT = "#b9d3f0"
_LOOKS: dict[BarKind, tuple[str, str]] = {
    "write": ("#3b78c3", "commit"),
    "replace": ("#8a5cc2", "overwrite"),
    "clean": ("#2f9e6e", "clean"),
    "rollback": ("#f0a202", "rollback"),
    "restore": ("#b35c00", "restore"),
    "undone": (RED, "rolled back"),
    "pending": (FAINT, "pending"),
}


@dataclass(frozen=True, slots=True)
class Bar:
    """An instant from begin to end, in epoch ms; an empty `lane` is any free one.

    All its files existed at `ready_ms`, and it held the lock from `held_ms` on; None: unknown.
    """

    start_ms: int
    end_ms: int
    kind: BarKind
    label: str
    lane: str = ""
    savepoint: bool = False
    ready_ms: int | None = None
    held_ms: int | None = None


def draw_timeline(bars: Sequence[Bar], title: str, holdings: Sequence[Holding] = ()) -> str:
    """Return bars as SVG text of a timeline, with a lane of the lock if `holdings` overlap their time."""
    placed, names = lanes(bars)
    start = min((bar.start_ms for bar in bars), default=0)
    end = max([bar.end_ms for bar in bars] + [start + 1])
    shown = [_holding(holding, start, end) for holding in holdings if holding[1] >= start and holding[0] <= end]
    rows = [Lane("" if name in names[:n] else name, *_drawn(placed, n)) for n, name in enumerate(names)]
    rows += [Lane("the lock", shown)] if shown else []
    legend = [_box(kind, 0, 0, meaning) for kind, (_, meaning) in _LOOKS.items()]
    legend += [Box(0, 0, _WAIT, "waits for lock"), Box(0, 0, INK, "has the lock")]
    return draw_lanes(title, _words(bars, shown), rows, legend=[*legend, Mark(0, "diamond", INK, "savepoint")])


def lanes(bars: Sequence[Bar]) -> tuple[list[tuple[Bar, int]], list[str]]:
    """Assign bars to lanes, without overlaps and by writer; return each bar's lane, and the lanes' names."""
    busy: list[tuple[str, int]] = []
    placed: list[tuple[Bar, int]] = []
    for bar in sorted(bars, key=lambda bar: (bar.start_ms, bar.end_ms)):
        group = bar.lane or ("table services" if bar.kind in ("clean", "rollback", "restore") else "writers")
        free = (n for n, (name, until_ms) in enumerate(busy) if name == group and until_ms <= bar.start_ms)
        lane = next(free, len(busy))
        busy[lane : lane + 1] = [(group, max(bar.end_ms, bar.start_ms + 1))]
        placed.append((bar, lane))
    order = sorted(range(len(busy)), key=lambda n: (busy[n][0] == "table services", busy[n][0], n))
    return [(bar, order.index(lane)) for bar, lane in placed], [busy[n][0] for n in order]


def _words(bars: Sequence[Bar], holdings: Sequence[Box]) -> str:
    words = count(len(bars), "instant")
    if not holdings:
        return f"{words}; waits for the lock are unknown, because no audit was kept"
    acquired = sum(bar.held_ms is not None for bar in bars)
    return f"{words}; the lock's audit has the acquisition of {acquired} of them"


def _drawn(placed: Sequence[tuple[Bar, int]], lane: int) -> tuple[list[Box], list[Mark]]:
    in_lane = [bar for bar, at in placed if at == lane]
    savepoints = [Mark(bar.end_ms, "diamond", INK, "savepoint") for bar in in_lane if bar.savepoint]
    return [box for bar in in_lane for box in _boxes(bar)], savepoints


def _boxes(bar: Bar) -> list[Box]:
    """Return a bar's boxes: its time, and if known its wait for the lock and its hold of it."""
    boxes = [_box(bar.kind, bar.start_ms, bar.end_ms, bar.label)]
    if bar.held_ms is None:
        return boxes
    if bar.ready_ms is not None and bar.ready_ms < bar.held_ms:
        words = f"{bar.label}: waited for the lock for {span(bar.held_ms - bar.ready_ms)} at most"
        boxes.append(Box(bar.ready_ms, bar.held_ms, _WAIT, words))
    words = f"{bar.label}: held the lock for {span(bar.end_ms - bar.held_ms)} until its commit"
    return [*boxes, Box(bar.held_ms, bar.end_ms, INK, words)]


def _box(kind: BarKind, start_ms: int, end_ms: int, words: str) -> Box:
    return Box(start_ms, end_ms, _LOOKS[kind][0], words, hollow=kind == "pending")


def _holding(holding: Holding, start_ms: int, end_ms: int) -> Box:
    from_ms, until_ms, owner = holding
    words = f"{owner} held the lock for {span(until_ms - from_ms)}"
    return Box(max(from_ms, start_ms), min(until_ms, end_ms), INK, words)


_KINDS: dict[Action, BarKind] = {
    Action.REPLACECOMMIT: "replace",
    Action.CLEAN: "clean",
    Action.ROLLBACK: "rollback",
    Action.RESTORE: "restore",
}
_WRITER = "writer"  # key of a commit's extra metadata that names its lane


def bars(table: Table, tenures: Sequence[Tenure], last: int | None = None) -> list[Bar]:
    """Read a table's instants, and return bars of all or the `last` ones by begin, with lock `tenures`."""
    timeline = table.timeline()
    ends = [to_ms(i.completion or i.begin) for i in timeline.instants]
    made_ms = {entry.path: entry.modified_ms for entry in table.data_files() if entry.modified_ms} if tenures else {}
    savepoints = {i.begin for i in timeline.instants if i.action is Action.SAVEPOINT and i.is_completed}
    completed = sorted((instant for instant in timeline.instants if _is_drawn(instant)), key=lambda i: i.begin)
    completed = completed[-last:] if last else completed
    drawn = [replace(_done(table, item, made_ms, tenures), savepoint=item.begin in savepoints) for item in completed]
    pending = (begin for action in (*Action,) if action is not Action.SAVEPOINT for begin in timeline.pending(action))
    still = [Bar(to_ms(b), max(ends, default=0), "pending", f"{b} is pending") for b in sorted({*pending})]
    every = sorted(drawn + still + _undone(table, timeline), key=lambda bar: bar.start_ms)
    return every[-last:] if last else every


def with_lock(bar: Bar, ready_ms: int | None, tenures: Sequence[Tenure]) -> Bar:
    """Return the bar with the lock tenure at its end, unchanged unless exactly one fits.

    Completion times are made under the lock; `ready_ms` is the store's.
    """
    holders = [tenure for tenure in tenures if tenure.start_ms <= bar.end_ms <= tenure.end_ms]
    if len(holders) != 1:
        return bar  # no record, or clocks that differ: unknown
    held_ms = max(bar.start_ms, holders[0].start_ms)
    ready = None if ready_ms is None else min(max(ready_ms, bar.start_ms), held_ms)
    return replace(bar, ready_ms=ready, held_ms=held_ms)


def _is_drawn(instant: Instant) -> bool:
    return instant.is_completed and instant.action is not Action.SAVEPOINT


def _done(table: Table, instant: Instant, made_ms: Mapping[str, int], tenures: Sequence[Tenure]) -> Bar:
    """Build the bar of a completed instant; reads the metadata of a commit for its writer and label."""
    kind = _KINDS.get(instant.action, "write")
    bar = Bar(to_ms(instant.begin), to_ms(instant.completion or instant.begin), kind, instant.file_name)
    if not instant.changes_rows:
        return bar
    metadata = table.metadata_of(instant)
    label = f"{bar.label} {metadata.operation}, {len(metadata.file_groups)} file groups"
    bar = replace(bar, label=label, lane=metadata.extra.get(_WRITER, ""))
    return with_lock(bar, _ready_ms(metadata, made_ms), tenures)


def _ready_ms(metadata: CommitMetadata, made_ms: Mapping[str, int]) -> int | None:
    """Return the time of the commit's last file; None if unknown."""
    paths = [stat.path for stats in metadata.stats.values() for stat in stats]
    times_ms = [made_ms[path] for path in paths if path in made_ms]
    return max(times_ms) if times_ms and len(times_ms) == len(paths) else None


def _undone(table: Table, timeline: Timeline) -> list[Bar]:
    """Read completed rollbacks, and return bars of their victims, from begin to rollback; skips corrupt ones."""
    undone: list[Bar] = []
    for instant in timeline.instants:
        if instant.action is Action.ROLLBACK and instant.is_completed:
            name = instant.file_name
            try:
                victims = decode_rollback(table.store.read(f"{TIMELINE}/{name}").data, name)
            except Corrupt:
                continue  # the doctor reports it
            ended = to_ms(instant.begin)
            undone += [Bar(to_ms(b), ended, "undone", f"{b}.{a} was rolled back by {name}") for b, a in victims]
    return undone
