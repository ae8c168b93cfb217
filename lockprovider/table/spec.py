"""`TableSpec`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from fsspec_cas.arguments import shown
from lockprovider.table.convert.columns import new_table_schema
from lockprovider.table.convert.rows import as_stream
from lockprovider.table.errors import InvalidRecords
from lockprovider.table.format import schema as hudi_schema
from lockprovider.table.format.bucket import BucketIndex
from lockprovider.table.format.compatibility import with_visibility
from lockprovider.table.format.log_block import wrapper_of
from lockprovider.table.format.properties import (
    BUCKET,
    DEFAULT_BUCKETS,
    MERGE_ON_READ,
    ORDERED,
    READABLE_VERSIONS,
    TABLE_TYPES,
    VISIBILITIES,
    TableConfig,
)
from lockprovider.table.settings import IndexSettings
from lockprovider.words import is_storable


@dataclass(frozen=True, slots=True)
class TableSpec:
    """Definition of a new table.

    `url_encode`, `table_type` and given `buckets` cannot be changed later.

    Attributes:
        schema: columns, without Hudi's own; or rows with them (DataFrame, pyarrow Table).
        record_keys: columns that together identify a row. One text names one column, here and below.
        partition_by: columns whose values make the folders.
        ordering: column whose higher value wins between rows with one key; None: the later commit wins.
        hive_style: name folders `month=1`, not `1`.
        url_encode: write unsafe characters of a folder name as `%2F` (Hudi's
            `hoodie.datasource.write.partitionpath.urlencode`).
        buckets: number of file groups in each partition; a row's key selects its own (Hudi's bucket index).
            Keys are never looked up, and two writers that insert the same new key conflict.
        bucket_by: key columns that select the bucket; empty: all.
        table_type: `copy_on_write`: a change rewrites its file groups' files. `merge_on_read`: it goes into log
            files, which readers merge until a compaction does.
        version: 8 or 9. Hudi 1.0 cannot open 9; no JVM writer has to upgrade 9.
        visibility: `"ordered"` or `"unordered"`. The latter allows more commits a second with many writers. But
            JVM Hudi's incremental queries MAY THEN MISS COMMITS, as may other readers whose checkpoint is the
            largest listed completion time. Readers of this library stay exact.

    >>> rows = pa.table({"id": [1], "city": ["ulm"]})
    >>> spec = TableSpec("trips", rows, record_keys="id", partition_by="city")
    >>> spec.record_keys, spec.partition_by
    (('id',), ('city',))
    """

    name: str
    schema: pa.Schema
    record_keys: tuple[str, ...]
    partition_by: tuple[str, ...] = ()
    ordering: str | None = None
    hive_style: bool = False
    buckets: int | None = None
    bucket_by: tuple[str, ...] = ()
    url_encode: bool = False
    table_type: str = "copy_on_write"
    version: int = READABLE_VERSIONS[0]
    visibility: str = ORDERED

    def __post_init__(self) -> None:
        for name in ("record_keys", "partition_by", "bucket_by"):
            object.__setattr__(self, name, named_columns(name, getattr(self, name)))
        if not isinstance(self.name, str) or not self.name.strip() or not is_storable(self.name):
            raise InvalidRecords(f"name={shown(self.name)} must be a text, in UTF-8: the table's name")
        object.__setattr__(self, "schema", _schema(self.schema))
        if self.ordering is not None and not (isinstance(self.ordering, str) and self.ordering):
            raise InvalidRecords(f"ordering={shown(self.ordering)} must be the name of one column")
        if not isinstance(self.buckets, (int, type(None))) or isinstance(self.buckets, bool):
            raise InvalidRecords(f"buckets={shown(self.buckets)} must be a whole number, or None for no bucket index")
        if not isinstance(self.table_type, str) or self.table_type.upper() not in TABLE_TYPES:
            raise InvalidRecords(
                f"table_type={shown(self.table_type)} is unknown: use 'copy_on_write' or 'merge_on_read'"
            )
        if not isinstance(self.version, int) or self.version not in READABLE_VERSIONS:
            raise InvalidRecords(
                f"version={shown(self.version)} is not supported: use 8, or 9, which Hudi 1.0 cannot open"
            )
        for flag in ("hive_style", "url_encode"):
            if not isinstance(getattr(self, flag), bool):
                raise InvalidRecords(f"{flag}={shown(getattr(self, flag))} must be True or False")
        _check_visibility(self.visibility)
        if self.bucket_by and self.buckets is None:
            raise InvalidRecords(f"bucket_by={self.bucket_by!r} needs buckets=..., the file groups in each partition")

    def with_index(self, index: IndexSettings | None) -> TableSpec:
        """This spec, with `index`'s bucket index if it has none."""
        if self.buckets is not None or index is None or index.kind != BUCKET:
            return self
        return replace(self, buckets=index.buckets or DEFAULT_BUCKETS, bucket_by=index.fields)

    def config(self) -> TableConfig:
        """Build the table's properties.

        Raises:
            UnsupportedSchema: a column cannot be stored, be a key, or order deletes in log files.
            InvalidRecords: no key, or a named column is not in the schema.

        >>> spec.config().partition_fields
        ('city',)
        """
        schema = new_table_schema(self.schema)
        named = (*self.record_keys, *self.partition_by, *((self.ordering,) if self.ordering else ()))
        missing = hudi_schema.absent(named, schema.names)
        if missing or not self.record_keys:
            hint = "; a pandas or Dask index becomes a column by reset_index()" if missing else ""
            raise InvalidRecords(
                f"table {self.name!r}: {missing or 'no record key'}: name columns of {schema.names}{hint}"
            )
        if self.ordering:
            hudi_schema.refuse_nested_ordering(self.ordering, schema.field(self.ordering).type)
        if self.ordering and self.table_type.upper() == MERGE_ON_READ:
            wrapper_of(schema.field(self.ordering).type)
        hudi_schema.refuse_keys_without_text(self.name, schema, (*self.record_keys, *self.partition_by))
        hudi_schema.refuse_timestamp_partitions(self.name, schema, self.partition_by)
        index = None if self.buckets is None else BucketIndex(self.buckets, self.bucket_by or self.record_keys)
        config = TableConfig(
            name=self.name,
            record_keys=self.record_keys,
            partition_fields=self.partition_by,
            ordering_fields=(self.ordering,) if self.ordering else (),
            hive_style=self.hive_style,
            url_encode=self.url_encode,
            table_type=self.table_type.upper(),
            schema_json=hudi_schema.to_avro(schema, self.name),
            version=self.version,
            bucket_index=None if index is None else index.checked(self.record_keys),
        )
        return with_visibility(config, self.visibility)


def _check_visibility(visibility: object) -> None:
    if visibility not in VISIBILITIES:
        raise InvalidRecords(f"visibility={shown(visibility)} is none: use {' or '.join(map(repr, VISIBILITIES))}")


def _schema(source: Any) -> pa.Schema:
    """Return a schema unchanged, or that of rows without metadata and pandas index; `InvalidRecords` for others."""
    if isinstance(source, pa.Schema):
        return source
    if not hasattr(source, "__arrow_c_stream__"):
        raise InvalidRecords(
            f"schema must be a pyarrow.Schema or a DataFrame, not {type(source).__name__}: give rows.schema, or the "
            "rows (of a Dask frame: frame.head())"
        )
    return as_stream(source).schema.remove_metadata()


def named_columns(argument: str, value: object) -> tuple[str, ...]:
    """Names as a tuple, one text as one name. Raises `InvalidRecords` for others or repeated names."""
    names = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, (list, tuple)) else (value,)
    if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise InvalidRecords(f"{argument}={shown(value)} must be names of columns, each once, e.g. {argument}=('id',)")
    return tuple(map(str, names))
