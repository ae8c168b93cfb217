"""The seven rules that writers of a shared table must keep, checked on what is there; nothing is touched.

    R1  what failed writers left is announced by markers, and rolled back before archival could make it visible
    R2  no metadata table, which would hide commits that are not in it
    R3  all times are UTC
    R4  the table's version and properties are ones that all its writers share
    R5  one base file of a file group and instant
    R6  times are unique, and every commit saw the one before it
    R7  each partition has its metafile

Source: Hudi `MarkerBasedRollbackStrategy`, `HoodieTableMetadata`, `HoodieInstantTimeGenerator`, `UpgradeDowngrade`,
`HoodieTableFileSystemView`, `FSUtils.getAllPartitionPaths`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from lockprovider.table.doctor.facts import Facts, TableFinding, some
from lockprovider.table.format.layout import PARTITION_METAFILE, BaseFile, FileGroup, join, parse_marker
from lockprovider.table.format.metadata import CommitMetadata
from lockprovider.table.format.properties import TableConfig
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
