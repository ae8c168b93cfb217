"""All that a doctor checks: the seven rules, what the commits say is there, services, lock, leftovers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from lockprovider.table.doctor import rules
from lockprovider.table.doctor.facts import Facts, TableFinding, some
from lockprovider.table.files.bucket_groups import look_like_buckets
from lockprovider.table.format.bucket import bucket_of
from lockprovider.table.format.instant import Action, InstantState, to_ms
from lockprovider.table.format.layout import BUCKET_RULES, FileGroup
from lockprovider.table.format.metadata import CommitMetadata, WriteStat
from lockprovider.table.format.properties import BUCKET, INDEX, READABLE_VERSIONS

_HOUR_MS = 3_600_000
_EXPIRED_MS = 24 * _HOUR_MS  # of a plan that nobody runs
_PLANS = (
    (Action.CLUSTERING, "cluster", "writes of its file groups give way to it"),
    (Action.COMPACTION, "compact", "no other merges its file groups"),
)
_MANY = 300  # a listing of more than a page
_Check = Callable[[Facts], Iterator[TableFinding]]
_RULE = "buckets"


def buckets(facts: Facts) -> Iterator[TableFinding]:
    """By the file groups of the latest snapshot, and by the keys in them."""
    if facts.bucket_rules:
        what = f"a JVM writer keeps rules for its buckets below {BUCKET_RULES} (consistent hashing, or by partition)"
        yield TableFinding(_RULE, "wrong", what, "write this table with that writer only")
    if facts.config is None:
        return
    if facts.config.bucket_index is None:
        if facts.slices and look_like_buckets(one.file_id for one in facts.slices):
            what = f"the file groups are called as those of a bucket index, but {INDEX} is not set: {_paths(facts)}"
            mend = f"if a JVM writer has {INDEX}={BUCKET}, `lockprovider table adopt-buckets`; no write is taken before"
            yield TableFinding(_RULE, "note", what, mend)
        return
    yield from _strangers(facts, facts.config.bucket_index.buckets)
    yield from _twins(facts)
    yield from _bare(facts)
    if facts.misplaced:
        what = f"{sum(facts.misplaced.values())} rows are not in the bucket of their key: {some(facts.misplaced)}"
        mend = "a writer had other settings of the index: find it; overwrite these partitions with all their rows"
        yield TableFinding(_RULE, "wrong", what, mend)


def _strangers(facts: Facts, count: int) -> Iterator[TableFinding]:
    found = [one.paths[0] for one in facts.slices if (bucket := bucket_of(one.file_id)) is None or bucket >= count]
    if found:
        what = f"{len(found)} file groups are of none of the {count} buckets: {some(found)}"
        mend = "a writer had no bucket index: find it; overwrite these partitions with all their rows"
        yield TableFinding(_RULE, "wrong", what, mend)


def _bare(facts: Facts) -> Iterator[TableFinding]:
    found = [one.paths[0] for one in facts.slices if not one.path]
    if found:
        what = (
            f"{len(found)} file groups have log files alone: JVM readers see none of their rows while the write that "
            f"began first in them is pending: {some(found)}"
        )
        yield TableFinding(_RULE, "note", what, "`lockprovider table compact` gives them base files")


def _twins(facts: Facts) -> Iterator[TableFinding]:
    counts = Counter((one.partition, bucket_of(one.file_id)) for one in facts.slices)
    for (partition, bucket), count in counts.items():
        if count > 1 and bucket is not None:
            mine = [
                one.paths[0] for one in facts.slices if (one.partition, bucket_of(one.file_id)) == (partition, bucket)
            ]
            what = f"{count} file groups are of bucket {bucket} of partition {partition or '.'!r}: {some(mine)}"
            mend = "writers fail, and keys may be there twice: restore the table, or overwrite the partition once"
            yield TableFinding(_RULE, "wrong", what, mend)


def _paths(facts: Facts) -> str:
    return some(one.paths[0] for one in facts.slices)


def examine(facts: Facts) -> tuple[tuple[str, str, tuple[TableFinding, ...]], ...]:
    """All checks: rule, what it is about, and what was found.

    Of a table whose layout is not known here nothing else is looked at, and that is said.
    """
    version = None if facts.config is None else facts.config.version
    if version is not None and version not in READABLE_VERSIONS:
        said = [one for one in rules.properties(facts) if "hoodie.table.version" in one.what]
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
    ("R1", "failed writes are announced and rolled back", rules.failed_writes),
    ("R2", "no metadata table hides commits", rules.metadata_table),
    ("metadata", "the metadata table lists what is there", rules.listing),
    ("lists", "JVM writers can rewrite lists with a null in them", rules.lists),
    ("R3", "all times are UTC", rules.zones),
    ("R4", "version and properties are shared by all writers", rules.properties),
    ("R5", "one file of a file group and instant", rules.twins),
    ("R6", "times are unique, each commit saw the one before", rules.order),
    ("R7", "every partition has its metafile", rules.metafiles),
    ("commits", "what the commits say is there", _commits),
    ("buckets", "each row is in the file group of its key's bucket", buckets),
    ("services", "no service was left unfinished", _services),
    ("archive", "what is archived is whole, and off the timeline", _archive),
    ("lock", "the lock can be taken", _lock),
    ("leftovers", "nothing was left behind", _leftovers),
)
