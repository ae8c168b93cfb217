"""Command `lockprovider demo`: Spark processes write one table at once, and a reader checks its rows."""

from __future__ import annotations

import argparse
import json
import shlex
from contextlib import ExitStack, suppress
from threading import Event
from typing import Any

from fsspec_cas import CasError
from fsspec_cas.command import BAD_INPUT, DONE, INTERRUPTED, REFUSED, add_storage_options, complain, storage_options
from lockprovider.commands.arguments import Commands, file, flag, option

MONTHS = tuple(range(1, 13))


def add(commands: Commands) -> None:
    """Register `demo`."""
    demo: argparse.ArgumentParser = commands.add_parser(
        "demo",
        help="Run three PySpark pipelines on one table, with a proof and a picture.",
        description="Three PySpark pipelines write one Hudi table of real flights at the same time; then an "
        "independent reader proves that no row was lost, and the run is drawn.",
        epilog="exit codes: 0 done and proved; 1 a row is missing, or a pipeline or the run failed; 2 it could not "
        "start, nothing was written; 130 interrupted",
    )
    option(demo, "--url", "URL", "the table's folder, or s3://BUCKET/FOLDER (default: a new folder)")
    add_storage_options(demo)
    flag(demo, "--serve", "start an S3 server on loopback and use it")
    flag(demo, "--keep", "with --serve: keep the server running until Ctrl-C")
    flag(demo, "--merge-on-read", "write changes into log files, which a fourth process compacts at the same time")
    flag(demo, "--fast", "use three months of flights instead of twelve")
    option(demo, "--out", file, "file for the picture", metavar="FILE.svg")
    flag(demo, "--json", "print the report as JSON")
    flag(demo, "--debug", "print the traceback of an error")
    demo.set_defaults(run=_demo)


def _demo(chosen: Any) -> int:
    """Write the demo's table, with `--serve` on its own server, and a picture; print the report.

    `--keep` then awaits Ctrl-C. REFUSED if it is not `ok` or the run stopped, INTERRUPTED by earlier Ctrl-C. BAD_INPUT:
    bad options, missing packages or Java, earlier errors of store or table.
    """
    if chosen.serve and chosen.url:
        return _refuse("--serve starts its own store: leave out --url")
    if chosen.keep and not chosen.serve:
        return _refuse(
            "--keep needs --serve, whose server it keeps running; a table in a folder or bucket stays anyway"
        )
    try:
        from lockprovider.demo.run import Job, Stopped, run, s3_server  # noqa: PLC0415 - seconds of import below
        from lockprovider.table.engines.java import NoJava  # noqa: PLC0415
        from lockprovider.table.errors import TableError  # noqa: PLC0415

        with ExitStack() as stack:
            url, options = chosen.url or "", storage_options(chosen)
            if chosen.serve:
                url, options = stack.enter_context(s3_server())
            result = run(Job(url, options, MONTHS[:3] if chosen.fast else MONTHS, chosen.merge_on_read), chosen.out)
            print(json.dumps(result.to_json(), indent=2, default=str) if chosen.json else result.text())
            if chosen.serve:
                _end_with(url, options, keep=chosen.keep)
    except ImportError as missing:
        return _refuse(f"{missing.name or missing} is not installed: install the extra 'demo' of fsspec-cas")
    except KeyboardInterrupt:
        complain("lockprovider", "interrupted; all started processes were ended")
        return INTERRUPTED
    except (NoJava, CasError, TableError, Stopped) as reason:
        if chosen.debug:
            raise
        return _refuse(str(reason), REFUSED if isinstance(reason, Stopped) else BAD_INPUT)
    return DONE if result.ok else REFUSED


def _end_with(url: str, options: dict[str, Any], *, keep: bool) -> None:
    """Print that the table goes with its server; or with `keep` a command to read it, then await Ctrl-C."""
    if not keep:
        complain("lockprovider", f"{url} was removed with its server; --serve --keep keeps it until Ctrl-C")
        return
    command = f"lockprovider table log {url} --storage-options {shlex.quote(json.dumps(options))}"
    complain("lockprovider", f"the server runs until Ctrl-C; in another terminal: {command}")
    with suppress(KeyboardInterrupt):
        Event().wait()


def _refuse(sentence: str, code: int = BAD_INPUT) -> int:
    complain("lockprovider", " ".join(sentence.split()))
    return code
