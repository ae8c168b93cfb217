"""Which writers of a local folder are dead, when a clock steps or is wrong (K1)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from patience import until
from table.state.test_cache import taken_by_jvm
from table.tables import SETTINGS, SPEC, content, let_beat_age, rows, upsert

from fsspec_cas import Machine
from fsspec_cas.backends import local
from fsspec_cas.machine import time_ns
from lockprovider.table import Table
from lockprovider.table.engines import arrow as engine
from lockprovider.table.state.heartbeat import LocalBeat, last_beats
from lockprovider.table.transaction.transaction import Transaction

HOUR_S = 3600


@pytest.fixture
def table(tmp_path: Path) -> Table:
    found = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)
    upsert(found, (1, "a", 1))
    return found


def beat_of(table: Table, begin: str) -> Path:
    return Path(table.url, ".hoodie", ".heartbeat", begin)


def begun(table: Table, *triples: tuple[int, str, int]) -> Transaction:
    """A write that is not committed yet."""
    txn = Transaction(table)
    engine.write(txn, upserts=rows(*triples))
    return txn


def step_clock(monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    """The clock that stamps files, and the one that names instants, are set forward or back."""
    now_ms = Machine.now_ms
    monkeypatch.setattr(local, "time_ns", lambda: time_ns() + seconds * 10**9)
    monkeypatch.setattr(Machine, "now_ms", lambda self: now_ms(self) + seconds * 1000)


@pytest.mark.parametrize("seconds", [HOUR_S, -HOUR_S])
def test_live_writer_is_not_rolled_back_when_the_clock_steps(
    table: Table, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    slow = begun(table, (2, "a", 2))
    with monkeypatch.context() as stepped:
        step_clock(stepped, seconds)
        other = Table.open(table.url, settings=SETTINGS)
        assert other.sweep() == ()
        upsert(other, (3, "b", 3))
    slow.commit()
    assert content(table) == {(1, "a", 1), (2, "a", 2), (3, "b", 3)}


def test_only_dead_writer_with_future_heartbeat_is_rolled_back(table: Table) -> None:
    dead = begun(table, (2, "a", 2))
    dead.leave()
    ahead_s = time_ns() // 10**9 + 10 * HOUR_S
    beat_of(table, dead.begin).write_bytes(LocalBeat(*Machine().boot(), Machine().uptime_s() - HOUR_S).encode())
    os.utime(beat_of(table, dead.begin), (ahead_s, ahead_s))
    slow = begun(table, (4, "a", 4))
    assert Table.open(table.url, settings=SETTINGS).sweep() == (dead.begin,)
    slow.commit()
    assert content(table) == {(1, "a", 1), (4, "a", 4)}


def test_writer_of_a_machine_that_was_restarted_is_dead(table: Table) -> None:
    dead = begun(table, (2, "a", 2))
    dead.leave()
    beat_of(table, dead.begin).write_bytes(LocalBeat("a boot before", Machine().boot()[1], 10.0).encode())
    assert Table.open(table.url, settings=SETTINGS).sweep() == (dead.begin,)


def test_writer_on_another_machine_is_judged_by_observed_heartbeats(table: Table) -> None:
    beat = beat_of(table, "20200101000000000")
    beat.write_bytes(LocalBeat("another boot", "another host", 5.0).encode())
    os.utime(beat, (1, 1))  # its clock is wrong
    now_s = 0.0

    class Clock(Machine):
        def monotonic_s(self) -> float:
            return now_s

    def silent_s() -> int:
        beats_ms, now_ms = last_beats(table.store, table.knowledge, world)
        return round((now_ms - beats_ms[beat.name]) / 1000)

    world = Clock()
    assert silent_s() == 0
    now_s = 50.0
    assert silent_s() == 50
    beat.write_bytes(LocalBeat("another boot", "another host", 6.0).encode())
    assert silent_s() == 0
    now_s = 200.0
    assert silent_s() == 150


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"boot": "b"}', b'{"boot":"b","host":"h","s":NaN}', b"\xff"])
def test_empty_heartbeat_is_judged_by_its_file_time(data: bytes) -> None:
    assert LocalBeat.decode(data) is None


def test_heartbeat_outlives_its_instant_for_jvm_writers(table: Table) -> None:
    """S10: a JVM job failed when we removed a heartbeat between its look whether it is there and how old it is."""
    beats = Path(table.url, ".hoodie", ".heartbeat")
    taken_by_jvm(table)
    first = upsert(table, (2, "a", 2)).instant
    second = upsert(Table.open(table.url, settings=SETTINGS), (3, "a", 3)).instant
    assert {first, second} & {beat.name for beat in beats.iterdir()}, "of all that knew of the JVM writer"
    for beat in beats.iterdir():
        let_beat_age(beat)
    other = Table.open(table.url, settings=SETTINGS)
    third = upsert(other, (4, "a", 4)).instant
    until(lambda: {beat.name for beat in beats.iterdir()} <= {third})
