"""`lockprovider elect URL -- COMMAND`: a command that runs while this candidate leads, again in each of its terms."""

from __future__ import annotations

import argparse
import json
import math
import threading
from typing import Any

from fsspec_cas import InvalidInput, Unavailable
from fsspec_cas.command import complain, storage_options
from lockprovider.commands.place import Commands, add_object_command
from lockprovider.commands.running import (
    NOT_ACQUIRED,
    SIGNALLED,
    CommandOrder,
    CommandResult,
    codes,
    form,
    passed_signals,
    reported,
)
from lockprovider.election import Election, NotElected
from lockprovider.recipes.election.election import VALIDITY_S

_CODES = codes(
    "not elected: others led for --timeout seconds; the command was not started",
    "lost, with --once: the term was lost before the command ended by itself; the command was ended",
    "its election",
)
_MORE = """The command gets the terminal, the signals (TERM, INT, HUP, QUIT, USR1, USR2) and LOCKPROVIDER_EPOCH: a
number that rises with every term, a fencing token for what can check one. When the term is lost it gets TERM, and KILL
after --grace seconds; the default is the margin by which this candidate gives up before others may lead. Then it stands
again, and the command is started anew in its next term; --once ends instead. When the command ends by itself, the term
is resigned, and its code is ours. If this process is killed, the command is ended, and the term lapses.

Not promised: that nobody else leads while this process is stopped, or its machine frozen, beyond the validity."""


def add(commands: Commands) -> None:
    """Register it."""
    text = "Run a command while leading an election, again in each term."
    parser = add_object_command(
        commands,
        "elect",
        _elect,
        text,
        "the election's object: s3://bucket/jobs/compactor.json",
        codes=_CODES,
        more=_MORE,
    )
    parser.usage = "lockprovider elect URL [options] -- COMMAND [ARGUMENT ...]"
    parser.add_argument("--name", metavar="NAME", help="what others call this candidate (default: host and process)")
    parser.add_argument("--value", metavar="JSON", help="what it tells of itself while it leads")
    parser.add_argument("--timeout", type=float, metavar="S", help="wait so long to be elected (default: for ever)")
    parser.add_argument(
        "--validity", type=float, default=VALIDITY_S, metavar="S", help="a term's life without renewal (default: 30)"
    )
    parser.add_argument("--grace", type=float, metavar="S", help="seconds between TERM and KILL (default: the margin)")
    parser.add_argument("--once", action="store_true", help="do not stand again when the term is lost")


def _elect(arguments: argparse.Namespace) -> int:
    return reported(arguments, _elected)


def _elected(arguments: argparse.Namespace, said: CommandResult) -> CommandResult:
    if not arguments.words or not arguments.words[0]:
        raise InvalidInput(f"no command; {form('elect')}")
    if arguments.grace is not None and not 0 <= arguments.grace < math.inf:
        raise InvalidInput(f"--grace {arguments.grace:g} must be a number of seconds, 0 or more")
    election = Election.open(
        arguments.url,
        storage_options=storage_options(arguments),
        name=arguments.name,
        value=_value(arguments.value),
        validity=arguments.validity,
    )
    news = threading.Event()
    with passed_signals() as signals, election:
        grace_s = election.settings.margin_s if arguments.grace is None else arguments.grace
        order = CommandOrder(arguments.words, grace_s, news, signals)
        try:
            election.leader()  # what is wrong with the place is said before anybody waits
        except Unavailable as error:
            complain("lockprovider", f"{error}; trying on")
        while True:
            try:
                term = election.lead(arguments.timeout)
            except NotElected as refusal:
                return CommandResult("not_elected", NOT_ACQUIRED, f"not elected: {refusal}")
            signals.asked_to_end = 0
            term.when_lost(news.set)
            said = order.run_under(term, term.resign, CommandResult("failed", said.code))
            if said.outcome != "lost" or arguments.once:
                return said
            if signals.asked_to_end:
                said.outcome, said.code = "interrupted", SIGNALLED + signals.asked_to_end
                return said
            complain("lockprovider", f"{said.why}; standing again")


def _value(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidInput(f"--value {text!r} is no JSON ({error}): write text as '\"text\"'") from error
