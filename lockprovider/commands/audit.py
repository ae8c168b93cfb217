"""`lockprovider audit URL`: who held the lock when, by Hudi's audit records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fsspec_cas import InvalidInput, Machine
from fsspec_cas.command import DONE, REFUSED
from lockprovider.client.provider import LockPlace
from lockprovider.commands.place import Commands, add_command, add_request_timeout, place, say
from lockprovider.observe.audit import Audit, Flag, Tenure, analyse, audit_fields, places
from lockprovider.observe.audit_log import is_enabled, read_files, set_enabled
from lockprovider.observe.audit_picture import draw_audit
from lockprovider.words import count, moment, span

_MORE = """It reads the records of all writers, JVM Hudi's too. They are written only while they are wanted, which
--enable and --disable say for all writers: one of ours learns it at an acquisition, a minute late at most; JVM Hudi
learns at an acquisition to begin, and at its next start to end. Times are the writers' own clocks, from before each
request was sent; overlaps of up to 500 ms may be clocks that differ. The exit code is 1 if two held the lock at once
for longer."""

_WORDS = {
    "released": "released",
    "lost": "lost before it was given back",
    "lapsed": "no end recorded; lapsed",
    "held": "held now",
}


def add(commands: Commands) -> None:
    """Register it."""
    parser = add_command(commands, "audit", _audit, "Say who held the lock when, and for how long.", more=_MORE)
    switch = parser.add_mutually_exclusive_group()
    switch.add_argument("--enable", action="store_true", help="have all writers keep records from now on")
    switch.add_argument("--disable", action="store_true", help="no more; what is there stays")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw it")
    parser.add_argument("--last", type=int, metavar="N", help="only the N files that were written last")
    add_request_timeout(parser)


def _audit(arguments: Any) -> int:
    at = place(arguments)
    if arguments.enable or arguments.disable:
        return _set(arguments, at)
    if arguments.last is not None and arguments.last < 1:
        raise InvalidInput(f"--last {arguments.last} must be above zero")
    where = places(at.path)
    enabled = is_enabled(at.store, where.switch, timeout_s=arguments.timeout)
    files = read_files(at.store, where.folder, arguments.last, timeout_s=arguments.timeout)
    audit = analyse(files, Machine().now_ms())
    if arguments.svg is not None:
        arguments.svg.write_text(draw_audit(audit, str(at)), encoding="utf-8")
    said = {"url": at.url, "path": at.path, "enabled": enabled, **audit_fields(audit)}
    say(arguments, said, "\n".join(_report(at, audit, enabled=enabled)))
    return REFUSED if audit.wrong else DONE


def _set(arguments: Any, at: LockPlace) -> int:
    switch = places(at.path).switch
    set_enabled(at.store, switch, enabled=arguments.enable, timeout_s=arguments.timeout)
    words = "writers keep records from now on" if arguments.enable else "no more records; what is there stays"
    said = {"url": at.url, "path": at.path, "enabled": arguments.enable}
    say(arguments, said, f"{words} ({at.url.rstrip('/')}/{switch})")
    return DONE


def _report(at: LockPlace, audit: Audit, *, enabled: bool) -> list[str]:
    switch = "on" if enabled else "off: `--enable` has all writers keep records"
    head = [f"lock     {at}", f"audit    {switch}", f"records  {_totals(audit)}"]
    if not audit.tenures:
        return head
    names = f"{'from':<28}{'for':<13}{'owner':<37}{'how it ended':<32}renewed"
    return [*head, "", names, *_rows(audit), *_flags(audit)]


def _totals(audit: Audit) -> str:
    owners = count(len({tenure.owner for tenure in audit.tenures}), "owner")
    held_ms = sum(tenure.end_ms - tenure.start_ms for tenure in audit.tenures)
    free_ms = sum(to_ms - from_ms for from_ms, to_ms in audit.free)
    words = f"held {count(len(audit.tenures), 'time')} by {owners} for {span(held_ms)} together"
    return f"{words}, free for {span(free_ms)} between ({count(audit.files, 'file')})"


def _rows(audit: Audit) -> list[str]:
    free = {to_ms: to_ms - from_ms for from_ms, to_ms in audit.free}
    rows: list[str] = []
    for tenure in audit.tenures:
        if tenure.start_ms in free:
            rows.append(f"{'':<28}{span(free.pop(tenure.start_ms)):<13}free")
        rows.append(_row(tenure))
    return rows


def _row(tenure: Tenure) -> str:
    held = span(tenure.end_ms - tenure.start_ms)
    return f"{moment(tenure.start_ms):<28}{held:<13}{tenure.owner:<37}{_WORDS[tenure.how]:<32}{tenure.renewals}"


def _flags(audit: Audit) -> list[str]:
    return ["", *(f"{'WRONG' if flag.wrong else 'note':<6}{_sentence(flag)}" for flag in audit.flags)]


def _sentence(flag: Flag) -> str:
    since, for_how_long = moment(flag.from_ms), span(flag.to_ms - flag.from_ms)
    owners = " and ".join(flag.owners)
    match flag.kind:
        case "overlap":
            return f"overlap: {owners} both held it for {for_how_long} from {since}"
        case "clocks":
            return f"{owners} overlap by {for_how_long} at {since}: so much may be their clocks"
        case "early":
            first, second = flag.owners
            why = f"{for_how_long} before the lease of {first} had run out, which recorded no end"
            return f"{second} took it at {since}, {why}: broken, or a record is missing"
        case "lapse":
            return f"{owners} held on for {for_how_long} from {since} after its lease had run out"
        case "unended":
            return f"{owners}, holder from {since}, recorded no end: it was killed, or its last record is missing"
        case "unreadable":
            return f"{flag.file} has lines that are no audit record"
