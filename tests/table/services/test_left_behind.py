"""What an archiver leaves on the timeline below its first commit hides no row, here as for hudi-rs."""

from __future__ import annotations

from pathlib import Path

import pytest
from table.tables import SETTINGS, SPEC, by_hudi_rs, content, data_files, upsert

from lockprovider.table import KeepCommits, Table

ROWS = {(n, "ab"[n % 2], n) for n in range(1, 9)}
LEFT = ["restore", "clean", "rollback", "savepoint", "indexing", "clean.requested", "rollback.requested"]


@pytest.mark.parametrize("left", LEFT)
def test_active_timeline_does_not_begin_at_an_instant_without_rows(tmp_path: Path, left: str) -> None:
    table = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)
    for row in sorted(ROWS):
        upsert(table, row)
    begins = sorted(instant.begin for instant in table.timeline().writes)
    timeline = tmp_path / "t" / ".hoodie" / "timeline"
    for archived in begins[:6]:
        for path in timeline.glob(f"{archived}*"):
            path.unlink()
    completed = f"_{begins[4]}.{left}" if "." not in left else f".{left}"
    (timeline / f"{begins[3]}{completed}").touch()
    opened = Table.open(table.url, settings=SETTINGS)
    assert content(opened) == by_hudi_rs(table.url) == ROWS
    if "." not in left and left != "savepoint":
        before = data_files(tmp_path / "t")
        opened.clean(KeepCommits(100))
        assert data_files(tmp_path / "t") == before, "they are not files of no instant"
