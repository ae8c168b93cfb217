"""Commands that maintain tables; answers of all table commands."""

from __future__ import annotations

import argparse
import getpass
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from fsspec_cas import InvalidInput
from fsspec_cas.command import BAD_INPUT, DONE, REFUSED, complain, show_table, storage_options
from lockprovider.commands.arguments import (
    READS,
    Commands,
    add_command,
    confirmed,
    exit_codes,
    flag,
    hours,
    option,
    positive,
    to_json,
)
from lockprovider.table.errors import Aborted, HistoryGone, TableError, TableExists, WriteConflict
from lockprovider.table.format.compatibility import MODE_KEY
from lockprovider.table.settings import Mode, TableSettings
from lockprovider.table.table import Table
from lockprovider.table.timeline.retention import KeepActive, KeepCommits, KeepHours, KeepVersions, Policy
from lockprovider.table.timeline.rewrite_plan import TARGET_FILE_BYTES
from lockprovider.table.timeline.versions import commit_of


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """Answer: `data` for programs, other fields for people."""

    data: Any
    title: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[object, ...], ...] = ()
    below: str = ""
    code: int = DONE

    @classmethod
    def of_rows(cls, title: str, columns: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> CommandAnswer:
        all_rows = tuple(rows)
        return cls([dict(zip(columns, row, strict=True)) for row in all_rows], title, columns, all_rows)


Run = Callable[[Any], "CommandAnswer | int"]

VERSION = "a commit's begin or completion time from `log`, or an ISO time with zone: the table after it"
_UNKNOWN = "unknown: the write may have been applied; look at `lockprovider table log`"


def add_bucket_by(parser: argparse.ArgumentParser) -> None:
    text = "a key column that selects the bucket; repeatable (default: all)"
    option(parser, "--bucket-by", "COLUMN", text, [], action="append")


def add_table_command(
    commands: Commands, name: str, run: Run, text: str, refused: str = "", *, reads: bool = False
) -> argparse.ArgumentParser:
    """Add a command about one table, with `--hoodie`; `refused` explains exit code 1; `reads`: no writes."""
    url = "the table's folder: a path, or s3://bucket/table"
    if reads:
        codes = exit_codes(refused, **READS)
    else:
        why = f"refused: {refused}, or others held the lock"
        codes = exit_codes(why, unknown=_UNKNOWN, unavailable=READS["unavailable"])
    parser = add_command(commands, name, partial(_answered, run), text, url, codes=codes)
    option(parser, "--hoodie", "KEY=VALUE", "a setting of Hudi, repeatable", [], action="append")
    return parser


def settings(arguments: Any) -> TableSettings:
    """Settings of an optimistic writer, changed by `--hoodie`; InvalidInput, InvalidSettings: a bad pair."""
    options = {MODE_KEY: Mode.OPTIMISTIC.value}
    for pair in arguments.hoodie:
        key, equals, value = pair.partition("=")
        if not equals or not key.startswith("hoodie."):
            raise InvalidInput(f"--hoodie {pair!r} is not a key of Hudi's with =VALUE")
        options[key] = value
    return TableSettings.from_hudi(options)


def opened(arguments: Any) -> Table:
    return Table.open(arguments.url, storage_options=storage_options(arguments), settings=settings(arguments))


def _answered(run: Run, arguments: Any) -> int:
    """Call `run`; print its answer and return the answer's code, or return its int without printing.

    Prints a TableError (`--debug`: raises). Its code is REFUSED for a conflict, abort, lost history or existing table,
    else BAD_INPUT.
    """
    try:
        answer = run(arguments)
    except TableError as error:
        if arguments.debug:
            raise
        complain("lockprovider", str(error))
        return REFUSED if isinstance(error, (Aborted, HistoryGone, TableExists, WriteConflict)) else BAD_INPUT
    if isinstance(answer, int):
        return answer
    show(answer, as_json=arguments.json)
    return answer.code


def show(answer: CommandAnswer, *, as_json: bool) -> None:
    """Print `data` as JSON; or the title, aligned rows, and `below`."""
    if as_json:
        print(to_json(answer.data), flush=True)
        return
    rows = [tuple(_text(cell) for cell in row) for row in answer.rows]
    if not rows:
        print(answer.title)
    else:
        show_table(answer.title, answer.columns, rows)
    if answer.below:
        print(answer.below)
    sys.stdout.flush()


def _text(cell: object) -> str:
    """Cell's text: "" for None, items joined by commas."""
    match cell:
        case None:
            return ""
        case list() | tuple():
            return ", ".join(map(str, cell))
        case dict():
            return ", ".join(f"{key}={value}" for key, value in cell.items())
        case _:
            return str(cell)


def add_services(commands: Commands) -> None:
    """Register `clean`, `compact`, `cluster`, `archive`, `savepoint`, `restore`, `rollback`; call `_add_sharing`."""
    about = "Remove files that no reader within the retention needs."
    parser = add_table_command(commands, "clean", _clean, about, "another executor was faster")
    keep = parser.add_mutually_exclusive_group()
    option(keep, "--commits", positive, "keep the files that the last N commits need (default: 10)")
    option(keep, "--hours", hours, "keep the files that a read as of the last H hours needs")
    option(keep, "--versions", positive, "keep N versions of each file group")
    flag(parser, "--dry-run", "only show the files that would be removed")
    about = "Merge the log files of a merge-on-read table into new base files, while writers continue."
    parser = add_table_command(commands, "compact", _compact, about, "INSTANT is no plan, or its executor is alive")
    _add_plan_options(parser, "merged")
    about = "Join small files of each partition into larger, sorted ones. Concurrent writes of these files give way."
    parser = add_table_command(
        commands, "cluster", _cluster, about, "INSTANT is no plan, its executor is alive, or a write won"
    )
    option(parser, "--sort-by", "COLUMN", "sort by this column; repeatable", [], action="append")
    option(parser, "--target-file-bytes", positive, "bytes of a new file (default: 128 MiB)", TARGET_FILE_BYTES)
    option(parser, "--small-file-bytes", positive, "join files of fewer bytes (default: half of --target-file-bytes)")
    _add_plan_options(parser, "joined")
    about = "Move the oldest instants from the timeline into the archive; their rows stay."
    parser = add_table_command(commands, "archive", _archive, about, "a commit was taken back")
    option(parser, "--keep-min", positive, "commits that stay (default: 20)")
    option(parser, "--keep-max", positive, "archive only if there are more commits (default: 30)")
    flag(parser, "--dry-run", "only show what would be archived")
    about = "Protect the files of a commit from `clean`."
    parser = add_table_command(commands, "savepoint", _savepoint, about, "no such commit or savepoint exists")
    option(parser, "version", "VERSION", f"{VERSION} (default: the last)", nargs="?")
    parser.add_argument("--comment", default="", help="a note for the list")
    choice = parser.add_mutually_exclusive_group()
    flag(choice, "--list", "list all savepoints instead")
    flag(choice, "--delete", "delete this savepoint instead")
    about = "Undo every commit that completed after VERSION."
    parser = add_table_command(
        commands, "restore", _restore, about, "not confirmed, changed, or VERSION cannot be restored"
    )
    option(parser, "version", "VERSION", VERSION)
    flag(parser, "--yes", "do not ask for confirmation")
    about = "Roll back the writes of dead writers, and finish dead rollbacks, restores and cleans."
    parser = add_table_command(commands, "rollback", _rollback, about, "INSTANT is not pending, or its writer is alive")
    option(parser, "instant", "INSTANT", "roll back only this pending write", nargs="?")
    flag(parser, "--force", "with INSTANT: roll it back even if its writer is alive")
    _add_sharing(commands)


def _add_sharing(commands: Commands) -> None:
    """Register `share`, `unshare`, `retire-metadata` and `adopt-buckets`."""
    about = "Write the settings of shared writers into the table, where JVM Hudi's Spark writers read them."
    parser = add_table_command(commands, "share", _share, about, "a write is pending")
    text = "state that all writers ran in UTC; needed for a copy of a table whose files have new times"
    flag(parser, "--all-in-utc", text)
    flag(parser, "--dry-run", "only show the properties that would be set")
    about = "Remove the settings of `share` from a table that has one JVM writer again. Stop all other writers first."
    parser = add_table_command(commands, "unshare", _unshare, about, "a write is pending")
    flag(parser, "--dry-run", "only show the properties that would be removed")
    about = "Remove the metadata table of JVM Hudi, which would hide the commits of Python writers."
    parser = add_table_command(commands, "retire-metadata", _retire, about, "a write is pending")
    flag(parser, "--dry-run", "only count the files that would be removed")
    about = "Record the bucket index of a JVM writer in the properties. All keys are read first, to check it."
    parser = add_table_command(commands, "adopt-buckets", _adopt, about, "others committed meanwhile")
    option(parser, "buckets", positive, "the JVM writer's hoodie.bucket.index.num.buckets")
    add_bucket_by(parser)


def _add_plan_options(parser: Any, participle: str) -> None:
    choice = parser.add_mutually_exclusive_group()
    flag(choice, "--schedule", f"only plan what will be {participle}")
    option(choice, "--run", "INSTANT", "run this plan, or continue it if its executor died", dest="scheduled")
    option(choice, "--unschedule", "INSTANT", "remove this plan; no row changes")
    option(choice, "--unschedule-after", hours, "remove all plans that no executor has run for HOURS", metavar="HOURS")
    flag(choice, "--dry-run", f"only show what would be {participle}")


def _change_plan(arguments: Any, service: str, verb: str, schedule: Any, unschedule: Any) -> CommandAnswer | None:
    """Write or remove plans by `--schedule`, `--unschedule` or `--unschedule-after`; None if none is given.

    `schedule()` returns a begin or None, `unschedule(hours=N)` those removed; `service`, `verb`: words of the answer.
    """
    if arguments.schedule:
        begin = schedule()
        outcome = f"scheduled {service} {begin}" if begin else f"nothing to {verb}"
        return CommandAnswer({"scheduled": begin}, outcome)
    if arguments.unschedule:
        unschedule(arguments.unschedule)
        outcome = f"removed the plan of {service} {arguments.unschedule}"
        return CommandAnswer({"unscheduled": arguments.unschedule}, outcome)
    if arguments.unschedule_after is None:
        return None
    begins = unschedule(hours=arguments.unschedule_after)
    hours = f"{arguments.unschedule_after:g} hours"
    title = f"removed {len(begins)} plans of {service} that no executor has run for {hours}"
    return CommandAnswer({"unscheduled": list(begins)}, title)


def _compact(arguments: Any) -> CommandAnswer:
    """Write or remove plans, run that of `--run`, or compact all (`--dry-run`: list); return merged file groups."""
    table = opened(arguments)
    planned = _change_plan(arguments, "compaction", "compact", table.schedule_compaction, table.unschedule_compaction)
    if planned is not None:
        return planned
    begin, dry_run = arguments.scheduled, arguments.dry_run
    results = (table.run_compaction(begin),) if begin else table.compact(dry_run=dry_run)
    rows = [(result.instant, result.completion, *group) for result in results for group in result.file_groups]
    logs = sum(result.log_files for result in results)
    title = f"{_did(arguments, 'merge')} {logs} log files of {len(rows)} file groups"
    return CommandAnswer.of_rows(title, ("instant", "completion", "partition", "file_group"), rows)


def _cluster(arguments: Any) -> CommandAnswer:
    """Write or remove plans, run that of `--run`, or cluster all (`--dry-run`: list); return ended and new file groups.

    InvalidInput: order or sizes for an existing plan.
    """
    options = arguments.sort_by, arguments.target_file_bytes, arguments.small_file_bytes
    has_plan = arguments.scheduled or arguments.unschedule or arguments.unschedule_after is not None
    if options != ([], TARGET_FILE_BYTES, None) and has_plan:
        raise InvalidInput("a plan has its own order and sizes: give them with --schedule, or without a plan")
    table = opened(arguments)
    schedule = partial(table.schedule_clustering, *options)
    planned = _change_plan(arguments, "clustering", "cluster", schedule, table.unschedule_clustering)
    if planned is not None:
        return planned
    begin, dry_run = arguments.scheduled, arguments.dry_run
    results = (table.run_clustering(begin),) if begin else table.cluster(*options, dry_run=dry_run)
    rows = [
        (result.instant, result.completion, *group, state)
        for result in results
        for state, groups in (("ended", result.file_groups), ("new", result.new_file_groups))
        for group in groups
    ]
    counts = Counter(state for *_, state in rows)
    old, new = counts["ended"], counts["new"]
    title = f"would join {old} files" if dry_run else f"joined {old} files into {new}"
    return CommandAnswer.of_rows(title, ("instant", "completion", "partition", "file_group", "state"), rows)


def _archive(arguments: Any) -> CommandAnswer:
    """Archive (`--dry-run`: list) by `--keep-min`, `--keep-max`, or settings; return the instants, and why no more."""
    table, limits = opened(arguments), (arguments.keep_min, arguments.keep_max)
    keep = None if limits == (None, None) else KeepActive.of(*limits)
    result = table.archive(keep, dry_run=arguments.dry_run)
    fields = {"archived": list(result.instants), "held": result.held}
    title = f"{_did(arguments, 'archive')} {len(result.instants)} instants"
    below = f"no more, because {result.held}" if result.held else ""
    rows = tuple((name,) for name in result.instants)
    return CommandAnswer(fields, title, ("instant",), rows, below)


def _clean(arguments: Any) -> CommandAnswer:
    """Clean (`--dry-run`: list) by the given policy, or the settings; return a row per removed file."""
    rows = [
        (result.instant or result.policy, partition or ".", name)
        for result in opened(arguments).clean(_policy(arguments), dry_run=arguments.dry_run)
        for partition, names in result.files.items()
        for name in names
    ]
    return CommandAnswer.of_rows(f"{_did(arguments, 'remove')} {len(rows)} files", ("by", "partition", "file"), rows)


def _policy(arguments: Any) -> Policy | None:
    if arguments.hours is not None:
        return KeepHours(arguments.hours)
    if arguments.versions is not None:
        return KeepVersions(arguments.versions)
    return None if arguments.commits is None else KeepCommits(arguments.commits)


def _did(arguments: Any, verb: str) -> str:
    return f"would {verb}" if arguments.dry_run else f"{verb.removesuffix('e')}ed"


def _savepoint(arguments: Any) -> CommandAnswer | int:
    """List savepoints, create one (default: of the last commit), or delete one; REFUSED if it is missing.

    InvalidInput: contrary options, or `--delete` without VERSION.
    """
    if (arguments.list and arguments.version) or (arguments.comment and (arguments.list or arguments.delete)):
        raise InvalidInput("--list takes no VERSION, and only a new savepoint takes --comment")
    table = opened(arguments)
    if arguments.list:
        rows = [(begin, s.user, s.at_ms, s.comment, len(s.paths)) for begin, s in table.savepoints().items()]
        title = f"{len(rows)} savepoints of {table.url}"
        return CommandAnswer.of_rows(title, ("instant", "by", "made_ms", "comment", "files"), rows)
    if not arguments.delete:
        begin = table.savepoint(arguments.version, user=getpass.getuser(), comment=arguments.comment)
        return CommandAnswer({"savepoint": begin}, f"created savepoint {begin}: `clean` keeps its files")
    if arguments.version is None:
        raise InvalidInput("--delete needs the VERSION of a savepoint; --list shows them")
    if not table.delete_savepoint(arguments.version):
        complain("lockprovider", f"the table has no savepoint {arguments.version}; --list shows its savepoints")
        return REFUSED
    fields = {"deleted": arguments.version}
    return CommandAnswer(fields, f"deleted savepoint {arguments.version}: its files may be cleaned")


def _restore(arguments: Any) -> CommandAnswer | int:
    """After confirmation, undo for good all commits completed after a version.

    REFUSED if declined, or if others committed since it asked; `--yes` skips both.
    """
    table = opened(arguments)
    question = "" if arguments.yes else _undone(table, arguments.version)
    if not confirmed(arguments, question, "table log"):
        return REFUSED
    with table.locked():
        if question and question != _undone(table, arguments.version):
            complain("lockprovider", "the table has other commits since; nothing was changed; run the command again")
            return REFUSED
        result = table.restore(arguments.version)
    fields = {
        "restore": result.instant,
        "target": result.target,
        "completion": result.completion,
        "taken_back": list(result.taken_back),
    }
    chosen = f"{result.target}, completed {result.completion}"
    return CommandAnswer(fields, f"restored to {chosen}; undid {len(result.taken_back)} writes")


def _undone(table: Table, version: str) -> str:
    timeline = table.timeline()
    chosen = commit_of(timeline, version, table.current.last_archived)
    later = [i.begin for i in timeline.writes if (i.completion or "") > (chosen.completion or "")]
    return f"Undo the commits after {chosen.begin} ({', '.join(later) or 'none'}) for good?"


def _rollback(arguments: Any) -> CommandAnswer:
    """Roll back one pending write, or else those of dead writers.

    A sweep finishes dead rollbacks, restores and cleans. InvalidInput: `--force` without INSTANT.
    """
    if arguments.force and arguments.instant is None:
        raise InvalidInput("--force needs INSTANT, the pending write to roll back")
    table = opened(arguments)
    if arguments.instant is None:
        instants = list(table.sweep())
        words = ", ".join(instants) or "nothing to do"
        return CommandAnswer({"done": instants}, f"rolled back or finished: {words}")
    begin = arguments.instant
    table.roll_back(begin, force=arguments.force)
    return CommandAnswer({"done": [begin]}, f"rolled back {begin}")


def _adopt(arguments: Any) -> CommandAnswer:
    table = opened(arguments)
    table.adopt_bucket_index(arguments.buckets, arguments.bucket_by)
    fields = {"buckets": arguments.buckets, "bucket_by": list(table.config().bucket_by)}
    return CommandAnswer(fields, f"recorded {arguments.buckets} buckets, which every writer now uses")


def _share(arguments: Any) -> CommandAnswer:
    changes = opened(arguments).share(dry_run=arguments.dry_run, all_in_utc=arguments.all_in_utc)
    fields = {"changed": [asdict(change) for change in changes]}
    word = "would set" if arguments.dry_run else "set"
    title = f"{word} {len(changes)} properties" if changes else "all settings are already set"
    rows = tuple((change.key, change.found or "", change.wanted) for change in changes)
    return CommandAnswer(fields, title, ("property", "was", "is"), rows)


def _unshare(arguments: Any) -> CommandAnswer:
    changes = opened(arguments).unshare(dry_run=arguments.dry_run)
    fields = {"removed": [{"key": change.key, "found": change.found} for change in changes]}
    title = f"{_did(arguments, 'remove')} {len(changes)} properties" if changes else "no settings of `share` to remove"
    rows = tuple((change.key, change.found or "") for change in changes)
    return CommandAnswer(fields, title, ("property", "was"), rows)


def _retire(arguments: Any) -> CommandAnswer:
    count = opened(arguments).retire_metadata_table(dry_run=arguments.dry_run)
    did = _did(arguments, "remove")
    words = f"{did} {count} files of the metadata table" if count else "the table has no metadata table"
    return CommandAnswer({"removed": count}, words)
