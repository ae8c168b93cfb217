"""Checks of a table's facts: rules R1 to R7 of all writers of a shared table, and more.

Source: Hudi `MarkerBasedRollbackStrategy`, `HoodieTableMetadata`, `HoodieInstantTimeGenerator`, `UpgradeDowngrade`,
`HoodieTableFileSystemView`, `FSUtils.getAllPartitionPaths`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Literal

from lockprovider.table.doctor.facts import Facts, TableFinding, first_names, gather
from lockprovider.table.files.base_file import look_like_buckets
from lockprovider.table.format.bucket import bucket_of
from lockprovider.table.format.compatibility import (
    ZONE_KEY,
    keeps_file_listing,
    next_step_for,
    reasons,
    share_changes,
)
from lockprovider.table.format.layout import (
    BUCKET_RULES,
    LOCK,
    PARTITION_METAFILE,
    STAGED,
    Action,
    BaseFile,
    FileGroup,
    InstantState,
    join,
    parse_marker,
    to_ms,
)
from lockprovider.table.format.metadata import CommitMetadata, WriteStat
from lockprovider.table.format.properties import (
    BUCKET,
    INDEX,
    READABLE_VERSIONS,
    VISIBILITIES,
    VISIBILITY_KEY,
    TableConfig,
)
from lockprovider.table.state.context import clock_difference
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
    (Action.CLUSTERING, "cluster", "writes to its file groups give way to it"),
    (Action.COMPACTION, "compact", "no other compaction can merge its file groups"),
)
_MANY = 300
_LIST = re.compile(r'"type"\s*:\s*"array"')
TableReport = tuple[tuple[str, str, tuple[TableFinding, ...]], ...]
_Said = tuple[Literal["wrong", "note"], str, str]
_Found = Iterator[_Said]
_Check = Callable[[Facts], _Found]
_WRONG: Final = "wrong"
_NOTE: Final = "note"
_UNFINISHED = {
    Action.ROLLBACK: "run `lockprovider table rollback URL`, which completes it, or says why it cannot; "
    "the next write of this library completes it, too, unless it would undo a completed commit",
    Action.CLEAN: "run `lockprovider table clean URL`, which completes it",
    Action.RESTORE: "run `lockprovider table restore URL INSTANT`; the next write of this library completes it, too",
}


def _listed(state: Literal["wrong", "note"], names: Collection[str], what: str, mend: str) -> _Found:
    if names:
        yield state, f"{what}: {first_names(names)}", mend


def failed_writes(facts: Facts) -> _Found:
    """Yield findings of R1: dead writers, data files without marker, data files without instant."""
    timeline = facts.timeline
    marked = {marker.data_path for marker in map(parse_marker, facts.markers) if marker is not None}
    listed = {path.split("/")[2] for path in facts.markers if path.rpartition("/")[2].startswith("MARKERS")}
    for begin in timeline.pending_writes:
        written = [entry.path for _, file, entry in facts.data if file.begin == begin]
        if begin in facts.dead:
            what = f"write {begin} did not complete and its writer is dead; it left {len(written)} data files"
            yield _WRONG, what, "run `lockprovider table rollback URL`; the next write of this library does so, too"
        bare = [path for path in written if path not in marked and begin not in listed]
        mend = "if its writer is dead, run `lockprovider table rollback URL`; a rollback by JVM Hudi leaves these files"
        yield from _listed(_WRONG, bare, f"write {begin} has files without a marker", mend)
    begins = {instant.begin for instant in timeline.instants}
    lost = [e.path for _, file, e in facts.data if file.begin not in begins and file.begin > timeline.first_active > ""]
    what = f"{len(lost)} files belong to no instant; readers will see them once archival has passed their begin time"
    yield from _listed(_WRONG, lost, what, "run `lockprovider table clean URL`, which removes them")


def metadata_table(facts: Facts) -> _Found:
    """Yield a finding of R2: a metadata table that no writer here maintains; a note if no reader uses it."""
    if facts.metadata_table and not (facts.config is not None and keeps_file_listing(facts.config)):
        listed = facts.config is not None and bool(facts.config.named_metadata)
        effect = "it hides commits that it does not record" if listed else "no reader uses it"
        what = f"the table has a metadata table in .hoodie/metadata: {effect}"
        off = "set hoodie.metadata.enable=false in Flink and Java writers"
        keep = "keep its listing, if R4 offers it; or " if listed else ""
        mend = f"{keep}{off}, then run `lockprovider table retire-metadata URL`"
        yield _WRONG if listed else _NOTE, what, mend


def listing(facts: Facts) -> _Found:
    """Yield findings of the metadata table's listing: unreadable, or unlike the existing files."""
    mend = "run `lockprovider table retire-metadata URL`: then all readers list the folders"
    if isinstance(facts.listing, str):
        yield _WRONG, f"the metadata table cannot be read: {facts.listing}", mend
    elif facts.listing is not None:
        differences = facts.listing
        sentences = {
            "are not listed: its readers miss their rows": differences.hidden,
            "are listed but gone: its readers fail": differences.gone,
            "differ in size from the listing: its readers may fail": differences.resized,
            "are listed as empty: its readers and writers fail": differences.empty,
        }
        for sentence, paths in sentences.items():
            yield from _listed(_WRONG, paths, f"the metadata table: {len(paths)} files {sentence}", mend)


def list_columns(facts: Facts) -> _Found:
    """Yield a note if a copy-on-write table has lists: JVM Hudi's merge fails at a null in one."""
    schemas = (done.schema_json or "" for done in facts.commits.values() if isinstance(done, CommitMetadata))
    if (
        facts.config is not None
        and not facts.config.is_merge_on_read
        and any(_LIST.search(schema_json) for schema_json in schemas)
    ):
        what = "a column has lists: JVM Hudi cannot upsert into a file where a list contains a null"
        mend = "set spark.hadoop.parquet.avro.write-old-list-structure=false in the JVM jobs"
        yield _NOTE, what, mend


def time_zones(facts: Facts) -> _Found:
    """Yield findings of R3: no zone set, a wrong clock here, instants in the future or off by a time zone."""
    if facts.config is not None and not facts.config.timezone:
        what = "hoodie.table.timeline.timezone is not set: each JVM writer uses its own time zone"
        yield _NOTE, what, "run `lockprovider table share URL`, or run every JVM writer with -Duser.timezone=UTC"
    if facts.clock_ahead_ms:
        mend = "correct this machine's clock; every writer needs a clock that is right to half a second"
        yield _WRONG, clock_difference(facts.clock_ahead_ms), mend
    drifts = drifts_ms(facts.timeline, {name: entry.modified_ms for name, entry in facts.entries.items()})
    ahead = [name for name, drift in drifts.items() if drift > _FUTURE_MS]
    mend = "find the writer with a wrong clock or time zone; run it with -Duser.timezone=UTC"
    yield from _listed(_WRONG, ahead, f"{len(ahead)} instants have times ahead of the store's clock", mend)
    honest = any(abs(drift) < _MARGIN_MS for drift in drifts.values())
    behind = [name for name, drift in drifts.items() if honest and drift < -ZONE_MS / 2 and _is_zone(drift)]
    what = f"{len(behind)} instants are behind the others by the offset of a time zone"
    mend = "find the JVM writer in another time zone; run it with -Duser.timezone=UTC"
    yield from _listed(_WRONG, behind, what, mend)


def _is_zone(drift_ms: int) -> bool:
    return abs(drift_ms - round(drift_ms / ZONE_MS) * ZONE_MS) < _MARGIN_MS


def properties(facts: Facts) -> _Found:
    """Yield findings of R4: hoodie.properties missing, unreadable, or next to a backup.

    Also settings or a version that some reader or writer cannot use.
    """
    if facts.lone_backup:
        what = "hoodie.properties is missing, only its backup exists: a writer died while it replaced the file"
        yield _WRONG, what, "copy hoodie.properties.backup to hoodie.properties while no writer runs"
    if facts.both:
        what = "hoodie.properties.backup exists next to hoodie.properties: a writer died, or is replacing the file"
        yield _NOTE, what, "compare the two files, and remove the backup once no JVM writer runs"
    config = facts.config
    if config is None:
        yield _WRONG, str(facts.properties), "restore hoodie.properties from a copy"
        return
    yield from _settings(config)
    yield from _appearance(config)
    keeps = keeps_file_listing(config)
    against = reasons(config, keeps_listing=keeps)
    for reason in against:
        yield _WRONG, reason.text, next_step_for(config, against, keeps_listing=keeps)
    if config.version == 8 and "hoodie.record.merge.mode" not in config.raw:  # noqa: PLR2004
        what = "hoodie.record.merge.mode is missing: JVM Hudi 1.x fails on this table"
        yield _WRONG, what, f"add hoodie.record.merge.mode={config.effective_merge_mode} to hoodie.properties"
    initial = config.raw.get("hoodie.table.initial.version")
    if initial and initial != str(config.version):
        what = f"the table was upgraded from version {initial} to {config.version}"
        mend = "run `lockprovider table share URL`, which sets hoodie.write.auto.upgrade=false for JVM writers"
        yield _NOTE, what, mend
    if config.version > _FOR_ALL:
        what = f"the table has version {config.version}, which readers and writers of Hudi 1.0 cannot open"
        yield _NOTE, what, f"use Hudi 1.1 or newer, or downgrade the table to version {_FOR_ALL} with it"
    folders = sorted({folder for folder, _, _ in facts.data if folder})
    if not config.partition_fields:
        what = "hoodie.table.partition.fields is missing, but the table has partitions"
        yield from _listed(_WRONG, folders, what, "add it to hoodie.properties; hudi-rs reads no rows without it")


def _appearance(config: TableConfig) -> _Found:
    """Yield a finding if commits are unordered, or the recorded visibility is unknown."""
    recorded = config.visibility
    if recorded not in VISIBILITIES:
        what = f"{VISIBILITY_KEY}={recorded} is not one of {' and '.join(map(repr, VISIBILITIES))}: commits are ordered"
        yield _WRONG, what, "call `Table.set_visibility('ordered')`"
    elif config.is_unordered:
        what = "commits are unordered: incremental queries of JVM Hudi, and hudi-rs, may miss some of them"
        yield _NOTE, what, "call `Table.set_visibility('ordered')` before such a reader reads changes"


def _settings(config: TableConfig) -> _Found:
    """Yield findings of settings that `share` would change, except the time zone; a note of those it would add."""
    differing = share_changes(config, keeps_listing=keeps_file_listing(config))
    changes = [change for change in differing if change.key != ZONE_KEY]
    wrong = [f"{change.key}={change.found}" for change in changes if change.found is not None]
    mend = "run `lockprovider table share URL`"
    what = "hoodie.properties gives JVM writers other settings than a shared table needs"
    yield from _listed(_WRONG, wrong, what, mend)
    missing = [change.key for change in changes if change.found is None]
    what = f"hoodie.properties lacks {len(missing)} settings that JVM writers of a shared table need"
    yield from _listed(_NOTE, missing, what, f"{mend}, or set them in every JVM writer")


def duplicate_base_files(facts: Facts) -> _Found:
    """Yield findings of R5: several base files of one file group and instant that is not pending.

    If readable commits name only some files, a finding says to remove the others; else to find and keep the file that
    the commit wrote.
    """
    bases = [(folder, file, entry) for folder, file, entry in facts.data if isinstance(file, BaseFile)]
    counts = Counter((folder, base.file_id, base.begin) for folder, base, _ in bases)
    named = {stat.path for _, stat in facts.stats}
    for (folder, file_id, begin), count in counts.items():
        if count > 1 and begin not in facts.timeline.unfinished:  # its commit removes those that it does not name
            paths = {e.path for f, b, e in bases if (f, b.file_id, b.begin) == (folder, file_id, begin)}
            what = f"file group {file_id} has {count} base files of instant {begin}: hudi-rs fails, JVM Hudi picks one"
            surplus = paths - named
            if paths > surplus > set():
                yield _WRONG, what, f"remove the files that the commit does not name: {first_names(surplus)}"
            else:
                yield _WRONG, what, f"find out which one its commit wrote, and keep that: {first_names(paths)}"


def commit_order(facts: Facts) -> _Found:
    """Yield findings of R6: equal completion times, completions before the begin, commits unseen by a later one."""
    times = Counter(i.completion for i in facts.timeline.instants if i.is_completed and i.changes_rows)
    for time, count in times.items():
        if count > 1:
            what = f"{count} commits completed at the same millisecond {time}: an incremental reader may miss one"
            yield _WRONG, what, "configure every writer to take the table's lock"
    for instant in facts.timeline.instants:
        if instant.completion is not None and instant.completion < instant.begin:
            what = f"{instant.file_name} completed before it began"
            yield _WRONG, what, "find the writer whose clock was set back"
    yield from _unseen(facts)


def _unseen(facts: Facts) -> _Found:
    """Yield findings of commits that missed an earlier one: a base file must name its file group's previous one."""
    groups: dict[FileGroup, list[tuple[str, str | None]]] = {}
    for instant, stat in (item for item in facts.stats if not item[1].is_log):  # A log names no slice.
        groups.setdefault(stat.group, []).append((instant.begin, stat.prev_commit))
    for (partition, file_id), slices in groups.items():
        for (before, _), (begin, previous) in pairwise(sorted(slices, key=lambda one: (one[0], one[1] or ""))):
            if previous != before:
                what = (
                    f"commit {begin} did not see commit {before}: both wrote file group {file_id} of partition "
                    f"{partition or '.'!r}, and the changes of the earlier one are lost"
                )
                mend = "configure every writer to take the table's lock; read the lost rows as of"
                yield _WRONG, what, f"{mend} {before}, and write them again"


def metafiles(facts: Facts) -> _Found:
    """Yield findings of R7: partitions with data files and no metafile."""
    paths = {entry.path for entry in facts.files}
    for folder in sorted({folder for folder, _, _ in facts.data}):
        path = join(folder, PARTITION_METAFILE)
        if path not in paths:
            depth = folder.count("/") + 1 if folder else 0
            what = f"partition {folder or '.'!r} has no {PARTITION_METAFILE}: JVM readers see none of its rows"
            yield _WRONG, what, f"create {path} with the lines commitTime=<an instant>, partitionDepth={depth}"


def buckets(facts: Facts) -> _Found:
    """Yield findings: JVM bucket rules, bucket names without an index, unknown or shared buckets, misplaced rows.

    Without `facts.config`, only the first.
    """
    if facts.bucket_rules:
        what = f"a JVM writer stored bucket rules in {BUCKET_RULES} (consistent hashing, or buckets by partition)"
        yield _WRONG, what, "write this table with that JVM writer only; this library does not know such rules"
    if facts.config is None:
        return
    index = facts.config.bucket_index
    if index is None:
        like_buckets = facts.slices if look_like_buckets(slice_.file_id for slice_ in facts.slices) else ()
        what = f"the file groups have names of a bucket index, but {INDEX} is not set"
        mend = (
            f"if a JVM writer uses {INDEX}={BUCKET}, run `lockprovider table adopt-buckets URL N`; until then this "
            "library refuses writes"
        )
        yield from _listed(_NOTE, [slice_.paths[0] for slice_ in like_buckets], what, mend)
        return
    located = [(slice_.paths[0], slice_.partition, bucket_of(slice_.file_id)) for slice_ in facts.slices]
    strangers = [path for path, _, bucket in located if bucket is None or bucket >= index.buckets]
    what = f"{len(strangers)} file groups belong to none of the {index.buckets} buckets"
    mend = "find the writer without the bucket index; overwrite these partitions with all their rows"
    yield from _listed(_WRONG, strangers, what, mend)
    by_bucket: dict[tuple[str, int], list[str]] = {}
    for path, partition, bucket in located:
        if bucket is not None:
            by_bucket.setdefault((partition, bucket), []).append(path)
    for (partition, bucket), paths in by_bucket.items():
        what = f"{len(paths)} file groups share bucket {bucket} of partition {partition or '.'!r}"
        mend = "restore the table, or overwrite the partition: until then writers fail, and keys may be duplicated"
        yield from _listed(_WRONG, paths if len(paths) > 1 else [], what, mend)
    what = f"{sum(facts.misplaced.values())} rows are not in the bucket of their key"
    mend = "find the writer with other index settings; overwrite these partitions with all their rows"
    yield from _listed(_WRONG, facts.misplaced, what, mend)


def examine(facts: Facts) -> TableReport:
    """Run all checks, or only that of an unreadable version; return each rule, title and findings."""
    checks = _CHECKS if facts.repeated is None else (*_CHECKS, ("keys", "each key is in one file group", _keys))
    if facts.config is not None and facts.config.version not in READABLE_VERSIONS:
        checks = (("R4", "version and properties", _version),)
    return tuple(
        (rule, about, tuple(TableFinding(rule, *finding) for finding in check(facts))) for rule, about, check in checks
    )


def _version(facts: Facts) -> _Found:
    yield from (finding for finding in properties(facts) if "hoodie.table.version" in finding[1])
    version = facts.config and facts.config.version
    what = f"all other checks were skipped: a table of version {version} has another timeline layout"
    yield _NOTE, what, "change the version, then run the doctor again"


def _keys(facts: Facts) -> _Found:
    mend = "delete these keys and write their rows again, or overwrite the partition; a JVM `insert` writes such keys"
    for partition, count in (facts.repeated or {}).items():
        what = f"{count} keys of partition {partition!r} are in several file groups"
        yield _WRONG, f"{what}; readers return all their rows", mend


def _commits(facts: Facts) -> _Found:
    """Yield findings: files unreadable, missing or resized; commits unreadable or completed after their rollback.

    Also a last commit without schema and files.
    """
    for metadata in facts.commits.values():
        if isinstance(metadata, str):
            yield _WRONG, metadata, "restore the file from a copy: until then readers fail, or miss the commit"
    for instant in facts.timeline.writes[-1:]:
        last = facts.commits.get(instant)
        if isinstance(last, CommitMetadata) and last.schema_json is None and not last.stats:
            what = f"the last commit {instant.file_name} has neither a schema nor a file: hudi-rs fails"
            yield _WRONG, what, "commit any change with this library, which records the schema"
    if facts.misread:
        mend = "if a column was renamed or dropped, cluster all partitions with JVM Hudi, then clean"
        yield _WRONG, facts.misread, f"{mend}; restore a damaged file from a copy"
    for error in facts.unread.values():
        what = f"{len(facts.unread)} files cannot be read ({error})"
        mend = "restore damaged files from a copy; read other ones with the engine that wrote them"
        yield from _listed(_WRONG, facts.unread, what, mend)
        break
    # A rolled-back service's plan can run again.
    planned = {i.begin for i in facts.timeline.instants if i.action in (Action.COMPACTION, Action.CLUSTERING)}
    for instant in facts.timeline.writes:
        if instant.begin in facts.victims - planned:
            what = f"{instant.file_name} was completed after its rollback, by a writer that was paused for long"
            yield _WRONG, what, "remove this timeline file while no writer runs; the rollback removed the data files"
    yield from _missing(facts)


def _missing(facts: Facts) -> _Found:
    """Yield findings of the latest slices' files that are gone, or differ in size from their commit."""
    sizes = {entry.path: entry.size for entry in facts.files}
    latest: dict[FileGroup, tuple[str, WriteStat]] = {}
    for instant, stat in sorted((item for item in facts.stats if not item[1].is_log), key=lambda item: item[0].begin):
        latest[stat.group] = instant.begin, stat
    bases = [stat for _, stat in latest.values()]
    logs = [(i.completion or "", s) for i, s in facts.stats if s.is_log]
    later = [stat for completion, stat in logs if completion >= latest.get(stat.group, ("", None))[0]]
    live = [stat for stat in bases + later if stat.group not in facts.replaced]
    mend = "restore them from a copy, or restore the table to an earlier commit"
    gone = [stat.path for stat in live if stat.path not in sizes]
    yield from _listed(_WRONG, gone, f"{len(gone)} files that readers need are gone", mend)
    cut = [s.path for s in live if s.file_size and s.path in sizes and sizes[s.path] != s.file_size]
    yield from _listed(_WRONG, cut, f"{len(cut)} files differ in size from their commit", mend)


def _services(facts: Facts) -> _Found:
    """Yield findings: dead rollbacks, cleans or restores, pending rewrite plans, log files without base file."""
    for action, mend in _UNFINISHED.items():
        for begin in facts.timeline.pending(action):
            if begin in facts.dead:
                yield _WRONG, f"{action.value} {begin} did not complete: its executor is dead", mend
    for action, command, effect in _PLANS:
        for begin in facts.timeline.pending(action):
            yield _waiting(facts, begin, f"{action.value} {begin} is planned: {effect}", command)
    alone = [file_slice.logs[0].path for file_slice in facts.slices if file_slice.logs and not file_slice.path]
    mend = "run `lockprovider table compact URL`; JVM readers miss their rows while their first write is pending"
    yield from _listed(_NOTE, alone, f"{len(alone)} file groups have log files but no base file", mend)


def _waiting(facts: Facts, begin: str, what: str, command: str) -> _Said:
    """Finding for a pending plan: wrong if it is a day old without executor, else a note.

    `what` begins its text; the `table` subcommand `command` runs the plan.
    """
    if begin not in facts.dead:
        return _NOTE, f"{what}; an executor runs it", "wait until it completes"
    age_ms = max(0, facts.now_ms - to_ms(begin))
    mend = (
        f"`lockprovider table {command} URL --run {begin}` runs it, `--unschedule {begin}` removes it, and "
        f"`--unschedule-after {_EXPIRED_MS // _HOUR_MS}` removes all older plans without an executor"
    )
    what = f"{what}; no executor runs it, and it is {age_ms / _HOUR_MS:.1f} h old"
    return _WRONG if age_ms >= _EXPIRED_MS else _NOTE, what, mend


def _archive(facts: Facts) -> _Found:
    """Yield findings: archive faults, archived instants still on the timeline, more than 300 commits."""
    mend, left, hidden = "run `lockprovider table archive URL`", facts.archive_left, len(facts.archive_hidden)
    if facts.archive_fault:
        yield _WRONG, facts.archive_fault, "restore it from a copy; reads of the latest snapshot do not need it"
    if hidden:
        what = f"{left[0]} is archived and on the timeline again: it hides {hidden} later commits"
        yield _WRONG, what, f"{mend}, which removes it; find the writer that was paused for long"
    elif left:
        what = f"an archival did not complete: {len(left)} archived instants are still on the timeline"
        yield _NOTE, what, f"{mend}, which completes it"
    count = len(facts.timeline.writes)
    if count > _MANY:
        what = f"the timeline has {count} commits, and each open of the table lists them all"
        yield _NOTE, what, f"{mend} from time to time"


def _lock(facts: Facts) -> _Found:
    if facts.lock_fault:
        yield _WRONG, facts.lock_fault, f"remove {LOCK} once no writer runs"
    if facts.lock_note:
        yield _NOTE, facts.lock_note, "run `lockprovider status URL` for details"
    mend = "stop their writer, which may undo commits, or give it the lock (for Spark: `lockprovider table share URL`)"
    yield from _listed(_WRONG, facts.lockless, f"{len(facts.lockless)} commits were made without the lock", mend)


def _leftovers(facts: Facts) -> _Found:
    """Yield notes of heartbeats and markers whose instant is not pending, and of rows staged by Spark."""
    pending = {i.begin for i in facts.timeline.instants if i.state is not InstantState.COMPLETED}
    pending -= {i.begin for i in facts.timeline.instants if i.is_completed}
    beats = [begin for begin in facts.beats if begin not in pending]
    what = f"{len(beats)} heartbeats of finished instants are left"
    yield from _listed(_NOTE, beats, what, "remove them from .hoodie/.heartbeat")
    folders = {path.split("/")[2] for path in facts.markers} - pending
    staged = {folder for folder in folders if folder.startswith(STAGED)}
    what = f"{len(staged)} Spark writes have staged rows, and run or were killed"
    yield from _listed(_NOTE, staged, what, "once no Spark write runs, remove .hoodie/.temp/staged-*")
    markers = folders - staged
    what = f"markers of {len(markers)} finished instants are left"
    yield from _listed(_NOTE, markers, what, "remove .hoodie/.temp/<instant>")


_CHECKS: tuple[tuple[str, str, _Check], ...] = (
    ("R1", "failed writes have markers and are rolled back", failed_writes),
    ("R2", "no metadata table hides commits", metadata_table),
    ("metadata", "the metadata table lists the existing files", listing),
    ("lists", "JVM writers can rewrite lists that contain nulls", list_columns),
    ("R3", "all times are UTC", time_zones),
    ("R4", "version and properties suit all writers", properties),
    ("R5", "one base file for each file group and instant", duplicate_base_files),
    ("R6", "times are unique, and each commit saw the previous one", commit_order),
    ("R7", "every partition has its metafile", metafiles),
    ("commits", "the files of all commits exist", _commits),
    ("buckets", "each row is in the file group of its key's bucket", buckets),
    ("services", "no service is unfinished", _services),
    ("archive", "the archive is complete, and its instants are off the timeline", _archive),
    ("lock", "the lock can be taken", _lock),
    ("leftovers", "finished instants left no files", _leftovers),
)


def diagnose(table: TableContext, *, keys: bool = False) -> TableReport:
    """Read a table's facts, and check them."""
    return examine(gather(table, keys=keys))
