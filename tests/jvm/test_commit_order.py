"""Rows of one key in a copy-on-write table whose later commit wins, although the table names an ordering field."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from table.tables import SETTINGS

from jvm.artifacts import HUDI
from jvm.key_texts import DRIVER, QUICK
from jvm.spark import HudiSpark
from lockprovider.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.jvm
FIELDS = {
    "hoodie.table.name": "t",
    "hoodie.table.timeline.timezone": "UTC",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "part",
    "hoodie.datasource.write.precombine.field": "value",
    "hoodie.datasource.write.operation": "upsert",
    "hoodie.write.record.merge.mode": "COMMIT_TIME_ORDERING",
}


@pytest.fixture(scope="module")
def hudi(start_release: Callable[..., HudiSpark], tmp_path_factory: pytest.TempPathFactory) -> Iterator[HudiSpark]:
    with start_release(HUDI, tmp_path_factory.mktemp("commit_order"), **DRIVER) as hudi:
        yield hudi


def test_later_commit_wins_whatever_its_ordering_value(hudi: HudiSpark, tmp_path: Path) -> None:
    url = str(tmp_path / "t")

    def save(*values: int) -> list[tuple[int, ...]]:
        rows = " union all ".join(f"select 1 as id, 'a' as part, {value}L as value" for value in values)
        hudi.save(rows, url, {**QUICK, **FIELDS})
        return hudi.read(url, ["value"])

    assert [save(9), save(5), save(7, 3), save(2, 8)] == [[(9,)], [(5,)], [(3,)], [(8,)]], "in one batch the last row"
    table = Table.open(url, settings=SETTINGS)
    for values in ((1,), (7, 3), (2, 8)):
        row = table.to_arrow()
        column = row.schema.get_field_index("value")
        table.upsert(pa.concat_tables(row.set_column(column, "value", pa.array([value])) for value in values))
        assert table.to_arrow().column("value").to_pylist() == [values[-1]]
        assert hudi.read(url, ["value"]) == [(values[-1],)]
