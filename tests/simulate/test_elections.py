"""Random histories of whole elections: a network that loses, delays and repeats, candidates that stand still and die.

The candidates are the product's, on a store in memory; time is the history's. Each does one thing after another, and
whatever is late arrives between. What a candidate believes is compared with what the others do.
"""

from __future__ import annotations

import random
import uuid
from collections import Counter

import fsspec
import pytest

from fsspec_cas import CasError, Store
from fsspec_cas.backends.memory import MemoryBackend
from fsspec_cas.testing import DeliverLate, DeliverTwice, Faulty, LoseAnswer, LoseRequest, ManualClock, Pass, Refuse
from lockprovider.recipes.election.decide import Leading, may_stand
from lockprovider.recipes.election.term import Candidate
from lockprovider.recipes.errors import TermLost
from lockprovider.settings import LockSettings

FAULTS = (LoseAnswer(), LoseRequest(), DeliverTwice(), DeliverLate(1), DeliverLate(3), DeliverLate(12), Refuse())
VALIDITY_S = 30.0
STEPS = 120
COUNT = 4


class Overlap(AssertionError):
    """Two believe that they lead, or an epoch was given twice."""


class History:
    """What happens, in an order that a seed decides."""

    def __init__(self, seed: int, *, longer_s: float = 0.0) -> None:
        self.chance = random.Random(seed)
        self.clock = ManualClock()
        plan = [self.chance.choice(FAULTS) if self.chance.random() < 0.3 else Pass() for _ in range(4 * STEPS)]
        backend = MemoryBackend(fsspec.filesystem("memory", skip_instance_cache=True))
        self.network = Faulty(backend, {"put": plan}, world=self.clock)
        self.store = Store(self.network, f"/{uuid.uuid4().hex}", world=self.clock)
        self.settings = LockSettings(VALIDITY_S, timeout=0.0)
        self.candidates = [self.born(n) for n in range(COUNT)]
        self.leading: dict[int, Leading] = {}
        self.epochs: list[int] = []
        self.longer_s = longer_s
        self.did: Counter[str] = Counter()

    def born(self, n: int) -> Candidate:
        return Candidate(self.store, "e.json", f"c{n}", self.settings, self.clock)

    def go(self) -> History:
        for _ in range(STEPS):
            self.clock.advance(self.chance.choice((0.1, 1.0, 5.0, 12.0, 31.0)))
            n = self.chance.randrange(COUNT)
            try:
                self.one(n)
            except TermLost:
                self.leading.pop(n, None)
                self.did["lost"] += 1
            except CasError:
                self.did["unknown"] += 1
            self.check()
        return self

    def one(self, n: int) -> None:
        candidate, leading = self.candidates[n], self.leading.get(n)
        if self.chance.random() < 0.05:
            self.leading.pop(n, None)
            self.candidates[n] = self.born(n)
            self.did["died"] += 1
        elif leading is None:
            observed = candidate.look()
            if may_stand(candidate.me, observed, self.clock.monotonic_s()):
                won = candidate.stand(observed, None)
                if won is not None:
                    self.leading[n] = won
                    self.epochs.append(won.record.epoch)
                    self.did["elected"] += 1
        elif self.chance.random() < 0.2:
            del self.leading[n]
            self.did["resigned"] += 1
            candidate.resign(leading, "")
        else:
            self.leading[n] = candidate.renew(leading)
            self.did["renewed"] += 1

    def check(self) -> None:
        now_s = self.clock.monotonic_s()
        believe = [n for n, one in self.leading.items() if now_s < one.deadline_s + self.longer_s]
        if len(believe) > 1:
            raise Overlap(f"{believe} believe at {now_s:g}")
        if self.epochs != sorted({*self.epochs}):
            raise Overlap(f"epochs {self.epochs}")


def test_at_most_one_believes_and_epochs_rise(seed) -> None:
    did: Counter[str] = Counter()
    for n in range(60):
        history = History(seed + n).go()
        did += history.did
        did["faults"] += len(history.network.fired)
    assert min(did[what] for what in ("elected", "renewed", "resigned", "lost", "died", "faults")) > 30, did


@pytest.mark.soak
def test_at_most_one_believes_in_thousands_of_histories(seed) -> None:
    for n in range(5000):
        History(seed + n).go()


def test_mutant_candidate_that_believes_too_long_is_caught(seed) -> None:
    """The margin, and a second more."""

    def believes_for_long() -> None:
        for n in range(300):
            History(seed + n, longer_s=VALIDITY_S / 10 + 1.0).go()

    with pytest.raises(Overlap, match="believe"):
        believes_for_long()
