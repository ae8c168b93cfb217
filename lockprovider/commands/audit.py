"""`lockprovider audit URL`: who held the lock when, by Hudi's audit records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fsspec_cas import InvalidInput, Machine
from fsspec_cas.command import DONE, REFUSED
from lockprovider.commands.place import Commands, add_command, add_request_timeout, place, say
from lockprovider.storage_lock.audit import Audit, How, Overlap, analyse, places
from lockprovider.storage_lock.audit_log import is_enabled, read_files, set_enabled
from lockprovider.storage_lock.lanes import RED, Box, Lane, draw_lanes
from lockprovider.storage_lock.provider import LockPlace
from lockprovider.words import count, moment, span

_MORE = """It reads the records of all writers, JVM Hudi's too. They are written only while they are wanted, which
--enable and --disable say for all writers: one of ours learns it at an acquisition, a minute late at most; JVM Hudi
learns at an acquisition to begin, and at its next start to end. Times are the writers' own clocks, from before each
request was sent; overlaps of up to 500 ms may be clocks that differ. The exit code is 1 if two held the lock at once
for longer."""

_LOOKS: dict[How, tuple[str, str]] = {
    "released": ("#3b78c3", "released"),
    "lost": ("#8a5cc2", "lost before it was given back"),
    "lapsed": ("#f0a202", "no end recorded; lapsed"),
    "held": ("#2f9e6e", "held now"),
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
    said = {"url": at.url, "path": at.path, "enabled": enabled, "wrong": bool(audit.overlaps), **asdict(audit)}
    for tenure in said["tenures"]:
        tenure["held_ms"] = tenure["end_ms"] - tenure["start_ms"]
    say(arguments, said, "\n".join(_report(at, audit, enabled=enabled)))
    return REFUSED if audit.overlaps else DONE


def _set(arguments: Any, at: LockPlace) -> int:
    switch = places(at.path).switch
    set_enabled(at.store, switch, enabled=arguments.enable, timeout_s=arguments.timeout)
    words = "writers keep records from now on" if arguments.enable else "no more records; what is there stays"
    said = {"url": at.url, "path": at.path, "enabled": arguments.enable}
    say(arguments, said, f"{words} ({at.url.rstrip('/')}/{switch})")
    return DONE


def _report(at: LockPlace, audit: Audit, *, enabled: bool) -> Iterator[str]:
    switch = "on" if enabled else "off: `--enable` has all writers keep records"
    yield from (f"lock     {at}", f"audit    {switch}", f"records  {_totals(audit)}")
    if audit.tenures:
        yield f"\n{'from':<28}{'for':<13}{'owner':<37}{'how it ended':<32}renewed"
    for tenure in audit.tenures:
        held, how = span(tenure.end_ms - tenure.start_ms), _LOOKS[tenure.how][1]
        yield f"{moment(tenure.start_ms):<28}{held:<13}{tenure.owner:<37}{how:<32}{tenure.renewals}"
    yield from (f"WRONG {_sentence(overlap)}" for overlap in audit.overlaps)
    yield from (f"note  {file} has lines that are no audit record" for file in audit.unreadable)


def _totals(audit: Audit) -> str:
    owners = count(len({tenure.owner for tenure in audit.tenures}), "owner")
    held_ms = sum(tenure.end_ms - tenure.start_ms for tenure in audit.tenures)
    words = f"held {count(len(audit.tenures), 'time')} by {owners} for {span(held_ms)} together"
    wrong = count(len(audit.overlaps), "overlap") if audit.overlaps else "no overlap"
    return f"{words} ({count(audit.files, 'file')}); {wrong}"


def _sentence(overlap: Overlap) -> str:
    long = span(overlap.to_ms - overlap.from_ms)
    return f"overlap: {' and '.join(overlap.owners)} both held it for {long} from {moment(overlap.from_ms)}"


def draw_audit(audit: Audit, title: str) -> str:
    """The SVG: a lane for each owner; beyond 40 owners the last lane is shared."""
    owners = list(dict.fromkeys(tenure.owner for tenure in audit.tenures))
    names = owners if len(owners) <= _MOST_LANES else [*owners[: _MOST_LANES - 1], "others"]
    of_owner: dict[str, list[Box]] = {name: [] for name in names}
    for tenure in audit.tenures:
        colour, how = _LOOKS[tenure.how]
        words = f"{tenure.owner}: {span(tenure.end_ms - tenure.start_ms)} from {moment(tenure.start_ms)}, {how}"
        lane = of_owner[tenure.owner if tenure.owner in of_owner else "others"]
        lane.append(Box(tenure.start_ms, tenure.end_ms, colour, words))
    stripes = [Box(one.from_ms, one.to_ms, RED, _sentence(one), opacity=0.35) for one in audit.overlaps]
    legend = [Box(0, 0, colour, words) for colour, words in _LOOKS.values()]
    legend.append(Box(0, 0, RED, "held by two at once", opacity=0.35))
    lanes = [Lane(name, boxes) for name, boxes in of_owner.items()]
    return draw_lanes(title, _totals(audit), lanes, legend=legend, stripes=stripes, is_wrong=bool(audit.overlaps))
