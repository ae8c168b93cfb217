"""Writers and cleaners whose clock is wrong, beside a store whose clock is right."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from table.tables import SETTINGS, SPEC, by_hudi_rs, content, rows, upsert

from fsspec_cas import Machine, Store
from lockprovider.table import KeepActive, KeepHours, Table
from lockprovider.table.format.layout import to_ms
from lockprovider.table.state import context

HOUR_MS, GRACE_MS = 3_600_000, 1_500


@dataclass(frozen=True, slots=True)
class Off(Machine):
    """A machine whose wall clock is wrong by so much."""

    by_ms: int

    def now_ms(self) -> int:
        return Machine().now_ms() + self.by_ms


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)


def with_clock(table: Table, by_ms: int) -> Table:
    return Table(Store.from_url(table.url), table.url, settings=SETTINGS, world=Off(by_ms))


@pytest.mark.parametrize("by_ms", [8_000, 25 * HOUR_MS])
def test_no_time_of_a_writer_is_ahead_of_the_store(table: Table, by_ms: int) -> None:
    """J8: a commit of 8 s ahead hid every commit of others that followed it."""
    ahead = with_clock(table, by_ms)
    ahead.store.head(".hoodie/hoodie.properties")
    upsert(ahead, (1, "a", 1))
    ahead.append(rows((2, "a", 2)))
    ahead.append(rows((3, "b", 3)))
    ahead.clean(KeepHours(1))
    times = {time for one in table.listed_timeline().instants for time in (one.begin, one.completion) if time}
    assert max(map(to_ms, times)) <= Machine().now_ms() + GRACE_MS
    upsert(table, (1, "a", 10))
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 10), (2, "a", 2), (3, "b", 3)}


@pytest.mark.parametrize("by_ms", [-25 * HOUR_MS, 25 * HOUR_MS])
def test_retention_hours_follow_the_store_clock_also_in_a_dry_run(table: Table, by_ms: int) -> None:
    """K2: 25 h ahead, all that was superseded seconds ago was removed, and archived; the dry run named other files."""
    wrong = with_clock(table, by_ms)
    for value in range(4):
        upsert(table, (1, "a", value))
    for policy in (KeepHours(1), KeepHours(24)):
        assert wrong.clean(policy, dry_run=True) == ()
        assert wrong.clean(policy) == ()
    keep = KeepActive(2, 3)
    hourly = Table(wrong.store, table.url, settings=replace(SETTINGS, retention=KeepHours(1)), world=Off(by_ms))
    assert hourly.archive(keep, dry_run=True).instants == hourly.archive(keep).instants == ()


def test_wrong_clock_is_logged_once_and_named_by_doctor(table: Table, caplog: pytest.LogCaptureFixture) -> None:
    context._warned_stores.clear()
    for by_ms, said in ((-90_000, "90.0 s behind the store's"), (8_000, "8.0 s ahead of the store's")):
        wrong = with_clock(table, by_ms)
        with caplog.at_level(logging.WARNING, logger="lockprovider.table"):
            found = [one.what for one in wrong.doctor() if "clock" in one.what]
        assert said in found[0]
    assert len([one for one in caplog.records if "set the clock" in one.message]) == 1
    assert not [one for one in table.doctor() if "clock" in one.what]
