"""Commands `elect` and `leader`."""

from __future__ import annotations

import argparse
import threading
from functools import partial
from typing import Any

from fsspec_cas import Unavailable
from fsspec_cas.command import REFUSED, complain, storage_options
from lockprovider.commands.arguments import (
    READS,
    RUNS,
    Commands,
    add_command,
    exit_codes,
    flag,
    json_argument,
    option,
    pause,
    say,
    seconds,
    wait,
)
from lockprovider.commands.running import (
    NOT_ACQUIRED,
    SIGNALLED,
    CommandOrder,
    CommandResult,
    add_grace,
    codes,
    command_of,
    passed_signals,
    reported,
)
from lockprovider.election import Election, Leader, NotElected
from lockprovider.recipes.election.election import VALIDITY_S
from lockprovider.words import moment

_URL = "the election's object: s3://bucket/jobs/compactor.json"


_ELECT_CODES = codes(
    "its election",
    "not elected: others led for --timeout seconds; the command was not started",
    "lost, with --once: the term was lost before the command ended by itself; the command was ended",
)
_ELECT_MORE = """The command gets the terminal, the signals TERM, INT, HUP, QUIT, USR1 and USR2, and the variable
LOCKPROVIDER_EPOCH: a number that rises with every term, for use as a fencing token.

When the term is lost, the command gets TERM, and KILL after --grace seconds. By default that is the margin by which
this candidate stops before another may lead. Then the candidate stands again, and starts the command anew in its next
term; with --once it exits instead. When the command ends by itself, this program resigns the term and exits with the
command's exit code. If this program is killed, the command is ended, and the term lapses.

Not promised: that no other process leads while this process or its machine is paused beyond the validity."""


_TEXT_HINT = """: write text as '"text"'"""


def add_elect(commands: Commands) -> None:
    """Register `elect`."""
    text = "Run a command while this process leads an election, anew in each of its terms."
    command = partial(reported, work=_run_elected)
    elect = add_command(commands, "elect", command, text, _URL, codes=_ELECT_CODES, more=_ELECT_MORE, usage=RUNS)
    option(elect, "--name", "NAME", "this candidate's name (default: host and process)")
    option(elect, "--value", "JSON", "a value to publish while this candidate leads")
    option(elect, "--timeout", wait, "seconds to wait to be elected (default: for ever)")
    option(elect, "--validity", seconds, "seconds that a term lasts without renewal (default: 30)", VALIDITY_S)
    add_grace(elect)
    flag(elect, "--once", "exit when the term is lost instead of standing again")


def _run_elected(arguments: argparse.Namespace, result: CommandResult) -> CommandResult:
    """Lead, run the command, and resign, anew after each lost term; return a new result.

    Ends with the command, after `--timeout` ("not_elected"), or with a lost term: "lost" with `--once`, "interrupted"
    if a signal asked for the end. A signal during the wait raises `Stopped`.
    """
    words = command_of(arguments, "elect")
    election = Election.open(
        arguments.url,
        storage_options=storage_options(arguments),
        name=arguments.name,
        value=None if arguments.value is None else json_argument(arguments.value, "--value", _TEXT_HINT),
        validity=arguments.validity,
    )
    news = threading.Event()
    with passed_signals() as signals, election:
        grace_s = election.settings.margin_s if arguments.grace is None else arguments.grace
        order = CommandOrder(words, signals, grace_s, news)
        try:
            election.leader()  # raises for a wrong place
        except Unavailable as error:
            complain("lockprovider", f"{error}; retrying")
        while True:
            try:
                term = election.lead(arguments.timeout)
            except NotElected as refusal:
                return CommandResult("not_elected", NOT_ACQUIRED, f"not elected: {refusal}")
            signals.asked_to_end = 0
            term.when_lost(news.set)
            result = order.run_under(term, term.resign, CommandResult("failed", result.code))
            if result.outcome != "lost" or arguments.once:
                return result
            if signals.asked_to_end:
                result.outcome, result.code = "interrupted", SIGNALLED + signals.asked_to_end
                return result
            complain("lockprovider", f"{result.why}; standing again")


_LEADER_MORE = """The command only reads. The store's clock decides whether a
term has lapsed. A local disk has no such clock: there a dead leader is still shown; with --watch, until its validity
has passed since the first read. A change that is undone between two reads is not shown."""


def add_leader(commands: Commands) -> None:
    text, ends = "Show the leader of an election.", exit_codes("no process leads", **READS)
    leader = add_command(commands, "leader", _leader, text, _URL, codes=ends, more=_LEADER_MORE)
    flag(leader, "--watch", "print each change until Ctrl-C")
    option(leader, "--every", pause, "seconds between reads (default: 1)", 1.0)


def _leader(arguments: Any) -> int | None:
    """Print the leader; return None, or REFUSED without one.

    With `--watch`, print each change without end.
    """
    election = Election.open(arguments.url, storage_options=storage_options(arguments), poll=arguments.every)
    if arguments.watch:
        for change in election.watch():
            kind = type(change).__name__.lower()
            say(arguments, {"what": kind, **_fields(change.leader)}, f"{kind:<9} {_leader_text(change.leader)}")
    leader = election.leader()
    say(arguments, _fields(leader), "no leader" if leader is None else _leader_text(leader))
    return REFUSED if leader is None else None


def _fields(leader: Leader | None) -> dict[str, Any]:
    return {name: getattr(leader, name, None) for name in ("name", "value", "epoch", "since_ms")}


def _leader_text(leader: Leader) -> str:
    value = "" if leader.value is None else f"  {leader.value}"
    return f"{leader.name}, in term {leader.epoch} since {moment(leader.since_ms)}{value}"
