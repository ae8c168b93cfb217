"""The Spark jobs that a write is made of; what they run on the executors is in `tasks`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from fsspec_cas import InvalidInput
from lockprovider.table.engines.spark import tasks
from lockprovider.table.engines.spark.buckets import with_bucket_groups
from lockprovider.table.engines.spark.errors import typed_errors
from lockprovider.table.engines.spark.key_sketch import Sketch
from lockprovider.table.engines.spark.session.batch_size import ended_by_rows
from lockprovider.table.errors import InvalidRecords
from lockprovider.table.files.group_writer import GroupWriter
from lockprovider.table.format.metadata import WriteStat
from lockprovider.table.read import sql_where
from lockprovider.table.transaction.transaction import Transaction

SKETCHED_KEYS = 4_000_000  # 16 MB of hashes in the driver, and of bits in each of Spark's Python processes
_NO_COLUMNS = pa.schema([])
_ALIKE = frozenset({pa.string(), pa.int32(), pa.int64(), pa.bool_(), pa.date32()})  # compare alike in Spark and Arrow


def run_over(
    spark: SparkSession, work: Sequence[tasks.T], each: Callable[[tasks.T], pa.Table], schema: pa.Schema
) -> DataFrame:
    """A DataFrame of what `each` makes of every piece of work (a file slice, say), one Spark partition a piece."""
    numbers = spark.range(0, len(work), 1, max(1, len(work)))
    return numbers.mapInArrow(tasks.map_over(work, each, schema), from_arrow_schema(schema))


def with_groups(keyed: DataFrame, numbered: tasks.Numbered, writer: GroupWriter) -> DataFrame:
    """The changes with the file group that each is for; a key that is nowhere gets a new one, by its hash."""
    if writer.config.bucket_index is not None:
        return with_bucket_groups(keyed, numbered.old, writer)
    bucket = F.pmod(F.xxhash64(tasks.KEY), F.lit(numbered.buckets)).cast("string")
    fresh = F.concat(F.lit(tasks.NEW), bucket)
    if not numbered.old:
        return keyed.withColumn(tasks.GROUP, fresh)
    on = [tasks.KEY, tasks.PARTITION]
    # With a sketch the other keys of the table, of which there are many more, are not sent to Spark.
    sketch = _sketch(keyed) if numbered.changes <= SKETCHED_KEYS else None
    locate = tasks.locator(writer, _NO_COLUMNS, sketch)
    index = run_over(keyed.sparkSession, list(numbered.old.items()), locate, tasks.KEYS)
    tagged = keyed.join(index, on, "left")
    return tagged.withColumn(tasks.GROUP, F.coalesce(F.col(tasks.GROUP), fresh))


def _sketch(keyed: DataFrame) -> Sketch:
    """Of the keys of all changes; to the driver come four bytes a key."""
    keys = keyed.select(tasks.KEY)
    hashed = keys.mapInArrow(tasks.hasher, from_arrow_schema(tasks.HASHES))
    return Sketch.of([row[0] for row in collected(hashed, keys.schema)])


def put(
    txn: Transaction, writer: GroupWriter, changes: DataFrame, numbered: tasks.Numbered, *, valued: bool = False
) -> None:
    """Write changes that know their file group; `valued`: the deletes have ordering values."""
    # Given a number, Spark does not merge these tasks into a few; it would, as it sees only how small the changes are.
    apart = changes.repartition(numbered.tasks, tasks.GROUP)
    grouped = apart.groupBy(tasks.PARTITION, tasks.GROUP)
    stats = grouped.applyInArrow(tasks.rewriter(writer, numbered, valued=valued), from_arrow_schema(tasks.STATS))
    run_and_add(txn, stats, changes.schema)


def run_and_add(txn: Transaction, stats: DataFrame, handed: StructType) -> None:
    """Run the job that writes, exactly once, and hand its statistics to the transaction; `handed`: see `collected`."""
    txn.add(WriteStat(**row.asDict()) for row in collected(stats, handed))


def collected(frame: DataFrame, handed: StructType) -> list[Row]:
    """Run a job that hands rows of the schema `handed` to Python."""
    with typed_errors(), ended_by_rows(frame.sparkSession, handed):
        return frame.collect()


def check_named(writer: GroupWriter, rows: DataFrame) -> tuple[str, ...]:
    """The columns that tell a row's key and partition.

    Raises:
        InvalidRecords: the rows lack one.
    """
    named = writer.config.identifying
    missing = [name for name in named if name not in rows.columns]
    if missing:
        raise InvalidRecords(f"columns {missing} are missing, which tell a row's key and partition; add them")
    return named


def mentioned(where: str, schema: pa.Schema) -> pa.Schema:
    """The columns whose names occur in an SQL text; it cannot use others. At least one: a table has rows."""
    if "*" in where:
        return schema  # might stand for all columns
    words = {word.lower() for word in re.findall(r"\w+", where)}
    named = [column for column in schema if column.name.lower() in words]
    return pa.schema(named)


def pushable(where: str, schema: pa.Schema) -> Any:
    """A condition in Spark SQL as an Arrow expression, if both mean the same for sure; else None."""
    if any(mark in where for mark in ("\\", "''", '"')):
        return None  # Spark's settings say what these mean; double quotes are for texts there
    try:
        return sql_where.parse_where(where, pa.schema([column for column in schema if column.type in _ALIKE]))
    except InvalidInput:
        return None


def keyed(
    writer: GroupWriter,
    upserts: DataFrame | None,
    deletes: DataFrame | None,
    *,
    whole: bool = True,
    valued: bool = False,
) -> DataFrame:
    """All changes with the table's columns, their key and partition, and whether they are deletes.

    `whole` is whether upserts must have all columns; else one that is missing is null. `valued`: the ordering values of
    the deletes count.

    Raises:
        InvalidRecords: a column is missing.
    """
    lacking = (
        [] if upserts is None or not whole else [name for name in writer.schema.names if name not in upserts.columns]
    )
    if lacking:
        raise InvalidRecords(f"columns {lacking} are missing, and what the table has there would be erased; add them")
    kind = from_arrow_schema(tasks.change_schema(writer.schema))
    parts: list[DataFrame] = []
    for frame, gone in ((upserts, False), (deletes, True)):
        if frame is not None:
            check_named(writer, frame)
            parts.append(frame.mapInArrow(tasks.keyer(writer, delete=gone, valued=valued), kind))
    return parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])


def counts(keyed: DataFrame) -> dict[str, int]:
    """How many changes there are of each partition."""
    found = collected(keyed.groupBy(tasks.PARTITION).count(), keyed.schema)
    return {row[tasks.PARTITION]: row["count"] for row in found}


def partitions_of(rows: DataFrame, planner: GroupWriter, named: Sequence[str]) -> list[str]:
    """The partitions that the rows are for."""
    few = rows.select(*named)
    tagged = few.mapInArrow(tasks.partitioner(planner), from_arrow_schema(tasks.PARTITIONS))
    return sorted(row[tasks.PARTITION] for row in collected(tagged.distinct(), few.schema))
