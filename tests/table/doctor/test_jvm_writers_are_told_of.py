"""What a JVM writer may do to a table that is shared with it: `doctor` and `status` say it."""

from __future__ import annotations

import logging
from pathlib import Path

import pyarrow as pa
import pytest

from fsspec_cas import Machine, Store
from lockprovider import HUDI_LOCK_PATH, LockRecord
from lockprovider.storage_lock.status import JVM_HOLDS, JVM_STARVES, lines, look
from lockprovider.table import Table, TableSpec
from lockprovider.table.doctor.rules import diagnose


def made(folder: Path) -> Table:
    return Table.create(str(folder), TableSpec("t", pa.schema([("id", pa.int64())]), ("id",)))


def notes(table: Table) -> str:
    return " ".join(f"{one.what}; {one.mend}" for _, _, found in diagnose(table) for one in found)


def jvm(**more: object) -> bytes:
    """As JVM Hudi writes it, who says no more than this."""
    later_ms = Machine().now_ms() + 100_000
    return LockRecord(owner="jvm", valid_until_ms=later_ms, expired=False, epoch=0, **more).encode()  # type: ignore[arg-type]


def put(store: Store, data: bytes) -> None:
    store.delete(HUDI_LOCK_PATH)
    store.put_if_absent(HUDI_LOCK_PATH, data).unwrap()


def test_doctor_names_clients_locked_out_of_version_9(tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    assert "Hudi 1.0" not in notes(table)
    path = tmp_path / "t" / ".hoodie" / "hoodie.properties"
    path.write_text(path.read_text().replace("hoodie.table.version=8", "hoodie.table.version=9"))
    said = notes(Table.open(str(tmp_path / "t")))
    assert "version 9, which readers and writers of Hudi 1.0 cannot open" in said
    assert "hoodie.write.auto.upgrade=false" in said


def test_upgrade_logs_which_clients_are_locked_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table, path = made(tmp_path / "t"), tmp_path / "t" / ".hoodie" / "hoodie.properties"
    path.write_text(path.read_text().replace("hoodie.table.version=8", "hoodie.table.version=9"))
    with caplog.at_level(logging.INFO, "lockprovider.table"):
        assert table.config().version == 9
        table.config()
        Table.open(str(tmp_path / "t"))
    said = [(one.levelname, one.getMessage()) for one in caplog.records if "Hudi 1.0" in one.getMessage()]
    assert [level for level, _ in said] == ["WARNING", "INFO"]
    assert said[0][1].endswith("upgraded from version 8 to 9: Hudi 1.0 cannot open it any more")


def test_doctor_says_that_a_jvm_lock_holder_may_be_upgrading(tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    with table.lock.acquire():
        assert JVM_HOLDS not in notes(table)
    put(table.store, jvm())
    assert JVM_HOLDS in notes(table)
    assert any(JVM_HOLDS in line for line in lines(look(table.store, HUDI_LOCK_PATH, Machine())))


def test_status_and_doctor_say_that_waiters_may_starve_a_jvm_writer(tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    put(table.store, jvm(foreign_seen_ms=Machine().now_ms()))
    assert not any(JVM_STARVES in line for line in lines(look(table.store, HUDI_LOCK_PATH, Machine())))
    assert JVM_STARVES not in notes(table)
    put(table.store, jvm(foreign_seen_ms=Machine().now_ms(), waiters=("one", "another")))
    assert JVM_STARVES in notes(table)
    assert any(JVM_STARVES in line for line in lines(look(table.store, HUDI_LOCK_PATH, Machine())))
