"""The lease machine's table and the machine: each does what the other says, by enumeration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

from transitions import TABLE, each, kind

from fsspec_cas import Version
from lockprovider import LockRecord, LockSettings, Log, Pending
from lockprovider.storage_lock import machine
from lockprovider.storage_lock.machine import (
    AppliedPending,
    Checking,
    Commit,
    Done,
    Event,
    Idle,
    Look,
    LostRace,
    PutFailed,
    PutWon,
    RecordSeen,
    Release,
    Renew,
    State,
    Step,
    TakeLock,
    Tick,
    Writing,
)
from lockprovider.storage_lock.record import Me, Moment

ME = Me("me", LockSettings(validity=100, renew=10), waiter_name="mine")
NOW_MS = 1_000_000
V1, V2 = Version("test", "1"), Version("test", "2")
OLD, NEW = (Pending(f"state/{n}", "", f"d{n}", data=b"", unshared=True) for n in (1, 2))
LOG = Log("log").plus(OLD)
HELD = LockRecord("other", NOW_MS + 60_000, expired=False, epoch=41, nonce="x")
GIVEN = replace(HELD, expired=True)
RECORDS = (
    None,
    HELD,
    GIVEN,
    replace(HELD, owner="me"),
    replace(HELD, released_pending=True, pending=OLD, log=LOG),
    replace(GIVEN, waiters=("others",)),
    replace(GIVEN, waiters=("others",), log=LOG),
    replace(GIVEN, log=LOG),
    replace(GIVEN, log=LOG.plus(NEW)),
)
MINE = replace(HELD, owner="me", expired=True)
BEGINNINGS = (Idle(), Idle((MINE, V1)), Idle((replace(MINE, expired=False, released_pending=True, pending=OLD), V1)))
DEPTH = 6  # steps from there; more find nothing more
Rows = frozenset[tuple[str, str, str, str]]


def events(state: State, nonce: str) -> Iterator[Event]:
    """Every event, with every record that can matter to the state; some of them past its deadline too."""
    at, late = Moment(NOW_MS, 50.0, nonce), Moment(2 * NOW_MS, 1050.0, nonce)
    for record in (*RECORDS, *_nearby(state)):
        for seen in (RecordSeen(record, record and version, at) for version in (V1, V2)):
            yield from (seen, TakeLock(seen), TakeLock(seen, ("others",), keeps_log=True))
    yield from (Renew(at), Commit(NEW, at), Release(at), Tick(at.monotonic_s))
    yield from (PutWon(V1), PutWon(V2), PutFailed(), LostRace(), AppliedPending(), AppliedPending(set_aside=True))
    yield from (Look(), Renew(late), Tick(late.monotonic_s))


def _nearby(state: State) -> Iterator[LockRecord]:
    """What was sent and what was there before, as they are, and as other writes of the client may have left them."""
    if isinstance(state, Checking):
        before = (state.write.before.record,) if state.write.before else ()
        for record in (state.write.record, *before):
            older = replace(record, nonce="older")
            yield from (record, older, replace(older, pending=OLD), replace(older, expired=True))


def rows_of(step: Callable[[Me, State, Event], Step]) -> Rows:
    """Every kind of step that is found from the beginning on, but for the ticks that change nothing."""
    edge: list[State] = [*BEGINNINGS]
    rows, seen = set(), set(edge)
    for depth in range(DEPTH):
        edge, tries = [], [(before, event) for before in edge for event in events(before, str(depth))]
        for before, event in tries:
            try:
                after, effect = step(ME, before, event)
            except ValueError:
                continue
            if not (isinstance(event, Tick) and (after, effect) == (before, None)):
                rows.add((kind(before), kind(event), kind(after), kind(effect)))
            if after not in seen:
                seen.add(after)
                edge.append(after)
    return frozenset(rows)


@cache
def of_the_machine() -> Rows:
    return rows_of(machine.step)


def of_the_table() -> Rows:
    return frozenset(single for row in TABLE for single in each(row))


def test_machine_does_exactly_what_the_table_says() -> None:
    assert of_the_machine() - of_the_table() == set(), "not in the table"
    assert of_the_table() - of_the_machine() == set(), "never done"


def test_mutant_of_the_machine_is_caught() -> None:
    def twin(me: Me, state: State, event: Event) -> Step:
        if isinstance(state, Writing) and state.purpose == "release" and isinstance(event, PutFailed):
            return Idle(), Done("released")
        return machine.step(me, state, event)

    assert rows_of(twin) != of_the_table()
