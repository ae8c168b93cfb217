"""`lockprovider audit URL`: who held the lock when, by Hudi's audit records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fsspec_cas import InvalidInput, Machine
from fsspec_cas.command import DONE, REFUSED
from lockprovider.commands.place import Commands, add_command, add_request_timeout, place, say
from lockprovider.storage_lock.audit import Audit, Flag, How, Kind, Tenure, analyse, audit_fields, places
from lockprovider.storage_lock.audit_log import is_enabled, read_files, set_enabled
from lockprovider.storage_lock.lanes import INK, RED, Box, Lane, draw_lanes
from lockprovider.storage_lock.provider import LockPlace
from lockprovider.words import count, moment, span

_MORE = """It reads the records of all writers, JVM Hudi's too. They are written only while they are wanted, which
--enable and --disable say for all writers: one of ours learns it at an acquisition, a minute late at most; JVM Hudi
learns at an acquisition to begin, and at its next start to end. Times are the writers' own clocks, from before each
request was sent; overlaps of up to 500 ms may be clocks that differ. The exit code is 1 if two held the lock at once
for longer."""

_LOOKS: dict[How, tuple[str, str]] = {
    "released": ("#3b78c3", "released"),
    "lost": (RED, "lost before it was given back"),
    "lapsed": ("#f0a202", "no end recorded; lapsed"),
    "held": ("#2f9e6e", "held now"),
}
_SENTENCES: dict[Kind, str] = {
    "overlap": "overlap: {owners} both held it for {long} from {since}",
    "clocks": "{owners} overlap by {long} at {since}: so much may be their clocks",
    "early": "{last} took it at {since}, {long} before the lease of {first} had run out, which recorded no end: "
    "broken, or a record is missing",
    "lapse": "{owners} held on for {long} from {since} after its lease had run out",
    "unended": "{owners}, holder from {since}, recorded no end: it was killed, or its last record is missing",
    "unreadable": "{file} has lines that are no audit record",
}
_MOST_LANES = 40


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
    overlaps = sum(flag.wrong for flag in audit.flags)
    wrong = count(overlaps, "overlap") if overlaps else "no overlap"
    return f"{words}, free for {span(free_ms)} between ({count(audit.files, 'file')}); {wrong}"


def _rows(audit: Audit) -> list[str]:
    free = {to_ms: to_ms - from_ms for from_ms, to_ms in audit.free}
    rows: list[str] = []
    for tenure in audit.tenures:
        if tenure.start_ms in free:
            rows.append(f"{'':<28}{span(free.pop(tenure.start_ms)):<13}free")
        held, how = span(tenure.end_ms - tenure.start_ms), _LOOKS[tenure.how][1]
        rows.append(f"{moment(tenure.start_ms):<28}{held:<13}{tenure.owner:<37}{how:<32}{tenure.renewals}")
    return rows


def _flags(audit: Audit) -> list[str]:
    return ["", *(f"{'WRONG' if flag.wrong else 'note':<6}{_sentence(flag)}" for flag in audit.flags)]


def _sentence(flag: Flag) -> str:
    since, long, owners = moment(flag.from_ms), span(flag.to_ms - flag.from_ms), flag.owners or ("",)
    joined, first, last = " and ".join(owners), owners[0], owners[-1]
    return _SENTENCES[flag.kind].format(owners=joined, since=since, long=long, first=first, last=last, file=flag.file)


def draw_audit(audit: Audit, title: str) -> str:
    """The SVG: the lock on top, and below it a lane for each owner; beyond 40 owners the last lane is shared."""
    owners = list(dict.fromkeys(tenure.owner for tenure in audit.tenures))
    names = owners if len(owners) <= _MOST_LANES else [*owners[: _MOST_LANES - 1], "others"]
    of_owner: dict[str, list[Box]] = {name: [] for name in names}
    for tenure in audit.tenures:
        of_owner[tenure.owner if tenure.owner in of_owner else "others"].append(_tenure_box(tenure))
    held = [Box(tenure.start_ms, tenure.end_ms, INK) for tenure in audit.tenures]
    held += [Box(*gap, INK, f"free for {span(gap[1] - gap[0])} from {moment(gap[0])}", opacity=0) for gap in audit.free]
    stripes = [
        Box(flag.from_ms, flag.to_ms, RED, _sentence(flag), opacity=0.35 if flag.wrong else 0.12)
        for flag in audit.flags
        if flag.kind in ("overlap", "early", "lapse")
    ]
    legend = [Box(0, 0, colour, words) for colour, words in _LOOKS.values()]
    legend += [Box(0, 0, RED, "held by two at once", opacity=0.35)]
    legend += [Box(0, 0, RED, "taken early, or held on too long", opacity=0.12)]
    lanes = [Lane("the lock", held, colour=INK), *(Lane(name, boxes) for name, boxes in of_owner.items())]
    return draw_lanes(title, _totals(audit), lanes, legend=legend, stripes=stripes, is_wrong=audit.wrong)


def _tenure_box(tenure: Tenure) -> Box:
    colour, how = _LOOKS[tenure.how]
    words = f"{tenure.owner}: {span(tenure.end_ms - tenure.start_ms)} from {moment(tenure.start_ms)}"
    words += f", renewed {count(tenure.renewals, 'time')}, {how}"
    return Box(tenure.start_ms, tenure.end_ms, colour, words)
