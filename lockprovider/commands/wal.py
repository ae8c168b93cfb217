"""Commands of logs."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from functools import partial
from typing import Any

from fsspec_cas import InvalidInput, check_url
from fsspec_cas.command import storage_options
from lockprovider.commands.arguments import (
    READS,
    Commands,
    add_command,
    add_group,
    exit_codes,
    flag,
    option,
    pause,
    positive,
    say,
    stdin_lines,
    wait,
)
from lockprovider.recipes.wal.contents import RETAIN, SLOTS
from lockprovider.wal import LogBatch, LogReader, Position, Wal

_EXAMPLES = """examples:
  lockprovider wal create s3://bucket/orders --slots 65536
  lockprovider wal append s3://bucket/orders --producer ingest-3 --first 1200 < lines.txt
  lockprovider wal read s3://bucket/orders --reader to-hudi
  lockprovider wal tail s3://bucket/orders --json | jq .record
  lockprovider wal info s3://bucket/orders
  lockprovider wal trim s3://bucket/orders --before 17:1200
  lockprovider wal seal s3://bucket/orders --successor s3://bucket/orders-2027"""


_command = partial(add_command, url="the log's folder: s3://bucket/orders")


def add_wal(commands: Commands) -> None:
    """Register `wal`."""
    wal = add_group(commands, "wal", "Append to a shared log and read it. The log is a ring of objects.", _EXAMPLES)
    create = _command(wal, "create", _create, "Create the log; does nothing if it exists with the same settings.")
    how = create.add_mutually_exclusive_group()
    option(how, "--slots", positive, f"objects in the ring (default: {SLOTS})", SLOTS)
    flag(how, "--write-once", "write each object once instead of using a ring")
    text = "which readers the ring waits for (default: %(default)s)"
    create.add_argument("--retain", choices=RETAIN, default=RETAIN[0], help=text)
    text = "Append records: the arguments, or each line of stdin."
    refused = "refused: a newer epoch leads, a number is out of order, or the log is sealed or was created anew"
    full = "unavailable: the store did not answer or kept throttling, or the log is full"
    append = _command(wal, "append", _append, text, codes=exit_codes(refused, unavailable=full))
    option(append, "records", "RECORD", "a record, as text", nargs="*", type=str)
    option(append, "--producer", "NAME", "number the records, so that a repeated command appends none twice")
    option(append, "--first", positive, "the number of the first record (default: 1)")
    option(append, "--fence", positive, "lead under this epoch; an older one is refused", metavar="EPOCH")
    for name, run, begins, text in (
        ("read", _read, "oldest", "Show the records up to the end of the log."),
        ("tail", _tail, "end", "Show new records until Ctrl-C."),
    ):
        refused = "the records were trimmed, or another client opened the reader"
        parser = _command(wal, name, run, text, codes=exit_codes(refused, unavailable=READS["unavailable"]))
        option(parser, "--start", "WHERE", f"oldest, end, or SLOT:OFFSET (default: {begins})", begins)
        option(parser, "--reader", "NAME", "start at this reader's position, and commit it after each batch")
        if name == "tail":
            option(parser, "--idle", pause, "longest pause between reads (default: 1)", 1.0)
            option(parser, "--timeout", wait, "end after S seconds without a record")
    anew = exit_codes("refused: another log was created at this path meanwhile")
    trim = _command(wal, "trim", _trim, "Allow old slots to be overwritten.", codes=anew)
    option(trim, "--before", "SLOT:OFFSET", "the first position to keep (default: that of the slowest reader)")
    text = "Seal the log: it takes no more records, and its readers are notified."
    refused = "refused: a newer epoch leads, or the log is sealed for another successor or was created anew"
    seal = _command(wal, "seal", _seal, text, codes=exit_codes(refused))
    option(seal, "--successor", "URL", "the log that continues this one; the log sends its writers and readers there")
    option(seal, "--fence", positive, "seal under this epoch; an older one is refused", metavar="EPOCH")
    text = "Show the log's length, leader, producers and readers."
    _command(wal, "info", _info, text, codes=exit_codes(**READS))
    drop = _command(wal, "drop", _drop, "Forget a reader, so that the ring no longer waits for it.", codes=anew)
    option(drop, "reader", "NAME", "the reader's name, as `info` shows it")


def _opened(arguments: Any) -> Wal:
    return Wal.open(arguments.url, storage_options=storage_options(arguments))


def _create(arguments: Any) -> None:
    slots = None if arguments.write_once else arguments.slots
    Wal.create(arguments.url, slots=slots, retain=arguments.retain, storage_options=storage_options(arguments))
    say(arguments, {"outcome": "there", "url": arguments.url}, f"exists: {arguments.url}")


def _append(arguments: Any) -> None:
    """Append arguments, or else lines of stdin without line ends; print how many were new or repeated.

    `--fence` leads the log under that epoch. InvalidInput: `--first` without `--producer`.
    """
    data = [record.encode() for record in arguments.records] or stdin_lines()
    log, producer = _opened(arguments), arguments.producer
    if arguments.first is not None and producer is None:
        raise InvalidInput("--first needs --producer NAME, whose records it numbers")
    first = None if producer is None else arguments.first or 1
    if arguments.fence is None and producer is None:
        results = log.append_many(data)
    else:
        fence = arguments.fence
        with log.appender(producer) if fence is None else log.lead(fence=fence, producer=producer) as out:
            results = out.append_many(data, first=first)
    again = sum(result.again for result in results)
    added = len(results) - again
    end = next((str(result.position) for result in reversed(results) if result.position is not None), None)
    fields = {"outcome": "appended", "appended": added, "again": again, "last": end}
    say(arguments, fields, f"appended: {added}; already there: {again}")


def _read(arguments: Any) -> None:
    log = _opened(arguments)
    reader = _reader(log, arguments)
    _show(arguments, log.read(_start(arguments)) if reader is None else reader.read(), reader)


def _tail(arguments: Any) -> None:
    log = _opened(arguments)
    reader = _reader(log, arguments)
    how = {"idle_s": arguments.idle, "timeout": arguments.timeout}
    _show(arguments, log.follow(_start(arguments), **how) if reader is None else reader.follow(**how), reader)


def _start(arguments: Any) -> Any:
    return arguments.start if arguments.start in ("oldest", "end") else Position.parse(arguments.start)


def _reader(log: Wal, arguments: Any) -> LogReader | None:
    return None if arguments.reader is None else log.reader(arguments.reader, start=_start(arguments))


def _show(arguments: Any, batches: Iterator[LogBatch], reader: LogReader | None) -> None:
    """Print each record as text; with `--json`, its position and text (base64 if not UTF-8), and any seal.

    Commits `reader` after each batch.
    """
    for batch in batches:
        for offset, record in enumerate(batch.records, batch.start.offset):
            position = str(Position(batch.start.slot, offset))
            try:
                fields = {"record": record.decode()}
            except UnicodeDecodeError:
                fields = {"base64": base64.b64encode(record).decode()}
            say(arguments, {"position": position, **fields}, record.decode(errors="replace"))
        if batch.sealed and arguments.json:
            say(arguments, {"sealed": str(batch.end), "successor": batch.successor or None}, "")
        if reader is not None:
            reader.commit(batch.end)


def _trim(arguments: Any) -> None:
    before = None if arguments.before is None else Position.parse(arguments.before)
    floor = _opened(arguments).trim(before)
    say(arguments, {"outcome": "trimmed", "floor": floor}, f"first kept slot: {floor}")


def _seal(arguments: Any) -> None:
    if arguments.successor:
        check_url(arguments.successor)
    end = _opened(arguments).seal(arguments.successor, fence=arguments.fence)
    say(arguments, {"outcome": "sealed", "end": str(end)}, f"sealed at {end}")


def _info(arguments: Any) -> None:
    info = _opened(arguments).info()
    readers = {name: str(position) for name, position in info.readers.items()}
    fields: dict[str, Any] = {"slots": info.slots, "retain": info.retain, "floor": info.floor, "end": str(info.end)}
    fields |= {"epoch": info.epoch, "led": info.led, "producers": dict(info.producers), "readers": readers}
    fields |= {"sealed": info.sealed, "successor": info.successor or None}
    say(arguments, fields, "\n".join(f"{name:<10} {value}" for name, value in fields.items()))


def _drop(arguments: Any) -> None:
    if not _opened(arguments).drop_reader(arguments.reader):
        raise InvalidInput(f"the log has no reader {arguments.reader!r}: `lockprovider wal info` lists its readers")
    say(arguments, {"outcome": "dropped", "reader": arguments.reader}, f"dropped: {arguments.reader}")
