"""The demonstration's proof holds with the conflict check, and fails when the check is taken out."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lockprovider.demo import proof
from lockprovider.table import Scan, Table, TableSpec, TableTransaction
from lockprovider.table.engines import arrow as engine
from lockprovider.table.transaction import decision

JANUARY = (1,)


def protect(txn: TableTransaction) -> None:
    """Replace the raw tail numbers of the snapshot."""
    rows = Scan(txn).to_arrow()
    aliases = [tail and proof.pseudonym(tail) for tail in rows["tailnum"].to_pylist()]
    place = rows.column_names.index("tailnum")
    engine.write(txn, upserts=rows.set_column(place, "tailnum", pa.array(aliases, pa.string())))


def correct(txn: TableTransaction) -> None:
    """Fill what is missing, and delete the cancelled flights."""
    frame = proof.backfill(proof.frame(Scan(txn).to_arrow()))
    cancelled = frame[frame["dep_time"].isna()]
    kept = proof.delete_cancelled(frame)
    engine.write(
        txn,
        upserts=pa.Table.from_pandas(kept, proof.SCHEMA, preserve_index=False),
        deletes=pa.Table.from_pandas(cancelled[[*proof.KEYS, "month"]], preserve_index=False),
    )


def run(url: str) -> proof.Comparison:
    """The three jobs on one month; the late delivery overtakes the first attempt to protect it."""
    data = proof.load()
    spec = TableSpec("flights", proof.SCHEMA, proof.KEYS, ("month",))
    table = Table.create(url, spec)
    main, late = proof.plan(JANUARY)
    table.transact(lambda txn: engine.write(txn, upserts=proof.delivery(data, *main)))
    overtaken = []

    def protect_while_others_write(txn: TableTransaction) -> None:
        protect(txn)
        if not overtaken:
            overtaken.append(table.transact(lambda other: engine.write(other, upserts=proof.delivery(data, *late))))

    table.transact(protect_while_others_write, retries=3)
    table.transact(correct)
    return proof.compare(proof.read(url, {}), proof.reference(data, JANUARY))


def test_proof_holds_with_the_conflict_check(tmp_path: Path) -> None:
    found = run(str(tmp_path / "table"))
    assert found.equal
    assert found.expected_rows > 20_000


def test_proof_fails_without_the_conflict_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision, "decide", lambda *_: None)
    found = run(str(tmp_path / "table"))
    assert not found.equal
    assert found.missing, "the report must name the rows"
