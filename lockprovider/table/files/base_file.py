"""Base files: compute keys, partitions and buckets of rows, and read files, without Python loops over rows.

Source: Hudi `HoodieAvroParquetWriter`, its key generators; `HoodieSimpleBucketIndex`.
"""

from __future__ import annotations

import contextlib
import json
import traceback
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types
from pyarrow.parquet.encryption import CryptoFactory, KmsClient, KmsConnectionConfig

from lockprovider.table.errors import Corrupt, HistoryGone, InvalidRecords, UnsupportedTable
from lockprovider.table.format import bloom, schema
from lockprovider.table.format.bucket import BucketIndex, bucket_of
from lockprovider.table.format.keygen import EMPTY_KEY, NULL_KEY, PartitionStyle, key_of_texts, separators
from lockprovider.table.format.metadata import WriteStat
from lockprovider.table.format.properties import TableConfig
from lockprovider.table.timeline.view import FileSlice

BLOOM_KEY = "org.apache.hudi.bloomfilter"
BLOOM_TYPE_KEY = "hoodie_bloom_filter_type_code"
MIN_KEY = "hoodie_min_record_key"
MAX_KEY = "hoodie_max_record_key"
AVRO_KEY = "parquet.avro.schema"
SPARK_KEY = "org.apache.spark.version"
LEGACY_KEY = "org.apache.spark.legacyDateTime"

_SECOND = -2_208_988_800  # Since then Spark's old zones are today's.
_EARLIEST = {
    "DATE": -141_427,  # 1582-10-15
    **{f"{unit}seconds": _SECOND * parts for unit, parts in (("milli", 10**3), ("micro", 10**6), ("nano", 10**9))},
}
INT96_UNIT = "us"  # Nanoseconds overflow in 2262.
_ENCRYPTED = ("no decryption found", "Cannot decrypt", "No footer key or key metadata")  # in pyarrow's errors
ROW_GROUP_ROWS = 1 << 17
ROW_GROUP_BYTES = 128 << 20


def record_keys(table: pa.Table, fields: Sequence[str], *, named: bool = False) -> pa.Array:
    """Each row's record key: the value's text, or `a:1,b:2` for several fields or if `named`.

    Dates are ISO, booleans lower case, timestamps microseconds since 1970; in composite keys null and empty text become
    placeholders. Raises `InvalidRecords` for a missing or unusable column, and a key that is ambiguous or has no value.
    """
    texts = [_texts(table, field) for field in fields]
    blank = reduce(pc.and_, (pc.or_kleene(pc.is_null(text), pc.equal(text, "")).fill_null(True) for text in texts))
    if (count := pc.sum(blank).as_py() or 0) > 0:
        first = pc.index(blank, value=True).as_py()
        raise InvalidRecords(f"record key {list(fields)} is null or empty in {count} rows, the first is row {first}")
    if len(texts) == 1 and not named:
        return texts[0]
    if len(texts) > 1:
        _refuse_ambiguous(table, texts, fields)
    stated = (pc.if_else(pc.is_null(t), NULL_KEY, pc.if_else(pc.equal(t, ""), EMPTY_KEY, t)) for t in texts)
    with _within_an_array(*fields):
        parts = [pc.binary_join_element_wise(field, text, ":") for field, text in zip(fields, stated, strict=True)]
        return pc.binary_join_element_wise(*parts, ",")


def _refuse_ambiguous(table: pa.Table, texts: Sequence[pa.Array], fields: Sequence[str]) -> None:
    """Raise `InvalidRecords` for a text that is a placeholder or has the next field's separator (`,b:`).

    Another row could have its composite key.
    """
    words = pa.array([NULL_KEY, EMPTY_KEY])
    for text, field, end in zip(texts, fields, separators(fields), strict=True):
        if not _is_text(table.schema.field(field).type):
            continue
        odd = pc.is_in(text, value_set=words)
        odd = pc.or_kleene(odd, pc.match_substring(text, end)) if end else odd
        if (first := pc.index(odd, value=True).as_py()) >= 0:
            key_of_texts([other[first].as_py() for other in texts], fields)


def partition_paths(table: pa.Table, style: PartitionStyle) -> pa.Array:
    """Each row's partition path, empty in an unpartitioned table."""
    if not style.fields:
        return pa.repeat(pa.scalar(""), table.num_rows)
    with _within_an_array(*style.fields):
        folders = [_folders(table, field, style) for field in style.fields]
        return folders[0] if len(folders) == 1 else pc.binary_join_element_wise(*folders, "/")


def _folders(table: pa.Table, field: str, style: PartitionStyle) -> pa.Array:
    encoded = _texts(table, field).dictionary_encode(null_encoding="encode")
    names = [style.folder_for(field, value) for value in encoded.dictionary.to_pylist()]
    style.check_apart(names)
    return pa.array(names, pa.string()).take(encoded.indices)


def _texts(table: pa.Table, field: str) -> pa.Array:
    """Column's values as Hudi writes them in keys and paths; nulls stay.

    Raises `InvalidRecords` if it is missing, a float, bytes, nested, or of 2 GiB.
    """
    if field not in table.column_names:
        raise InvalidRecords(f"column {field!r} is missing; the rows have {table.column_names}")
    column = table.column(field)
    kind = column.type
    if types.is_dictionary(kind):
        column = column.cast(kind.value_type)
    elif types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    elif not schema.has_key_text(kind):
        raise InvalidRecords(f"column {field!r} of type {kind} cannot be a key or partition; cast it to a string")
    with _within_an_array(field):
        return array_of(column.cast(pa.string()))


@contextlib.contextmanager
def _within_an_array(*fields: str) -> Iterator[None]:
    """Raise `InvalidRecords` where pyarrow cannot make one array of texts of the columns `fields`."""
    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowCapacityError) as error:
        raise InvalidRecords(
            f"column {', '.join(map(repr, fields))} cannot be a key or partition ({error}); "
            "if it has 2 GiB, write fewer rows at once"
        ) from error


def _is_text(kind: pa.DataType) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_dictionary(kind))


def array_of(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


@contextlib.contextmanager
def reading(path: str) -> Iterator[None]:
    """Raise `Corrupt` for a damaged Parquet file, `HistoryGone` if it is missing; other store errors pass through.

    `UnsupportedTable`: it is encrypted, or pyarrow cannot read it. `path` is for messages.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise HistoryGone.with_file(path) from error
    except pa.ArrowNotImplementedError as error:  # nested columns above 2 GiB
        raise UnsupportedTable(f"{path!r} cannot be read by pyarrow: {error}; read it with JVM Hudi") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, pa.ArrowMemoryError) or (isinstance(error, OSError) and not _is_of_arrow(error)):
            raise
        if any(sign in str(error) for sign in _ENCRYPTED):
            raise UnsupportedTable(
                f"{path!r} is encrypted, and this library has no keys: read it with JVM Hudi, or rewrite it unencrypted"
            ) from error
        raise Corrupt(f"{path!r} cannot be read: {error}; take it from a backup") from error


def _is_of_arrow(error: OSError) -> bool:
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return (
        type(error) is OSError and error.errno is None and str(frame.f_globals.get("__name__")).startswith("pyarrow.")
    )


class _NoKeys(KmsClient):  # type: ignore[misc]
    """Refuses every key: an encrypted column's statistics would end the process."""

    def __init__(self, _: object) -> None:
        super().__init__()

    def unwrap_key(self, *_: object) -> bytes:
        raise pa.ArrowInvalid(_ENCRYPTED[0])


_KEYS = CryptoFactory(_NoKeys)


def refuse_encrypted() -> Any:
    """Decryption properties with which pyarrow refuses encrypted files."""
    return _KEYS.file_decryption_properties(KmsConnectionConfig())


class ParquetFile(pq.ParquetFile):  # type: ignore[misc]
    """Parquet file that verifies page checksums and refuses encryption; `path` is for messages."""

    def __init__(self, source: Any, filesystem: Any, path: str, **settings: Any) -> None:
        settings |= {"page_checksum_verification": True, "coerce_int96_timestamp_unit": INT96_UNIT}
        settings["decryption_properties"] = refuse_encrypted()
        super().__init__(source, filesystem=filesystem, pre_buffer=True, **settings)
        self.path = path


def open_base_file(source: Any, filesystem: Any = None, path: str = "in memory") -> ParquetFile:
    """Open a path, bytes or pyarrow file, and read only its footer; raise as `reading` and `check_footer`."""
    with reading(path):
        file = ParquetFile(pa.BufferReader(source) if isinstance(source, bytes) else source, filesystem, path)
        check_footer(file.metadata, path)
    return file


def check_operation(names: Iterable[str], name: str) -> None:
    if schema.FLINK_OPERATION in names:
        raise UnsupportedTable(
            f"file {name} has a column {schema.FLINK_OPERATION}, with which Flink marks deleted rows: they would "
            "reappear; read it with Flink or JVM Hudi, or rewrite the table with changelog.enabled=false"
        )


def check_footer(footer: pq.FileMetaData, name: str) -> None:
    """Raise `UnsupportedTable` for Flink's change log, or old dates in a file with Spark's legacy mark.

    Old are dates before 1582-10-15 and timestamps before 1900, also columns of these types without statistics.
    """
    check_operation(footer.schema.names, name)
    if LEGACY_KEY.encode() not in (footer.metadata or {}):
        return
    for number in range(footer.num_columns):
        column = footer.schema.column(number)
        limit = _EARLIEST.get(_time_unit(column))
        groups = range(0 if limit is None else footer.num_row_groups)
        if not all(_is_from(footer.row_group(group).column(number), limit) for group in groups):
            raise UnsupportedTable(
                f"base file {name} has old dates in column {column.path!r}, written by Spark "
                "with datetimeRebaseModeInWrite=LEGACY: this library would read other days; rewrite them with CORRECTED"
            )


def _time_unit(column: Any) -> str:
    kind = column.logical_type.type
    return str(json.loads(column.logical_type.to_json())["timeUnit"]) if kind == "TIMESTAMP" else str(kind)


def _is_from(chunk: pq.ColumnChunkMetaData, limit: int | None) -> bool:
    stats = chunk.statistics
    return stats is not None and (not stats.num_values or (stats.has_min_max and stats.min_raw >= limit))


def read_columns(file: ParquetFile, columns: Sequence[str] | None = None) -> pa.Table:
    """Read these columns (None: all), except absent ones; raise as `reading`."""
    with reading(file.path):
        return file.read(None if columns is None else list(columns))


def in_batches(file: ParquetFile, columns: Sequence[str], rows: int, at_most: int) -> Iterator[pa.Table]:
    """Yield `columns` of a base file, in order, in batches of at most `rows` rows; raise as `reading`.

    By the average row, a batch has at most `at_most` uncompressed bytes, but at least one row.
    """
    groups = list(range(file.num_row_groups))
    metadata = [file.metadata.row_group(number) for number in groups]
    # Arrow fetches all groups of a request first.
    requests = (
        [groups]
        if sum(group.total_byte_size for group in metadata) <= ROW_GROUP_BYTES
        else [[group] for group in groups]
    )
    most = max((group.total_byte_size // max(1, group.num_rows) for group in metadata), default=0)
    size = min(rows, max(1, at_most // max(1, most)))
    with reading(file.path):
        for part in requests:
            for batch in file.iter_batches(size, part, columns=list(columns)):
                yield pa.Table.from_batches([batch])


def keys_of(file: ParquetFile) -> pa.Array:
    return array_of(read_columns(file, [schema.RECORD_KEY]).column(0))


def key_range(footer: pq.FileMetaData) -> tuple[str, str] | None:
    """Footer's least and greatest key; None without both, or if one is not ASCII."""
    entries = footer.metadata or {}
    least, greatest = entries.get(MIN_KEY.encode()), entries.get(MAX_KEY.encode())
    if least is None or greatest is None or not least.isascii() or not greatest.isascii():
        return None
    return least.decode(), greatest.decode()


def known_filter(footer: pq.FileMetaData) -> bloom.KnownFilter | None:
    entries = footer.metadata or {}
    text = entries.get(BLOOM_KEY.encode())
    if text is None or entries.get(BLOOM_TYPE_KEY.encode()) != bloom.TYPE_CODE.encode():
        return None
    return bloom.KnownFilter(text.decode("latin-1"), footer.num_rows)


_LIKELY = 65_536  # rare in random file ids


def index_of(config: TableConfig) -> BucketIndex:
    if config.bucket_index is None:
        raise RuntimeError("a table without a bucket index has no buckets")
    return config.bucket_index


def buckets_of_keys(config: TableConfig, keys: pa.Array) -> pa.Array:
    return index_of(config).of(keys, config.record_keys)


def misplaced(config: TableConfig, file_slice: FileSlice, keys: pa.Array) -> int:
    bucket = bucket_of(file_slice.file_id)
    return len(keys) if bucket is None else pc.sum(pc.not_equal(buckets_of_keys(config, keys), bucket)).as_py() or 0


def bucket_groups(slices: Iterable[FileSlice], index: BucketIndex) -> dict[tuple[str, int], FileSlice]:
    """Map (partition, bucket) to its file slice; raise `Corrupt` if two share a bucket or a file id names none."""
    groups: dict[tuple[str, int], FileSlice] = {}
    for file_slice in slices:
        bucket = index.named_by(file_slice.file_id)
        if bucket is None or (file_slice.partition, bucket) in groups:
            fault = "is of no bucket" if bucket is None else f"is the second one of bucket {bucket}"
            next_step = "a writer ran without the bucket index; run `lockprovider table doctor`"
            raise Corrupt(f"file group {file_slice.paths[0]!r} {fault}: {next_step}")
        groups[file_slice.partition, bucket] = file_slice
    return groups


def check_written(config: TableConfig, stats: Iterable[WriteStat]) -> None:
    """Raise `InvalidRecords` if a commit's file names no bucket, or two of a partition share one.

    Tables without a bucket index pass.
    """
    index = config.bucket_index
    if index is None:
        return
    buckets: set[tuple[str, int]] = set()
    for stat in stats:
        bucket = index.named_by(stat.file_id)
        if bucket is None or (stat.partition, bucket) in buckets:
            fault = "is of no bucket" if bucket is None else f"is the second one of bucket {bucket}"
            raise InvalidRecords(f"file {stat.path!r} {fault} of the table; write with the functions of an engine")
        buckets.add((stat.partition, bucket))


def look_like_buckets(file_ids: Iterable[str]) -> bool:
    return all((bucket := bucket_of(file_id)) is not None and bucket < _LIKELY for file_id in file_ids)
