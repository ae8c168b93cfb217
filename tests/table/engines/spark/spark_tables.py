"""Small tables and DataFrames for the tests with Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from table.tables import SETTINGS, upsert

from lockprovider.table import Table, TableSpec

TRIPLE = "id long, part string, value long"


def frame(spark: Any, *triples: tuple[int | None, str | None, int]) -> Any:
    """Rows of (id, part, value)."""
    return spark.createDataFrame(list(triples), TRIPLE)


def filled(folder: Path, spec: TableSpec) -> Table:
    """A table with four rows in three partitions."""
    made = Table.create(str(folder), spec, settings=SETTINGS)
    upsert(made, (1, "a", 1), (2, "a", 2), (3, "b", 3), (4, "c", 4))
    return made
