"""The checker against histories made by hand, made at random, and against an oracle that tries every order."""

from __future__ import annotations

import itertools
import random
import time
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from linearize.brute import is_linearizable
from linearize.checker import check
from linearize.history import Kind, Malformed, Op, Result

OK, LOST, UNKNOWN = Result.OK, Result.LOST, Result.UNKNOWN


def create(write, called, returned, result=OK, seen=None) -> Op:
    return Op(Kind.CREATE, result, called, returned, write=write, seen=seen)


def match(expected, write, called, returned, result=OK, *, seen=None) -> Op:
    return Op(Kind.MATCH, result, called, returned, write=write, expected=expected, seen=seen)


def delete(expected, called, returned, result=OK, seen=None) -> Op:
    return Op(Kind.DELETE, result, called, returned, expected=expected, seen=seen)


def read(seen, called, returned) -> Op:
    return Op(Kind.READ, OK, called, returned, seen=seen)


GOOD = {
    "nothing happened": [],
    "one after the other": [create("a", 1, 2), match("a", "b", 3, 4), read("b", 5, 6), delete("b", 7, 8)],
    "a read during a write sees the old": [create("a", 1, 2), match("a", "b", 3, 9), read("a", 4, 5)],
    "a read during a write sees the new": [create("a", 1, 2), match("a", "b", 3, 9), read("b", 4, 5)],
    "old, then new, during one write": [
        *(create("a", 1, 2), match("a", "b", 3, 9)),
        *(read("a", 4, 5), read("b", 6, 7)),
    ],
    "a loser sees the winner": [create("a", 1, 5), create("b", 2, 6, LOST, seen="a")],
    "a loser saw it first": [create("a", 1, 9), create("b", 2, 3, LOST, seen="a")],
    "unknown and never seen": [create("a", 1, 2, UNKNOWN), create("b", 3, 4)],
    "unknown and seen much later": [create("a", 1, 2, UNKNOWN), read(None, 3, 4), read("a", 5, 6)],
    "unknown and replaced": [create("a", 1, 2, UNKNOWN), read("a", 3, 4), match("a", "b", 5, 6)],
    "an unknown delete that was": [create("a", 1, 2), delete("a", 3, 4, UNKNOWN), create("b", 5, 6)],
    "an unknown delete that was not": [create("a", 1, 2), delete("a", 3, 4, UNKNOWN), match("a", "b", 5, 6)],
    "two lives": [create("a", 1, 2), delete("a", 3, 4), read(None, 5, 6), create("b", 7, 8), read("b", 9, 10)],
    "a delete loses to nothing": [create("a", 1, 2), delete("a", 3, 9), delete("a", 4, 8, LOST, seen=None)],
    "at the same moment is at once": [create("a", 1, 2), match("a", "b", 2, 3), read("a", 3, 4)],
}
BAD = {
    "two creates won": [create("a", 1, 2), create("b", 3, 4)],
    "two creates won at once": [create("a", 1, 5), create("b", 2, 6)],
    "an update was lost": [create("a", 1, 2), match("a", "b", 3, 6), match("a", "c", 4, 7)],
    "a read went back": [create("a", 1, 2), match("a", "b", 3, 9), read("b", 4, 5), read("a", 6, 7)],
    "a stale read": [create("a", 1, 2), match("a", "b", 3, 4), read("a", 5, 6)],
    "a read before the write": [read("a", 1, 2), create("a", 3, 4)],
    "absent after it was there": [create("a", 1, 2), read(None, 3, 4)],
    "absent in the middle": [create("a", 1, 2), read(None, 3, 4), match("a", "b", 5, 6)],
    "lost, and seen": [create("a", 1, 2, LOST, seen="b"), create("b", 1, 2), read("a", 3, 4)],
    "lost to nobody": [create("a", 1, 2, LOST, seen="b")],
    "lost to one who came later": [create("a", 1, 2, LOST, seen="b"), create("b", 3, 4)],
    "seen, and never written": [read("x", 1, 2)],
    "won after it was replaced": [create("a", 1, 2), match("a", "b", 3, 4), match("a", "c", 5, 6)],
    "a delete that did nothing": [create("a", 1, 2), delete("a", 3, 4), read("a", 5, 6)],
    "deleted and updated": [create("a", 1, 2), delete("a", 3, 9), match("a", "b", 3, 9)],
    "created before the delete": [create("a", 1, 2), create("b", 3, 4), delete("a", 5, 6)],
    "a life inside another": [create("a", 1, 2), create("b", 3, 4), delete("b", 5, 6), delete("a", 7, 8)],
    "an unknown delete came too late": [create("a", 1, 2), create("b", 3, 4), delete("a", 5, 6, UNKNOWN)],
    "a circle": [read("b", 1, 2), match("b", "a", 3, 9), read("a", 4, 5), match("a", "b", 6, 9)],
    "applied twice": [create("a", 1, 9), read("a", 2, 3), delete("a", 4, 5), read("a", 6, 7)],
}


@pytest.mark.parametrize("name", GOOD)
def test_good_history_passes(name: str):
    assert check(GOOD[name]) is None
    assert is_linearizable(GOOD[name])


@pytest.mark.parametrize("name", BAD)
def test_bad_history_is_named(name: str):
    violation = check(BAD[name])
    assert violation
    assert violation.why
    assert not is_linearizable(BAD[name])


@pytest.mark.parametrize(
    "history",
    [
        [create("a", 1, 2), create("a", 3, 4)],
        [match("a", "b", 1, 2)],
        [create("a", 1, 5), match("a", "b", 2, 3)],
        [create("a", 1, 2, UNKNOWN), match("a", "b", 3, 4)],
        [create("a", 2, 1)],
        [create("a", 1, 2), match("a", "b", 3, 4, LOST, seen="a")],
        [create("a", 1, 2, LOST, seen=None)],
    ],
)
def test_impossible_client_history_is_malformed(history):
    with pytest.raises(Malformed):
        check(history)


# At random.


@st.composite
def anything(draw, most: int = 7):
    """Calls and results as they come, most of them impossible; only versions that somebody was told of are named."""
    size = draw(st.integers(1, most))
    times = draw(st.permutations(range(2 * size)))
    spans = sorted((min(pair), max(pair)) for pair in zip(times[::2], times[1::2], strict=True))
    ids = [f"w{n}" for n in range(size)]
    history: list[Op] = []
    for n, (called, returned) in enumerate(spans):
        known = {op.seen for op in history if op.result is not UNKNOWN and op.returned <= called}
        known |= {op.write for op in history if op.result is OK and op.returned <= called}
        known -= {None}
        kinds = [Kind.CREATE, Kind.READ, *([Kind.MATCH, Kind.MATCH, Kind.DELETE] if known else [])]
        kind = draw(st.sampled_from(kinds))
        result = OK if kind is Kind.READ else draw(st.sampled_from([OK, OK, LOST, UNKNOWN]))
        expected = draw(st.sampled_from(sorted(known))) if kind in (Kind.MATCH, Kind.DELETE) else None
        looks = kind is Kind.READ or result is LOST
        shown = [one for one in (None, *ids[: n + 2]) if kind is Kind.READ or one != expected]
        seen = draw(st.sampled_from(shown)) if looks else None
        write = ids[n] if kind in (Kind.CREATE, Kind.MATCH) else None
        history.append(Op(kind, result, called, returned, write, expected, seen))
    return history


@st.composite
def possible(draw, most: int = 8):
    """A register that is really run, seen by clients who overlap: every such history must pass."""
    size = draw(st.integers(1, most))
    rng = draw(st.randoms(use_true_random=False))
    return run(size, rng)


def run(size: int, rng: random.Random, clients: int = 4) -> list[Op]:
    """Each op happens at one moment, around which its call and return are put without two of a client overlapping."""
    state: str | None = None
    history: list[Op] = []
    free = [0.0] * clients
    told: dict[str, float] = {}
    now = 0.0
    for n in range(size):
        now += 1.0
        client = rng.randrange(clients)
        called = max(free[client], now - rng.random() * clients * 2)
        returned = now + rng.random() * clients * 2
        if called > now:
            now = called
            returned = max(returned, now)
        free[client] = returned
        op, state = _happen(f"w{n}", state, told, (called, returned), rng)
        history.append(replace(op, client=client))
    return history


def _happen(write, state, told, span, rng) -> tuple[Op, str | None]:
    called, returned = span
    known = sorted(w for w, since in itertools.islice(reversed(told.items()), 8) if since <= called)
    kind = rng.choice([Kind.CREATE, Kind.READ, *([Kind.MATCH] * 4 + [Kind.DELETE] if known else [])])
    expected = (
        (state if state in known and rng.random() < 0.7 else rng.choice(known))
        if kind
        in (
            Kind.MATCH,
            Kind.DELETE,
        )
        else None
    )
    if kind is Kind.READ:
        told.setdefault(state, returned) if state else None
        return Op(kind, OK, called, returned, seen=state), state
    new = write if kind is not Kind.DELETE else None
    holds = state == expected
    result = UNKNOWN if rng.random() < 0.15 else OK if holds else LOST
    if result is OK and new:
        told[new] = min(told.get(new, returned), returned)
    if result is LOST and state:
        told[state] = min(told.get(state, returned), returned)
    seen = state if result is LOST else None
    return Op(kind, result, called, returned, new, expected, seen), new if holds else state


@given(anything())
@settings(max_examples=250)
@example(BAD["a life inside another"])
def test_checker_agrees_with_the_oracle_on_random_histories(history):
    assert (check(history) is None) == is_linearizable(history)


@given(possible())
@settings(max_examples=75)
def test_history_of_a_real_register_passes_and_the_oracle_agrees(history):
    assert check(history) is None
    assert is_linearizable(history)


@given(possible(), st.data())
@settings(max_examples=175)
def test_checker_agrees_with_the_oracle_after_one_change(history, data):
    n = data.draw(st.integers(0, len(history) - 1))
    op = history[n]
    ids = [None, *(o.write for o in history if o.write)]
    changed = Op(
        op.kind,
        data.draw(st.sampled_from(list(Result))) if op.kind is not Kind.READ else OK,
        op.called,
        op.returned,
        op.write,
        op.expected,
        data.draw(st.sampled_from(ids)) if op.kind is Kind.READ or op.result is LOST else op.seen,
    )
    mutant = [*history[:n], changed, *history[n + 1 :]]
    try:
        verdict = check(mutant)
    except Malformed:
        return
    assert (verdict is None) == is_linearizable(mutant)


def test_random_histories_are_of_both_sorts_and_use_every_op():
    """A generator of which everything is bad, or good, would test nothing."""
    rng = random.Random(1)
    kinds = {(op.kind, op.result) for _ in range(50) for op in run(12, rng)}
    assert len(kinds) == 10


def test_long_history_takes_the_time_of_a_sort():
    rng = random.Random(7)
    history = run(100_000, rng)
    began = time.process_time()
    assert check(history) is None
    assert time.process_time() - began < 10
