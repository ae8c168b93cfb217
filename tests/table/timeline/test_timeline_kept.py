"""A checkpoint has the timeline that it was made of, in few bytes."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from lockprovider.table.format.instant import Action, format_ms
from lockprovider.table.timeline.checkpoint import Checkpoint
from lockprovider.table.timeline.timeline import Timeline

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
    found = Checkpoint.decode(Checkpoint.of("log", 3, timeline, ()).encode())
    assert found is not None
    return found.timeline


@given(st.lists(NAMES, max_size=30), st.lists(NAMES, max_size=4))
def test_its_timeline_tells_what_the_one_tells_that_it_was_made_of(names: list[str], later: list[str]) -> None:
    made = Timeline.of(names)
    gone = {i for i in made.instants if not i.is_completed} - {*made.perhaps_pending}
    plain = Timeline.of(i.file_name for i in made.instants if i not in gone)  # not what became of the completed
    more = Timeline.of({*later}).instants
    for kept, known in ((again(made), plain), (again(made).plus(more), plain.plus(more))):
        for what in FOUND_OUT:
            assert getattr(kept, what) == getattr(known, what), what
        assert [i.completion for i in kept.writes] == [i.completion for i in known.writes]
        for what in ("services", "perhaps_pending", "writes"):
            assert set(getattr(kept, what)) == set(getattr(known, what)), what


def test_a_commit_is_five_bytes_of_it() -> None:
    draw, ms, names = random.Random(1), 1_790_000_000_000, []
    for _ in range(2_000):
        ms += draw.randrange(300, 6000)
        names.append(f"{format_ms(ms)}_{format_ms(ms + draw.randrange(150, 290))}.commit")
    timeline = Timeline.of(names)
    assert len(Checkpoint.of("log", 3, timeline, ()).encode()) < 5 * len(names)
    assert again(timeline).instants == timeline.instants
