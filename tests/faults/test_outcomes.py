"""Every fault, on every operation, on every server, sync and async: what is reported is what the server really holds.

The expectation is not written by hand for each case: `expected` says it in the words of the theory. A fault either
leaves doubt (the request may have arrived) or it does not, and the condition was either true or false.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from patience import soon
from servers.over_obstore import OverObstore

from faults import actions as do
from faults.actions import Action, Ending
from faults.conftest import SERVERS, Bench, conditions, identity, is_look, is_write
from fsspec_cas import ABSENT, Lost, Unknown, Version, Won

PATIENCE_S = 15.0
HANG_S = 0.6
MINE = b"mine, and never written before"

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture(params=(*SERVERS, "over_obstore"))
def bench(request: pytest.FixtureRequest, benches: Callable[[str], Bench]) -> Bench:
    """Also by way of the other client of S3."""
    return benches(request.param)


@dataclass(frozen=True)
class Fault:
    """`arrives`: how often the server sees the first send. `doubt`: the client cannot know whether it did."""

    action: Action
    arrives: int
    doubt: bool
    late: bool = False
    hangs: bool = False


FAULTS = {
    "after: dropped": Fault(do.lose_answer(), 1, doubt=True),
    "after: reset": Fault(do.lose_answer(Ending.RESET), 1, doubt=True),
    "after: 500": Fault(do.replace_answer(500), 1, doubt=True),
    "after: 503": Fault(do.replace_answer(503, "ServerBusy"), 1, doubt=True),
    "after: hangs": Fault(do.lose_answer(Ending.HANG), 1, doubt=True, hangs=True),
    "before: 409": Fault(do.conflict(), 0, doubt=False),
    "before: 429": Fault(do.too_many(1), 0, doubt=False),
    "before: 503": Fault(do.slow_down(), 0, doubt=True),
    "before: reset": Fault(do.never_deliver(), 0, doubt=True),
    "before: hangs": Fault(do.never_deliver(Ending.HANG), 0, doubt=True, hangs=True),
    "twice": Fault(do.deliver_twice(), 2, doubt=False),
    "late": Fault(do.deliver_late(), 1, doubt=True, late=True),
}
# The write where its condition is true ...
TRUE = ("create", "match")
# ... and where it is false; `once` is a create on a path that nobody ever overwrites.
FALSE = ("create taken", "once taken", "match stale", "match gone")
# What only takes time is not repeated for every way in which a condition can be false.
SLOW = ("after: hangs", "before: hangs", "before: 429")
CASES = [(f, o) for f in FAULTS for o in (*TRUE, *FALSE) if f not in SLOW or o in (*TRUE, "match stale")]


def expected(operation: str, fault: Fault, *, gives_up_early: bool) -> type | tuple[type, ...]:
    if fault.hangs and fault.arrives and gives_up_early and operation in TRUE:
        return (Unknown, Won)  # there may be time for a look
    if fault.hangs:
        return Unknown  # the time was up before anybody could look
    if operation in TRUE:
        return Won
    if fault.doubt and operation != "once taken":
        return Unknown  # mine may have been there before what a look shows
    return Lost


def prepare(bench: Bench, operation: str) -> Version | None:
    """Make the condition true or false, past the proxy; the version to match."""
    if operation == "create":
        return None
    if operation in ("create taken", "once taken"):
        bench.rival_writes()
        return None
    version = bench.rival_writes(b"first")
    if operation == "match stale":
        bench.rival_writes()
    if operation == "match gone":
        bench.server.raw_delete(bench.path)
    return version


@pytest.mark.parametrize(("name", "operation"), CASES)
async def test_reported_outcome_is_what_the_server_holds(bench: Bench, store, name: str, operation: str):
    fault, version = FAULTS[name], prepare(bench, operation)
    before = bench.truth()
    action = fault.action
    if name == "before: 409" and bench.server.protocol == "az":
        action = do.refuse(409, "ContainerBeingCreated")  # Azure has no "conflict"; its passing 409s are about this
    rule = bench.proxy.rule(match=is_write, action=action, until=is_look if fault.late else None)
    timeout = HANG_S if fault.hangs else PATIENCE_S

    if version is None:
        once = operation == "once taken"
        outcome = await store.put_if_absent(bench.key, MINE, create_once=once, timeout=timeout)
    else:
        outcome = await store.put_if_match(bench.key, MINE, version, timeout=timeout)

    assert rule.fired == 1
    await soon(lambda: len(rule.answers) >= fault.arrives)  # the server may answer after the client's timeout
    assert len(rule.answers) == fault.arrives
    assert not rule.kept
    gives_up_early = isinstance(bench.server, OverObstore)
    assert isinstance(outcome, expected(operation, fault, gives_up_early=gives_up_early)), outcome
    assert says_the_truth(bench, outcome, before, operation, fault)
    assert sends_the_same_each_time(bench)
    if isinstance(outcome, Unknown) and operation in TRUE:
        assert bench.won(await store.resolve(outcome, timeout=PATIENCE_S), MINE)


def says_the_truth(bench: Bench, outcome, before, operation: str, fault: Fault) -> bool:
    """Against what the server holds, read by raw HTTP."""
    if isinstance(outcome, Won):
        return bench.won(outcome, MINE)
    if operation in TRUE:
        return bench.applied() == fault.arrives
    assert bench.truth() == before
    if isinstance(outcome, Lost):
        assert outcome.current == (ABSENT if before[1] is None else Version(bench.store.kind, before[1]))
    return bench.applied() == 0


def sends_the_same_each_time(bench: Bench) -> bool:
    """No send drops or changes the condition, the identity or the bytes."""
    sent = {(tuple(conditions(request).items()), identity(request), MINE in request.body) for request in bench.asked}
    ((condition, who, mine),) = sent
    return bool(condition) and bool(who) and mine
