"""Checks of a table's facts: the rules R1 to R7 that all writers of a shared table must keep, and more.

Source: Hudi `MarkerBasedRollbackStrategy`, `HoodieTableMetadata`, `HoodieInstantTimeGenerator`, `UpgradeDowngrade`,
`HoodieTableFileSystemView`, `FSUtils.getAllPartitionPaths`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Literal

from lockprovider.table.doctor.facts import Facts, TableFinding, gather, some
from lockprovider.table.files.base_file import look_like_buckets
from lockprovider.table.format.bucket import bucket_of
from lockprovider.table.format.instant import Action, InstantState, to_ms
from lockprovider.table.format.layout import BUCKET_RULES, PARTITION_METAFILE, BaseFile, FileGroup, join, parse_marker
from lockprovider.table.format.metadata import CommitMetadata, WriteStat
from lockprovider.table.format.properties import BUCKET, INDEX, READABLE_VERSIONS, TableConfig
from lockprovider.table.format.shapes import reasons, way_on
from lockprovider.table.format.writer_settings import (
    VISIBILITIES,
    VISIBILITY_KEY,
    ZONE_KEY,
    appears_at_once,
    says_listing_is_kept,
    unshared,
    visibility,
)
from lockprovider.table.state.clock import clock_difference
from lockprovider.table.timeline.timeline import ZONE_MS, drifts_ms

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext

_FOR_ALL = 8  # All releases of Hudi 1.x open this version.
_MINUTE_MS = 60_000
_MARGIN_MS = _MINUTE_MS // 2
_FUTURE_MS = 10 * _MINUTE_MS
_HOUR_MS = 3_600_000
_EXPIRED_MS = 24 * _HOUR_MS
_PLANS = (
    (Action.CLUSTERING, "cluster", "writes of its file groups give way to it"),
    (Action.COMPACTION, "compact", "no other merges its file groups"),
)
_MANY = 300  # Listing more takes several pages.
TableReport = tuple[tuple[str, str, tuple[TableFinding, ...]], ...]
_Said = tuple[Literal["wrong", "note"], str, str]
_Found = Iterator[_Said]
_Check = Callable[[Facts], _Found]
_WRONG: Final = "wrong"
_NOTE: Final = "note"
_UNFINISHED = {
    Action.ROLLBACK: "`lockprovider table rollback URL`, or the next write from here, finishes it",
    Action.CLEAN: "`lockprovider table clean URL` finishes it",
    Action.RESTORE: "`lockprovider table restore URL INSTANT`, or the next write from here, finishes it",
}


def _listed(state: Literal["wrong", "note"], names: Collection[str], what: str, mend: str) -> _Found:
    """Yield one finding with the first of these names, if there are any."""
    if names:
        yield state, f"{what}: {some(names)}", mend


def failed_writes(facts: Facts) -> _Found:
    """Check R1: report dead writers, files without markers, and files without an instant.

    A rollback must remove a failed write's files before archival would make them visible.
    """
    now, marked = facts.timeline, {_marked(path) for path in facts.markers}
    listed = {path.split("/")[2] for path in facts.markers if path.rpartition("/")[2].startswith("MARKERS")}
    for begin in now.pending_writes:
        mine = [entry.path for _, file, entry in facts.data if file.begin == begin]
        if begin in facts.dead:
            what = f"write {begin} failed: its writer is dead; {len(mine)} files"
            yield _WRONG, what, "`lockprovider table rollback URL`, or the next write from here, does it"
        bare = [path for path in mine if path not in marked and begin not in listed]
        mend = "roll it back from here; JVM Hudi would leave these files behind"
        yield from _listed(_WRONG, bare, f"write {begin} has files without a marker", mend)
    known = {instant.begin for instant in now.instants}
    lost = [e.path for _, file, e in facts.data if file.begin not in known and file.begin > now.first_active > ""]
    what = f"{len(lost)} files are of no instant, and become visible once it is archived"
    yield from _listed(_WRONG, lost, what, "`lockprovider table clean URL` removes them")


def metadata_table(facts: Facts) -> _Found:
    """Check R2: report a metadata table, which hides commits that it does not record."""
    if facts.metadata_table and not (facts.config is not None and says_listing_is_kept(facts.config)):
        listed = facts.config is not None and bool(facts.config.named_metadata)
        what = "there is a metadata table below .hoodie/metadata" + ("" if listed else ", which no reader uses")
        mend = "`lockprovider table retire-metadata URL`; Flink, Java: set hoodie.metadata.enable=false there before"
        yield _WRONG if listed else _NOTE, what, mend


def listing(facts: Facts) -> _Found:
    """Check the metadata table's listing, which JVM Hudi and hudi-rs read instead of folders."""
    mend = "`lockprovider table retire-metadata URL`: then all readers list the folders"
    if isinstance(facts.listing, str):
        yield _WRONG, f"the metadata table cannot be read: {facts.listing}", mend
    elif facts.listing is not None:
        found = facts.listing
        sentences = {
            "have rows that its readers miss: it does not list them": found.hidden,
            "are listed by it and gone: its readers fail": found.gone,
            "have another size than it says: its readers may fail": found.resized,
            "have no bytes, it says: its readers and writers fail": found.empty,
        }
        for sentence, paths in sentences.items():
            yield from _listed(_WRONG, paths, f"the metadata table: {len(paths)} files {sentence}", mend)


def lists(facts: Facts) -> _Found:
    """Note columns with lists: JVM Hudi's copy-on-write merge fails at a null in a list."""
    schemas = (done.schema_json or "" for done in facts.commits.values() if isinstance(done, CommitMetadata))
    if facts.config is not None and not facts.config.is_merge_on_read and any('"array"' in one for one in schemas):
        what = "a column has lists: a JVM upsert fails at a file in which a list has a null"
        mend = "set spark.hadoop.parquet.avro.write-old-list-structure=false for the JVM jobs"
        yield _NOTE, what, mend


def zones(facts: Facts) -> _Found:
    """Check R3, times are UTC: compare completion times with the files' modification times."""
    if facts.config is not None and not facts.config.timezone:
        what = "hoodie.table.timeline.timezone is not set: each JVM writer takes its own zone"
        yield _NOTE, what, "`lockprovider table share URL`, or run every JVM writer with -Duser.timezone=UTC"
    if facts.clock_ahead_ms:
        mend = "set this machine's clock; all writers need one within half a second"
        yield _WRONG, clock_difference(facts.clock_ahead_ms), mend
    drifts = drifts_ms(facts.timeline, {name: entry.modified_ms for name, entry in facts.entries.items()})
    ahead = [name for name, drift in drifts.items() if drift > _FUTURE_MS]
    mend = "find the writer whose clock or zone is wrong; run it with -Duser.timezone=UTC"
    yield from _listed(_WRONG, ahead, f"{len(ahead)} instants are ahead of the store's clock", mend)
    honest = any(abs(drift) < _MARGIN_MS for drift in drifts.values())
    other = [name for name, drift in drifts.items() if honest and drift < -ZONE_MS / 2 and _is_zone(drift)]
    what = f"{len(other)} instants are whole quarters of an hour behind the others"
    yield from _listed(_WRONG, other, what, "find the JVM writer in another zone; run it with -Duser.timezone=UTC")


def _is_zone(drift_ms: int) -> bool:
    return abs(drift_ms - round(drift_ms / ZONE_MS) * ZONE_MS) < _MARGIN_MS


def properties(facts: Facts) -> _Found:
    """Check R4: the table's version and properties suit all its writers."""
    if facts.lone_backup:
        what = "hoodie.properties is gone, only hoodie.properties.backup is there: a writer died between"
        yield _WRONG, what, "copy the backup to hoodie.properties, while nobody writes"
    if facts.both:
        what = "hoodie.properties.backup is there besides hoodie.properties: a writer died, or is at it"
        yield _NOTE, what, "compare the two; remove the backup once no JVM writer runs"
    config = facts.config
    if config is None:
        yield _WRONG, str(facts.properties), "restore hoodie.properties"
        return
    yield from _settings(config)
    yield from _appearance(config)
    keeps = says_listing_is_kept(config)
    found = reasons(config, keeps_listing=keeps)
    for reason in found:
        yield _WRONG, reason.text, way_on(config, found, keeps_listing=keeps)
    if config.version == 8 and "hoodie.record.merge.mode" not in config.raw:  # noqa: PLR2004
        what = "hoodie.record.merge.mode is missing: JVM Hudi 1.x fails on this table"
        yield _WRONG, what, f"set it to {config.effective_merge_mode}"
    initial = config.raw.get("hoodie.table.initial.version")
    if initial and initial != str(config.version):
        what = f"the table was upgraded from version {initial} to {config.version}"
        yield _NOTE, what, "`lockprovider table share URL` says hoodie.write.auto.upgrade=false to JVM writers"
    if config.version > _FOR_ALL:
        what = f"the table is of version {config.version}, which readers and writers of Hudi 1.0 cannot open"
        yield _NOTE, what, f"read it with Hudi 1.1 or newer, or downgrade it to {_FOR_ALL} there"
    folders = sorted({folder for folder, _, _ in facts.data if folder})
    if not config.partition_fields:
        what = "hoodie.table.partition.fields is missing, but there are partitions"
        yield from _listed(_WRONG, folders, what, "set it; hudi-rs reads no rows without it")


def _appearance(config: TableConfig) -> _Found:
    """Check the visibility of commits, and note which readers may miss some."""
    found = visibility(config)
    if found not in VISIBILITIES:
        what = f"{VISIBILITY_KEY}={found} is none of {' and '.join(map(repr, VISIBILITIES))}: commits appear in order"
        yield _WRONG, what, "`Table.set_visibility('ordered')`"
    elif appears_at_once(config):
        what = "commits are unordered: incremental queries of JVM Hudi, and hudi-rs, may miss some"
        yield _NOTE, what, "`Table.set_visibility('ordered')` before they read changes"


def _settings(config: TableConfig) -> _Found:
    """Check the settings for JVM writers in Spark, except the zone, which `zones` checks."""
    changes = [
        change for change in unshared(config, keeps_listing=says_listing_is_kept(config)) if change.key != ZONE_KEY
    ]
    wrong = [f"{change.key}={change.found}" for change in changes if change.found is not None]
    mend = "`lockprovider table share URL`"
    what = "the properties tell JVM writers other settings than those of a shared table"
    yield from _listed(_WRONG, wrong, what, mend)
    missing = [change.key for change in changes if change.found is None]
    what = f"the properties do not tell JVM writers {len(missing)} settings of a shared table"
    yield from _listed(_NOTE, missing, what, f"{mend}, or set them on every one")


def twins(facts: Facts) -> _Found:
    """Check R5: report several base files of one file group and instant."""
    bases = [(folder, file, entry) for folder, file, entry in facts.data if isinstance(file, BaseFile)]
    counts = Counter((folder, base.file_id, base.begin) for folder, base, _ in bases)
    named = {stat.path for _, stat in facts.stats}
    for (folder, file_id, begin), count in counts.items():
        if count > 1:
            mine = [e.path for f, b, e in bases if (f, b.file_id, b.begin) == (folder, file_id, begin)]
            surplus = [path for path in mine if path not in named] or mine[1:]
            what = f"{count} base files of file group {file_id} and instant {begin}: hudi-rs fails, JVM picks one"
            yield _WRONG, what, f"remove what the commit does not name: {some(surplus)}"


def order(facts: Facts) -> _Found:
    """Check R6: report equal completion times, and commits completed before they began or unseen by a later one."""
    times = Counter(i.completion for i in facts.timeline.instants if i.is_completed and i.changes_rows)
    for time, count in times.items():
        if count > 1:
            what = f"{count} commits completed at the same millisecond {time}: an incremental reader may miss one"
            yield _WRONG, what, "let every writer take the table's lock"
    for instant in facts.timeline.instants:
        if instant.completion is not None and instant.completion < instant.begin:
            what = f"{instant.file_name} completed before it began"
            yield _WRONG, what, "find the writer whose clock was set back"
    yield from _unseen(facts)


def _unseen(facts: Facts) -> _Found:
    """Report commits that missed an earlier one: a slice must name the previous slice as its source."""
    groups: dict[FileGroup, list[tuple[str, str | None]]] = {}
    for instant, stat in (one for one in facts.stats if not one[1].is_log):  # A log names no slice.
        groups.setdefault(stat.group, []).append((instant.begin, stat.prev_commit))
    for (partition, file_id), slices in groups.items():
        ordered = sorted(slices)
        for (before, _), (begin, previous) in pairwise(ordered):
            if previous != before:
                what = (
                    f"commit {begin} did not see commit {before}: both wrote file group {file_id} of partition "
                    f"{partition or '.'!r}, and what the earlier one changed is lost"
                )
                mend = "let every writer take the table's lock; read as of"
                yield _WRONG, what, f"{mend} {before} for what is lost, and write it again"


def metafiles(facts: Facts) -> _Found:
    """Check R7: report partitions without a metafile."""
    there = {entry.path for entry in facts.files}
    for folder in sorted({folder for folder, _, _ in facts.data}):
        path = join(folder, PARTITION_METAFILE)
        if path not in there:
            depth = folder.count("/") + 1 if folder else 0
            what = f"partition {folder or '.'!r} has no {PARTITION_METAFILE}: JVM readers see none of its rows"
            yield _WRONG, what, f"create {path} with the lines commitTime=<an instant>, partitionDepth={depth}"


def _marked(path: str) -> str:
    marker = parse_marker(path)
    return "" if marker is None else marker.data_path


def buckets(facts: Facts) -> _Found:
    """Check the buckets of the latest snapshot's file groups, and of their keys."""
    if facts.bucket_rules:
        what = f"a JVM writer keeps rules for its buckets below {BUCKET_RULES} (consistent hashing, or by partition)"
        yield _WRONG, what, "write this table with that writer only"
    if facts.config is None:
        return
    index, first = facts.config.bucket_index, [one.paths[0] for one in facts.slices]
    if index is None:
        found = first if look_like_buckets(one.file_id for one in facts.slices) else []
        what = f"the file groups are called as those of a bucket index, but {INDEX} is not set"
        mend = f"if a JVM writer has {INDEX}={BUCKET}, `lockprovider table adopt-buckets`; no write is taken before"
        yield from _listed(_NOTE, found, what, mend)
        return
    mine = [(path, one.partition, bucket_of(one.file_id)) for path, one in zip(first, facts.slices, strict=True)]
    strangers = [path for path, _, bucket in mine if bucket is None or bucket >= index.buckets]
    what = f"{len(strangers)} file groups are of none of the {index.buckets} buckets"
    mend = "a writer had no bucket index: find it; overwrite these partitions with all their rows"
    yield from _listed(_WRONG, strangers, what, mend)
    by_bucket: dict[tuple[str, int], list[str]] = {}
    for path, partition, bucket in mine:
        if bucket is not None:
            by_bucket.setdefault((partition, bucket), []).append(path)
    for (partition, bucket), paths in by_bucket.items():
        what = f"{len(paths)} file groups are of bucket {bucket} of partition {partition or '.'!r}"
        mend = "writers fail, and keys may be there twice: restore the table, or overwrite the partition once"
        yield from _listed(_WRONG, paths if len(paths) > 1 else [], what, mend)
    bare = [one.paths[0] for one in facts.slices if not one.path]
    what = (
        f"{len(bare)} file groups have log files alone: JVM readers see none of their rows while the write that began "
        "first in them is pending"
    )
    yield from _listed(_NOTE, bare, what, "`lockprovider table compact` gives them base files")
    what = f"{sum(facts.misplaced.values())} rows are not in the bucket of their key"
    mend = "a writer had other settings of the index: find it; overwrite these partitions with all their rows"
    yield from _listed(_WRONG, facts.misplaced, what, mend)


def examine(facts: Facts) -> TableReport:
    """Run all checks on facts; return the rule, the title and the findings of each."""
    checks = _CHECKS if facts.repeated is None else (*_CHECKS, ("keys", "each key is in one file group", _keys))
    if facts.config is not None and facts.config.version not in READABLE_VERSIONS:
        checks = (("R4", "version and properties", _version),)
    return tuple(
        (rule, about, tuple(TableFinding(rule, *said) for said in check(facts))) for rule, about, check in checks
    )


def _version(facts: Facts) -> _Found:
    """Report an unknown table version, and note that all other checks are skipped."""
    yield from (said for said in properties(facts) if "hoodie.table.version" in said[1])
    version = facts.config and facts.config.version
    what = f"nothing else was looked at: a table of version {version} keeps its timeline in another way"
    yield _NOTE, what, "look again after it"


def _keys(facts: Facts) -> _Found:
    mend = "delete these keys and write their rows once, or overwrite the partition; a JVM's `insert` makes such keys"
    for partition, count in (facts.repeated or {}).items():
        what = f"{count} keys are in base files of several file groups of partition {partition!r}"
        yield _WRONG, f"{what}; a reader gives each row", mend


def _commits(facts: Facts) -> _Found:
    """Check that the commits' files exist and are whole."""
    for metadata in facts.commits.values():
        if isinstance(metadata, str):
            yield _WRONG, metadata, "a reader fails on it, or misses the commit"
    for instant in facts.timeline.writes[-1:]:
        last = facts.commits.get(instant)
        if isinstance(last, CommitMetadata) and last.schema_json is None and not last.stats:
            what = f"the last commit {instant.file_name} has neither a schema nor a file: hudi-rs fails"
            yield _WRONG, what, "commit anything from here: it states the schema"
    if facts.misread:
        yield _WRONG, facts.misread, "cluster all partitions with JVM Hudi, then clean"
    # A rolled-back service's plan can run again.
    planned = {i.begin for i in facts.timeline.instants if i.action in (Action.COMPACTION, Action.CLUSTERING)}
    for instant in facts.timeline.writes:
        if instant.begin in facts.victims - planned:
            what = f"{instant.file_name} was rolled back, and came back: its writer was paused for long"
            yield _WRONG, what, "remove the file, while nobody writes; its rows were never there"
    yield from _missing(facts)


def _missing(facts: Facts) -> _Found:
    """Report files of the latest snapshot that are gone, or differ in size from their commit."""
    sizes = {entry.path: entry.size for entry in facts.files}
    latest: dict[FileGroup, tuple[str, WriteStat]] = {}
    for instant, stat in sorted((one for one in facts.stats if not one[1].is_log), key=lambda one: one[0].begin):
        latest[stat.group] = instant.begin, stat
    bases = [stat for _, stat in latest.values()]
    logs = [(i.completion or "", s) for i, s in facts.stats if s.is_log]
    later = [stat for completion, stat in logs if completion >= latest.get(stat.group, ("", None))[0]]
    live = [stat for stat in bases + later if stat.group not in facts.replaced]
    mend = "restore them from a copy, or restore the table to an earlier commit"
    gone = [stat.path for stat in live if stat.path not in sizes]
    yield from _listed(_WRONG, gone, f"{len(gone)} files that readers need are gone", mend)
    cut = [s.path for s in live if s.file_size and s.path in sizes and sizes[s.path] != s.file_size]
    yield from _listed(_WRONG, cut, f"{len(cut)} files are not of the size that their commit says", mend)


def _services(facts: Facts) -> _Found:
    """Report plans and services that no client completes."""
    for action, mend in _UNFINISHED.items():
        for begin in facts.timeline.pending(action):
            if begin in facts.dead:
                yield _WRONG, f"{action.value} {begin} was not finished: its executor is dead", mend
    for action, command, effect in _PLANS:
        for begin in facts.timeline.pending(action):
            yield _waiting(facts, begin, f"{action.value} {begin} is planned: {effect}", command)
    alone = [one.logs[0].path for one in facts.slices if one.logs and not one.path]
    mend = "`lockprovider table compact URL`; until then JVM Hudi misses them while their first write is pending"
    yield from _listed(_NOTE, alone, f"{len(alone)} file groups have logs and no base file", mend)


def _waiting(facts: Facts, begin: str, what: str, command: str) -> _Said:
    """Return the finding of a waiting plan, with its age; it is wrong after a day."""
    if begin not in facts.dead:
        return _NOTE, f"{what}; it is being run", "nothing, or wait for it"
    age_ms = max(0, facts.now_ms - to_ms(begin))
    mend = (
        f"`lockprovider table {command} URL --run {begin}` runs it, `--unschedule {begin}` takes it back, and "
        f"`--unschedule-after {_EXPIRED_MS // _HOUR_MS}`, now and then, all like it"
    )
    what = f"{what}; nobody runs it, and it is {age_ms / _HOUR_MS:.1f} h old"
    return _WRONG if age_ms >= _EXPIRED_MS else _NOTE, what, mend


def _archive(facts: Facts) -> _Found:
    """Check the archive, and the instants that belong in it."""
    mend, left, hidden = "`lockprovider table archive URL`", facts.archive_left, len(facts.archive_hidden)
    if facts.archive_fault:
        yield _WRONG, facts.archive_fault, "restore the file from a copy; readers of now need none"
    if hidden:
        what = f"{left[0]} is archived, and came back: it hides {hidden} younger commits"
        yield _WRONG, what, f"{mend} removes it; find the writer that was paused for long"
    elif left:
        what = f"an archival was not finished: {len(left)} archived instants are still on the timeline"
        yield _NOTE, what, f"{mend} finishes it"
    count = len(facts.timeline.writes)
    if count > _MANY:
        what = f"there are {count} commits on the timeline, and whoever opens the table lists them all"
        yield _NOTE, what, f"{mend}, now and then"


def _lock(facts: Facts) -> _Found:
    if facts.lock_fault:
        yield _WRONG, facts.lock_fault, "remove the object, once no writer runs"
    if facts.lock_note:
        yield _NOTE, facts.lock_note, "`lockprovider status URL` says more"
    mend = "give their writer the lock (`lockprovider table share URL` says how), or stop it: it may undo writes"
    yield from _listed(_WRONG, facts.lockless, f"{len(facts.lockless)} commits were made without the lock", mend)


def _leftovers(facts: Facts) -> _Found:
    known = {i.begin for i in facts.timeline.instants if i.state is not InstantState.COMPLETED}
    known -= {i.begin for i in facts.timeline.instants if i.is_completed}
    beats = [begin for begin in facts.beats if begin not in known]
    yield from _listed(_NOTE, beats, f"{len(beats)} heartbeats of finished instants", "remove them")
    markers = {path.split("/")[2] for path in facts.markers} - known
    yield from _listed(_NOTE, markers, f"markers of {len(markers)} finished instants", "remove .hoodie/.temp/<instant>")


_CHECKS: tuple[tuple[str, str, _Check], ...] = (
    ("R1", "failed writes are announced and rolled back", failed_writes),
    ("R2", "no metadata table hides commits", metadata_table),
    ("metadata", "the metadata table lists what is there", listing),
    ("lists", "JVM writers can rewrite lists with a null in them", lists),
    ("R3", "all times are UTC", zones),
    ("R4", "version and properties are shared by all writers", properties),
    ("R5", "one file of a file group and instant", twins),
    ("R6", "times are unique, each commit saw the one before", order),
    ("R7", "every partition has its metafile", metafiles),
    ("commits", "what the commits say is there", _commits),
    ("buckets", "each row is in the file group of its key's bucket", buckets),
    ("services", "no service was left unfinished", _services),
    ("archive", "what is archived is whole, and off the timeline", _archive),
    ("lock", "the lock can be taken", _lock),
    ("leftovers", "nothing was left behind", _leftovers),
)


def diagnose(table: TableContext, *, keys: bool = False) -> TableReport:
    """Run every check on a table, even on one that cannot be opened; write nothing.

    With `keys`, the doctor reads all record keys and counts those in several file groups. Raises `TableNotFound` if
    there is neither a properties file nor a timeline.
    """
    return examine(gather(table, keys=keys))
