"""Group commit with one part done wrong, each as somebody might do it; and the smallest worlds in which they stumble."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from lockprovider.storage_lock import commit_rules as group
from lockprovider.storage_lock.commit_rules import Intent
from lockprovider.storage_lock.record import LockRecord, Log, Pending, became
from model.group_commit import Budget, GroupCommit, Rules


class _Anything:
    """Lets everything pass."""

    def __init__(self, decider: Any) -> None:
        self.pending = decider.pending

    def refuse(self, intent: Intent, since: Any) -> None:
        pass


def _judges_nothing(
    log: Log, unapplied: tuple[Pending, ...], intents: Iterable[Intent], decider: Any, now_ms: int
) -> tuple[Pending, ...]:
    return group.choose(log, unapplied, intents, _Anything(decider), now_ms)


def _judges_each_by_the_log_alone(
    log: Log, unapplied: tuple[Pending, ...], intents: Iterable[Intent], decider: Any, now_ms: int
) -> tuple[Pending, ...]:
    fit = [one for one in intents if group.choose(log, unapplied, [one], decider, now_ms)]
    return group.choose(log, unapplied, fit, _Anything(decider), now_ms)


def _forgets_who_has_begun(log: Log | None, intent: Intent, decider: Any) -> group._Verdict:
    """By entries since its place alone: whether it is one of them is not asked."""
    came = group.verdict(log, intent, decider)
    return group.Undecided() if isinstance(came, group.Decided) else came


def _chooses_what_is_decided(
    log: Log, unapplied: tuple[Pending, ...], intents: Iterable[Intent], decider: Any, now_ms: int
) -> tuple[Pending, ...]:
    chosen: list[Pending] = []
    for intent in intents:
        pending = decider.pending(intent, log, now_ms)
        if isinstance(_forgets_who_has_begun(log, intent, decider), group.Undecided):
            chosen.append(pending)
            log = log.plus(pending)
    return tuple(chosen)


def _any_place(log: Log | None, intent: Intent, decider: Any) -> group._Verdict:
    """What the log does not go back to is taken for nothing."""
    if log is not None and not log.first <= intent.position:
        intent = replace(intent, position=log.first)
    return group.verdict(log, intent, decider)


def _chooses_from_any_place(
    log: Log, unapplied: tuple[Pending, ...], intents: Iterable[Intent], decider: Any, now_ms: int
) -> tuple[Pending, ...]:
    moved = [replace(intent, position=max(intent.position, log.first)) for intent in intents]
    return group.choose(log, unapplied, moved, decider, now_ms)


def _chooses_from_any_log(
    log: Log, unapplied: tuple[Pending, ...], intents: Iterable[Intent], decider: Any, now_ms: int
) -> tuple[Pending, ...]:
    moved = [replace(one, log=log.name, position=one.position if one.log == log.name else log.first) for one in intents]
    return group.choose(log, unapplied, moved, decider, now_ms)


def _knows_less(log: Log | None, intent: Intent, decider: Any) -> group._Verdict:
    """It cannot compare its intent with an entry, and others can."""
    came = group.verdict(log, intent, decider)
    since = () if log is None or isinstance(came, group.Void) else log.since(intent.position)
    return group.Void() if isinstance(came, group.Undecided) and since else came


def _forgets_what_is_not_there(*args: Any, **more: Any) -> LockRecord:
    return replace(group.combine(*args, **more), pending_before=())


def _over_unless_there(*args: Any) -> str:
    """What has not landed by now never will."""
    came = became(*args)
    return "over" if came == "open" else came


def _goes_on_combining(record: LockRecord, mine: group.Situation, *given: Any) -> group.Act:
    """Whoever is on duty does not look whether somebody holds the lock."""
    return group.Combine() if mine.leads else group.next_act(record, mine, *given)


PAIR = GroupCommit()
MEETING = GroupCommit("xx")
THREE = GroupCommit("xyy")
LATE = GroupCommit(budget=Budget(late=1))
DOUBLED = GroupCommit(budget=Budget(doubled=1))
ROLLED_BACK = GroupCommit(budget=Budget(holders=1, ends=1))
ROLLED_BACK_ABANDONED = GroupCommit(budget=Budget(holders=1, ends=1), abandoned=True)
WITHDRAWN = GroupCommit(budget=Budget(withdrawals=1))
WITHDRAWN_DOUBLED = GroupCommit(budget=Budget(withdrawals=1, doubled=1))
WITHDRAWN_LATE = GroupCommit(budget=Budget(withdrawals=1, late=1))
WITHDRAWN_ENDED = GroupCommit(budget=Budget(withdrawals=1, holders=1, ends=1))
SENT_TWICE = GroupCommit(budget=Budget(twice=1))
SHORT = GroupCommit("xyx", short=True)
SHORT_DOUBLED = GroupCommit("xy", budget=Budget(doubled=1), short=True)
GUEST = GroupCommit(budget=Budget(guests=1))
SEEN_BESIDE = GroupCommit(budget=Budget(looks=1))
HELD_BESIDE = GroupCommit(budget=Budget(holders=1, looks=1))

TWINS: dict[str, tuple[str, GroupCommit, Rules]] = {
    "a batch is not judged within itself": ("meet", THREE, Rules(choose=_judges_each_by_the_log_alone)),
    "nothing is judged": ("meet", MEETING, Rules(choose=_judges_nothing)),
    "it lists before it reads the record": ("never", WITHDRAWN, Rules(lists_first=True)),
    "it withdraws and leaves the intent": ("never", WITHDRAWN, Rules(withdraws="nothing")),
    "it withdraws by deletion": ("never", WITHDRAWN_DOUBLED, Rules(withdraws="deletion")),
    "it withdraws and the record stays": ("never", WITHDRAWN, Rules(moves_on=False)),
    "it withdraws while its own write is on the way": ("never", WITHDRAWN_LATE, Rules(moves_on=False)),
    "what was asked for in a log that has ended never was": ("never", WITHDRAWN_ENDED, Rules(ended_is_never=True)),
    "what is in the log is decided again": ("once", PAIR, Rules(choose=_chooses_what_is_decided)),
    "an intent is good for any place": (
        "meet",
        SHORT,
        Rules(choose=_chooses_from_any_place, verdict=_any_place),
    ),
    "an intent is good for any log": (
        "never",
        ROLLED_BACK_ABANDONED,
        Rules(choose=_chooses_from_any_log, any_log=True),
    ),
    "a write has no version": ("keep", PAIR, Rules(any_version=True)),
    "the record parts from its version": ("keep", SEEN_BESIDE, Rules(parted=True)),
    "who combines forgets what is not there yet": ("keep", PAIR, Rules(combine=_forgets_what_is_not_there)),
    "a holder forgets what is not there yet": ("keep", ROLLED_BACK, Rules(holder_applies=False)),
    "what may have been decided is taken back without the lock": (
        "never",
        WITHDRAWN,
        Rules(takes_back=("denied", "unknown")),
    ),
    "it is told before it is there": ("told", PAIR, Rules(told_early=True)),
    "it is applied after the time": ("time", GUEST, Rules(in_time=False)),
    "the last is applied first": ("order", PAIR, Rules(in_order=False)),
    "one on duty writes over a lock that is held": ("held", HELD_BESIDE, Rules(next_act=_goes_on_combining)),
    "a refused write never lands": ("never", SENT_TWICE, Rules(refused_is_never=True)),
    "a write that may land yet is over": ("never", WITHDRAWN_LATE, Rules(became=_over_unless_there)),
    "its writer knows less than others who judge it": ("never", WITHDRAWN, Rules(verdict=_knows_less)),
    "what left the front of the log is decided again": ("once", SHORT, Rules(looks_for_own=False)),
}
