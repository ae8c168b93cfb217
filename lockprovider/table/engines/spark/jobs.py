"""Spark jobs of a write."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import (
    BooleanType,
    DateType,
    LongType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from fsspec_cas import InvalidInput, Machine
from lockprovider.table.engines.spark import tasks
from lockprovider.table.engines.spark.errors import typed_errors
from lockprovider.table.errors import DoesNotFit, Misfit
from lockprovider.table.files.base_file import buckets_of_keys
from lockprovider.table.files.group_writer import GroupWriter
from lockprovider.table.format.metadata import WriteStat
from lockprovider.table.read import sql_where
from lockprovider.table.transaction.transaction import Transaction

if TYPE_CHECKING:
    from numpy.typing import NDArray

HASHED_KEYS = 4_000_000
_NO_COLUMNS = pa.schema([])
_VARIANT = re.compile(r"(?:^|[:<,])variant(?:$|[,>])")  # Python gets a struct of two binaries
_TEXT = re.compile(r"'[^']*'")
_EXPONENT = re.compile(r"(?<!\w)[\d.]+[eE]")
_HELD = "hudi held"
_DESCRIPTION = "spark.job.description"
_ALIKE = frozenset({pa.string(), pa.int32(), pa.int64(), pa.bool_(), pa.date32()})


def run_per_piece(
    spark: SparkSession, work: Sequence[tasks.T], each: Callable[[tasks.T], pa.Table], schema: pa.Schema
) -> DataFrame:
    """Describe the rows that `each` returns, one partition per piece of `work`; runs no job.

    Hides their size, by which Spark would broadcast the result.
    """
    numbers: Any = spark.range(0, len(work), 1, max(1, len(work)))
    run, kind = tasks.map_over(work, each, schema), from_arrow_schema(schema)
    session = getattr(spark, "_jsparkSession", None)
    if session is None:
        return cast("DataFrame", numbers.mapInArrow(run, kind).hint("merge"))
    rows = numbers._jdf.toDF()  # noqa: SLF001 - of an RDD Spark knows no size
    return DataFrame(session.createDataFrame(rows.toJavaRDD(), rows.schema()), spark).mapInArrow(run, kind)


@contextmanager
def computed_once(frame: DataFrame) -> Iterator[DataFrame]:
    """Cache a frame's rows while the block runs, by another plan, as other threads may unpersist the frame."""
    cached = frame.select("*", F.lit(Machine().new_id()).alias(_HELD)).drop(_HELD).persist()
    try:
        yield cached
    finally:
        cached.unpersist()


def with_groups(keyed: DataFrame, numbered: tasks.Numbered, writer: GroupWriter, steps: Steps) -> DataFrame:
    """Add to each change its file group's number (`tasks.GROUP`) of `numbered`, by bucket or by key.

    A key in several groups gives a row for each; a new key gets a new group by hash. May run the second job, which
    gathers hashes of keys.
    """
    if writer.config.bucket_index is not None:

        def by_bucket(changes: pa.Table) -> pa.Table:
            keys, partitions = (changes[name].combine_chunks() for name in (tasks.KEY, tasks.PARTITION))
            row_buckets = buckets_of_keys(writer.config, keys).to_numpy()
            groups = numbered.by_bucket(partitions.dictionary_encode(), row_buckets)
            return changes.append_column(tasks.GROUP, pa.array(groups))

        kind = StructType([*keyed.schema.fields]).add(tasks.GROUP, LongType())
        return keyed.mapInArrow(tasks.per_batch(by_bucket), kind)
    fresh = F.lit(-1) - F.pmod(F.xxhash64(tasks.KEY), F.lit(numbered.buckets))
    if not numbered.old:
        return keyed.withColumn(tasks.GROUP, fresh)
    on = [tasks.KEY, tasks.PARTITION]
    # With these hashes, Spark does not receive the table's other keys.
    wanted = _hashes(keyed, steps.at(2, "gather the keys of changes")) if numbered.changes <= HASHED_KEYS else None
    locate = tasks.locator(writer, _NO_COLUMNS, wanted)
    index = run_per_piece(keyed.sparkSession, list(numbered.old.items()), locate, tasks.KEYS)
    tagged = keyed.join(index, on, "left")
    return tagged.withColumn(tasks.GROUP, F.coalesce(F.col(tasks.GROUP), fresh))


def _hashes(keyed: DataFrame, step: str) -> NDArray[np.uint32]:
    keys = keyed.select(tasks.KEY)
    hashed = collect_rows(keys.mapInArrow(tasks.hasher, from_arrow_schema(tasks.HASHES)), keys.schema, step)
    return np.unique(np.frombuffer(b"".join(row[0] for row in hashed), dtype=np.uint32))


def write_changes(
    steps: Steps, writer: GroupWriter, changes: DataFrame, numbered: tasks.Numbered, *, valued: bool = False
) -> Iterator[WriteStat]:
    """Run the last job, which writes changes with `tasks.GROUP`."""
    # Without a number, Spark would merge these tasks.
    spread = changes.repartition(numbered.tasks, tasks.GROUP)
    grouped = spread.groupBy(tasks.PARTITION, tasks.GROUP)
    stats = grouped.applyInArrow(tasks.rewriter(writer, numbered, valued=valued), from_arrow_schema(tasks.STATS))
    action = f"look up and merge {numbered.changes} changes into {len(numbered.old)} file groups"
    return collect_stats(stats, changes.schema, steps.at(steps.of, action))


def write_new_groups(
    steps: Steps, writer: GroupWriter, rows: DataFrame, within: frozenset[str] | None = None
) -> Iterator[WriteStat]:
    """Run the last job, which writes new file groups; a row outside of `within` raises InvalidRecords."""
    stats = rows.mapInArrow(tasks.inserter(writer, within), from_arrow_schema(tasks.STATS))
    return collect_stats(stats, rows.schema, steps.at(steps.of, "write files"))


def collect_stats(stats: DataFrame, handed: StructType, step: str) -> Iterator[WriteStat]:
    """Run a writing job exactly once."""
    return (WriteStat(**row.asDict()) for row in collect_rows(stats, handed, step))


def collect_rows(frame: DataFrame, handed: StructType, step: str) -> list[Row]:
    """Run a job, named `step`, that passes rows of the schema `handed` to Python; return its rows.

    Sets session properties meanwhile.
    """
    with typed_errors(), ended_by_rows(frame.sparkSession, handed), describe_jobs(frame.sparkSession, step):
        return frame.collect()


@contextmanager
def describe_jobs(spark: SparkSession, step: str) -> Iterator[None]:
    """Name the thread's jobs `step` in Spark's UI, after the block as before; does nothing with Connect."""
    context = spark.sparkContext if hasattr(spark, "_jsparkSession") else None
    before = None if context is None else context.getLocalProperty(_DESCRIPTION)
    if context is not None:
        context.setLocalProperty(_DESCRIPTION, step)
    try:
        yield
    finally:
        if context is not None:
            context.setLocalProperty(_DESCRIPTION, cast("str", before))


@dataclass(frozen=True)
class Steps:
    """Steps of one write, at most `of`, reported to the table's watcher."""

    txn: Transaction
    verb: str
    of: int

    def at(self, number: int, action: str) -> str:
        """Report a step's begin, and return its name for Spark's UI."""
        done: dict[str, object] = {"done": None, "total": None}
        self.txn.table.report("progress", self.txn.begin, step=action, number=number, of=self.of, **done)
        return f"hudi {self.verb} {self.txn.config.name}: {number} of {self.of}, {action}"


def mentioned_columns(where: str, schema: pa.Schema) -> pa.Schema:
    if "*" in where:
        return schema
    words = {word.lower() for word in re.findall(r"\w+", where)}
    named = [column for column in schema if column.name.lower() in words]
    return pa.schema(named)


def pushable_filter(where: str, schema: pa.Schema) -> Any:
    """Parse Spark SQL; None unless a `Filter` surely means the same."""
    if any(mark in where for mark in ("\\", "''", '"')) or _EXPONENT.search(_TEXT.sub("", where)):
        return None  # Spark's settings decide what marks mean; integers equal 1e0 after rounding
    try:
        return sql_where.parse_where(where, pa.schema([column for column in schema if column.type in _ALIKE]))
    except InvalidInput:
        return None


def keyed_changes(
    writer: GroupWriter,
    upserts: DataFrame | None,
    deletes: DataFrame | None,
    *,
    whole: bool = True,
    valued: bool = False,
) -> DataFrame:
    """Describe upserts, deletes, or both (not neither) lazily in `tasks.change_schema`; raise as `check_frame`.

    `whole`: refuse missing upsert columns, else null. `valued`: deletes need ordering values.
    """
    kind = from_arrow_schema(tasks.change_schema(writer.schema))
    parts: list[DataFrame] = []
    if upserts is not None:
        check_frame(writer, upserts, "whole" if whole else "new")
        run = tasks.keyer(writer, delete=False, missing="refuse" if whole else "null")
        parts.append(upserts.mapInArrow(run, kind))
    if deletes is not None:
        check_frame(writer, deletes, "valued deletes" if valued else "deletes", "deletes")
        parts.append(deletes.mapInArrow(tasks.keyer(writer, delete=True, valued=valued), kind))
    return parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])


def count_changes(keyed: DataFrame, steps: Steps) -> dict[str, int]:
    """Run the first job."""
    rows = collect_rows(keyed.groupBy(tasks.PARTITION).count(), keyed.schema, steps.at(1, "count changes"))
    return {row[tasks.PARTITION]: row["count"] for row in rows}


def partitions_of(rows: DataFrame, planner: GroupWriter, steps: Steps) -> list[str]:
    """Run the first job; return the rows' sorted partition paths."""
    few = rows.select(*planner.config.identifying)
    tagged = few.mapInArrow(tasks.partitioner(planner), from_arrow_schema(tasks.PARTITIONS))
    partition_rows = collect_rows(tagged.distinct(), few.schema, steps.at(1, "find partitions"))
    return sorted(row[tasks.PARTITION] for row in partition_rows)


RowsFor = Literal["new", "whole", "deletes", "valued deletes"]


def arrow_schema(schema: StructType) -> pa.Schema:
    """Columns in which Spark passes such rows to Python; DoesNotFit for types without one."""
    columns: list[pa.Field] = []
    misfits: list[Misfit] = []
    for field in schema.fields:
        kind = field.dataType.simpleString()
        try:
            column = to_arrow_schema(
                StructType([field]), error_on_duplicated_field_names_in_struct=True, timezone="UTC"
            ).field(0)
        except (PySparkException, KeyError):
            column = None
        if column is None or _VARIANT.search(kind):
            advice = f"{field.name}: Spark's {kind} fits no column of a table: cast it first"
            misfits.append(Misfit(field.name, kind, "", advice))
        else:
            columns.append(column.with_metadata(None))
    if misfits:
        raise DoesNotFit(tuple(misfits))
    return pa.schema(columns)


def check_frame(writer: GroupWriter, rows: Any, use: RowsFor, name: str = "rows") -> None:
    """Raise InvalidInput if `rows`, called `name`, are no DataFrame, DoesNotFit if columns do not fit; runs no job.

    `new` rows may lack columns. `deletes` need only key and partition columns, `valued deletes` also the ordering
    column.
    """
    rows = frame(rows, name)
    if use in {"deletes", "valued deletes"}:
        names = {*writer.config.identifying, *([writer.config.ordering_field] if use == "valued deletes" else [])}
        schema = arrow_schema(StructType([field for field in rows.schema.fields if field.name in names]))
        writer.deletes(schema.empty_table(), valued=use == "valued deletes")
    else:
        writer.plan(arrow_schema(rows.schema), "null" if use == "new" else "refuse")


def frame(rows: Any, name: str) -> DataFrame:
    if not isinstance(rows, DataFrame):
        raise InvalidInput(f"{name} is a {type(rows).__name__}, and must be a Spark DataFrame")
    return rows


def session(spark: Any) -> SparkSession:
    if not isinstance(spark, SparkSession) and not type(spark).__module__.startswith("pyspark.sql.connect"):
        raise InvalidInput(f"spark is a {type(spark).__name__}, and must be a SparkSession")
    return cast("SparkSession", spark)


MOST_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
MOST_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
ROWS = 1000  # smaller batches cost Python as much as they save the JVM
_NO_LIMIT = str((1 << 31) - 1)
_SMALL = (BooleanType, DateType, NumericType, StringType, TimestampNTZType, TimestampType)
_SETTING = threading.Lock()


@contextmanager
def ended_by_rows(spark: SparkSession, handed: StructType) -> Iterator[None]:
    """Within the block, let Spark end batches for Python by rows instead of bytes.

    Sets session properties, then restores them, unless a column of `handed` may be large or `MOST_BYTES` is set. The
    session's other queries get such batches, too.

    Source: Spark's `BatchedPythonArrowInput.writeSizedBatch`.
    """
    former: dict[str, str | None] = {}
    try:
        if all(isinstance(field.dataType, _SMALL) for field in handed.fields):
            with suppress(PySparkException), _SETTING:  # a server may forbid it
                _set(spark, former)
        yield
    finally:
        with _SETTING:
            for key, value in former.items():
                with suppress(PySparkException):
                    spark.conf.unset(key) if value is None else spark.conf.set(key, value)


def _set(spark: SparkSession, former: dict[str, str | None]) -> None:
    """Unless `MOST_BYTES` is set, lift it, lower `MOST_ROWS` to `ROWS`, and record earlier values in `former`.

    The caller holds `_SETTING`.
    """
    if spark.conf.get(MOST_BYTES, None) is not None:
        return
    rows = spark.conf.get(MOST_ROWS, None)
    former[MOST_BYTES] = None
    spark.conf.set(MOST_BYTES, _NO_LIMIT)
    if rows is None or not 0 < int(rows) <= ROWS:
        former[MOST_ROWS] = rows
        spark.conf.set(MOST_ROWS, str(ROWS))
