"""A commit to decide (`Proposal`), and whether it may follow the table's state.

Source: Hudi RFC-22; `TransactionUtils.resolveWriteConflictIfAny`, `ConcurrentOperation`, `ClusteringUtils`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from lockprovider import Intent, JudgeAnew, Log, LogEntry, Pending
from lockprovider.bounded import as_flag, as_text, as_whole, parse_object, text_in
from lockprovider.table.convert.columns import leaf_types
from lockprovider.table.errors import ARCHIVED, Aborted, Corrupt, InvalidRecords, WriteConflict
from lockprovider.table.files.keys import KeyFile
from lockprovider.table.format import schema as hudi_schema
from lockprovider.table.format.layout import (
    TIMELINE,
    Action,
    FileGroup,
    Instant,
    InstantState,
    Marker,
    data_file,
    format_ms,
    is_markers_file,
    markers_dir,
    markers_in,
    parse_instant,
    parse_marker,
)
from lockprovider.table.format.metadata import CLUSTER, COMPACT, CommitMetadata, batches_by_stream, decode_commit
from lockprovider.table.format.service_metadata import decode_clustering_plan
from lockprovider.table.state import archive_index
from lockprovider.table.state.as_of import with_logs
from lockprovider.table.state.context import writable_config
from lockprovider.table.timeline import conflict
from lockprovider.table.timeline.conflict import BatchId, ConcurrentOperation, Overlap, Resolution
from lockprovider.table.timeline.timeline import Timeline, time_after
from lockprovider.table.timeline.view import Snapshot, cleaned_groups

if TYPE_CHECKING:
    from lockprovider.table.format.metadata import WriteStat
    from lockprovider.table.format.properties import TableConfig
    from lockprovider.table.state.context import TableContext
    from lockprovider.table.state.heartbeat import WriterHeartbeat
    from lockprovider.table.state.knowledge import TableView


_DIGESTS, _PROPOSALS = 256, 128  # in memory
_LARGEST_KEPT = 1 << 15  # bytes of a body; `storage_lock.record.LARGEST_ENTRY`: the lock decides no larger one
LOOKED_AT_MS = 1000  # the age from which a write is looked for
_OVERWRITES = ("INSERT_OVERWRITE_TABLE", "INSERT_OVERWRITE", "DELETE_PARTITION")

_Done = tuple[Instant, CommitMetadata]


_RESOLUTIONS = (conflict.by_file_group, conflict.prefer_writer, conflict.by_partition, conflict.non_blocking)
RULES: dict[str, Resolution] = {rule.__name__: rule for rule in _RESOLUTIONS}


@dataclass(frozen=True, slots=True)
class Basis:
    """Knowledge of a proposal's writer.

    `resolution`: rule for conflicts. `snapshot`: rows that it read, or None. `keys`: its new keys, if compared.
    """

    config: TableConfig
    timeline: Timeline
    resolution: Resolution
    snapshot: Snapshot | None = None
    keys: KeyCheck | None = None

    @property
    def rule_name(self) -> str:
        """Resolution's name; empty if other writers do not have it."""
        return next((name for name, rule in RULES.items() if rule is self.resolution), "")

    def compared(self, proposal: Proposal, done: Sequence[Instant]) -> tuple[Instant, ...]:
        """Commits whose file groups are compared with the proposal's."""
        # Only a blind write that has read nothing ignores other commits.
        if self.resolution is conflict.non_blocking and self.snapshot is None:
            return tuple(instant for instant in done if instant.action is Action.REPLACECOMMIT)
        return tuple(done) if self.may_overlap(proposal) else ()

    def may_overlap(self, proposal: Proposal) -> bool:
        """Whether completed writes can touch the same data: not if only new file groups are compared."""
        if self.snapshot is not None or proposal.compares_keys or proposal.buckets:
            return True
        fresh = not proposal.metadata.replaced and all(stat.prev_commit is None for stat in proposal.metadata.all_stats)
        return not (fresh and self.resolution in (conflict.by_file_group, conflict.prefer_writer))


@dataclass(frozen=True, slots=True)
class Proposal:
    """Commit that one instant proposes.

    Attributes:
        buckets: whether buckets are compared instead of file groups.
        config: digest of the properties as its writer knows them.
        columns: digest of the table's columns, without added ones.
        compares_keys: whether its new keys are compared with other inserts'.
    """

    begin: str
    action: Action
    rule: str
    buckets: bool
    config: str
    columns: str
    batch_id: BatchId | None
    compares_keys: bool
    data: bytes
    metadata: CommitMetadata = field(compare=False)

    @property
    def inflight(self) -> Instant:
        return Instant(self.begin, self.action, InstantState.INFLIGHT)

    def completed(self, completion: str) -> Instant:
        return Instant(self.begin, self.action, InstantState.COMPLETED, completion)

    @property
    def stem(self) -> str:
        """Beginning of its path, before the completion time."""
        return f"{TIMELINE}/{self.begin}_"


def validate(
    table: TableContext, proposal: Proposal, basis: Basis, heartbeat: WriterHeartbeat, view: TableView
) -> None:
    """Raise if the commit may not follow the table's state `view`; report a conflict to the watcher.

    `basis`: its writer's knowledge. Reads commits, plans, archive and keys as needed. Raises `Aborted`,
    `UnsupportedTable`, `HistoryGone` or the errors of `decide`.
    """
    _check_alive(table, proposal, basis, heartbeat, view)
    timeline = view.timeline
    done = conflict.completed_since(basis.timeline, timeline)
    since = LaterCommits(
        notes=partial(table.current.batches_newest_first, timeline),
        latest_first=lambda: ((i, table.metadata_of(i)) for i in reversed(done)),
        others=lambda: _others(table, proposal, basis, timeline, done),
        refuse_broken=partial(_check_snapshot, table, proposal.begin, basis.timeline, timeline),
    )
    try:
        decide(proposal, basis.resolution, since)
    except WriteConflict as error:
        table.report("conflict", proposal.begin, lost_to=error.lost_to, file_groups=len(error.file_groups))
        raise
    if basis.keys is not None:
        basis.keys.refuse_shared(basis.compared(proposal, done))


def _check_alive(
    table: TableContext, proposal: Proposal, basis: Basis, heartbeat: WriterHeartbeat, view: TableView
) -> None:
    """Raise `Aborted` if the instant is not pending or may be rolled back, or the properties changed.

    May ask the store for the inflight file. Changed properties that refuse writes raise `UnsupportedTable`.
    """
    begin, timeline = proposal.begin, view.timeline
    # A rollback without the lock removes the inflight file, unseen in the log.
    is_young = begin > format_ms(table.clock.now_ms() - LOOKED_AT_MS)
    if not (timeline.is_pending(begin) if view.listed else is_young or table.current.has(proposal.inflight)):
        raise Aborted(f"instant {begin} was rolled back by another writer, who took it for dead; begin again")
    heartbeat.require_alive()
    if table.current.pending_rollback_of(timeline, begin, since=begin) is not None:
        raise Aborted(f"a rollback of instant {begin} is planned; begin again")
    if view.config != basis.config:
        writable_config(table, view.config)
        raise Aborted("the table's properties were changed by another writer; open it again, and begin again")


def _check_snapshot(table: TableContext, begin: str, before: Timeline, timeline: Timeline) -> None:
    """Raise `WriteConflict` if a restore removed commits of the snapshot, or unseen ones may be archived."""
    if conflict.undone_since(before, timeline):
        restores = (instant.file_name for instant in timeline.besides_commits if instant.action is Action.RESTORE)
        raise WriteConflict(begin, max(restores, default="a restore"), ())
    is_unsure = timeline.first_active > before.first_active > "" or conflict.archived_since(before, timeline)
    if is_unsure and not archive_index.has_all_archived(table.knowledge, before, timeline):
        raise WriteConflict(begin, ARCHIVED, ())


def _others(
    table: TableContext, proposal: Proposal, basis: Basis, timeline: Timeline, done: Sequence[Instant]
) -> list[ConcurrentOperation]:
    """Operations to compare: commits by `Basis.compared`, without compactions, and planned clusterings; reads both.

    Raises `WriteConflict` if a clean removed the snapshot's files before it was listed.
    """
    later = [(i, table.metadata_of(i)) for i in basis.compared(proposal, done)]
    if basis.snapshot is not None:
        # Log files are cleaned only after a compaction.
        is_compacted = any(metadata.operation == COMPACT for _, metadata in later)
        earlier = with_logs(table, basis.snapshot.timeline) if is_compacted else []
        if unseen := cleaned_groups(basis.snapshot, earlier, later):  # its new keys may exist there
            winner = next((i.file_name for i, metadata in later if metadata.file_groups & unseen), ARCHIVED)
            raise WriteConflict(proposal.begin, winner, tuple(sorted(unseen)))
    # A compaction removes no row: rows logged during it stay for the next one.
    operations = [ConcurrentOperation.of(i, metadata) for i, metadata in later if metadata.operation != COMPACT]
    operations += planned_services(table, timeline)
    return operations


def planned_services(table: TableContext, timeline: Timeline) -> tuple[ConcurrentOperation, ...]:
    """Uncompleted clusterings with the file groups that they will replace; reads their plans.

    One without a plan, just completed or removed, has none.
    """
    requested = [
        Instant(begin, Action.CLUSTERING, InstantState.REQUESTED) for begin in timeline.pending(Action.CLUSTERING)
    ]
    return tuple(
        ConcurrentOperation(i, CLUSTER, decode_clustering_plan(_content(table, i), i.file_name).file_groups)
        for i in requested
    )


def pending_writes(table: TableContext, timeline: Timeline, me: str) -> tuple[ConcurrentOperation, ...]:
    """Pending writes except `me`, with the file groups announced so far; reads markers."""
    return tuple(_pending_write(table, timeline, begin) for begin in timeline.pending_writes if begin != me)


def _pending_write(table: TableContext, timeline: Timeline, begin: str) -> ConcurrentOperation:
    """Read a pending write's inflight file and markers; return it with the file groups that they name.

    Without content its operation is `UNKNOWN`.
    """
    inflight = Instant(begin, timeline.pending_action(begin) or Action.COMMIT, InstantState.INFLIGHT)
    content = _content(table, inflight)
    profile = decode_commit(content, inflight.file_name) if content else None
    announced = frozenset() if profile is None else profile.file_groups
    return ConcurrentOperation(
        inflight, "UNKNOWN" if profile is None else profile.operation, announced | _marked(table, begin)
    )


def _marked(table: TableContext, begin: str) -> frozenset[FileGroup]:
    """Read a write's markers; return the file groups that they announce. May raise `Corrupt`."""
    markers: list[Marker] = []
    for entry in table.store.list(f"{markers_dir(begin)}/"):
        marker = parse_marker(entry.path)
        if marker is not None:
            markers.append(marker)
        elif is_markers_file(entry.path) and (content := table.store.read_or_none(entry.path)) is not None:
            markers += markers_in(entry.path, content.data)
    files = ((marker.partition, data_file(marker.file_name)) for marker in markers)
    return frozenset((partition, file.file_id) for partition, file in files if file is not None)


def _content(table: TableContext, instant: Instant) -> bytes:
    content = table.store.read_or_none(f"{TIMELINE}/{instant.file_name}")
    # None: completed or rolled back since, under the lock only by a writer without it.
    return b"" if content is None else content.data


@dataclass(frozen=True, slots=True)
class LaterCommits:
    """Commits since a write's snapshot, from the timeline (`validate`) or the lock's log (`refuse`).

    Attributes:
        notes: commits with their batches of streams, newest first.
        others: operations to compare.
        refuse_broken: raises if the snapshot is gone.
    """

    notes: Callable[[], Iterable[tuple[Instant, Mapping[str, int]]]]
    latest_first: Callable[[], Iterable[_Done]]
    others: Callable[[], Sequence[ConcurrentOperation]]
    refuse_broken: Callable[[], None] = lambda: None


def decide(proposal: Proposal, rule: Resolution, since: LaterCommits) -> None:
    """Raise `AlreadyCommitted`, `WrongCheckpoint`, `Fenced` or `WriteConflict` if `since` forbids a write.

    A conflict is an overlap by `rule` or of two overwrites, changed columns, or a lost snapshot.
    """
    conflict.refuse_repeated_or_fenced(conflict.fences_in(proposal.metadata.extra), proposal.batch_id, since.notes)
    since.refuse_broken()
    _refuse_columns(proposal, since.latest_first())
    operation, others = ConcurrentOperation.of(proposal.inflight, proposal.metadata), since.others()
    rule = conflict.by_bucket(rule) if proposal.buckets else rule
    overlap = rule(operation, others) or _second_overwrite(operation, others)
    if overlap is not None:
        raise WriteConflict(proposal.begin, overlap.lost_to.file_name, overlap.file_groups)


def _second_overwrite(operation: ConcurrentOperation, others: Sequence[ConcurrentOperation]) -> Overlap | None:
    """Overlap with the first of `others` that overwrites a partition which this overwrite touches.

    None without one, or if `operation` is no overwrite. Two of the whole table conflict, whichever partitions they
    touch.
    """
    if operation.name not in _OVERWRITES:
        return None
    partitions = {partition for partition, _ in operation.file_groups}
    for other in others:
        is_whole = operation.name == other.name == _OVERWRITES[0]
        shared = {group for group in other.file_groups if is_whole or group[0] in partitions}
        if shared and other.name in _OVERWRITES:
            return Overlap(other.instant, tuple(sorted(shared)))
    return None


def _refuse_columns(proposal: Proposal, latest_first: Iterable[_Done]) -> None:
    for other, metadata in latest_first:
        if metadata.schema_json:
            if columns_digest(hudi_schema.stated_columns(metadata.schema_json)) != proposal.columns:
                raise WriteConflict(proposal.begin, other.file_name, ())
            return


@lru_cache(maxsize=_DIGESTS)
def columns_digest(columns: pa.Schema) -> str:
    return short_digest(repr(leaf_types(columns)))


def short_digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


# Source: Hudi `HoodieBloomIndex`.
class KeyCheck:
    """The check that a write's new keys are still new at its commit; `stats`: all its files.

    Reads may raise `HistoryGone` or `Corrupt`.
    """

    def __init__(self, table: TableContext, begin: str, stats: Iterable[WriteStat]) -> None:
        self._table, self._begin = table, begin
        self._new: dict[str, list[KeyFile]] = {}
        for stat in stats:
            if stat.prev_commit is None and stat.num_writes:
                self._new.setdefault(stat.partition, []).append(self._file(stat))
        self._compared: set[str] = set()

    def refuse_shared(self, done: Iterable[Instant]) -> None:
        """Raise `WriteConflict`, and report it, if one of these commits inserted a key of this write.

        Reads the files of commits that have not passed before.
        """
        for instant in done:
            if instant.file_name in self._compared:
                continue
            for keys in self._shared(self._table.metadata_of(instant).stats):
                self._table.report("conflict", self._begin, lost_to=instant.file_name, keys=len(keys))
                raise WriteConflict(self._begin, instant.file_name, (), keys)
            self._compared.add(instant.file_name)

    def refuse_known(self, snapshot: Snapshot) -> None:
        """Raise `InvalidRecords` if this insert has a key twice in a partition, or one that the partition has.

        Reads the new files, and the snapshot's in their partitions.
        """
        for partition, files in self._new.items():
            keys = pa.concat_arrays([file.keys for file in files])
            if pc.count_distinct(keys).as_py() < len(keys):
                counts = pc.value_counts(keys)
                twice = counts.filter(pc.greater(counts.field("counts"), 1))[0]["values"].as_py()
                raise InvalidRecords(
                    f"record key {twice!r} comes more than once in partition {partition!r}; upsert the rows instead"
                )
            for slice_ in snapshot.within([partition]):
                existing = KeyFile(self._table.place, slice_.path, slice_.size)
                shared = max((file.shared(existing) for file in files), key=len)
                if len(shared):
                    raise InvalidRecords(
                        f"{len(shared)} record keys are in partition {partition!r} already, the first is "
                        f"{shared[0].as_py()!r}; upsert them instead"
                    )

    def _shared(self, stats: Mapping[str, Iterable[WriteStat]]) -> Iterable[tuple[str, ...]]:
        """Read keys; per partition, yield those in both, if any, for each pair of a new file and one in `stats`.

        Skips rewrites without inserts.
        """
        for partition, files in self._new.items():
            for stat in stats.get(partition, ()):
                if stat.prev_commit is not None and not stat.num_inserts:
                    continue  # the keys of an update existed before
                existing = self._file(stat)
                for file in files:
                    keys = file.shared(existing)
                    if len(keys):
                        yield tuple(keys.to_pylist())

    def _file(self, stat: WriteStat) -> KeyFile:
        return KeyFile(self._table.place, stat.path, stat.file_size)


_PREFIX = f"{TIMELINE}/"
_LARGEST = 1 << 16  # bytes of the header before the data


def encode(proposal: Proposal) -> bytes:
    """Encode a proposal as an intent's body: a line of JSON, then its data."""
    header = {
        "begin": proposal.begin,
        "action": proposal.action.value,
        "rule": proposal.rule,
        "buckets": proposal.buckets,
        "config": proposal.config,
        "columns": proposal.columns,
        "batch": None if proposal.batch_id is None else astuple(proposal.batch_id),
        "keys": proposal.compares_keys,
    }
    return json.dumps(header).encode() + b"\n" + proposal.data


def decode(body: bytes) -> Proposal:
    """Decode an intent's body; may raise `ValueError`, `KeyError`, `TypeError` or `Corrupt`."""
    head, _, data = body.partition(b"\n")
    header = parse_object(head, most=_LARGEST)
    return Proposal(
        begin := text_in(header, "begin"),
        Action(header["action"]),
        RULES[text_in(header, "rule")].__name__,
        as_flag(header["buckets"], "buckets"),
        text_in(header, "config"),
        text_in(header, "columns"),
        _batch_id(header["batch"]),
        as_flag(header["keys"], "keys"),
        data,
        decode_commit(data, begin),
    )


def _batch_id(fields: Sequence[Any] | None) -> BatchId | None:
    if fields is None:
        return None
    stream, batch, run, write = fields
    return BatchId(as_text(stream, "stream"), as_whole(batch, "batch"), as_text(run, "run"), as_whole(write, "write"))


def sample_of(proposal: Proposal) -> bytes:
    """Header like most intents', by which their bodies are compressed into names."""
    rule = next(iter(RULES))
    template = replace(
        proposal, begin="", action=Action.COMMIT, rule=rule, batch_id=None, compares_keys=False, data=b""
    )
    return encode(template)


def config_digest(config: TableConfig) -> str:
    return short_digest(repr((config, sorted(config.raw.items()))))


def refuse(proposal: Proposal, done: Sequence[tuple[Instant, CommitMetadata]]) -> None:
    """Raise the error of `decide` if the commits `done`, oldest first, forbid the proposal.

    Raises `JudgeAnew` if there are any, and keys must be compared.
    """
    if not done:
        return
    if proposal.compares_keys:
        raise JudgeAnew
    since = LaterCommits(
        notes=lambda: ((instant, batches_by_stream(metadata.extra)) for instant, metadata in reversed(done)),
        latest_first=lambda: reversed(done),
        others=lambda: [ConcurrentOperation.of(instant, metadata) for instant, metadata in done],
    )
    decide(proposal, RULES[proposal.rule], since)


class TableDecider:
    """`commit_rules.Decider` of one table in this process.

    `latest`: largest time on the timeline at the last judgement. `config`: for the visibility, until `refresh`.
    """

    def __init__(self, table: TableContext, latest: str, config: TableConfig, sample: bytes = b"") -> None:
        self.sample = sample
        self.unordered = config.is_unordered
        self._table = table
        self._latest = latest
        self._config = ""

    def refresh(self, seen_s: float) -> None:
        """Read the table's properties, unless requested since `seen_s`."""
        config = self._table.current.config_since(seen_s)
        self._config, self.unordered = config_digest(config), config.is_unordered

    def refuse(self, intent: Intent, since: Sequence[LogEntry]) -> None:
        """Raise the error of `decide` if the intent may not follow these log entries; caches their commits.

        Raises `JudgeAnew` if these are not enough.
        """
        proposal = _proposal_in(intent.body)
        if proposal is None:
            raise JudgeAnew
        refuse(proposal, [self._known(entry) for entry in since])

    def pending(self, intent: Intent, log: Log, now_ms: int) -> Pending | None:
        """Completed file to publish, not judged, at a time above all on timeline and log.

        Call `refresh` before. None: the intent has no proposal, or one with other properties or no valid begin time.
        """
        proposal = _proposal_in(intent.body)
        if proposal is None or proposal.config != self._config:
            return None
        named = (parse_instant(_name(entry)) for entry in log.entries)
        times = [instant.completion or "" for instant in named if instant is not None]
        now_ms = min(now_ms, self._table.clock.now_ms())
        name = proposal.completed(time_after(now_ms, self._latest, proposal.begin, *times)).file_name
        return None if parse_instant(name) is None else Pending.of_bytes(_PREFIX + name, proposal.data)

    def _known(self, entry: LogEntry) -> tuple[Instant, CommitMetadata]:
        """Cache and return the instant and metadata in this log entry; raise `JudgeAnew` without valid bytes.

        Cached bytes do not replace missing ones: all processes must judge alike.
        """
        name = _name(entry)
        instant = parse_instant(name)
        if instant is None or entry.data is None:
            raise JudgeAnew
        memory = self._table.knowledge
        if not memory.has(name):
            memory.remember(name, entry.data)
        try:
            metadata = memory.metadata(name)
        except Corrupt:
            metadata = None
        if metadata is None:
            raise JudgeAnew
        return instant, metadata


def _proposal_in(body: bytes) -> Proposal | None:
    return _decoded(body) if len(body) > _LARGEST_KEPT else _cached(body)


def _decoded(body: bytes) -> Proposal | None:
    try:
        return decode(body)
    except (ValueError, KeyError, TypeError, Corrupt):
        return None


_cached = lru_cache(maxsize=_PROPOSALS)(_decoded)


def _name(entry: LogEntry) -> str:
    return entry.path.removeprefix(_PREFIX)
