"""Each way that Spark has to save a frame works, or is refused by name and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from table.engines.spark.spark_tables import frame
from table.tables import SETTINGS, SPEC, content, upsert

from lockprovider.table import Table, TableExists
from lockprovider.table.engines.spark.data_source import register
from lockprovider.table.engines.spark.errors import typed_errors

OLD, NEW = (1, "a", 1), (5, "b", 5)
VIEW = "create or replace temporary view saved using hudi_cas options (path '{}')"
Save = Callable[[Any, str], object]


def by(df: Any, mode: str = "append") -> Any:
    return df.write.format("hudi_cas").mode(mode)


def into_view(df: Any, url: str, *, overwrite: bool) -> None:
    df.sparkSession.sql(VIEW.format(url))
    df.write.insertInto("saved", overwrite=overwrite)


def into_catalog(df: Any, url: str) -> None:
    df.sparkSession.sql(f"create table saved_place using hudi_cas location '{url}'")


WORK: dict[str, tuple[Save, set[tuple[int, str, int]]]] = {
    "append": (lambda df, url: by(df).save(url), {OLD, NEW}),
    "overwrite": (lambda df, url: by(df, "overwrite").save(url), {NEW}),
    "insertInto": (lambda df, url: into_view(df, url, overwrite=False), {OLD, NEW}),
    "insertInto, overwrite": (lambda df, url: into_view(df, url, overwrite=True), {NEW}),
    # Spark does not tell that this is for its catalog: what the README says of it.
    "saveAsTable": (lambda df, url: by(df, "error").option("path", url).saveAsTable("saved_1"), {OLD, NEW}),
}
REFUSED: dict[str, tuple[Save, str]] = {
    "error": (lambda df, url: by(df, "error").save(url), "UNSUPPORTED_DATA_SOURCE_SAVE_MODE"),
    "ignore": (lambda df, url: by(df, "ignore").save(url), "UNSUPPORTED_DATA_SOURCE_SAVE_MODE"),
    "partitionBy": (lambda df, url: by(df).partitionBy("part").save(url), "provided: identity.part"),
    "bucketBy": (lambda df, url: by(df).bucketBy(2, "id").save(url), "'save' does not support bucketBy"),
    "sortBy": (lambda df, url: by(df).sortBy("id").save(url), "sortBy must be used together with bucketBy"),
    "replaceWhere": (lambda df, url: by(df, "overwrite").option("replaceWhere", "id = 1").save(url), "replacewhere"),
    "saveAsTable, no path": (lambda df, url: by(df).saveAsTable("saved_2"), "no path: .* a table of its catalog"),
    "saveAsTable, if_exists": (
        lambda df, url: by(df).options(path=url, if_exists="error").saveAsTable("saved_3"),
        "if_exists=error forbids",
    ),
    "create table": (into_catalog, "cannot be a table of Spark's catalog"),
}


@pytest.fixture
def table(spark: Any, tmp_path: Path) -> Any:
    register(spark)
    made = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)
    upsert(made, OLD)
    yield made
    for name in ("saved_1", "saved_2", "saved_3", "saved_place"):
        spark.sql(f"drop table if exists {name}")


@pytest.mark.parametrize("way", [*WORK, *REFUSED])
def test_way_to_save_works_or_is_refused_by_name(spark: Any, table: Table, way: str) -> None:
    rows = frame(spark, NEW)
    if way in WORK:
        save, expected = WORK[way]
        save(rows, table.url)
        assert content(table) == expected
        return
    refused, words = REFUSED[way]
    with pytest.raises(Exception, match=words) as raised, typed_errors():
        refused(rows, table.url)
    assert (way == "saveAsTable, if_exists") == isinstance(raised.value, TableExists)
    assert content(table) == {OLD}
    assert table.timeline().pending_writes == ()
