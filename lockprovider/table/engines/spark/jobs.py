"""The Spark jobs that a write is made of; what they run on the executors is in `tasks`."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from fsspec_cas import InvalidInput, Machine
from lockprovider.table.engines.spark import tasks
from lockprovider.table.engines.spark.errors import typed_errors
from lockprovider.table.engines.spark.tasks import Sketch
from lockprovider.table.errors import DoesNotFit, Misfit
from lockprovider.table.files.base_file import of_keys
from lockprovider.table.files.group_writer import GroupWriter
from lockprovider.table.format import bucket as buckets
from lockprovider.table.format.metadata import WriteStat
from lockprovider.table.format.properties import TableConfig
from lockprovider.table.read import sql_where
from lockprovider.table.timeline.view import FileSlice
from lockprovider.table.transaction.transaction import Transaction

SKETCHED_KEYS = 4_000_000  # 16 MB of hashes in the driver, and of bits in each of Spark's Python processes
_NO_COLUMNS = pa.schema([])
_HELD = "hudi held"
_DESCRIPTION = "spark.job.description"
_ALIKE = frozenset({pa.string(), pa.int32(), pa.int64(), pa.bool_(), pa.date32()})  # compare alike in Spark and Arrow
_BITS = 32  # a bucket's number fits
_LOW = (1 << _BITS) - 1


def run_over(
    spark: SparkSession, work: Sequence[tasks.T], each: Callable[[tasks.T], pa.Table], schema: pa.Schema
) -> DataFrame:
    """A DataFrame of what `each` makes of every piece of work (a file slice, say), one Spark partition a piece.

    Spark's planner cannot know how large it is. It would take 8 bytes a piece for its size, and broadcast it: so it is
    told that it does not know. AQE may broadcast it yet, if it has seen that it is small.
    """
    numbers: Any = spark.range(0, len(work), 1, max(1, len(work)))
    run, kind = tasks.map_over(work, each, schema), from_arrow_schema(schema)
    session = getattr(spark, "_jsparkSession", None)
    if session is None:  # Connect has hints alone
        return cast("DataFrame", numbers.mapInArrow(run, kind).hint("merge"))
    rows = numbers._jdf.toDF()  # noqa: SLF001 - of an RDD Spark knows no size
    return DataFrame(session.createDataFrame(rows.toJavaRDD(), rows.schema()), spark).mapInArrow(run, kind)


@contextmanager
def computed_once(frame: DataFrame) -> Iterator[DataFrame]:
    """The rows of a frame, computed once, and kept by Spark meanwhile.

    Spark finds what is cached by the frame's plan. So another frame is cached here, with a plan of its own, and the
    caller's is left alone: it may be evicted, or unpersisted by another thread, while this one is needed.
    """
    apart = frame.select("*", F.lit(Machine().new_id()).alias(_HELD)).drop(_HELD).persist()
    try:
        yield apart
    finally:
        apart.unpersist()


def with_groups(keyed: DataFrame, numbered: tasks.Numbered, writer: GroupWriter, steps: Steps) -> DataFrame:
    """The changes with the file group that each is for; a key that is nowhere gets a new one, by its hash.

    It may take the second step.
    """
    if writer.config.bucket_index is not None:
        return with_bucket_groups(keyed, numbered.old, writer)
    bucket = F.pmod(F.xxhash64(tasks.KEY), F.lit(numbered.buckets)).cast("string")
    fresh = F.concat(F.lit(tasks.NEW), bucket)
    if not numbered.old:
        return keyed.withColumn(tasks.GROUP, fresh)
    on = [tasks.KEY, tasks.PARTITION]
    # With a sketch the other keys of the table, of which there are many more, are not sent to Spark.
    sketch = _sketch(keyed, steps.at(2, "gather the keys of changes")) if numbered.changes <= SKETCHED_KEYS else None
    locate = tasks.locator(writer, _NO_COLUMNS, sketch)
    index = run_over(keyed.sparkSession, list(numbered.old.items()), locate, tasks.KEYS)
    tagged = keyed.join(index, on, "left")
    return tagged.withColumn(tasks.GROUP, F.coalesce(F.col(tasks.GROUP), fresh))


def _sketch(keyed: DataFrame, step: str) -> Sketch:
    """Of the keys of all changes; to the driver come four bytes a key."""
    keys = keyed.select(tasks.KEY)
    hashed = keys.mapInArrow(tasks.hasher, from_arrow_schema(tasks.HASHES))
    return Sketch.of([row[0] for row in collected(hashed, keys.schema, step)])


def put(
    steps: Steps, writer: GroupWriter, changes: DataFrame, numbered: tasks.Numbered, *, valued: bool = False
) -> Iterator[WriteStat]:
    """Write changes that know their file group, the last step; `valued`: the deletes have ordering values."""
    # Given a number, Spark does not merge these tasks into a few; it would, as it sees only how small the changes are.
    apart = changes.repartition(numbered.tasks, tasks.GROUP)
    grouped = apart.groupBy(tasks.PARTITION, tasks.GROUP)
    stats = grouped.applyInArrow(tasks.rewriter(writer, numbered, valued=valued), from_arrow_schema(tasks.STATS))
    what = f"look up and merge {numbered.changes} changes into {len(numbered.old)} file groups"
    return written(stats, changes.schema, steps.at(steps.of, what))


def put_new(
    steps: Steps, writer: GroupWriter, rows: DataFrame, within: frozenset[str] | None = None
) -> Iterator[WriteStat]:
    """Write rows into new file groups, the last step; each is of one of the partitions `within` (None is any)."""
    stats = rows.mapInArrow(tasks.inserter(writer, within), from_arrow_schema(tasks.STATS))
    return written(stats, rows.schema, steps.at(steps.of, "write files"))


def written(stats: DataFrame, handed: StructType, step: str) -> Iterator[WriteStat]:
    """What the job says that writes, which is run exactly once; see `collected`."""
    return (WriteStat(**row.asDict()) for row in collected(stats, handed, step))


def collected(frame: DataFrame, handed: StructType, step: str) -> list[Row]:
    """Run a job that hands rows of the schema `handed` to Python; Spark's UI calls it by its step."""
    with typed_errors(), ended_by_rows(frame.sparkSession, handed), described(frame.sparkSession, step):
        return frame.collect()


@contextmanager
def described(spark: SparkSession, step: str) -> Iterator[None]:
    """While jobs run that Spark's UI calls by this text; Connect has none."""
    context = spark.sparkContext if hasattr(spark, "_jsparkSession") else None
    before = None if context is None else context.getLocalProperty(_DESCRIPTION)
    if context is not None:
        context.setLocalProperty(_DESCRIPTION, step)
    try:
        yield
    finally:
        if context is not None:
            context.setLocalProperty(_DESCRIPTION, cast("str", before))  # None takes it away


@dataclass(frozen=True)
class Steps:
    """The steps of one write: Spark's UI calls its jobs by them, and the table's watcher is told of each.

    `of` is how many there are at most: some are left out where nothing is to be done.
    """

    txn: Transaction
    verb: str
    of: int

    def at(self, number: int, what: str) -> str:
        """What this step is called; from here on it is under way."""
        done: dict[str, object] = {"done": None, "total": None}
        self.txn.table.tell("progress", self.txn.begin, step=what, number=number, of=self.of, **done)
        return f"hudi {self.verb} {self.txn.config.name}: {number} of {self.of}, {what}"


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
        InvalidInput, DoesNotFit: as of `refuse_unfit`.
    """
    kind = from_arrow_schema(tasks.change_schema(writer.schema))
    parts: list[DataFrame] = []
    if upserts is not None:
        refuse_unfit(writer, upserts, "whole" if whole else "new")
        run = tasks.keyer(writer, delete=False, missing="refuse" if whole else "null")
        parts.append(upserts.mapInArrow(run, kind))
    if deletes is not None:
        refuse_unfit(writer, deletes, "valued deletes" if valued else "deletes", "deletes")
        parts.append(deletes.mapInArrow(tasks.keyer(writer, delete=True, valued=valued), kind))
    return parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])


def counts(keyed: DataFrame, steps: Steps) -> dict[str, int]:
    """How many changes there are of each partition, the first step."""
    found = collected(keyed.groupBy(tasks.PARTITION).count(), keyed.schema, steps.at(1, "count changes"))
    return {row[tasks.PARTITION]: row["count"] for row in found}


def partitions_of(rows: DataFrame, planner: GroupWriter, steps: Steps) -> list[str]:
    """The partitions that the rows are for, the first step."""
    few = rows.select(*planner.config.identifying)
    tagged = few.mapInArrow(tasks.partitioner(planner), from_arrow_schema(tasks.PARTITIONS))
    found = collected(tagged.distinct(), few.schema, steps.at(1, "find partitions"))
    return sorted(row[tasks.PARTITION] for row in found)


def with_bucket_groups(keyed: DataFrame, old: Mapping[str, FileSlice], writer: GroupWriter) -> DataFrame:
    """Rows that have a key and a partition, with the file group of its bucket: its number in `old`, or a new one."""
    numbers = {(one.partition, buckets.bucket_of(one.file_id)): number for number, one in old.items()}
    kind = StructType([*keyed.schema.fields]).add(tasks.GROUP, StringType())
    return keyed.mapInArrow(_grouper(writer.config, numbers), kind)


def _grouper(
    config: TableConfig, numbers: Mapping[tuple[str, int | None], str]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            partitions = batch.column(tasks.PARTITION).dictionary_encode()
            found = of_keys(config, batch.column(tasks.KEY))
            yield batch.append_column(tasks.GROUP, _names(partitions, found, numbers))

    return run


def _names(partitions: pa.DictionaryArray, found: pa.Array, numbers: Mapping[tuple[str, int | None], str]) -> pa.Array:
    """Only the distinct (partition, bucket) pairs pass through Python."""
    pairs = (partitions.indices.to_numpy().astype(np.int64) << _BITS) | found.to_numpy()
    there, places = np.unique(pairs, return_inverse=True)
    paths = partitions.dictionary.to_pylist()
    seen = [(paths[pair >> _BITS], pair & _LOW) for pair in there.tolist()]
    names = [numbers.get(pair, f"{tasks.NEW}{pair[1]}") for pair in seen]
    return pa.array(names, pa.string()).take(pa.array(places))


# -- what a user gives -------------------------------------------------------------------------------------------------

# A frame is checked by its schema alone, in the driver. The tasks convert its rows by the same plan, and refuse single
# values.

RowsFor = Literal["new", "whole", "deletes", "valued deletes"]  # what rows are for; see `refuse_unfit`


def arrow_schema(schema: StructType) -> pa.Schema:
    """The columns in which Spark hands the rows of such a frame to Python.

    Raises:
        DoesNotFit: naming the columns of types that no table holds.
    """
    columns: list[pa.Field] = []
    misfits: list[Misfit] = []
    for field in schema.fields:
        try:
            found = to_arrow_schema(
                StructType([field]), error_on_duplicated_field_names_in_struct=True, timezone="UTC"
            ).field(0)
        except (PySparkException, KeyError):  # what Arrow has no type for
            found = None
        if found is None or _has_variants(field.dataType):
            misfits.append(_unheld(field))
        else:
            columns.append(found.with_metadata(None))
    if misfits:
        raise DoesNotFit(tuple(misfits))
    return pa.schema(columns)


def _unheld(field: StructField) -> Misfit:
    kind = field.dataType.simpleString()
    return Misfit(field.name, kind, "", f"{field.name}: Spark's {kind} fits no column of a table; cast it first")


def _has_variants(kind: DataType) -> bool:
    """Whether a value of Spark's `variant` is inside, which comes to Python as a struct of two binaries."""
    match kind:
        case ArrayType():
            return _has_variants(kind.elementType)
        case MapType():
            return _has_variants(kind.keyType) or _has_variants(kind.valueType)
        case StructType():
            return any(_has_variants(field.dataType) for field in kind.fields)
    return kind.typeName() == "variant"


def refuse_unfit(writer: GroupWriter, rows: Any, use: RowsFor, name: str = "rows") -> pa.Schema:
    """Return the frame's columns if it can be written.

    Args:
        writer: of the table.
        rows: the frame.
        use: `new` rows lack what is null; `whole` rows replace others, and have all columns; of `deletes` the columns
            of key and partition count, of `valued deletes` the ordering column, too.
        name: the argument's, for the error.

    Raises:
        InvalidInput: this is no frame of Spark.
        DoesNotFit: naming the columns.
    """
    if not isinstance(rows, DataFrame):
        raise InvalidInput(f"{name} is a {type(rows).__name__}, and must be a DataFrame of Spark")
    if use in {"deletes", "valued deletes"}:
        names = {*writer.config.identifying, *([writer.config.ordering_field] if use == "valued deletes" else [])}
        schema = arrow_schema(StructType([field for field in rows.schema.fields if field.name in names]))
        writer.deletes(schema.empty_table(), valued=use == "valued deletes")
        return schema
    schema = arrow_schema(rows.schema)
    writer.plan(schema, "null" if use == "new" else "refuse")
    return schema


def session(spark: Any) -> SparkSession:
    """The session that was given.

    Raises:
        InvalidInput: it is none.
    """
    if not isinstance(spark, SparkSession) and not type(spark).__module__.startswith("pyspark.sql.connect"):
        raise InvalidInput(f"spark is a {type(spark).__name__}, and must be a SparkSession")
    return cast("SparkSession", spark)


# -- how many rows Spark hands to Python at once -----------------------------------------------------------------------

MOST_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
MOST_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
ROWS = 1000  # fewer cost Python as much as the JVM is spared
_NO_LIMIT = str((1 << 31) - 1)  # Spark's own word for it
_SMALL = (BooleanType, DateType, NumericType, StringType, TimestampNTZType, TimestampType)
_SETTING = threading.Lock()


@contextmanager
def ended_by_rows(spark: SparkSession, handed: StructType) -> Iterator[None]:
    """While rows of this schema are handed to Python, end a batch of Spark's by a number of rows, and not of bytes.

    To end a batch by bytes, Spark asks every column for its bytes after every row: with eight columns that takes half
    of the JVM's time for handing rows over. Other queries of the session have these batches in the meantime, too. Of
    several threads the first sets the number and takes it back. Rows with binary or nested columns may be large, and
    end by their bytes as before.

    Not promised: anything for rows of more than 2 MB on average. For these set `MOST_BYTES` in the session: what is set
    there stays.

    Source: Spark's `BatchedPythonArrowInput.writeSizedBatch`, `ArrowWriter.sizeInBytes`.
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
