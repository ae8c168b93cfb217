from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from table.jvm_written import TABLES, timeline

from lockprovider.table.errors import Corrupt
from lockprovider.table.format.layout import Action, Instant, InstantState, after, format_ms, parse_instant, to_ms

LAST_MS_OF_9999 = 253_402_300_799_999
times = st.integers(0, LAST_MS_OF_9999 - 1).map(format_ms)


@pytest.mark.parametrize("table", TABLES)
def test_every_name_the_jvm_wrote_is_read_and_written_back(table: str) -> None:
    names = [name for name in timeline(table) if not name.startswith("history")]
    assert len(names) >= 6
    for name in names:
        instant = parse_instant(name)
        assert instant is not None, name
        assert instant.file_name == name
        assert instant.is_completed == ("_" in name)


def test_commit_in_flight_has_no_action_in_its_name() -> None:
    assert Instant("20250713010535797", Action.COMMIT, InstantState.INFLIGHT).file_name == "20250713010535797.inflight"
    assert parse_instant("20250713010535797.commit.inflight") is None
    assert parse_instant("20250713010535797.requested") is None


@pytest.mark.parametrize(
    ("action", "kept"),
    [
        (Action.CLUSTERING, Action.REPLACECOMMIT),
        (Action.COMPACTION, Action.COMMIT),
        (Action.LOGCOMPACTION, Action.DELTACOMMIT),
    ],
)
def test_completed_service_is_filed_under_its_effect(action: Action, kept: Action) -> None:
    name = Instant("20250713010535797", action, InstantState.COMPLETED, "20250713010535799").file_name
    assert name == f"20250713010535797_20250713010535799.{kept.value}"
    assert parse_instant(name) == Instant("20250713010535797", kept, InstantState.COMPLETED, "20250713010535799")


@pytest.mark.parametrize(
    "name",
    [
        "", "history", "hoodie.properties", "20250713.commit", "20250713010535797.commit", "20250713010535797_.commit",
        "20250713010535797_20250713010536200.commit.crc", ".20250713010535797_20250713010536200.commit",
        "20250713010535797_20250713010536200.commitx", "20250713010535797.commit.requested\n",
        "２０２５０７１３０１０５３５７９７.inflight",  # noqa: RUF001 - digits, but not ours
    ],
)  # fmt: skip
def test_other_names_are_not_parsed_as_instants(name: str) -> None:
    assert parse_instant(name) is None


@given(times, times, st.sampled_from(Action), st.sampled_from(InstantState))
def test_written_instant_names_are_read_back(begin: str, completion: str, action: Action, state: InstantState) -> None:
    instant = Instant(begin, action, state, completion if state is InstantState.COMPLETED else None)
    found = parse_instant(instant.file_name)
    assert found is not None
    assert (found.begin, found.state, found.completion) == (begin, state, instant.completion)
    assert found.file_name == instant.file_name


@given(st.integers(0, LAST_MS_OF_9999))
def test_times_survive_a_text_round_trip(ms: int) -> None:
    assert to_ms(format_ms(ms)) == ms
    assert len(format_ms(ms)) == 17


@given(st.integers(0, LAST_MS_OF_9999 - 1), st.integers(0, LAST_MS_OF_9999 - 1))
def test_times_sort_as_text(one: int, other: int) -> None:
    assert (format_ms(one) < format_ms(other)) == (one < other)
    assert after(format_ms(one)) > format_ms(one)


def test_known_times_have_known_texts() -> None:
    assert format_ms(1_752_368_735_797) == "20250713010535797"
    assert to_ms("19700101000000") == 999
    assert after("20241231235959") == "20250101000000000"
    assert after("20241231235959") > "20241231235959"


@pytest.mark.parametrize("text", ["", "2025", "00000000000000000", "20251301000000000", "2025071301053579x"])
def test_invalid_time_text_is_named(text: str) -> None:
    with pytest.raises(Corrupt, match=repr(text)):
        to_ms(text)
