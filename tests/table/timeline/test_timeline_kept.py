"""A checkpoint has the timeline that it was made of, in few bytes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockprovider.table.format.layout import Action, Instant, InstantState, format_ms
from lockprovider.table.state.checkpoint import Checkpoint
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.versions import rewound

TIMES = st.integers(0, 40).map(lambda n: f"{20261122080000 + n // 10}{n % 10:03d}"[: 17 if n % 11 else 14])
PENDING = ["commit.requested", "inflight", "deltacommit.inflight", "savepoint.inflight"]
NAMES = st.one_of(
    st.builds(lambda a, b, action: f"{a}_{max(a, b)}.{action.value}", TIMES, TIMES, st.sampled_from(list(Action))),
    st.builds(lambda begin, state: f"{begin}.{state}", TIMES, st.sampled_from(PENDING)),
)
FOUND_OUT = (
    "instants", "names", "written", "completions", "latest_time", "latest_completed_time", "latest_completed_begin",
    "first_active", "unfinished", "savepointed", "pending_writes",
)  # fmt: skip


def again(timeline: Timeline) -> Timeline:
    found = Checkpoint.decode(Checkpoint("log", 3, timeline, ()).encode())
    assert found is not None
    return found.timeline


@given(st.lists(NAMES, max_size=30), st.lists(NAMES, max_size=4))
def test_timeline_of_a_checkpoint_equals_its_source(names: list[str], later: list[str]) -> None:
    made = Timeline.of(names)
    gone = {i for i in made.instants if not i.is_completed} - {*made.perhaps_pending}
    plain = Timeline.of(i.file_name for i in made.instants if i not in gone)  # not what became of the completed
    more = Timeline.of({*later}).instants
    for kept, known in ((again(made), plain), (again(made).plus(more), plain.plus(more))):
        for what in FOUND_OUT:
            assert getattr(kept, what) == getattr(known, what), what
        assert [i.completion for i in kept.writes] == [i.completion for i in known.writes]
        for what in ("besides_commits", "perhaps_pending", "writes"):
            assert set(getattr(kept, what)) == set(getattr(known, what)), what


def test_commit_takes_five_bytes_of_a_checkpoint() -> None:
    draw, ms, names = random.Random(1), 1_790_000_000_000, []
    for _ in range(2_000):
        ms += draw.randrange(300, 6000)
        names.append(f"{format_ms(ms)}_{format_ms(ms + draw.randrange(150, 290))}.commit")
    timeline = Timeline.of(names)
    assert len(Checkpoint("log", 3, timeline, ()).encode()) < 5 * len(names)
    assert again(timeline).instants == timeline.instants


@given(st.lists(NAMES, max_size=30), st.sets(TIMES), TIMES)
def test_instants_of_one_begin_time_are_found_as_by_a_full_search(names: list[str], gone: set[str], begin: str) -> None:
    listed = Timeline.of(names)
    for timeline in (listed, rewound(listed, lambda done: done.begin not in gone), again(listed)):
        begun = [i for i in timeline.instants if i.begin == begin]
        writes = [i for i in begun if i.changes_rows]
        pending = [i for i in writes if not i.is_completed]
        assert timeline.written_at(begin) == next((i for i in writes if i.is_completed), None)
        assert timeline.pending_action(begin) == next((i.action for i in pending), None)
        assert {*timeline.pending_files(begin)} == {i.file_name for i in pending}
        is_inflight = any(i.state is InstantState.INFLIGHT for i in pending)
        assert timeline.is_pending(begin) == (is_inflight and len(pending) == len(writes))
        assert all(timeline.is_alone(i) == (len({other.action for other in begun}) == 1) for i in begun)


def test_states_of_one_write_are_found_without_a_full_search(monkeypatch: pytest.MonkeyPatch) -> None:
    begins = [format_ms(1_700_000_000_000 + 1000 * n) for n in range(4000)]
    timeline, looks = Timeline.of(f"{t}_{t}.commit" for t in begins), 0
    plain = Instant.changes_rows.fget

    def counted(self: Instant) -> bool:
        nonlocal looks
        looks += 1
        return plain(self)

    monkeypatch.setattr(Instant, "changes_rows", property(counted))
    assert timeline.written_at(begins[3000]) is not None
    assert looks < 5
