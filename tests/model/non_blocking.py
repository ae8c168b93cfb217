"""Writers that do not wait for each other, by names alone: a random history of one partition, read after every step.

What is decided is decided by the product's own functions: who gives way, which slice a log is of, what a compaction
merges, which bucket gets an anchor of which id. What the files hold is merged by the oracle. A reader must see of each
key the greatest ordering value of all that is committed; a delete holds until a compaction that merged it is complete.

Every actor has a clock of its own. JVM writers look at nothing when they commit, and make no anchors.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from table import merge_oracle

from fsspec_cas import Entry
from lockprovider.table.format.bucket import bucket_of, file_id, fixed_file_id
from lockprovider.table.format.layout import Action, BaseFile, Instant, InstantState, LogFile
from lockprovider.table.format.metadata import CommitMetadata, WriteStat
from lockprovider.table.timeline import conflict
from lockprovider.table.timeline.conflict import (
    ConcurrentOperation,
    Resolution,
    by_bucket,
    by_file_group,
    completed_since,
)
from lockprovider.table.timeline.conflict import non_blocking as beside
from lockprovider.table.timeline.rewrite_plan import compaction_plan
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.view import Snapshot, snapshot_of

PARTITION, BUCKETS, KEYS = "p", 2, "abcd"
TOKEN = "0-0-0"  # noqa: S105
Event = merge_oracle.Event
Rows = dict[str, tuple[Any, dict[str, Any]]]  # by key: the ordering value, and the fields


class LostRows(Exception):
    """A reader sees something else than what was committed."""


@dataclass(frozen=True)
class Rules:
    """What a writer, a compaction or an overwrite goes by; a twin has one that is wrong."""

    blind: Resolution = beside
    ordinary: Resolution = by_file_group
    bare: Callable[..., Any] = conflict.bare_buckets
    left_bare: Callable[..., Any] = conflict.left_bare
    anchor_id: Callable[..., str] = conflict.anchor_id
    next_time: Callable[[Timeline, int, str], str] = Timeline.next_time
    by_event_time: bool = True
    plans_pending: bool = False
    checks_under_lock: bool = True


@dataclass
class Pending:
    """A write that is begun: what it has seen, its files and what it ends."""

    begin: str
    seen: Timeline
    files: list[str]
    events: dict[int, list[Event]]
    is_jvm: bool = False
    ended: tuple[str, ...] = ()
    rows: dict[int, Rows] | None = None  # of an overwrite


@dataclass
class Bucket:
    """What was committed into a bucket, as one who knows nothing of files has it."""

    base: dict[str, int] = field(default_factory=dict)  # the values of the rows
    since: list[list[Event]] = field(default_factory=list)
    planned: int | None = None  # how many of `since` a compaction merges

    def rows(self) -> dict[str, int]:
        return _greatest(self.base, self.since)

    def compacted(self) -> None:
        assert self.planned is not None
        self.base = _greatest(self.base, self.since[: self.planned])
        self.since, self.planned = self.since[self.planned :], None


def _greatest(base: dict[str, int], commits: Iterable[list[Event]]) -> dict[str, int]:
    found = {key: (value, "row") for key, value in base.items()}
    for key, kind, value, _ in (event for events in commits for event in events):
        found[key] = max(found.get(key, (0, "row")), (value, kind))
    return {key: value for key, (value, kind) in found.items() if kind == "row"}


class World:
    """A table, its writers, and what its readers see."""

    def __init__(self, seed: int, rules: Rules, *, jvm: bool, overwrites: bool) -> None:
        self.rng = random.Random(seed)
        self.rules, self.jvm, self.overwrites = rules, jvm, overwrites
        self.ms = 1_800_000_000_000
        self.timeline = Timeline()
        self.contents: dict[str, Any] = {}
        self.ended: dict[str, CommitMetadata] = {}  # by file name
        self.metadata: dict[str, CommitMetadata] = {}
        self.writers: list[Pending] = []
        self.plans: dict[str, Any] = {}
        self.truth = {bucket: Bucket() for bucket in range(BUCKETS)}
        self.value = 0
        self.counts: dict[str, int] = {}
        self._complete(self._begin(Action.DELTACOMMIT), CommitMetadata({}, "UPSERT"))

    # -- the store and the clocks --

    def _now_ms(self) -> int:
        self.ms += self.rng.randint(1, 20)
        return self.ms + self.rng.choice((0, 0, 400, -400))

    def _begin(self, action: Action) -> str:
        begin = self.timeline.next_time(self._now_ms())
        self.timeline = self.timeline.plus([Instant(begin, action, InstantState.INFLIGHT)])
        return begin

    def _complete(self, begin: str, metadata: CommitMetadata, action: Action = Action.DELTACOMMIT) -> None:
        completion = self.rules.next_time(self.timeline, self._now_ms(), begin)
        done = Instant(begin, action, InstantState.COMPLETED, completion)
        self.metadata[done.file_name] = metadata
        pending = Instant(begin, action, InstantState.INFLIGHT)
        self.timeline = self.timeline.without([pending]).plus([done])

    def _metadata_of(self, instant: Instant) -> CommitMetadata:
        return self.metadata[instant.file_name]

    def retired(self, timeline: Timeline) -> frozenset[tuple[str, str]]:
        done = [i for i in timeline.writes if i.action is Action.REPLACECOMMIT]
        return frozenset().union(*(self._metadata_of(one).ended for one in done))

    def snapshot(self, timeline: Timeline) -> Snapshot:
        entries = [Entry(path, 1, None) for path in sorted(self.contents)]
        return snapshot_of(timeline, entries, self.retired(timeline))

    def _put(self, file: BaseFile | LogFile, content: Any) -> str:
        path = f"{PARTITION}/{file.name}"
        assert path not in self.contents
        self.contents[path] = content
        return path

    # -- writers --

    def log(self, *, is_jvm: bool = False) -> Pending:
        """A blind write begins, and has put its logs."""
        found = self.rules.bare(self.snapshot(self.timeline), [PARTITION], BUCKETS) if not is_jvm else ()
        if found and not self.rules.checks_under_lock:
            self.step_of_others()
        if found:
            self._anchor(found)
        seen, begin = self.timeline, self._begin(Action.DELTACOMMIT)
        ids = {bucket_of(one.file_id): one.file_id for one in self.snapshot(seen).slices}
        events: dict[int, list[Event]] = {}
        for key in self.rng.sample(KEYS, self.rng.randint(1, 3)):
            self.value += 1
            value = self.rng.randint(1, 60) * 1000 + self.value  # each its own
            kind = "row" if self.rng.random() < 0.8 else "delete"
            events.setdefault(KEYS.index(key) % BUCKETS, []).append((key, kind, value, {"v": value}))
        files = [
            self._put(LogFile(ids.get(bucket, fixed_file_id(bucket)), begin, 1, TOKEN), given)
            for bucket, given in events.items()
        ]
        return Pending(begin, seen, files, events, is_jvm)

    def _anchor(self, bare: Iterable[tuple[str, int]]) -> None:
        begin, ended = self._begin(Action.DELTACOMMIT), self.retired(self.timeline)
        stats = [self._base(begin, self.rules.anchor_id(bucket, ended), {}) for bucket in bare]
        self._complete(begin, CommitMetadata({PARTITION: tuple(stats)}, "BULK_INSERT"))

    def _base(self, begin: str, group: str, rows: Rows) -> WriteStat:
        path = self._put(BaseFile(group, TOKEN, begin), rows)
        return WriteStat(group, path, PARTITION)

    def overwrite(self) -> Pending:
        """An ordinary transaction that ends all there is, with rows for some of the buckets."""
        seen, begin = self.timeline, self._begin(Action.REPLACECOMMIT)
        ended = tuple(one.file_id for one in self.snapshot(seen).slices)
        rows: dict[int, Rows] = {}
        for bucket in range(BUCKETS):
            if self.rng.random() < 0.5:
                self.value += 1
                rows[bucket] = {KEYS[bucket]: (self.value, {"v": self.value})}
        groups = {bucket: file_id(bucket, f"________-{begin}-0") for bucket in rows}
        stats = [self._base(begin, groups[bucket], given) for bucket, given in rows.items()]
        before = self.retired(seen)
        mine = {(PARTITION, one) for one in ended}
        left = self.rules.left_bare({PARTITION: ended} if ended else {}, [one.group for one in stats], before, BUCKETS)
        stats += [self._base(begin, self.rules.anchor_id(one, before | mine), {}) for one in left]
        return Pending(begin, seen, [one.path for one in stats], {}, ended=ended, rows=rows)

    def finish(self, one: Pending) -> bool:
        """It commits, or has lost and is rolled back."""
        action = Action.DELTACOMMIT if one.rows is None else Action.REPLACECOMMIT
        stats = tuple(WriteStat(path.split("/")[1].lstrip(".").split("_")[0], path, PARTITION) for path in one.files)
        replaced = {PARTITION: one.ended} if one.ended else {}
        name = "UPSERT" if one.rows is None else "INSERT_OVERWRITE"
        metadata = CommitMetadata({PARTITION: stats}, name, replaced=replaced)
        mine = ConcurrentOperation.of(Instant(one.begin, action, InstantState.INFLIGHT), metadata)
        later = [(i, self._metadata_of(i)) for i in completed_since(one.seen, self.timeline)]
        others = [ConcurrentOperation.of(i, given) for i, given in later if given.operation != "COMPACT"]
        rule = self.rules.blind if one.rows is None else self.rules.ordinary
        if not one.is_jvm and by_bucket(rule)(mine, others) is not None:
            self.roll_back(one)
            return False
        self._complete(one.begin, metadata, action)
        for bucket, events in one.events.items():
            self.truth[bucket].since.append(events)
        if one.rows is not None:
            for bucket in {bucket_of(group) for group in one.ended} | one.rows.keys():
                rows = one.rows.get(bucket, {})  # type: ignore[arg-type]
                self.truth[bucket] = Bucket({key: value for key, (value, _) in rows.items()})  # type: ignore[index]
            # What is planned of groups that have ended changes nothing any more.
        return True

    def roll_back(self, one: Pending) -> None:
        for path in one.files:
            del self.contents[path]
        self.timeline = Timeline(tuple(i for i in self.timeline.instants if i.begin != one.begin))

    # -- compaction --

    def schedule(self) -> None:
        busy = {one.group for plan in self.plans.values() for one in plan}
        view = self.timeline
        if self.rules.plans_pending:  # the twin takes what is not completed for completed
            view = Timeline(tuple(replace(i, state=InstantState.COMPLETED, completion=i.begin)
                                  if not i.is_completed and i.action is Action.DELTACOMMIT else i
                                  for i in view.instants))  # fmt: skip
        begin = self.timeline.next_time(self._now_ms())
        planned = compaction_plan(self.snapshot(view), begin, busy)
        if not planned:
            return
        self.timeline = self.timeline.plus([Instant(begin, Action.COMPACTION, InstantState.REQUESTED)])
        self.plans[begin] = planned
        for one in planned:
            bucket = self.truth[bucket_of(one.file_id)]  # type: ignore[index]
            bucket.planned = len(bucket.since)

    def compact(self) -> None:
        begin = self.rng.choice(sorted(self.plans))
        planned, stats, ended = self.plans.pop(begin), [], self.retired(self.timeline)
        for one in planned:
            base = self.contents[f"{PARTITION}/{one.base_file}"] if one.base_file else {}
            logs = [event for log in one.logs for event in self.contents[f"{PARTITION}/{log}"]]
            stats.append(self._base(begin, one.file_id, self._merged(base, logs)))
            bucket = self.truth[bucket_of(one.file_id)]  # type: ignore[index]
            if one.group not in ended and bucket.planned is not None:
                bucket.compacted()
        requested = Instant(begin, Action.COMPACTION, InstantState.REQUESTED)
        self.timeline = self.timeline.without([requested])
        metadata = CommitMetadata({PARTITION: tuple(stats)}, "COMPACT")
        self._complete(begin, metadata, Action.COMMIT)

    def _merged(self, base: Rows, events: list[Event]) -> Rows:
        found = merge_oracle.merged(base, events, by_event_time=self.rules.by_event_time)
        return {key: (fields["v"], fields) for key, fields in found.items()}

    # -- readers --

    def check(self) -> None:
        seen: dict[str, int] = {}
        buckets = []
        for one in self.snapshot(self.timeline).slices:
            buckets.append(bucket_of(one.file_id))
            base = self.contents[one.path] if one.path else {}
            events = [event for log in one.logs for event in self.contents[log.path]]
            seen |= {key: value for key, (value, _) in self._merged(base, events).items()}
        expected = {key: value for bucket in self.truth.values() for key, value in bucket.rows().items()}
        if seen != expected or len(set(buckets)) < len(buckets):
            raise LostRows(f"seen {seen}, committed {expected}, buckets {buckets}")

    # -- the history --

    def step_of_others(self) -> None:
        if self.writers:
            self.finish(self.writers.pop(self.rng.randrange(len(self.writers))))

    def step(self) -> None:
        kinds = ["log"] * 4 + ["finish"] * 5 + ["schedule", "compact", "die"]
        kinds += ["jvm"] * 2 if self.jvm else []
        kinds += ["overwrite"] if self.overwrites else []
        kind = self.rng.choice(kinds)
        if kind in ("log", "overwrite") and len(self.writers) < 5:
            self.writers.append(self.log() if kind == "log" else self.overwrite())
        elif kind == "jvm":
            one = self.log(is_jvm=True)
            if self.overwrites or self.rng.random() < 0.5:
                self.finish(one)  # one that is under way over an overwrite loses its rows: it does not look
            else:
                self.writers.append(one)
        elif kind in ("finish", "die") and self.writers:
            one = self.writers.pop(self.rng.randrange(len(self.writers)))
            if kind == "die":
                self.roll_back(one)
            elif not self.finish(one):
                kind = "conflict"
        elif kind == "schedule":
            self.schedule()
        elif kind == "compact" and self.plans:
            self.compact()
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self.check()


def play(seed: int, rules: Rules, *, steps: int = 40, jvm: bool = False, overwrites: bool = False) -> dict[str, int]:
    """One history; how many steps of each kind it had.

    Raises:
        LostRows: with the seed and the number of the step.
    """
    world = World(seed, rules, jvm=jvm, overwrites=overwrites)
    for number in range(steps):
        try:
            world.step()
        except LostRows as error:
            raise LostRows(f"seed {seed}, step {number}: {error}") from None
    return world.counts
