"""Hudi's audit records: the bytes, what they tell, and that a lock is none the worse for writing them."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lockprovider
from fsspec_cas import Machine, Store, Unavailable
from fsspec_cas.backends.local import LocalBackend
from fsspec_cas.outcome import Write
from fsspec_cas.testing import Faulty, LoseRequest, ManualClock
from lockprovider import HUDI_LOCK_PATH, Holder, Lock, LockRecord, LockSettings
from lockprovider.commands.lock import draw_audit
from lockprovider.storage_lock import audit_log
from lockprovider.storage_lock.audit import (
    Audit,
    AuditRecord,
    analyse,
    decode_switch,
    encode_switch,
    places,
)
from lockprovider.storage_lock.audit_log import AuditLog, read_files, set_enabled
from lockprovider.storage_lock.status import break_lock, look
from lockprovider.table import Table, TableSpec

FOLDER, SWITCH = ".hoodie/.locks/audit", ".hoodie/.locks/audit_enabled.json"
# What a java.util.HashMap with Hudi's six names gives Jackson to write, on any JVM since 8.
JVM_LINE = (
    b'{"transactionStartTime":1700000000000,"lockHeld":true,"state":"START","lockExpiration":1700000300000,'
    b'"ownerId":"o-1","timestamp":1700000000000}\n'
)
RECORD = AuditRecord("o-1", 1_700_000_000_000, 1_700_000_000_000, "START", 1_700_000_300_000, held=True)


# The bytes


def test_audit_line_equals_the_one_of_jvm_hudi() -> None:
    assert RECORD.encode() == JVM_LINE
    assert AuditRecord.decode(JVM_LINE) == RECORD


def test_reader_ignores_field_order_and_unknown_fields() -> None:
    turned = dict(reversed([*json.loads(JVM_LINE).items(), ("more", 1)]))
    assert AuditRecord.decode(json.dumps(turned).encode()) == RECORD


@pytest.mark.parametrize(
    "line",
    [b"", b"{}", b"[]", b"null", b"\xff", b"[" * 100_000, JVM_LINE[:-5], JVM_LINE.replace(b"START", b"BEGIN")]
    + [JVM_LINE.replace(b'"timestamp":1700000000000', b'"timestamp":' + bad) for bad in (b"null", b"NaN", b"Infinity")],
)
def test_invalid_audit_record_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match="not an audit record"):
        AuditRecord.decode(line)


def test_audit_of_a_table_is_at_the_path_of_hudi_and_others_next_to_lock() -> None:
    hudi = places(HUDI_LOCK_PATH)
    assert (hudi.switch, hudi.folder) == (SWITCH, FOLDER)
    assert hudi.file(17, "o-1") == f"{FOLDER}/17_o-1.jsonl"
    assert places("jobs/a.json") != places("jobs/b.json")
    assert places("jobs/a.json").folder == "jobs/a.json.audit"
    assert places("table_lock.json").switch == "table_lock.json.audit_enabled.json"


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (b'{"STORAGE_LOCK_AUDIT_SERVICE_ENABLED":true}', True),
        (b'{ "STORAGE_LOCK_AUDIT_SERVICE_ENABLED" : "true", "x": 1 }', True),
        (b'{"STORAGE_LOCK_AUDIT_SERVICE_ENABLED":false}', False),
        (b'{"STORAGE_LOCK_AUDIT_SERVICE_ENABLED":null}', False),
        (b"{}", False),
        (b"[]", False),
        (b"not json", False),
        (b"", False),
    ],
)
def test_audit_switch_is_on_only_when_its_file_says_so(data: bytes, wanted: bool) -> None:
    assert decode_switch(data) is wanted


def test_audit_switch_is_written_in_the_format_of_hudi() -> None:
    assert encode_switch(enabled=True) == b'{"STORAGE_LOCK_AUDIT_SERVICE_ENABLED":true}'
    assert not decode_switch(encode_switch(enabled=False))


# What they tell. Times in seconds, for reading.


def told(owner: str, *steps: str) -> bytes:
    """A file, written as `START 0 30`: the step, when, and until when the lease then was valid; `END- 9` is a loss."""
    lines = []
    for step in steps:
        name, at_s, *until_s = step.split()
        at_ms, until_ms = round(float(at_s) * 1000), round(float(until_s[0]) * 1000) if until_s else 0
        record = AuditRecord(owner, 0, at_ms, name.rstrip("-"), until_ms, held=not name.endswith("-"))  # type: ignore[arg-type]
        lines.append(record.encode())
    return b"".join(lines)


def seen(now_s: float, *files: bytes) -> Audit:
    return analyse({f"{number}.jsonl": data for number, data in enumerate(files)}, round(now_s * 1000))


def tenures(audit: Audit) -> list[tuple[str, float, float, str]]:
    return [(s.owner, s.start_ms / 1000, s.end_ms / 1000, s.how) for s in audit.tenures]


def overlaps(audit: Audit) -> list[tuple[float, float]]:
    return [(one.from_ms / 1000, one.to_ms / 1000) for one in audit.overlaps]


def test_holders_are_ordered_by_time_whatever_the_order_of_files() -> None:
    first = told("a", "START 0 30", "RENEW 10 40", "END 12 40")
    second = told("b", "START 15 45", "END 16 45")
    for files in ((first, second), (second, first)):
        audit = seen(100, *files)
        assert tenures(audit) == [("a", 0, 12, "released"), ("b", 15, 16, "released")]
        assert overlaps(audit) == []
        assert [tenure.renewals for tenure in audit.tenures] == [1, 0]


@pytest.mark.parametrize(
    ("files", "now_s", "expected", "wrong"),
    [
        # two at once, for longer than clocks may differ, and for no longer
        (
            [("a", "START 0 30", "END 20 30"), ("b", "START 19.499 49", "END 30 49")],
            100,
            [("a", 0, 20, "released"), ("b", 19.499, 30, "released")],
            [(19.499, 20)],
        ),
        (
            [("a", "START 0 30", "END 20 30"), ("b", "START 19.5 49", "END 30 49")],
            100,
            [("a", 0, 20, "released"), ("b", 19.5, 30, "released")],
            [],
        ),
        # short, but far from either end
        (
            [("a", "START 0 30", "END 20 30"), ("b", "START 10 40", "END 10.1 40")],
            100,
            [("a", 0, 20, "released"), ("b", 10, 10.1, "released")],
            [(10, 10.1)],
        ),
        # paused past its lease, taken over, and it went on until it noticed
        (
            [("a", "START 0 30", "END- 50 30"), ("b", "START 30.6 60", "END 55 60")],
            100,
            [("a", 0, 50, "lost"), ("b", 30.6, 55, "released")],
            [(30.6, 50)],
        ),
        # killed: no end, and the next one waited for the lapse
        (
            [("a", "START 0 30"), ("b", "START 30.6 60", "END 40 60")],
            100,
            [("a", 0, 30, "lapsed"), ("b", 30.6, 40, "released")],
            [],
        ),
        # killed, and broken by hand: the next one did not wait
        (
            [("a", "START 0 30"), ("b", "START 10 40", "END 12 40")],
            100,
            [("a", 0, 30, "lapsed"), ("b", 10, 12, "released")],
            [],
        ),
        (
            [("a", "START 0 30"), ("b", "START 10 40", "END 10.1 40")],
            10.2,
            [("a", 0, 10.2, "held"), ("b", 10, 10.1, "released")],
            [],
        ),
        # renewed after it had run out
        (
            [("a", "START 0 30", "RENEW 31 61", "END 40 61")],
            100,
            [("a", 0, 40, "released")],
            [],
        ),
        # held now: the promise stands, with Hudi's grace
        ([("a", "START 0 30")], 30.5, [("a", 0, 30.5, "held")], []),
        ([("a", "START 0 30")], 30.501, [("a", 0, 30, "lapsed")], []),
        # JVM Hudi: one file for all acquisitions, and no end where it was overtaken
        (
            [("a", "START 0 30", "END 5 35", "START 7 37", "START 50 80", "END 51 81")],
            100,
            [("a", 0, 5, "released"), ("a", 7, 37, "lapsed"), ("a", 50, 51, "released")],
            [],
        ),
        # the beginning is missing, or the end is all there is
        ([("a", "RENEW 10 40", "END 12 40")], 100, [("a", 10, 12, "released")], []),
        ([("a", "END 12 40")], 100, [], []),
        ([], 100, [], []),
    ],
)
def test_tenures_and_overlaps_are_computed_from_records(
    files: list[Any], now_s: float, expected: list[Any], wrong: list[Any]
) -> None:
    audit = seen(now_s, *(told(*file) for file in files))
    assert tenures(audit) == expected
    assert overlaps(audit) == wrong


def test_invalid_lines_are_named_and_the_others_count() -> None:
    audit = seen(100, told("a", "START 0 30") + b"{broken\n\n" + told("a", "END 5 30"))
    assert tenures(audit) == [("a", 0, 5, "released")]
    assert audit.unreadable == ("0.jsonl",)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=8))
def test_overlaps_equal_those_found_by_counting_every_tick(held: list[tuple[int, int]]) -> None:
    """A tick is 251 ms, so two ticks together are more than clocks may differ."""
    files = [told(f"o{n}", f"START {a * 0.251} 1000", f"END {(a + d) * 0.251} 1000") for n, (a, d) in enumerate(held)]
    audit = seen(2000, *files)
    ticks = [set(range(start, start + long)) for start, long in held]
    pairs = [(one, two) for one, two in itertools.combinations(ticks, 2) if one & two]
    assert sorted(one.to_ms - one.from_ms for one in audit.overlaps if one.to_ms > one.from_ms) == sorted(
        251 * len(one & two) for one, two in pairs if not apart_by_one(one, two)
    )


def apart_by_one(one: set[int], two: set[int]) -> bool:
    """Whether two stretches have nothing in common once one of them is moved by a tick."""
    return any(not one & {tick + by for tick in two} for by in (-1, 1))


# The picture


def drawn(audit: Audit) -> ET.Element:
    return ET.fromstring(draw_audit(audit, "<the lock> & more"))  # noqa: S314 - our own


def titles(picture: ET.Element) -> list[str]:
    return [element.text or "" for element in picture.iter("{http://www.w3.org/2000/svg}title")]


def test_every_tenure_and_overlap_can_be_pointed_at() -> None:
    files = [told("<a>", "START 0 30", "END 20 30"), told("b", "START 15 45"), told("c", "START 60 90", "END 61 90")]
    found = titles(drawn(seen(200, *files)))
    assert sum(title.startswith(("<a>: ", "b: ", "c: ")) for title in found) == 3
    assert sum(title.startswith("overlap: <a> and b") for title in found) == 1


def test_bar_is_as_long_as_its_tenure() -> None:
    picture = drawn(seen(200, told("a", "START 0 30", "END 30 30"), told("b", "START 30 90", "END 90 90")))
    bars = {
        title.text.partition(":")[0]: float(bar.get("width") or 0)
        for bar in picture.iter("{http://www.w3.org/2000/svg}rect")
        for title in bar
        if title.text and title.text[:2] in ("a:", "b:")
    }
    assert bars["b"] == pytest.approx(2 * bars["a"], rel=0.01)


@pytest.mark.parametrize("count", [0, 1, 40, 70])
def test_many_owners_share_the_last_lane(count: int) -> None:
    files = [told(f"owner-{n}", f"START {n} {n + 30}", f"END {n + 0.5} {n + 30}") for n in range(count)]
    picture = drawn(seen(1000, *files))
    assert float(picture.get("height") or 0) < 1400
    texts = [element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert ("others" in texts) is (count > 40)
    assert sum(title.startswith("owner-") and ": " in title for title in titles(picture)) == count


# Writing them


class Slow(LocalBackend):
    """A backend that counts what is asked of it, and can hold back or fail what is about the audit."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.let_go = threading.Event()
        self.let_go.set()
        self.down = False

    async def put(self, write: Write, *args: Any, **kwargs: Any) -> Any:
        self._meet("put", write.path)
        return await super().put(write, *args, **kwargs)

    async def get(self, path: str, *args: Any, **kwargs: Any) -> Any:
        self._meet("get", path)
        return await super().get(path, *args, **kwargs)

    def _meet(self, what: str, path: str) -> None:
        self.asked.append(f"{what} {Path(path).name}")
        if "audit" in path:
            assert self.let_go.wait(60)
            if self.down:
                raise Unavailable("the audit is down")


SETTINGS = LockSettings(validity=600, renew=60, timeout=1)


@pytest.fixture
def backend() -> Slow:
    return Slow()


@pytest.fixture
def store(backend: Slow, tmp_path: Path) -> Store:
    return Store(backend, str(tmp_path))


def enable(store: Store) -> None:
    set_enabled(store, SWITCH, enabled=True, timeout_s=10)


def written(store: Store) -> list[list[AuditRecord]]:
    files = read_files(store, FOLDER, timeout_s=10)
    return [[AuditRecord.decode(line) for line in data.splitlines()] for _, data in sorted(files.items())]


def settled(*logs: AuditLog) -> bool:
    return all(log.flush(60) for log in logs)


def test_nothing_is_audited_by_default(store: Store) -> None:
    for say in (lambda: None, lambda: set_enabled(store, SWITCH, enabled=False, timeout_s=10)):
        say()
        log = AuditLog(store)
        with Lock(store, settings=SETTINGS, audit=log).acquire() as lease:
            lease.renew()
        assert settled(log)
        assert store.list(FOLDER + "/") == []


def test_holding_is_one_file_with_the_fields_of_the_lock_record(store: Store) -> None:
    enable(store)
    log, promised = AuditLog(store), []
    with Lock(store, settings=SETTINGS, audit=log).acquire() as lease:
        for _ in range(2):
            promised.append(LockRecord.decode(store.read(HUDI_LOCK_PATH).data))
            assert lease.renew()
        promised.append(LockRecord.decode(store.read(HUDI_LOCK_PATH).data))
    assert settled(log)
    ((start, *renewals, end),) = written(store)
    assert [record.valid_until_ms for record in (start, *renewals)] == [record.valid_until_ms for record in promised]
    assert [record.step for record in (start, *renewals, end)] == ["START", "RENEW", "RENEW", "END"]
    assert start.at_ms == start.began_ms == promised[0].holder.since_ms  # type: ignore[union-attr]
    assert [record.at_ms + 600_000 for record in renewals] == [record.valid_until_ms for record in renewals]
    assert end.held
    assert end.at_ms >= renewals[-1].at_ms
    assert {record.owner for record in (start, *renewals, end)} == {lease.owner}
    name = store.list(FOLDER + "/")[0].path
    assert name == f"{FOLDER}/{start.began_ms}_{lease.owner}.jsonl"


def test_two_holdings_within_one_millisecond_have_two_files(store: Store) -> None:
    enable(store)
    log = AuditLog(store)
    record = LockRecord("o", 600_000, expired=False, holder=Holder("h", 1, 1_000))
    for _ in range(3):
        log.taken(record)
        log.ended(1_000, held=True)
    assert settled(log)
    assert [[record.step for record in page] for page in written(store)] == [["START", "END"]] * 3


def test_every_holding_has_a_file_of_its_own_and_they_fit_together(store: Store) -> None:
    enable(store)
    log = AuditLog(store)
    lock = Lock(store, settings=SETTINGS, audit=log)
    for _ in range(5):
        with lock.acquire(), lock.acquire():
            pass
    assert settled(log)
    assert [[record.step for record in page] for page in written(store)] == [["START", "END"]] * 5
    audit = analyse(read_files(store, FOLDER, timeout_s=10), Machine().now_ms())
    assert (len(audit.tenures), audit.overlaps) == (5, ())
    assert len(read_files(store, FOLDER, 2, timeout_s=10)) == 2


def test_loss_is_an_end_that_was_not_held(store: Store) -> None:
    enable(store)
    log = AuditLog(store)
    lease = Lock(store, settings=SETTINGS, audit=log).acquire()
    break_lock(store, HUDI_LOCK_PATH, look(store, HUDI_LOCK_PATH, Machine()), Machine()).outcome.unwrap()
    assert not lease.renew()
    lease.release()
    assert settled(log)
    ((start, end),) = written(store)
    assert (start.held, end.step, end.held) == (True, "END", False)


def test_release_that_finds_another_holder_is_a_loss(store: Store) -> None:
    enable(store)
    log = AuditLog(store)
    lease = Lock(store, settings=SETTINGS, audit=log).acquire()
    theirs = LockRecord("other", 2**42, expired=False, epoch=2**42).encode()
    store.update(HUDI_LOCK_PATH, lambda _: theirs)
    lease.release()
    assert settled(log)
    assert not written(store)[0][-1].held


def test_lock_does_not_wait_for_its_audit(store: Store, backend: Slow) -> None:
    enable(store)
    backend.let_go.clear()
    log = AuditLog(store)
    with Lock(store, settings=SETTINGS, audit=log).acquire() as lease:
        assert lease.renew()
    assert not log.flush(0), "nothing could be written yet, and the lock is free again"
    assert LockRecord.decode(store.read(HUDI_LOCK_PATH).data).expired
    backend.let_go.set()
    assert settled(log)
    assert [record.step for record in written(store)[0]] == ["START", "RENEW", "END"]
    assert len([what for what in backend.asked if what.startswith("put") and "jsonl" in what]) == 1


def test_lock_does_not_fail_with_its_audit(store: Store, backend: Slow, caplog: pytest.LogCaptureFixture) -> None:
    enable(store)
    backend.down = True
    log = AuditLog(store)
    with caplog.at_level(logging.WARNING), Lock(store, settings=SETTINGS, audit=log).acquire() as lease:
        assert lease.renew()
        assert settled(log)
    assert settled(log)
    assert "audit of the lock is incomplete" in caplog.text
    backend.down = False
    with Lock(store, settings=SETTINGS, audit=log).acquire():
        pass
    assert settled(log)
    assert [[record.step for record in page] for page in written(store)] == [["START", "END"]]


def test_switch_is_asked_once_a_minute_and_costs_the_lock_nothing(store: Store, backend: Slow) -> None:
    world = ManualClock()
    log = AuditLog(store, world=world)
    lock = Lock(store, settings=SETTINGS, audit=log)

    def cycles(count: int) -> int:
        backend.asked.clear()
        for _ in range(count):
            with lock.acquire():
                pass
            assert settled(log)
        return sum("audit" in what for what in backend.asked)

    assert cycles(5) == 1
    enable(store)
    assert cycles(5) == 0
    world.advance(60)
    backend.asked.clear()
    with lock.acquire():
        pass
    assert settled(log)
    assert [what for what in backend.asked if "lock" in what] == ["put table_lock.json"] * 2
    assert len(written(store)) == 1


def test_file_that_was_cleaned_up_in_between_comes_back_whole(store: Store) -> None:
    enable(store)
    log = AuditLog(store)
    with Lock(store, settings=SETTINGS, audit=log).acquire():
        assert settled(log)
        for entry in store.list(FOLDER + "/"):
            store.delete(entry.path)
    assert settled(log)
    assert [record.step for record in written(store)[0]] == ["START", "END"]


def test_record_added_while_the_audit_thread_ends_is_written(store: Store) -> None:
    """As long as something is to be written, the end of the process knows of it."""
    enable(store)
    log = AuditLog(store)
    record = LockRecord("o", 600_000, expired=False, holder=Holder("h", 1, 1_000))
    for at_ms in range(300):
        log.taken(record)
        log.ended(at_ms, held=True)
        with log._guard:
            assert not (log._idle.is_set() and (log._pages or log._running))
    assert settled(log)


def test_renewal_is_dropped_when_another_thread_ends_the_holding(store: Store) -> None:
    enable(store)
    log = AuditLog(store)
    log.taken(LockRecord("o", 600_000, expired=False, holder=Holder("h", 1, 1_000)))

    class Read:
        """The record of a renewal; the holding ends on another thread while it is read."""

        @property
        def valid_until_ms(self) -> int:
            if ending.ident is None:
                ending.start()
                ending.join(0.2)
            return 700_000

    ending = threading.Thread(target=lambda: log.ended(2_000, held=False))
    log.renewed(Read(), 100)  # type: ignore[arg-type]
    ending.join(60)
    assert settled(log)
    assert [record.step for record in written(store)[0]][-1] == "END"


def test_unexpected_error_of_a_write_does_not_end_the_audit(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> bool:
        raise ValueError("of a client library")

    enable(store)
    log = AuditLog(store)
    with monkeypatch.context() as patched:
        patched.setattr(audit_log, "is_enabled", fail)
        log.taken(LockRecord("o", 600_000, expired=False, holder=Holder("h", 1, 1_000)))
        assert settled(log)
    assert "of a client library" in caplog.text
    log.ended(2_000, held=True)
    assert settled(log)
    assert [record.step for record in written(store)[0]] == ["START", "END"]


def test_last_records_are_written_when_another_audit_fails(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    enable(store)
    broken, log = AuditLog(store), AuditLog(store)

    def no_threads(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    def shut_down() -> None:
        raise RuntimeError("cannot schedule new futures after shutdown")

    monkeypatch.setattr(broken, "_finish", shut_down)
    monkeypatch.setattr(audit_log, "_ALL", [broken, log])
    monkeypatch.setattr(audit_log.Worker, "start", no_threads)
    log.taken(LockRecord("o", 600_000, expired=False, holder=Holder("h", 1, 1_000)))
    log.ended(2_000, held=True)
    audit_log._at_exit()
    assert [record.step for record in written(store)[0]] == ["START", "END"]


def test_exit_waits_once_for_a_silent_store_however_many_logs_are_queued(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_threads(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    clock = ManualClock(1_000)
    silent = Store(Faulty(store.backend, {"get": [LoseRequest()] * 1000}, world=clock), store.root, world=clock)
    logs = [AuditLog(silent, world=clock, exit_s=5) for _ in range(3)]
    monkeypatch.setattr(audit_log, "_ALL", logs)
    monkeypatch.setattr(audit_log.Worker, "start", no_threads)
    for log, at_ms in itertools.product(logs, range(1_000, 11_000, 1_000)):
        log.taken(LockRecord("o", 600_000, expired=False, holder=Holder("h", 1, at_ms)))
        log.ended(at_ms, held=True)
    began_s = clock.monotonic_s()
    audit_log._at_exit()
    assert clock.monotonic_s() - began_s <= 5.5
    assert "files were not written in time" in caplog.text


def test_flush_does_not_wait_when_no_thread_can_start(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_threads(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    enable(store)
    log = AuditLog(store)
    with monkeypatch.context() as patched:
        patched.setattr(audit_log.Worker, "start", no_threads)
        log.taken(LockRecord("o", 600_000, expired=False, holder=Holder("h", 1, 1_000)))
        began_s = time.monotonic()
        assert not log.flush(6)
        assert time.monotonic() - began_s < 5
    assert log.flush(6)
    assert [record.step for record in written(store)[0]] == ["START"]


def test_no_thread_is_left_when_all_is_written(store: Store) -> None:
    enable(store)
    log = AuditLog(store)
    with Lock(store, settings=SETTINGS, audit=log).acquire():
        pass
    assert settled(log)
    for thread in threading.enumerate():
        if thread.name == "lock-audit":
            thread.join(60)
            assert not thread.is_alive()


@pytest.mark.parametrize("ending", ["pass", "lease.release()", "sys.exit(3)", "raise ValueError"])
def test_last_record_of_a_process_is_written(tmp_path: Path, ending: str) -> None:
    store = Store.from_url(str(tmp_path))
    enable(store)
    code = f"""
import sys
import time
from fsspec_cas import Store
from lockprovider import Lock
from lockprovider.storage_lock.audit_log import AuditLog
store = Store.from_url(sys.argv[1])
lease = Lock(store, audit=AuditLog(store, exit_s=100)).acquire()
{ending}
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, timeout=120, capture_output=True)
    assert [record.step for record in written(store)[0]] == ["START", "END"]
    assert LockRecord.decode(store.read(HUDI_LOCK_PATH).data).expired


def test_forked_process_keeps_an_audit_of_its_own(tmp_path: Path) -> None:
    store = Store.from_url(str(tmp_path))
    enable(store)
    code = """
import os, sys
from fsspec_cas import Store
from lockprovider import Lock
from lockprovider.storage_lock.audit_log import AuditLog
store = Store.from_url(sys.argv[1])
lock = Lock(store, audit=AuditLog(store, exit_s=100))
lock.acquire().release()
if os.fork() == 0:
    lock.acquire().release()
    sys.exit()
os.wait()
lock.acquire().release()
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=120, capture_output=True)
    pages = written(store)
    assert [[record.step for record in page] for page in pages] == [["START", "END"]] * 3
    assert len({page[0].owner for page in pages}) == 2
    audit = analyse(read_files(store, FOLDER, timeout_s=10), Machine().now_ms())
    assert not audit.overlaps


def hold_by_lock(url: str) -> None:
    with lockprovider.lock(url):
        pass


def hold_by_acquire(url: str) -> None:
    lockprovider.lock(url).acquire().release()


def hold_by_provider(url: str) -> None:
    with lockprovider.LockProvider.from_url(url) as provider:
        assert provider.try_lock()


def hold_by_config(url: str) -> None:
    with lockprovider.LockProvider.from_config({"hoodie.base.path": url}) as provider:
        assert provider.try_lock()


def hold_by_task(url: str) -> None:
    async def hold() -> None:
        async with lockprovider.async_lock(url) as lease:
            lease.check()

    asyncio.run(hold())


def hold_by_table(url: str) -> None:
    Table.create(url, TableSpec("t", pa.schema([("id", pa.int64())]), record_keys=("id",)))


@pytest.mark.parametrize(
    "hold", [hold_by_lock, hold_by_acquire, hold_by_provider, hold_by_config, hold_by_task, hold_by_table]
)
def test_every_front_door_keeps_the_audit(tmp_path: Path, hold: Callable[[str], None]) -> None:
    store = Store.from_url(str(tmp_path))
    enable(store)
    hold(str(tmp_path))
    pause = threading.Event()
    for _ in range(600):
        pages = written(store)
        if pages and pages[0][-1].step == "END":
            break
        pause.wait(0.05)
    ((start, *_, end),) = pages  # a commit of a table renews in between
    assert (start.step, end.step, end.held) == ("START", "END", True)


def test_pickled_audit_starts_anew_in_another_process(tmp_path: Path) -> None:
    store = Store.from_url(str(tmp_path))
    enable(store)
    log = pickle.loads(pickle.dumps(AuditLog(store)))
    with Lock(store, settings=SETTINGS, audit=log).acquire():
        pass
    assert settled(log)
    assert [record.step for record in written(store)[0]] == ["START", "END"]


def test_stale_holder_shows_as_an_overlap(store: Store) -> None:
    """Two clients with clocks of their own, as in two processes: taken over, and noticed two seconds later."""
    enable(store)
    one, two, here, there = AuditLog(store), AuditLog(store), ManualClock(), ManualClock(_ids=1000)
    stale = Lock(store, settings=SETTINGS, audit=one, world=here).acquire()
    break_lock(store, HUDI_LOCK_PATH, look(store, HUDI_LOCK_PATH, here), here).outcome.unwrap()
    with Lock(store, settings=SETTINGS, audit=two, world=there).acquire() as newer:
        here.advance(2)
        there.advance(2)
        assert not stale.renew()
    assert settled(one, two)
    audit = analyse(read_files(store, FOLDER, timeout_s=10), here.now_ms())
    (overlap,) = audit.overlaps
    assert overlap.owners == (stale.owner, newer.owner)
    assert overlap.to_ms - overlap.from_ms >= 2000
