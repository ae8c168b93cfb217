"""Many rows by a small driver, many partitions, and one partition that has nearly all rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from table.own_process import told_by
from table.tables import SETTINGS, SPEC, by_hudi_rs, content, orphans

from lockprovider.table import Table
from lockprovider.table.engines import spark as engine
from lockprovider.table.engines.spark.data_source import register

ROWS_A_MINUTE = 2_000_000  # ten million in the five minutes of `--soak`


@pytest.mark.soak
def test_driver_of_1_gb_writes_ten_million_rows_without_broadcast(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    count = int(request.config.getoption("--soak") * ROWS_A_MINUTE) // 20 * 20
    words = (str(tmp_path / "t"), str(tmp_path / "home"), str(count))
    seen = told_by("table.engines.spark.large_child", *words, timeout_s=6 * 3600)
    print(seen)  # noqa: T201 - the memory, for the results page
    assert seen["heap_mb"] <= 1024
    assert seen["appended"] == count
    assert seen["upserted"] == [count // 2, count // 20]
    assert seen["merged"] == [count // 2, 0]
    assert seen["deleted"] == count // 10
    assert seen["staged"] == "UPSERT"
    assert seen["count"] == count + count // 20 - count // 10
    assert seen["clustered"] > 0
    assert seen["after"] == seen["count"]
    assert seen["logged"] == count // 10
    assert seen["compacted"] == 4  # rows whose id is a multiple of 10 are in the even ones of the 8 partitions
    assert seen["read"] == count
    assert seen["plans"] > 10
    assert seen["broadcasts"] == []
    assert seen["peak_mb"]["jvm"] < 2048


def save(rows: Any, table: Table, operation: str) -> None:
    register(rows.sparkSession)
    writer = rows.write.format("hudi_cas").mode("append")
    writer.option("hoodie.datasource.write.operation", operation).save(table.url)


WRITES = {
    "functions": (engine.append, engine.upsert),
    "data source": (lambda table, rows: save(rows, table, "insert"), lambda table, rows: save(rows, table, "upsert")),
}


@pytest.mark.soak
@pytest.mark.parametrize("way", WRITES)
@pytest.mark.parametrize(
    ("count", "part"),
    [(10_000, "concat('p', id % 5000)"), (200_000, "case when id % 10 < 9 then 'most' else concat('p', id % 100) end")],
    ids=["5,000 partitions", "nine tenths in one"],
)
def test_write_of_many_partitions_or_one_large_one(spark: Any, tmp_path: Path, count: int, part: str, way: str) -> None:
    append, upsert = WRITES[way]
    table = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)
    rows = spark.range(0, count, 1, 2).selectExpr("id", f"{part} as part", "id as value")
    append(table, rows)
    upsert(table, rows.where("id % 7 = 0").selectExpr("id", "part", "-value as value"))
    found = content(table)
    assert found == by_hudi_rs(table.url)
    assert {(key, value) for key, _, value in found} == {(n, -n if n % 7 == 0 else n) for n in range(count)}
    assert orphans(Path(table.url)) == set()
