"""`fsspec-cas`: probes a store, and reads and writes conditionally from a shell."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from fsspec_cas import command
from fsspec_cas.backends import backend_for, split_url
from fsspec_cas.errors import CasError, InvalidInput, ObjectNotFound
from fsspec_cas.outcome import ABSENT, Lost, Outcome, Unknown, Version, Won
from fsspec_cas.probe.checks import CHECKS, THOROUGH, Finding
from fsspec_cas.probe.probe import RACERS, Report, probe
from fsspec_cas.store import Store

_CHUNK_BYTES = 1024 * 1024
_MISSING = 6  # exit code

_CODES = f"""exit codes:
  0    done; for probe: safe for locks and create-once
  1    refused: the object has another version, nothing was written; for probe: not safe for locks
  2    bad input: URL, options, version, credentials, or a missing bucket
  3    unknown: the write may have been applied; read the object and decide
  4    unavailable: the store did not answer or kept throttling; nothing was written
  5    not supported by this store or protocol
  6    there is no such object
  130  interrupted before anything was sent

{command.OPTIONS_HELP}"""

_EXAMPLES = """examples:
  fsspec-cas probe s3://bucket/scratch -o endpoint_url=http://127.0.0.1:8333
  echo me | fsspec-cas put --if-absent s3://bucket/leader
  version=$(fsspec-cas get s3://bucket/state state.json)
  fsspec-cas put --if-match "$version" s3://bucket/state state.json
  fsspec-cas rm --if-match "$version" s3://bucket/state"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command (default: of `sys.argv`); usage errors raise SystemExit."""
    arguments = _parser().parse_args(argv)
    return command.run("fsspec-cas", arguments, lambda error: _MISSING if isinstance(error, ObjectNotFound) else None)


def _parser() -> argparse.ArgumentParser:
    """Build the parser, which requires a command; `arguments.run(arguments)` returns its exit code."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="fsspec-cas",
        description="Conditional writes on object stores and files, with a true outcome.",
        epilog=f"{_EXAMPLES}\n\n{_CODES}",
        formatter_class=raw,
    )
    command.add_general(parser)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command.add_completion(commands, _parser)

    def add(name: str, run: Callable[[Any], int], text: str) -> argparse.ArgumentParser:
        """Add a command, which `run` performs, with the common options; return its parser."""
        sub = commands.add_parser(name, help=text, description=text, epilog=_CODES, formatter_class=raw)
        sub.set_defaults(run=run)
        command.add_storage_options(sub)
        sub.add_argument(
            "--timeout", type=float, default=30.0, metavar="S", help="seconds for each request (default: 30)"
        )
        sub.add_argument("--json", action="store_true", help="print JSON")
        sub.add_argument("--debug", action="store_true", help="print the traceback of an error")
        return sub

    sub = add("probe", _probe, "Test how the store behaves, below a new prefix that is removed afterwards.")
    sub.add_argument("url", metavar="URL", help="a folder, e.g. s3://bucket/scratch")
    sub.add_argument(
        "--racers", type=int, default=RACERS, metavar="N", help="concurrent writers in each race (default: %(default)s)"
    )
    sub.add_argument(
        "--thorough", action="store_true", help="also list 2005 objects, which are more than fit on one page"
    )

    sub = add("get", _get, "Read an object and its version by one request.")
    sub.add_argument("url", metavar="URL")
    sub.add_argument(
        "file",
        nargs="?",
        default="-",
        metavar="FILE",
        help="file for the content; the version then goes to stdout (default: content to stdout, version to stderr)",
    )

    sub = add("put", _put, "Write an object only if it is absent, or only if it still has a version.")
    condition = sub.add_mutually_exclusive_group(required=True)
    condition.add_argument("--if-absent", action="store_true", help="write only if no object exists")
    condition.add_argument("--if-match", metavar="VERSION", help="write only if the object still has this version")
    sub.add_argument("url", metavar="URL")
    sub.add_argument("file", nargs="?", default="-", metavar="FILE", help="file with the content (default: stdin)")

    sub = add("rm", _rm, "Remove an object only if it still has a version.")
    sub.add_argument(
        "--if-match", required=True, metavar="VERSION", help="remove only if the object still has this version"
    )
    sub.add_argument("url", metavar="URL")
    return parser


def _probe(arguments: Any) -> int:
    """Test the store with temporary objects, delete them, and print a report and what remains.

    Returns DONE, or REFUSED if unfit for locks.
    """
    fs, root = split_url(arguments.url, command.storage_options(arguments))
    store = Store.from_filesystem(fs, root)
    show = None if arguments.json or not sys.stderr.isatty() else _show_progress
    checks = THOROUGH if arguments.thorough else CHECKS
    report = probe(store, racers=arguments.racers, progress=show, timeout=arguments.timeout, checks=checks)
    if arguments.json:
        print(report.to_json())
    else:
        _show_report(report)
    return command.DONE if report.verdict.locks else command.REFUSED


def _get(arguments: Any) -> int:
    """Read the object into a file, overwriting it, or stdout; print its version, and return DONE.

    With content on stdout, the version goes to stderr.
    """
    store, name = _object(arguments)
    content = store.read(name, timeout=arguments.timeout)
    to_stdout = arguments.file == "-"
    if to_stdout:
        sys.stdout.buffer.write(content.data)
        sys.stdout.buffer.flush()
    else:
        Path(arguments.file).write_bytes(content.data)
    report = {"version": str(content.version), "size": len(content.data)}
    _say(arguments, report, str(content.version), sys.stderr if to_stdout else sys.stdout)
    return command.DONE


def _put(arguments: Any) -> int:
    store, name = _object(arguments)
    version = None if arguments.if_absent else Version.parse(arguments.if_match)
    with nullcontext(sys.stdin.buffer) if arguments.file == "-" else Path(arguments.file).open("rb") as source:
        return _report(arguments, _written(store, name, source, version, arguments.timeout))


def _written(store: Store, name: str, source: BinaryIO, version: Version | None, timeout: float) -> Outcome:
    """Write `source` at `version`, or as a streamed create (None), which an error aborts; return the outcome."""
    if version is not None:
        return store.put_if_match(name, source.read(), version, timeout=timeout)
    writer = store.open_exclusive(name, timeout=timeout)
    try:
        while chunk := source.read(_CHUNK_BYTES):
            writer.write(chunk)
        return writer.close()
    except BaseException:
        writer.abort()
        raise


def _rm(arguments: Any) -> int:
    store, name = _object(arguments)
    return _report(arguments, store.delete_if_match(name, Version.parse(arguments.if_match), timeout=arguments.timeout))


def _object(arguments: Any) -> tuple[Store, str]:
    """Store of the object's folder, and its name; InvalidInput for a bucket alone."""
    fs, path = split_url(arguments.url, command.storage_options(arguments))
    folder, _, name = path.rpartition("/")
    if not folder and backend_for(fs).name not in ("local", "memory"):
        raise InvalidInput(f"{arguments.url!r} names a bucket, not an object: write e.g. s3://bucket/key")
    return Store.from_filesystem(fs, folder or path[: -len(name)]), name  # "/" for "/name"


def _report(arguments: Any, outcome: Outcome) -> int:
    """Print the outcome; return its exit code: DONE if won, REFUSED if lost, else UNKNOWN."""
    match outcome:
        case Won(version):
            _say(arguments, {"outcome": "won", "version": str(version)}, str(version), sys.stdout)
            return command.DONE
        case Lost(current=current):
            now = None if current == ABSENT else str(current)
            return _fail(arguments, outcome, {"outcome": "lost", "current": now}, command.REFUSED)
        case Unknown(why=why):
            return _fail(arguments, outcome, {"outcome": "unknown", "why": why}, command.UNKNOWN)


def _say(arguments: Any, report: dict[str, Any], plain: str, to: TextIO) -> None:
    print(json.dumps(report) if arguments.json else plain, file=to)


def _fail(arguments: Any, outcome: Outcome, report: dict[str, Any], code: int) -> int:
    """Print the outcome's error to stderr, with --json first `report` to stdout; return `code`."""
    if arguments.json:
        print(json.dumps(report))
    try:
        outcome.unwrap()
    except CasError as error:
        command.complain("fsspec-cas", str(error).removesuffix(", or settle it by Store.resolve"))
    return code


def _show_progress(finding: Finding, number: int, of: int) -> None:
    print(f"\r\x1b[K{number}/{of} {finding.name}", end="\n" if number == of else "", file=sys.stderr, flush=True)


def _show_report(report: Report) -> None:
    title = f"{report.kind} at {report.root}, {report.racers} racers"
    rows = [(finding.state, finding.name, finding.evidence) for finding in report.findings]
    command.show_table(title, ("", "check", "what happened"), rows)
    print(report.verdict)
    for path in report.left_behind:
        print(f"left behind: {path}")


if __name__ == "__main__":
    sys.exit(main())
