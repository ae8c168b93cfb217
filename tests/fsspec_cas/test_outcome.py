"""What may be asked of an outcome."""

from __future__ import annotations

import pickle

import pytest

from fsspec_cas import ABSENT, AsyncStore, Lost, OutcomeUnknown, Store, Unknown, Version, Won
from fsspec_cas.outcome import Write

V1 = Version("memory", "1")
OUTCOMES = [Won(V1), Lost("a", ABSENT, V1), Unknown(Write("a", ABSENT, "me"), "no answer", b"me")]


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: type(outcome).__name__)
@pytest.mark.parametrize("ask", [bool, lambda o: not o, lambda o: o and 1, lambda o: 1 if o else 2, lambda o: all([o])])
def test_no_outcome_has_a_truth_value(outcome, ask):
    with pytest.raises(TypeError, match=rf"{type(outcome).__name__}.*`match`.*`\.unwrap\(\)`"):
        ask(outcome)


def test_truth_test_of_a_create_raises_and_elects_no_second_leader():
    store = Store.from_url("memory://unit-outcome/leaders")
    for me in (b"a", b"b"):
        with pytest.raises(TypeError, match="unwrap"):
            assert store.put_if_absent("leader", me)


async def test_async_outcome_has_no_truth_value():
    store = AsyncStore.from_url("memory://unit-outcome/async")
    with pytest.raises(TypeError, match="unwrap"):
        assert await store.put_if_absent("leader", b"me")


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: type(outcome).__name__)
def test_outcomes_can_be_compared_hashed_and_pickled(outcome):
    assert pickle.loads(pickle.dumps(outcome)) == outcome
    assert len({outcome, pickle.loads(pickle.dumps(outcome))}) == 1
    assert outcome is not None


def test_unwrap_returns_the_version_or_raises():
    won, lost, unknown = OUTCOMES
    assert won.unwrap() == V1
    with pytest.raises(FileExistsError):
        lost.unwrap()
    with pytest.raises(OutcomeUnknown):
        unknown.unwrap()
