"""What a doctor checks on the facts of a table: the seven rules that writers of a shared table must keep, and more.

    R1  what failed writers left is announced by markers, and rolled back before archival could make it visible
    R2  no metadata table, which would hide commits that are not in it
    R3  all times are UTC
    R4  the table's version and properties are ones that all its writers share
    R5  one base file of a file group and instant
    R6  times are unique, and every commit saw the one before it
    R7  each partition has its metafile

The others: what the commits say is there, buckets, services, archive, lock, leftovers. Nothing is touched.

Source: Hudi `MarkerBasedRollbackStrategy`, `HoodieTableMetadata`, `HoodieInstantTimeGenerator`, `UpgradeDowngrade`,
`HoodieTableFileSystemView`, `FSUtils.getAllPartitionPaths`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from lockprovider.table.doctor.facts import Facts, TableFinding, gather, some
from lockprovider.table.files.base_file import look_like_buckets
from lockprovider.table.format.bucket import bucket_of
from lockprovider.table.format.instant import Action, InstantState, to_ms
from lockprovider.table.format.layout import BUCKET_RULES, PARTITION_METAFILE, BaseFile, FileGroup, join, parse_marker
from lockprovider.table.format.metadata import CommitMetadata, WriteStat
from lockprovider.table.format.properties import BUCKET, INDEX, READABLE_VERSIONS, TableConfig
from lockprovider.table.format.shapes import reasons, way_on
from lockprovider.table.format.writer_settings import (
    APPEARANCES,
    APPEARS_KEY,
    ZONE_KEY,
    appears,
    appears_at_once,
    says_listing_is_kept,
    unshared,
)
from lockprovider.table.state.clock import clock_difference
from lockprovider.table.timeline.timeline import ZONE_MS, drifts_ms

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext

_FOR_ALL = 8  # the version that all of Hudi 1.x opens
_MINUTE_MS = 60_000
_MARGIN_MS = _MINUTE_MS // 2
_FUTURE_MS = 10 * _MINUTE_MS


def failed_writes(facts: Facts) -> Iterator[TableFinding]:
    """R1."""
    now, marked = facts.timeline, {_marked(path) for path in facts.markers}
    listed = {path.split("/")[2] for path in facts.markers if path.rpartition("/")[2].startswith("MARKERS")}
    for begin in now.pending_writes:
        mine = [entry.path for _, file, entry in facts.data if file.begin == begin]
        if begin in facts.dead:
            what = f"write {begin} failed: its writer is dead; {len(mine)} files"
            yield TableFinding(
                "R1", "wrong", what, "`lockprovider table rollback URL`, or the next write from here, does it"
            )
        bare = [path for path in mine if path not in marked]
        if bare and begin not in listed:
            what = f"write {begin} has files without a marker: {some(bare)}"
            yield TableFinding("R1", "wrong", what, "roll it back from here; JVM Hudi would leave these files behind")
    known = {instant.begin for instant in now.instants}
    lost = [e.path for _, file, e in facts.data if file.begin not in known and file.begin > now.first_active > ""]
    if lost:
        what = f"{len(lost)} files are of no instant, and become visible once it is archived: {some(lost)}"
        yield TableFinding("R1", "wrong", what, "`lockprovider table clean URL` removes them")


def metadata_table(facts: Facts) -> Iterator[TableFinding]:
    """R2; what the properties say of it is found with them."""
    if facts.metadata_table:
        if facts.config is not None and says_listing_is_kept(facts.config):
            return
        listed = facts.config is not None and bool(facts.config.named_metadata)
        yield TableFinding(
            "R2",
            "wrong" if listed else "note",
            "there is a metadata table below .hoodie/metadata" + ("" if listed else ", which no reader uses"),
            "`lockprovider table retire-metadata URL`; Flink, Java: set hoodie.metadata.enable=false there before",
        )


def listing(facts: Facts) -> Iterator[TableFinding]:
    """What the metadata table lists, for those readers that list no folders: JVM Hudi's, hudi-rs."""
    mend = "`lockprovider table retire-metadata URL`: then all readers list the folders"
    if isinstance(facts.listing, str):
        what = f"the metadata table cannot be read: {facts.listing}"
        yield TableFinding("metadata", "wrong", what, mend)
    elif facts.listing is not None:
        found = facts.listing
        sentences = {
            "have rows that its readers miss: it does not list them": found.hidden,
            "are listed by it and gone: its readers fail": found.gone,
            "have another size than it says: its readers may fail": found.resized,
            "have no bytes, it says: its readers and writers fail": found.empty,
        }
        for sentence, paths in sentences.items():
            if paths:
                yield TableFinding(
                    "metadata", "wrong", f"the metadata table: {len(paths)} files {sentence}: {some(paths)}", mend
                )


def lists(facts: Facts) -> Iterator[TableFinding]:
    """What JVM Hudi's merge of copy-on-write files fails at; which rows have a null in a list is not looked at."""
    schemas = (done.schema_json or "" for done in facts.commits.values() if isinstance(done, CommitMetadata))
    if facts.config is not None and not facts.config.is_merge_on_read and any('"array"' in one for one in schemas):
        what = "a column has lists: a JVM upsert fails at a file in which a list has a null"
        mend = "set spark.hadoop.parquet.avro.write-old-list-structure=false for the JVM jobs"
        yield TableFinding("lists", "note", what, mend)


def zones(facts: Facts) -> Iterator[TableFinding]:
    """R3: a completed file says when it was completed, and the store says when it was written."""
    if facts.config is not None and not facts.config.timezone:
        what = "hoodie.table.timeline.timezone is not set: each JVM writer takes its own zone"
        mend = "`lockprovider table share URL`, or run every JVM writer with -Duser.timezone=UTC"
        yield TableFinding("R3", "note", what, mend)
    if facts.clock_ahead_ms:
        what = clock_difference(facts.clock_ahead_ms)
        yield TableFinding("R3", "wrong", what, "set this machine's clock; all writers need one within half a second")
    drifts = drifts_ms(facts.timeline, {name: entry.modified_ms for name, entry in facts.entries.items()})
    ahead = [name for name, drift in drifts.items() if drift > _FUTURE_MS]
    if ahead:
        what = f"{len(ahead)} instants are ahead of the store's clock: {some(ahead)}"
        yield TableFinding(
            "R3", "wrong", what, "find the writer whose clock or zone is wrong; run it with -Duser.timezone=UTC"
        )
    honest = any(abs(drift) < _MARGIN_MS for drift in drifts.values())
    other = [name for name, drift in drifts.items() if drift < -ZONE_MS / 2 and _is_zone(drift)]
    if other and honest:
        what = f"{len(other)} instants are whole quarters of an hour behind the others: {some(other)}"
        yield TableFinding("R3", "wrong", what, "find the JVM writer in another zone; run it with -Duser.timezone=UTC")


def _is_zone(drift_ms: int) -> bool:
    return abs(drift_ms - round(drift_ms / ZONE_MS) * ZONE_MS) < _MARGIN_MS


def properties(facts: Facts) -> Iterator[TableFinding]:
    """R4, and all else that the properties decide."""
    if facts.lone_backup:
        what = "hoodie.properties is gone, only hoodie.properties.backup is there: a writer died between"
        yield TableFinding("R4", "wrong", what, "copy the backup to hoodie.properties, while nobody writes")
    if facts.both:
        what = "hoodie.properties.backup is there besides hoodie.properties: a writer died, or is at it"
        yield TableFinding("R4", "note", what, "compare the two; remove the backup once no JVM writer runs")
    config = facts.config
    if config is None:
        yield TableFinding("R4", "wrong", str(facts.properties), "restore hoodie.properties")
        return
    yield from _settings(config)
    yield from _appearance(config)
    keeps = says_listing_is_kept(config)
    found = reasons(config, keeps_listing=keeps)
    for reason in found:
        yield TableFinding("R4", "wrong", reason.text, way_on(config, found, keeps_listing=keeps))
    if config.version == 8 and "hoodie.record.merge.mode" not in config.raw:  # noqa: PLR2004
        what = "hoodie.record.merge.mode is missing: JVM Hudi 1.x fails on this table"
        yield TableFinding("R4", "wrong", what, f"set it to {config.effective_merge_mode}")
    initial = config.raw.get("hoodie.table.initial.version")
    if initial and initial != str(config.version):
        what = f"the table was upgraded from version {initial} to {config.version}"
        yield TableFinding(
            "R4", "note", what, "`lockprovider table share URL` says hoodie.write.auto.upgrade=false to JVM writers"
        )
    if config.version > _FOR_ALL:
        what = f"the table is of version {config.version}, which readers and writers of Hudi 1.0 cannot open"
        yield TableFinding("R4", "note", what, f"read it with Hudi 1.1 or newer, or downgrade it to {_FOR_ALL} there")
    folders = sorted({folder for folder, _, _ in facts.data if folder})
    if folders and not config.partition_fields:
        what = f"hoodie.table.partition.fields is missing, but there are partitions: {some(folders)}"
        yield TableFinding("R4", "wrong", what, "set it; hudi-rs reads no rows without it")


def _appearance(config: TableConfig) -> Iterator[TableFinding]:
    """Who may miss commits."""
    found = appears(config)
    if found not in APPEARANCES:
        what = f"{APPEARS_KEY}={found} is none of {' and '.join(map(repr, APPEARANCES))}: commits appear in order"
        yield TableFinding("R4", "wrong", what, "`Table.set_appears('in order')`")
    elif appears_at_once(config):
        what = "commits appear for our readers only: incremental queries of JVM Hudi, and hudi-rs, may miss some"
        yield TableFinding("R4", "note", what, "`Table.set_appears('in order')` before they read changes")


def _settings(config: TableConfig) -> Iterator[TableFinding]:
    """What the table tells JVM writers in Spark; its zone is another rule's."""
    changes = [
        change for change in unshared(config, keeps_listing=says_listing_is_kept(config)) if change.key != ZONE_KEY
    ]
    wrong = [f"{change.key}={change.found}" for change in changes if change.found is not None]
    mend = "`lockprovider table share URL`"
    if wrong:
        what = f"the properties tell JVM writers other settings than those of a shared table: {some(wrong)}"
        yield TableFinding("R4", "wrong", what, mend)
    missing = [change.key for change in changes if change.found is None]
    if missing:
        what = f"the properties do not tell JVM writers {len(missing)} settings of a shared table: {some(missing)}"
        yield TableFinding("R4", "note", what, f"{mend}, or set them on every one")


def twins(facts: Facts) -> Iterator[TableFinding]:
    """R5."""
    bases = [(folder, file, entry) for folder, file, entry in facts.data if isinstance(file, BaseFile)]
    counts = Counter((folder, base.file_id, base.begin) for folder, base, _ in bases)
    named = {stat.path for _, stat in facts.stats}
    for (folder, file_id, begin), count in counts.items():
        if count > 1:
            mine = [e.path for f, b, e in bases if (f, b.file_id, b.begin) == (folder, file_id, begin)]
            surplus = [path for path in mine if path not in named] or mine[1:]
            what = f"{count} base files of file group {file_id} and instant {begin}: hudi-rs fails, JVM picks one"
            yield TableFinding("R5", "wrong", what, f"remove what the commit does not name: {some(surplus)}")


def order(facts: Facts) -> Iterator[TableFinding]:
    """R6."""
    times = Counter(i.completion for i in facts.timeline.instants if i.is_completed and i.changes_rows)
    for time, count in times.items():
        if count > 1:
            what = f"{count} commits completed at the same millisecond {time}: an incremental reader may miss one"
            yield TableFinding("R6", "wrong", what, "let every writer take the table's lock")
    for instant in facts.timeline.instants:
        if instant.completion is not None and instant.completion < instant.begin:
            what = f"{instant.file_name} completed before it began"
            yield TableFinding("R6", "wrong", what, "find the writer whose clock was set back")
    yield from _unseen(facts)


def _unseen(facts: Facts) -> Iterator[TableFinding]:
    """A slice names the one it was made from: that must be the one before it."""
    groups: dict[FileGroup, list[tuple[str, str | None]]] = {}
    for instant, stat in (one for one in facts.stats if not one[1].is_log):  # a log names no slice
        groups.setdefault(stat.group, []).append((instant.begin, stat.prev_commit))
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
                yield TableFinding("R6", "wrong", what, mend)


def metafiles(facts: Facts) -> Iterator[TableFinding]:
    """R7."""
    there = {entry.path for entry in facts.files}
    for folder in sorted({folder for folder, _, _ in facts.data}):
        path = join(folder, PARTITION_METAFILE)
        if path not in there:
            depth = folder.count("/") + 1 if folder else 0
            what = f"partition {folder or '.'!r} has no {PARTITION_METAFILE}: JVM readers see none of its rows"
            yield TableFinding(
                "R7", "wrong", what, f"create {path} with the lines commitTime=<an instant>, partitionDepth={depth}"
            )


def _marked(path: str) -> str:
    marker = parse_marker(path)
    return "" if marker is None else marker.data_path


_HOUR_MS = 3_600_000
_EXPIRED_MS = 24 * _HOUR_MS  # of a plan that nobody runs
_PLANS = (
    (Action.CLUSTERING, "cluster", "writes of its file groups give way to it"),
    (Action.COMPACTION, "compact", "no other merges its file groups"),
)
_MANY = 300  # a listing of more than a page
TableReport = tuple[tuple[str, str, tuple[TableFinding, ...]], ...]
_Check = Callable[[Facts], Iterator[TableFinding]]
_BUCKETS = "buckets"


def buckets(facts: Facts) -> Iterator[TableFinding]:
    """By the file groups of the latest snapshot, and by the keys in them."""
    if facts.bucket_rules:
        what = f"a JVM writer keeps rules for its buckets below {BUCKET_RULES} (consistent hashing, or by partition)"
        yield TableFinding(_BUCKETS, "wrong", what, "write this table with that writer only")
    if facts.config is None:
        return
    if facts.config.bucket_index is None:
        if facts.slices and look_like_buckets(one.file_id for one in facts.slices):
            what = f"the file groups are called as those of a bucket index, but {INDEX} is not set: {_paths(facts)}"
            mend = f"if a JVM writer has {INDEX}={BUCKET}, `lockprovider table adopt-buckets`; no write is taken before"
            yield TableFinding(_BUCKETS, "note", what, mend)
        return
    yield from _strangers(facts, facts.config.bucket_index.buckets)
    yield from _twins(facts)
    yield from _bare(facts)
    if facts.misplaced:
        what = f"{sum(facts.misplaced.values())} rows are not in the bucket of their key: {some(facts.misplaced)}"
        mend = "a writer had other settings of the index: find it; overwrite these partitions with all their rows"
        yield TableFinding(_BUCKETS, "wrong", what, mend)


def _strangers(facts: Facts, count: int) -> Iterator[TableFinding]:
    found = [one.paths[0] for one in facts.slices if (bucket := bucket_of(one.file_id)) is None or bucket >= count]
    if found:
        what = f"{len(found)} file groups are of none of the {count} buckets: {some(found)}"
        mend = "a writer had no bucket index: find it; overwrite these partitions with all their rows"
        yield TableFinding(_BUCKETS, "wrong", what, mend)


def _bare(facts: Facts) -> Iterator[TableFinding]:
    found = [one.paths[0] for one in facts.slices if not one.path]
    if found:
        what = (
            f"{len(found)} file groups have log files alone: JVM readers see none of their rows while the write that "
            f"began first in them is pending: {some(found)}"
        )
        yield TableFinding(_BUCKETS, "note", what, "`lockprovider table compact` gives them base files")


def _twins(facts: Facts) -> Iterator[TableFinding]:
    counts = Counter((one.partition, bucket_of(one.file_id)) for one in facts.slices)
    for (partition, bucket), count in counts.items():
        if count > 1 and bucket is not None:
            mine = [
                one.paths[0] for one in facts.slices if (one.partition, bucket_of(one.file_id)) == (partition, bucket)
            ]
            what = f"{count} file groups are of bucket {bucket} of partition {partition or '.'!r}: {some(mine)}"
            mend = "writers fail, and keys may be there twice: restore the table, or overwrite the partition once"
            yield TableFinding(_BUCKETS, "wrong", what, mend)


def _paths(facts: Facts) -> str:
    return some(one.paths[0] for one in facts.slices)


def examine(facts: Facts) -> TableReport:
    """All checks: rule, what it is about, and what was found.

    Of a table whose layout is not known here nothing else is looked at, and that is said.
    """
    version = None if facts.config is None else facts.config.version
    if version is not None and version not in READABLE_VERSIONS:
        said = [one for one in properties(facts) if "hoodie.table.version" in one.what]
        rest = f"nothing else was looked at: a table of version {version} keeps its timeline in another way"
        return (("R4", "version and properties", (*said, TableFinding("R4", "note", rest, "look again after it"))),)
    checks = _CHECKS if facts.repeated is None else (*_CHECKS, ("keys", "each key is in one file group", _keys))
    return tuple((rule, about, tuple(check(facts))) for rule, about, check in checks)


def _keys(facts: Facts) -> Iterator[TableFinding]:
    for partition, count in (facts.repeated or {}).items():
        what = (
            f"{count} keys are in base files of several file groups of partition {partition!r}; a reader gives each row"
        )
        mend = (
            "delete these keys and write their rows once, or overwrite the partition; a JVM's `insert` makes such keys"
        )
        yield TableFinding("keys", "wrong", what, mend)


def _commits(facts: Facts) -> Iterator[TableFinding]:
    """What the commits say is there, whole."""
    for metadata in facts.commits.values():
        if isinstance(metadata, str):
            yield TableFinding("commits", "wrong", metadata, "a reader fails on it, or misses the commit")
    for instant in facts.timeline.writes[-1:]:
        last = facts.commits.get(instant)
        if isinstance(last, CommitMetadata) and last.schema_json is None and not last.stats:
            what = f"the last commit {instant.file_name} has neither a schema nor a file: hudi-rs fails"
            yield TableFinding("commits", "wrong", what, "commit anything from here: it states the schema")
    if facts.misread:
        yield TableFinding("commits", "wrong", facts.misread, "cluster all partitions with JVM Hudi, then clean")
    yield from _ghosts(facts)
    yield from _missing(facts)


def _ghosts(facts: Facts) -> Iterator[TableFinding]:
    """A service's rollback leaves its plan, which is run again."""
    planned = {i.begin for i in facts.timeline.instants if i.action in (Action.COMPACTION, Action.CLUSTERING)}
    for instant in facts.timeline.writes:
        if instant.begin in facts.victims - planned:
            what = f"{instant.file_name} was rolled back, and came back: its writer was paused for long"
            yield TableFinding(
                "commits", "wrong", what, "remove the file, while nobody writes; its rows were never there"
            )


def _missing(facts: Facts) -> Iterator[TableFinding]:
    sizes = {entry.path: entry.size for entry in facts.files}
    latest: dict[FileGroup, tuple[str, WriteStat]] = {}
    for instant, stat in sorted((one for one in facts.stats if not one[1].is_log), key=lambda one: one[0].begin):
        latest[stat.group] = instant.begin, stat
    bases = [stat for _, stat in latest.values()]
    logs = [(i.completion or "", s) for i, s in facts.stats if s.is_log]
    later = [stat for completion, stat in logs if completion >= latest.get(stat.group, ("", None))[0]]
    live = [stat for stat in bases + later if stat.group not in facts.replaced]
    gone = [stat.path for stat in live if stat.path not in sizes]
    if gone:
        what = f"{len(gone)} files that readers need are gone: {some(gone)}"
        yield TableFinding(
            "commits", "wrong", what, "restore them from a copy, or restore the table to an earlier commit"
        )
    cut = [s.path for s in live if s.file_size and s.path in sizes and sizes[s.path] != s.file_size]
    if cut:
        what = f"{len(cut)} files are not of the size that their commit says: {some(cut)}"
        yield TableFinding(
            "commits", "wrong", what, "restore them from a copy, or restore the table to an earlier commit"
        )


def _services(facts: Facts) -> Iterator[TableFinding]:
    """Plans that nobody carries out any more."""
    mends = {
        Action.ROLLBACK: "`lockprovider table rollback URL`, or the next write from here, finishes it",
        Action.CLEAN: "`lockprovider table clean URL` finishes it",
        Action.RESTORE: "`lockprovider table restore URL INSTANT`, or the next write from here, finishes it",
    }
    for action, mend in mends.items():
        for begin in facts.timeline.pending(action):
            if begin in facts.dead:
                yield TableFinding(
                    "services", "wrong", f"{action.value} {begin} was not finished: its executor is dead", mend
                )
    for action, command, effect in _PLANS:
        for begin in facts.timeline.pending(action):
            yield _waiting(facts, begin, f"{action.value} {begin} is planned: {effect}", command)
    alone = [one for one in facts.slices if one.logs and not one.path]
    if alone:
        what = f"{len(alone)} file groups have logs and no base file: {some(one.logs[0].path for one in alone)}"
        mend = "`lockprovider table compact URL`; until then JVM Hudi misses them while their first write is pending"
        yield TableFinding("services", "note", what, mend)


def _waiting(facts: Facts, begin: str, what: str, command: str) -> TableFinding:
    """A plan, with its age; wrong is one that nobody has run for a day."""
    if begin not in facts.dead:
        return TableFinding("services", "note", f"{what}; it is being run", "nothing, or wait for it")
    age_ms = max(0, facts.now_ms - to_ms(begin))
    mend = (
        f"`lockprovider table {command} URL --run {begin}` runs it, `--unschedule {begin}` takes it back, and "
        f"`--unschedule-after {_EXPIRED_MS // _HOUR_MS}`, now and then, all like it"
    )
    what = f"{what}; nobody runs it, and it is {age_ms / _HOUR_MS:.1f} h old"
    return TableFinding("services", "wrong" if age_ms >= _EXPIRED_MS else "note", what, mend)


def _archive(facts: Facts) -> Iterator[TableFinding]:
    """The archive, and what should be in it."""
    mend = "`lockprovider table archive URL`"
    if facts.archive_fault:
        yield TableFinding(
            "archive", "wrong", facts.archive_fault, "restore the file from a copy; readers of now need none"
        )
    if facts.archive_hidden:
        what = (
            f"{facts.archive_left[0]} is archived, and came back: it hides {len(facts.archive_hidden)} younger commits"
        )
        yield TableFinding("archive", "wrong", what, f"{mend} removes it; find the writer that was paused for long")
    elif facts.archive_left:
        what = f"an archival was not finished: {len(facts.archive_left)} archived instants are still on the timeline"
        yield TableFinding("archive", "note", what, f"{mend} finishes it")
    count = len(facts.timeline.writes)
    if count > _MANY:
        what = f"there are {count} commits on the timeline, and whoever opens the table lists them all"
        yield TableFinding("archive", "note", what, f"{mend}, now and then")


def _lock(facts: Facts) -> Iterator[TableFinding]:
    """The lock record."""
    if facts.lock_fault:
        yield TableFinding("lock", "wrong", facts.lock_fault, "remove the object, once no writer runs")
    if facts.lock_note:
        yield TableFinding("lock", "note", facts.lock_note, "`lockprovider status URL` says more")
    if facts.lockless:
        what = f"{len(facts.lockless)} commits were made without the lock: {some(facts.lockless)}"
        mend = "give their writer the lock (`lockprovider table share URL` says how), or stop it: it may undo writes"
        yield TableFinding("lock", "wrong", what, mend)


def _leftovers(facts: Facts) -> Iterator[TableFinding]:
    """Harmless, but somebody may wonder."""
    known = {i.begin for i in facts.timeline.instants if i.state is not InstantState.COMPLETED}
    known -= {i.begin for i in facts.timeline.instants if i.is_completed}
    beats = [begin for begin in facts.beats if begin not in known]
    if beats:
        yield TableFinding(
            "leftovers", "note", f"{len(beats)} heartbeats of finished instants: {some(beats)}", "remove them"
        )
    markers = sorted({path.split("/")[2] for path in facts.markers} - known)
    if markers:
        what = f"markers of {len(markers)} finished instants: {some(markers)}"
        yield TableFinding("leftovers", "note", what, "remove .hoodie/.temp/<instant>")


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
    """Every check with what it found; a table that cannot be opened can be looked at.

    `keys`: all record keys are read, and those that are in several file groups are counted.

    Raises:
        TableNotFound: there is neither a properties file nor a timeline.
        CasError: the store failed.
    """
    return examine(gather(table, keys=keys))
