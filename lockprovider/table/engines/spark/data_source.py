"""The Spark data source `hudi_cas`: a table by its URL, in `spark.read`, `df.write`, streams and temporary views.

    register(spark)                                             # once a session; an installed wheel does it itself
    spark.read.format("hudi_cas").option("filter", "city = 'ulm'").load("s3://bucket/trips")
    df.write.format("hudi_cas").mode("append").save("s3://bucket/trips")
    spark.sql("create temporary view trips using hudi_cas options (path 's3://bucket/trips')")

The options are those of `options.SparkOptions`. A loaded DataFrame, and a view, is the table as of its making: load it
again to see later commits. `append` adds rows without looking for their keys; `overwrite` replaces the whole table in
one commit. With Hudi's own options (`options`) a write makes the table where there is none, and upserts or
deletes; rows that have to come together do so in one process then (`staged`), as a data source cannot shuffle
them: many of them are for the functions of the engine.

Not promised: what needs a catalog in the JVM (MERGE, UPDATE, DELETE, catalog tables); typed errors (Spark hands on
their type and sentence as text, after words of its own: `errors.typed_errors` makes them errors again); that a
query's columns and filters narrow what is read (name them as options: Spark 4 does not prune the columns of Python
sources, and its filter pushdown for them gives wrong rows). Needs PySpark 4.2.

Source: Spark's `pyspark.sql.datasource`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from fsspec_cas import InvalidInput
from lockprovider.table.engines.spark.errors import in_one_sentence
from lockprovider.table.engines.spark.jobs import arrow_schema
from lockprovider.table.engines.spark.options import HudiWrite, SparkOptions, WriteOperation, check_read
from lockprovider.table.engines.spark.reader import (
    BatchReader,
    StreamReader,
    check_times,
    latest_completion,
    plain_columns,
)
from lockprovider.table.engines.spark.writer import BatchWriter, StreamWriter, WriteJob
from lockprovider.table.timeline.versions import OPERATION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "hudi_cas"


def register(spark: SparkSession) -> None:
    """Make `format("hudi_cas")` known to a session."""
    spark.dataSource.register(HudiCas)


def activate(spark: SparkSession) -> None:
    """Make a session that of the calling thread: without, `df.write.format(...)` finds no Python data source in it.

    Reads need no such call, nor does the main thread, nor a client of Spark Connect. Source: Spark's `DataFrameWriter`.
    """
    session = getattr(spark, "_jsparkSession", None)
    if session is not None:
        jvm: Any = getattr(spark, "_jvm")  # noqa: B009 - neither name is public; Connect has none of them
        jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session)


class HudiCas(DataSource):
    """The data source; made by Spark, in a process of its own for each thing it asks."""

    _pinned: str | None = None  # the completion time that a loaded DataFrame is of

    @classmethod
    def name(cls) -> str:
        """What stands in `format`."""
        return NAME

    @in_one_sentence()
    def schema(self) -> StructType:
        """The table's columns, or those asked for; from here on the table is read as it is now."""
        options = SparkOptions.of(self.options)
        table = options.open()
        timeline = table.timeline()
        check_times(table, timeline, options)
        self._pinned = options.as_of or latest_completion(timeline) or None
        columns = None if options.columns is None else list(options.columns)
        schema = plain_columns(table.schema(timeline), columns)
        return from_arrow_schema(pa.schema([(OPERATION, pa.string()), *schema]) if options.changes else schema)

    @in_one_sentence()
    def reader(self, schema: StructType) -> BatchReader:
        """Batch reads."""
        options = SparkOptions.of(self.options)
        options.refuse("a batch read", *_OF_WRITES, "stream_id", "starting", "max_commits")
        check_read(options.hudi, of_stream=False)
        return BatchReader(options, self._pinned or options.as_of, schema)

    @in_one_sentence()
    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        """Streaming reads."""
        options = SparkOptions.of(self.options)
        check_read(options.hudi, of_stream=True)
        options.refuse("a stream", *_OF_WRITES, "as_of", "begin", "end", "stream_id", "read_optimized")
        return StreamReader(options, schema)

    @in_one_sentence()
    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:  # noqa: FBT001 - Spark's signature
        """Batch writes."""
        options = SparkOptions.of(self.options)
        options.refuse("a write", *_OF_READS, "stream_id")
        job = _job(options, schema, overwrite=overwrite)
        job.begin()
        return BatchWriter(job)

    @in_one_sentence()
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: FBT001, N802 - Spark's
        """Streaming writes."""
        if overwrite:
            raise InvalidInput("outputMode complete would replace the table with each batch: use append")
        options = SparkOptions.of(self.options)
        options.refuse("a streaming write", *_OF_READS, "if_exists")
        job = _job(options, schema, overwrite=False)
        if job.overwrite or job.asked.operation is WriteOperation.INSERT_OVERWRITE:
            raise InvalidInput("each batch of a stream would replace those before it: use insert, upsert or delete")
        job.check()
        return StreamWriter(job)


_OF_READS = (
    "columns", "filter", "partitions", "as_of", "begin", "end", "changes", "read_optimized", "starting", "max_commits",
)  # fmt: skip
_OF_WRITES = ("merge_schema", "if_exists", "fence")


def _job(options: SparkOptions, schema: StructType, *, overwrite: bool) -> WriteJob:
    asked = HudiWrite.of(options.hudi, overwrite=overwrite)
    if overwrite and options.if_exists != "append":
        raise InvalidInput(f"if_exists={options.if_exists} contradicts mode('overwrite'): leave one of them out")
    return WriteJob(options, asked, arrow_schema(schema))
