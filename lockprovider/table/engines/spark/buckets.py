"""Which file group a change is for, in a table with a bucket index: by its key's hash, on the executors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StringType, StructType

from lockprovider.table.engines.spark import tasks
from lockprovider.table.files.bucket_groups import of_keys
from lockprovider.table.files.group_writer import GroupWriter
from lockprovider.table.format import bucket as buckets
from lockprovider.table.format.properties import TableConfig
from lockprovider.table.timeline.view import FileSlice

_BITS = 32  # a bucket's number fits
_LOW = (1 << _BITS) - 1


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
