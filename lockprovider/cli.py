"""`lockprovider`: the command line.

Exit status: 0 done; 1 the command ran and found something wrong; 2 it could not start, nothing was written;
130 ended by Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Command = Callable[[argparse.Namespace], int]

FAST_MONTHS = (1, 2, 3)
FAILED, CANNOT_START, INTERRUPTED = 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    chosen = parser().parse_args(arguments)
    command: Command = chosen.command
    try:
        return command(chosen)
    except KeyboardInterrupt:
        print("lockprovider: interrupted; everything it had started was ended", file=sys.stderr)
        return INTERRUPTED


def parser() -> argparse.ArgumentParser:
    """All commands."""
    root = argparse.ArgumentParser(prog="lockprovider", description="Locks and tables on object stores.")
    commands = root.add_subparsers(required=True, metavar="COMMAND")
    _add_demo(commands)
    return root


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    demo = commands.add_parser(
        "demo",
        help="three PySpark pipelines share one table, with a proof and a picture",
        description="Three PySpark pipelines write one Hudi table of real flights at the same time; then an "
        "independent reader proves that no row was lost, and the run is drawn.",
    )
    _add_store(demo)
    demo.add_argument("--serve", action="store_true", help="start an S3 server on loopback and use it")
    demo.add_argument("--fast", action="store_true", help="three months instead of twelve")
    demo.add_argument("--out", type=Path, metavar="FILE.svg", help="where the picture goes")
    demo.add_argument("--json", action="store_true", help="print the report as JSON")
    demo.set_defaults(command=_demo)


def _add_store(command: argparse.ArgumentParser) -> None:
    command.add_argument("--url", help="where the table is: a folder, or s3://BUCKET/FOLDER (default: a new folder)")
    command.add_argument(
        "-o",
        dest="options",
        action="append",
        default=[],
        type=_option,
        metavar="KEY=VALUE",
        help="an fsspec storage option, such as endpoint_url=http://127.0.0.1:9000; a dot goes one level "
        "down: client_kwargs.region_name=eu-west-1 (default: what the environment says)",
    )


def _option(text: str) -> tuple[str, object]:
    name, found, value = text.partition("=")
    if not found or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return name, {"true": True, "false": False}.get(value, value)


def storage_options(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    """The options as fsspec takes them; `a.b=c` becomes {"a": {"b": "c"}}."""
    options: dict[str, object] = {}
    for name, value in pairs:
        *path, last = name.split(".")
        place = options
        for step in path:
            below = place.setdefault(step, {})
            place = below if isinstance(below, dict) else place
        place[last] = value
    return options


def _demo(chosen: argparse.Namespace) -> int:
    try:
        return _run_demo(chosen)
    except ImportError as missing:
        return _refuse(f"{missing.name or missing} is not installed: `pip install 'fsspec-cas[demo]'`")


def _run_demo(chosen: argparse.Namespace) -> int:
    from lockprovider.demo.errors import CannotStart  # noqa: PLC0415 - only when asked for
    from lockprovider.demo.target import check_modules  # noqa: PLC0415

    if chosen.serve and chosen.url:
        return _refuse("--serve starts a store of its own: leave out --url")
    try:
        check_modules()
        return _demo_with_modules(chosen)
    except CannotStart as reason:
        return _refuse(str(reason))


def _demo_with_modules(chosen: argparse.Namespace) -> int:
    from fsspec_cas.errors import CasError  # noqa: PLC0415 - seconds of import below
    from lockprovider.demo import conductor, flights, report  # noqa: PLC0415
    from lockprovider.demo.serve import SeaweedFS  # noqa: PLC0415
    from lockprovider.table.engines.java import NoJava  # noqa: PLC0415
    from lockprovider.table.errors import TableError  # noqa: PLC0415

    with ExitStack() as stack:
        url, options = chosen.url, storage_options(chosen.options)
        if chosen.serve:
            server = stack.enter_context(SeaweedFS())
            url, options = f"s3://{server.bucket}/flights", server.storage_options
        months = FAST_MONTHS if chosen.fast else flights.ALL_MONTHS
        try:
            result = conductor.run(conductor.Settings(url, options, months, chosen.out))
        except (NoJava, CasError, TableError) as reason:
            return _refuse(str(reason))
        print(json.dumps(result.to_json(), indent=2, default=str) if chosen.json else report.text(result))
        return 0 if result.ok else FAILED


def _refuse(sentence: str) -> int:
    print(f"lockprovider: {sentence}", file=sys.stderr)
    return CANNOT_START


if __name__ == "__main__":
    sys.exit(main())
