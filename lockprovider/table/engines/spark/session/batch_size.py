"""How many rows Spark hands to Python at once, while a job of this engine runs.

Spark ends a batch at a number of bytes, and asks every column for its bytes after every row: with eight columns that
takes half of the JVM's time for handing rows over. Meanwhile a number of rows ends it here.

Not promised: anything for rows of more than 2 MB on average. Whoever has such sets `MOST_BYTES` in the session: what is
set there stays. Not touched either: rows with binary or nested columns, which may well be so large.

Source: Spark's `BatchedPythonArrowInput.writeSizedBatch`, `ArrowWriter.sizeInBytes`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    BooleanType,
    DateType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

MOST_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
MOST_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
ROWS = 1000  # fewer cost Python as much as the JVM is spared
_NO_LIMIT = str((1 << 31) - 1)  # Spark's own word for it
_SMALL = (BooleanType, DateType, NumericType, StringType, TimestampNTZType, TimestampType)
_SETTING = threading.Lock()


@contextmanager
def ended_by_rows(spark: SparkSession, handed: StructType) -> Iterator[None]:
    """While rows of this schema are handed to Python. Other queries of the session meanwhile have these batches, too.

    Of several threads the first sets it and takes it back.
    """
    is_mine, before = False, None
    if all(isinstance(field.dataType, _SMALL) for field in handed.fields):
        with suppress(PySparkException), _SETTING:  # a server may forbid it
            is_mine, before = _set(spark)
    try:
        yield
    finally:
        if is_mine:
            with _SETTING:
                _restore(spark, MOST_ROWS, before)
                _restore(spark, MOST_BYTES, None)


def _set(spark: SparkSession) -> tuple[bool, str | None]:
    """Whether it was set now, and what the number of rows was before."""
    if spark.conf.get(MOST_BYTES, None) is not None:
        return False, None
    before = spark.conf.get(MOST_ROWS, None)
    spark.conf.set(MOST_BYTES, _NO_LIMIT)
    if before is None or not 0 < int(before) <= ROWS:
        spark.conf.set(MOST_ROWS, str(ROWS))
    return True, before


def _restore(spark: SparkSession, key: str, before: str | None) -> None:
    if before is None:
        spark.conf.unset(key)
    else:
        spark.conf.set(key, before)
