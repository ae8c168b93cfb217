"""An open handle notices that the table got another version: it never reads an empty table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from lockprovider.table import Table, TableSpec, UnsupportedTable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROWS = pa.table({"id": [1, 2], "city": ["ulm", "bonn"]})


def set_version(folder: Path, before: int, after: int) -> None:
    """Do what `CALL downgrade_table` and `upgrade_table` do to where a reader looks: move the timeline."""
    hoodie = folder / ".hoodie"
    old, new = (hoodie / "timeline", hoodie) if after < before else (hoodie, hoodie / "timeline")
    for path in [path for path in old.iterdir() if path.name[:1].isdigit()]:
        path.rename(new / path.name)
    properties = hoodie / "hoodie.properties"
    text = properties.read_text().replace(f"hoodie.table.version={before}", f"hoodie.table.version={after}")
    properties.write_text(text)


@pytest.mark.parametrize(
    "verb",
    [
        Table.to_arrow,
        Table.count,
        lambda table: table.to_arrow(filter="id = 1"),
        Table.timeline,
        lambda table: table.append(ROWS),
        lambda table: table.upsert(ROWS),
        lambda table: table.delete(ROWS),
    ],
)
@pytest.mark.parametrize("writes", [1, 30])
def test_open_handle_refuses_a_table_that_was_downgraded(
    tmp_path: Path, verb: Callable[[Table], object], writes: int
) -> None:
    table = Table.create(f"{tmp_path}/t", TableSpec("t", ROWS, "id", "city"))
    for _ in range(writes):
        table.upsert(ROWS)
    reader = Table.open(table.url)
    for handle in (table, reader):
        assert handle.count() == 2
    set_version(tmp_path / "t", 8, 6)
    for handle in (table, reader, table):
        with pytest.raises(UnsupportedTable, match=r"hoodie.table.version=6"):
            verb(handle)
    set_version(tmp_path / "t", 6, 8)
    assert [table.count(), reader.count()] == [2, 2]
    table.upsert(ROWS)
    assert reader.to_arrow().num_rows == 2
