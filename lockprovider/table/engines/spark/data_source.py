"""The Spark data source `hudi_cas`: a table by its URL, in `spark.read`, `df.write`, streams and temporary views.

    register(spark)                                             # once a session; an installed wheel does it itself
    spark.read.format("hudi_cas").option("filter", "city = 'ulm'").load("s3://bucket/trips")
    df.write.format("hudi_cas").mode("append").save("s3://bucket/trips")

See SPARK.md. A query's columns and filters do not narrow the read: Spark 4 does not prune the columns of Python
sources, and its filter pushdown for them gives wrong rows. Needs PySpark 4.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from fsspec_cas import InvalidInput
from lockprovider.table.engines.spark.errors import without_traceback
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
    """Register `format("hudi_cas")` in a session."""
    spark.dataSource.register(HudiCas)


def activate(spark: SparkSession) -> None:
    """Make the session active in the calling thread, where `df.write.format(...)` searches Python data sources.

    Reads, the main thread and Spark Connect do not need it. Source: Spark's `DataFrameWriter`.
    """
    session = getattr(spark, "_jsparkSession", None)
    if session is not None:
        jvm: Any = getattr(spark, "_jvm")  # noqa: B009 - neither name is public; Connect has none of them
        jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session)


class HudiCas(DataSource):
    """The data source. Spark makes one for each read or write, and pickles it into the process of the next call."""

    _pinned: str | None = None  # completion time that a loaded DataFrame shows

    @classmethod
    def name(cls) -> str:
        """Return the name in `format`."""
        return NAME

    @without_traceback()
    def schema(self) -> StructType:
        """Return the columns to read, and pin the table's current version, or `as_of`, for the reader."""
        options = SparkOptions.of(self.options)
        table = options.open()
        timeline = table.timeline()
        check_times(table, timeline, options)
        self._pinned = options.as_of or latest_completion(timeline) or None
        columns = None if options.columns is None else list(options.columns)
        schema = plain_columns(table.schema(timeline), columns)
        return from_arrow_schema(pa.schema([(OPERATION, pa.string()), *schema]) if options.changes else schema)

    @without_traceback()
    def reader(self, schema: StructType) -> BatchReader:
        """Make the reader of a batch."""
        options = SparkOptions.of(self.options)
        options.refuse("a batch read", *_OF_WRITES, "stream_id", "starting", "max_commits")
        check_read(options.hudi, of_stream=False)
        return BatchReader(options, self._pinned or options.as_of, schema)

    @without_traceback()
    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        """Make the reader of a stream."""
        options = SparkOptions.of(self.options)
        check_read(options.hudi, of_stream=True)
        options.refuse("a stream", *_OF_WRITES, "as_of", "begin", "end", "stream_id", "read_optimized")
        return StreamReader(options, schema)

    @without_traceback()
    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:  # noqa: FBT001 - Spark's signature
        """Open or create the table, take an instant unless rows are gathered or ignored; make the batch's writer."""
        options = SparkOptions.of(self.options)
        options.refuse("a write", *_OF_READS, "stream_id")
        job = _job(options, schema, overwrite=overwrite)
        job.begin()
        return BatchWriter(job)

    @without_traceback()
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: FBT001, N802 - Spark's
        """Open or create the table, check the write, and make the writer of a stream; takes no instant."""
        if overwrite:
            raise InvalidInput(
                "outputMode('complete') would replace the table with each batch: use outputMode('append')"
            )
        options = SparkOptions.of(self.options)
        options.refuse("a streaming write", *_OF_READS, "if_exists")
        job = _job(options, schema, overwrite=False)
        if job.overwrite or job.hudi_write.operation is WriteOperation.INSERT_OVERWRITE:
            raise InvalidInput(
                "each batch of this stream would replace those before it: set the operation insert, upsert or delete"
            )
        job.check()
        return StreamWriter(job)


_OF_READS = (
    "columns", "filter", "partitions", "as_of", "begin", "end", "changes", "read_optimized", "starting", "max_commits",
)  # fmt: skip
_OF_WRITES = ("merge_schema", "if_exists", "fence")


def _job(options: SparkOptions, schema: StructType, *, overwrite: bool) -> WriteJob:
    """Make the job of a write from options and columns, without a request; may raise InvalidInput or DoesNotFit."""
    hudi_write = HudiWrite.of(options.hudi, overwrite=overwrite)
    if overwrite and options.if_exists != "append":
        raise InvalidInput(
            f"if_exists={options.if_exists} cannot be used with mode('overwrite'): leave one of them out"
        )
    return WriteJob(options, hudi_write, arrow_schema(schema))
