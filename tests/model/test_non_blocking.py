"""Histories of non-blocking writers, by the product's own rules; each rule that is wrong loses rows in some of them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from lockprovider.table.format.bucket import fixed_file_id
from lockprovider.table.format.layout import format_ms
from model.non_blocking import BUCKETS, PARTITION, LostRows, Rules, play

WORLDS: dict[str, dict[str, Any]] = {
    "ours": {},
    "and the jvm's": {"jvm": True},
    "and overwrites": {"overwrites": True},
    "and both": {"jvm": True, "overwrites": True},
}
SEEDS, MORE = 30, 1_500


@pytest.mark.parametrize("world", WORLDS)
def test_greatest_value_wins_in_every_history(world: str) -> None:
    counts: Counter[str] = Counter()
    for seed in range(SEEDS):
        counts.update(play(seed, Rules(), **WORLDS[world]))
    assert min(counts[kind] for kind in ("log", "finish", "schedule", "compact", "die")) > SEEDS
    assert (counts["conflict"] > 0) == ("overwrites" in WORLDS[world]), "none among those who only log"


TWINS: dict[str, tuple[str, Rules]] = {
    "anchors are made over what is completed": (
        "and the jvm's",
        Rules(bare=lambda seen, *_: [(PARTITION, n) for n in range(BUCKETS)] if any(not one.path for one in seen.slices) else ()),
    ),
    "anchors are made after a look without the lock": ("and the jvm's", Rules(checks_under_lock=False)),
    "a log does not look for what ended its group": ("and overwrites", Rules(blind=lambda *_: None)),
    "an overwrite does not look for logs": ("and overwrites", Rules(ordinary=lambda *_: None)),
    "an overwrite leaves a bucket without a group": ("and both", Rules(left_bare=lambda *_: ())),
    "an anchor takes an id that has ended": ("and overwrites", Rules(anchor_id=lambda one, _: fixed_file_id(one[1]))),
    "a commit goes by its own clock": ("ours", Rules(next_time=lambda _, ms, begin: max(format_ms(ms), begin))),
    "rows are merged by commit time": ("ours", Rules(by_event_time=False)),
    "a plan has logs that are not completed": ("ours", Rules(plans_pending=True)),
}  # fmt: skip


def play_all(seeds: int, rules: Rules, world: str) -> None:
    for seed in range(seeds):
        play(seed, rules, **WORLDS[world])


@pytest.mark.parametrize("twin", TWINS)
def test_rule_that_is_wrong_loses_rows(twin: str) -> None:
    world, rules = TWINS[twin]
    with pytest.raises(LostRows):
        play_all(MORE, rules, world)


@pytest.mark.soak
@pytest.mark.parametrize("world", WORLDS)
def test_greatest_value_wins_in_many_more(world: str) -> None:
    for seed in range(SEEDS, MORE):
        play(seed, Rules(), **WORLDS[world], steps=80)
