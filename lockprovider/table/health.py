"""What a doctor checks on a table, and what it says; each check takes the facts and touches nothing.

    R1  what failed writers left is announced by markers, and rolled back before archival could make it visible
    R2  no metadata table, which would hide commits that it was not told of
    R3  all times are UTC
    R4  the table's version and properties are ones that all its writers share
    R5  one base file of a file group and instant
    R6  times are unique, and every commit saw the one before it
    R7  each partition has its metafile
    and that what the commits say is there, that no service was left unfinished, that the lock can be taken

Source: Hudi `MarkerBasedRollbackStrategy`, `HoodieTableMetadata`, `HoodieInstantTimeGenerator`, `UpgradeDowngrade`,
`HoodieTableFileSystemView`, `FSUtils.getAllPartitionPaths`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from fsspec_cas import Entry
from lockprovider.table.instant import Action, Instant, State, to_ms
from lockprovider.table.layout import META, PARTITION_METAFILE, BaseFile, join, parse_base_file, parse_marker
from lockprovider.table.metadata import CommitMetadata, WriteStat
from lockprovider.table.properties import TableConfig, faults
from lockprovider.table.timeline import Timeline

_MINUTE_MS = 60_000
_ZONE_MS = 15 * _MINUTE_MS  # zones differ by multiples of this
_MARGIN_MS = _MINUTE_MS // 2
_FUTURE_MS = 10 * _MINUTE_MS
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, or (a note) only good to know."""

    rule: str
    state: Literal["wrong", "note"]
    what: str
    mend: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What was found. `files` were listed before `timeline`.

    Attributes:
        properties: what was understood of them, or the sentence that says why not.
        lone_backup, both: which of the two properties files are there besides the plain one alone.
        entries: the files of the timeline folder, by name.
        commits: what completed writes did, or the sentence that says why that cannot be read.
        victims: begin times that completed rollbacks name.
        dead: begin times of pending instants whose writer or executor is dead.
        lock: what is wrong with the lock record, or who holds it; empty if it is free.
    """

    properties: TableConfig | str
    timeline: Timeline
    entries: Mapping[str, Entry]
    files: tuple[Entry, ...]
    commits: Mapping[Instant, CommitMetadata | str]
    markers: tuple[str, ...] = ()
    beats: tuple[str, ...] = ()
    victims: frozenset[str] = frozenset()
    dead: frozenset[str] = frozenset()
    metadata_table: bool = False
    lone_backup: bool = False
    both: bool = False
    lock_fault: str = ""
    lock_note: str = ""
    now_ms: int = 0
    bases: tuple[tuple[str, BaseFile, Entry], ...] = field(init=False)

    def __post_init__(self) -> None:
        found = ((entry, *entry.path.rpartition("/")[::2]) for entry in self.files)
        bases = ((folder, parse_base_file(name), entry) for entry, folder, name in found if not _is_meta(folder))
        object.__setattr__(self, "bases", tuple((f, base, entry) for f, base, entry in bases if base is not None))

    @property
    def config(self) -> TableConfig | None:
        """The properties, if they could be understood."""
        return None if isinstance(self.properties, str) else self.properties

    @property
    def stats(self) -> Iterator[tuple[Instant, WriteStat]]:
        """Every file that a readable commit says it wrote."""
        for instant, metadata in self.commits.items():
            if not isinstance(metadata, str):
                yield from ((instant, stat) for stats in metadata.stats.values() for stat in stats)

    @property
    def replaced(self) -> frozenset[tuple[str, str]]:
        """The file groups that ended."""
        known = (metadata for metadata in self.commits.values() if not isinstance(metadata, str))
        return frozenset(
            (part, group) for metadata in known for part, ids in metadata.replaced.items() for group in ids
        )


Check = Callable[[Facts], Iterator[Finding]]


def examine(facts: Facts) -> tuple[tuple[str, str, tuple[Finding, ...]], ...]:
    """All checks: rule, what it is about, and what was found."""
    return tuple((rule, about, tuple(check(facts))) for rule, about, check in CHECKS)


# --- the seven rules ------------------------------------------------------------------------------------------------


def failed_writes(facts: Facts) -> Iterator[Finding]:
    """R1."""
    now, marked = facts.timeline, {_marked(path) for path in facts.markers}
    listed = {path.split("/")[2] for path in facts.markers if path.rpartition("/")[2].startswith("MARKERS")}
    for begin in now.pending_writes:
        mine = [entry.path for _, base, entry in facts.bases if base.begin == begin]
        if begin in facts.dead:
            what = f"write {begin} failed: its writer is dead; {len(mine)} files"
            yield Finding(
                "R1", "wrong", what, "`lockprovider table rollback URL`, or the next write from here, does it"
            )
        bare = [path for path in mine if path not in marked]
        if bare and begin not in listed:
            what = f"write {begin} has files without a marker: {_some(bare)}"
            yield Finding("R1", "wrong", what, "roll it back from here; JVM Hudi would leave these files behind")
    known = {instant.begin for instant in now.instants}
    lost = [e.path for _, base, e in facts.bases if base.begin not in known and base.begin > now.first_active > ""]
    if lost:
        what = f"{len(lost)} files are of no instant, and become visible once it is archived: {_some(lost)}"
        yield Finding("R1", "wrong", what, "`lockprovider table clean URL` removes them")


def metadata_table(facts: Facts) -> Iterator[Finding]:
    """R2; what the properties say of it is found with them."""
    if facts.metadata_table:
        listed = facts.config is not None and bool(facts.config.metadata_partitions)
        yield Finding(
            "R2",
            "wrong" if listed else "note",
            "there is a metadata table below .hoodie/metadata" + ("" if listed else ", which no reader uses"),
            "set hoodie.metadata.enable=false on every JVM writer, then `lockprovider table retire-metadata URL`",
        )


def zones(facts: Facts) -> Iterator[Finding]:
    """R3: a completed file says when it was completed, and the store says when it was written."""
    if facts.config is not None and not facts.config.timezone:
        what = "hoodie.table.timeline.timezone is not set: each JVM writer takes its own zone"
        yield Finding("R3", "note", what, "run every JVM writer with -Duser.timezone=UTC")
    drifts = [(name, drift) for name, drift in _drifts(facts) if drift is not None]
    ahead = [name for name, drift in drifts if drift > _FUTURE_MS]
    if ahead:
        what = f"{len(ahead)} instants are ahead of the store's clock: {_some(ahead)}"
        yield Finding(
            "R3", "wrong", what, "find the writer whose clock or zone is wrong; run it with -Duser.timezone=UTC"
        )
    honest = any(abs(drift) < _MARGIN_MS for _, drift in drifts)
    other = [name for name, drift in drifts if drift < -_ZONE_MS / 2 and _is_zone(drift)]
    if other and honest:
        what = f"{len(other)} instants are whole quarters of an hour behind the others: {_some(other)}"
        yield Finding("R3", "wrong", what, "find the JVM writer in another zone; run it with -Duser.timezone=UTC")


def _drifts(facts: Facts) -> Iterator[tuple[str, int | None]]:
    for name, entry in facts.entries.items():
        instant = next((i for i in facts.timeline.instants if i.file_name == name), None)
        if instant is not None and instant.completion is not None and entry.modified_ms is not None:
            yield name, to_ms(instant.completion) - entry.modified_ms


def _is_zone(drift_ms: int) -> bool:
    return abs(drift_ms - round(drift_ms / _ZONE_MS) * _ZONE_MS) < _MARGIN_MS


def properties(facts: Facts) -> Iterator[Finding]:
    """R4, and all else that the properties decide."""
    if facts.lone_backup:
        what = "hoodie.properties is gone, only hoodie.properties.backup is there: a writer died between"
        yield Finding("R4", "wrong", what, "copy the backup to hoodie.properties, while nobody writes")
    if facts.both:
        what = "hoodie.properties.backup is there besides hoodie.properties: a writer died, or is at it"
        yield Finding("R4", "note", what, "compare the two; remove the backup once no JVM writer runs")
    config = facts.config
    if config is None:
        yield Finding("R4", "wrong", str(facts.properties), "restore hoodie.properties")
        return
    for sentence in faults(config):
        what, _, mend = sentence.rpartition("; ")
        yield Finding("R4", "wrong", what or sentence, mend if what else "use the engine that made the table")
    if config.version == 8 and "hoodie.record.merge.mode" not in config.raw:  # noqa: PLR2004
        what = "hoodie.record.merge.mode is missing: JVM Hudi 1.x fails on this table"
        yield Finding("R4", "wrong", what, f"set it to {config.effective_merge_mode}")
    initial = config.raw.get("hoodie.table.initial.version")
    if initial and initial != str(config.version):
        what = f"the table was upgraded from version {initial} to {config.version}"
        yield Finding("R4", "note", what, "set hoodie.write.auto.upgrade=false on every JVM writer")
    folders = sorted({folder for folder, _, _ in facts.bases if folder})
    if folders and not config.partition_fields:
        what = f"hoodie.table.partition.fields is missing, but there are partitions: {_some(folders)}"
        yield Finding("R4", "wrong", what, "set it; hudi-rs reads no rows without it")


def twins(facts: Facts) -> Iterator[Finding]:
    """R5."""
    counts = Counter((folder, base.file_id, base.begin) for folder, base, _ in facts.bases)
    named = {stat.path for _, stat in facts.stats}
    for (folder, file_id, begin), count in counts.items():
        if count > 1:
            mine = [e.path for f, b, e in facts.bases if (f, b.file_id, b.begin) == (folder, file_id, begin)]
            surplus = [path for path in mine if path not in named] or mine[1:]
            what = f"{count} base files of file group {file_id} and instant {begin}: hudi-rs fails, JVM picks one"
            yield Finding("R5", "wrong", what, f"remove what the commit does not name: {_some(surplus)}")


def order(facts: Facts) -> Iterator[Finding]:
    """R6."""
    times = Counter(i.completion for i in facts.timeline.instants if i.is_completed and i.changes_rows)
    for time, count in times.items():
        if count > 1:
            what = f"{count} commits completed at the same millisecond {time}: an incremental reader may miss one"
            yield Finding("R6", "wrong", what, "let every writer take the table's lock")
    for instant in facts.timeline.instants:
        if instant.completion is not None and instant.completion < instant.begin:
            what = f"{instant.file_name} completed before it began"
            yield Finding("R6", "wrong", what, "find the writer whose clock was set back")
    yield from _unseen(facts)


def _unseen(facts: Facts) -> Iterator[Finding]:
    """A slice names the one it was made from: that must be the one before it."""
    groups: dict[tuple[str, str], list[tuple[str, str | None]]] = {}
    for instant, stat in facts.stats:
        groups.setdefault((stat.partition, stat.file_id), []).append((instant.begin, stat.prev_commit))
    for (partition, file_id), slices in groups.items():
        ordered = sorted(slices)
        for (before, _), (begin, previous) in pairwise(ordered):
            if previous != before:
                what = (
                    f"commit {begin} did not see commit {before}: both wrote file group {file_id} of partition "
                    f"{partition or '.'!r}, and what the earlier one changed is lost"
                )
                mend = (
                    f"let every writer take the table's lock; read as of {before} for what is lost, and write it again"
                )
                yield Finding("R6", "wrong", what, mend)


def metafiles(facts: Facts) -> Iterator[Finding]:
    """R7."""
    there = {entry.path for entry in facts.files}
    for folder in sorted({folder for folder, _, _ in facts.bases}):
        path = join(folder, PARTITION_METAFILE)
        if path not in there:
            depth = folder.count("/") + 1 if folder else 0
            what = f"partition {folder or '.'!r} has no {PARTITION_METAFILE}: JVM readers see none of its rows"
            yield Finding(
                "R7", "wrong", what, f"create {path} with the lines commitTime=<an instant>, partitionDepth={depth}"
            )


# --- besides ----------------------------------------------------------------------------------------------------------


def commits(facts: Facts) -> Iterator[Finding]:
    """What the commits say is there, whole."""
    for metadata in facts.commits.values():
        if isinstance(metadata, str):
            yield Finding("commits", "wrong", metadata, "a reader fails on it, or misses the commit")
    for instant in facts.timeline.writes[-1:]:
        last = facts.commits.get(instant)
        if isinstance(last, CommitMetadata) and last.schema_json is None and not last.stats:
            what = f"the last commit {instant.file_name} has neither a schema nor a file: hudi-rs fails"
            yield Finding("commits", "wrong", what, "commit anything from here: it states the schema")
    yield from _ghosts(facts)
    yield from _missing(facts)


def _ghosts(facts: Facts) -> Iterator[Finding]:
    for instant in facts.timeline.writes:
        if instant.begin in facts.victims:
            what = f"{instant.file_name} was rolled back, and came back: its writer was paused for long"
            yield Finding("commits", "wrong", what, "remove the file, while nobody writes; its rows were never there")


def _missing(facts: Facts) -> Iterator[Finding]:
    sizes = {entry.path: entry.size for entry in facts.files}
    latest: dict[tuple[str, str], WriteStat] = {}
    for _, stat in sorted(facts.stats, key=lambda one: one[0].begin):
        latest[stat.partition, stat.file_id] = stat
    live = [stat for group, stat in latest.items() if group not in facts.replaced]
    gone = [stat.path for stat in live if stat.path not in sizes]
    if gone:
        what = f"{len(gone)} files that readers need are gone: {_some(gone)}"
        yield Finding("commits", "wrong", what, "restore them from a copy, or restore the table to an earlier commit")
    cut = [s.path for s in live if s.file_size and s.path in sizes and sizes[s.path] != s.file_size]
    if cut:
        what = f"{len(cut)} files are not of the size that their commit says: {_some(cut)}"
        yield Finding("commits", "wrong", what, "restore them from a copy, or restore the table to an earlier commit")


def services(facts: Facts) -> Iterator[Finding]:
    """Plans that nobody carries out any more."""
    mends = {
        Action.ROLLBACK: "`lockprovider table rollback URL`, or the next write from here, finishes it",
        Action.CLEAN: "`lockprovider table clean URL` finishes it",
        Action.RESTORE: "`lockprovider table restore URL INSTANT`, or the next write from here, finishes it",
    }
    for action, mend in mends.items():
        for begin in facts.timeline.pending(action):
            if begin in facts.dead:
                yield Finding(
                    "services", "wrong", f"{action.value} {begin} was not finished: its executor is dead", mend
                )
    for begin in facts.timeline.pending(Action.CLUSTERING):
        what = f"clustering {begin} is planned: writes of its file groups give way to it"
        yield Finding("services", "note", what, "run it with JVM Hudi, or roll it back there")


def lock(facts: Facts) -> Iterator[Finding]:
    """The lock record."""
    if facts.lock_fault:
        yield Finding("lock", "wrong", facts.lock_fault, "remove the object, once no writer runs")
    if facts.lock_note:
        yield Finding("lock", "note", facts.lock_note, "`lockprovider status URL` says more")


def leftovers(facts: Facts) -> Iterator[Finding]:
    """Harmless, but somebody may wonder."""
    known = {i.begin for i in facts.timeline.instants if i.state is not State.COMPLETED}
    known -= {i.begin for i in facts.timeline.instants if i.is_completed}
    beats = [begin for begin in facts.beats if begin not in known]
    if beats:
        yield Finding(
            "leftovers", "note", f"{len(beats)} heartbeats of finished instants: {_some(beats)}", "remove them"
        )
    markers = sorted({path.split("/")[2] for path in facts.markers} - known)
    if markers:
        what = f"markers of {len(markers)} finished instants: {_some(markers)}"
        yield Finding("leftovers", "note", what, "remove .hoodie/.temp/<instant>")


CHECKS: tuple[tuple[str, str, Check], ...] = (
    ("R1", "failed writes are announced and rolled back", failed_writes),
    ("R2", "no metadata table hides commits", metadata_table),
    ("R3", "all times are UTC", zones),
    ("R4", "version and properties are shared by all writers", properties),
    ("R5", "one file of a file group and instant", twins),
    ("R6", "times are unique, each commit saw the one before", order),
    ("R7", "every partition has its metafile", metafiles),
    ("commits", "what the commits say is there", commits),
    ("services", "no service was left unfinished", services),
    ("lock", "the lock can be taken", lock),
    ("leftovers", "nothing was left behind", leftovers),
)


def _marked(path: str) -> str:
    marker = parse_marker(path)
    return "" if marker is None else marker.data_path


def _is_meta(folder: str) -> bool:
    return folder.partition("/")[0] == META


def _some(names: Iterable[str]) -> str:
    found = sorted(names)
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more
