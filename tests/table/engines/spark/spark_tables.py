"""Small tables and DataFrames for the tests with Spark."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from table.tables import SETTINGS, upsert

from lockprovider.table import Table, TableSpec

RUN_S = 1500  # reached by a failure only
TRIPLE = "id long, part string, value long"


def frame(spark: Any, *triples: tuple[int | None, str | None, int]) -> Any:
    """Rows of (id, part, value)."""
    return spark.createDataFrame(list(triples), TRIPLE)


def filled(folder: Path, spec: TableSpec) -> Table:
    """A table with four rows in three partitions."""
    made = Table.create(str(folder), spec, settings=SETTINGS)
    upsert(made, (1, "a", 1), (2, "a", 2), (3, "b", 3), (4, "c", 4))
    return made


def forget_last_batch(checkpoint: Path) -> None:
    """What kill -9 between our commit and Spark's leaves: the batch is in the table, and Spark does not know."""
    last = max((path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()), key=lambda p: int(p.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink()


def to_its_end(start: Callable[[], Any]) -> bool:
    """Spark gives a Python worker ten seconds to start, not to be set; a busy machine may need more, and then again."""
    from pyspark.errors import StreamingQueryException

    end_s = time.monotonic() + RUN_S
    while (left_s := end_s - time.monotonic()) > 0:
        try:
            return start().awaitTermination(left_s)
        except StreamingQueryException as error:
            if "failed to connect back" not in str(error):
                raise
    return False
