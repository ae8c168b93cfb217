"""`lockprovider leader URL`: who leads an election."""

from __future__ import annotations

from typing import Any

from fsspec_cas.command import DONE, REFUSED, storage_options
from lockprovider.commands.place import Commands, add_object_command, say
from lockprovider.election import Election, Leader
from lockprovider.words import moment

_MORE = """Exit code 1: nobody leads. It only reads. Lapsed or not goes by the store's own clock, where it has one;
on a local disk one who died is shown as the leader, or, with --watch, until its validity has passed since the first
look. What came and went between two looks is not seen."""


def add(commands: Commands) -> None:
    """Register it."""
    what = "the election's object: s3://bucket/jobs/compactor.json"
    parser = add_object_command(commands, "leader", _leader, "Say who leads an election.", what, more=_MORE)
    parser.add_argument("--watch", action="store_true", help="print each change, until Ctrl-C")
    parser.add_argument("--every", type=float, default=1.0, metavar="S", help="seconds between looks (default: 1)")


def _leader(arguments: Any) -> int:
    election = Election.open(arguments.url, storage_options=storage_options(arguments), poll=arguments.every)
    if arguments.watch:
        for change in election.watch():
            what = type(change).__name__.lower()
            say(arguments, {"what": what, **_fields(change.leader)}, f"{what:<9} {_told(change.leader)}")
    leader = election.leader()
    say(arguments, _fields(leader), "nobody leads" if leader is None else _told(leader))
    return REFUSED if leader is None else DONE


def _fields(leader: Leader | None) -> dict[str, Any]:
    if leader is None:
        return {"name": None, "value": None, "epoch": None, "since_ms": None}
    return {"name": leader.name, "value": leader.value, "epoch": leader.epoch, "since_ms": leader.since_ms}


def _told(leader: Leader) -> str:
    value = "" if leader.value is None else f"  {leader.value}"
    return f"{leader.name}, in term {leader.epoch} since {moment(leader.since_ms)}{value}"
