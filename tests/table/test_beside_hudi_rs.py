"""hudi-rs 0.6 writes beside us: it knows no lock, and takes each write that is under way for a failed one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from servers.install import from_cargo
from table.tables import SETTINGS, SPEC, content, rows, upsert

from lockprovider.table import Aborted, Table
from lockprovider.table.engines import arrow as engine
from lockprovider.table.transaction import decision
from lockprovider.table.transaction.transaction import Transaction

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def hudi_rs() -> Path:
    """A program that makes one write by the crate hudi-core 0.6.0-rc.1."""
    if shutil.which("cargo") is None:
        pytest.skip("hudi-rs is not tested: there is no cargo on the PATH")
    return from_cargo(Path(__file__).parent / "hudi_rs", "hudi-writer")


def write(program: Path, verb: str, table: Table, given: Path | str) -> None:
    ran = subprocess.run([program, verb, table.url, str(given)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_commit_of_hudi_rs_is_read_and_aborts_a_running_write_whole(
    hudi_rs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision, "LOOKED_AT_MS", 0)
    table = Table.create(str(tmp_path / "table"), SPEC, settings=SETTINGS)
    upsert(table, (1, "a", 1), (2, "b", 2))
    txn = Transaction(Table.open(table.url, settings=SETTINGS))
    engine.write(txn, upserts=rows((1, "a", 666)))

    pq.write_table(rows((3, "b", 3)), tmp_path / "rows.parquet")
    write(hudi_rs, "upsert", table, tmp_path / "rows.parquet")
    with pytest.raises(Aborted, match="rolled back by another writer"):
        txn.commit()
    assert content(table) == {(1, "a", 1), (2, "b", 2), (3, "b", 3)}
    assert any("without the lock" in one.what for one in table.doctor())

    upsert(table, (1, "a", 10))
    assert content(table) == {(1, "a", 10), (2, "b", 2), (3, "b", 3)}
