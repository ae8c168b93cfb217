"""What every engine does where the rows are: write one file group's next file, read one file.

It runs on executors and workers, so it is picklable and knows no lock and no timeline. A file is announced by a marker
before it is written, so that a rollback finds it, and is created, never overwritten.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from fsspec_cas import Machine, Store
from lockprovider.table import files
from lockprovider.table import schema as hudi_schema
from lockprovider.table.errors import InvalidRecords
from lockprovider.table.layout import BaseFile, MarkerKind, join, marker_path, partition_metafile
from lockprovider.table.manager import Table
from lockprovider.table.metadata import WriteStat
from lockprovider.table.properties import TableConfig
from lockprovider.table.transaction import Transaction
from lockprovider.table.view import FileSlice

LOCAL = "local"


@dataclass(frozen=True)
class Place:
    """Where a table is; opens its store in whatever process it was sent to."""

    url: str
    storage_options: dict[str, Any] | None

    @cached_property
    def store(self) -> Store:
        """The table's store, opened once in each process."""
        return Store.from_url(self.url, self.storage_options)

    @classmethod
    def of(cls, table: Table) -> Place:
        """Where `table` is; in this process its own store is used."""
        place = cls(table.url, table.storage_options)
        place.__dict__["store"] = table.store
        return place

    def __getstate__(self) -> tuple[str, dict[str, Any] | None]:
        return (self.url, self.storage_options)

    def __setstate__(self, state: tuple[str, dict[str, Any] | None]) -> None:
        object.__setattr__(self, "url", state[0])
        object.__setattr__(self, "storage_options", state[1])

    def read(self, path: str, columns: list[str] | None = None) -> pa.Table:
        """The rows of one base file, meta columns included (or just `columns`).

        Raises:
            ObjectNotFound: it was cleaned; read again from a fresh snapshot.
        """
        store = self.store
        source = f"{store.root}/{path}" if store.kind == LOCAL else store.read(path).data
        return files.read_base_file(source, columns)


@dataclass(frozen=True)
class GroupWriter:
    """Writes the files of one transaction."""

    place: Place
    begin: str
    config: TableConfig
    schema: pa.Schema

    @classmethod
    def of(cls, txn: Transaction, schema: pa.Schema) -> GroupWriter:
        """A writer for the files of `txn`, which is started by this; `schema` is canonical."""
        table = txn.table
        return cls(Place.of(table), txn.start(), txn.config, schema)

    def keyed(self, rows: pa.Table) -> tuple[pa.Table, pa.Array, pa.Array]:
        """The rows with the table's columns and types, their record keys, and their partition paths.

        Raises:
            InvalidRecords: a key is null, a column does not fit, or one is not in the table.
        """
        strangers = sorted(set(rows.column_names) - set(self.schema.names))
        if strangers:
            raise InvalidRecords(f"columns {strangers} are not in the table, which has {self.schema.names}")
        plain = files.conform(rows, self.schema)
        keys = files.record_keys(plain, self.config.record_keys, named=self.config.names_single_key)
        return plain, keys, files.partition_paths(plain, self.config.partition_style)

    def insert(self, partition: str, rows: pa.Table, keys: pa.Array, token: str) -> WriteStat:
        """Write a new file group; of rows with one key the latest is kept."""
        rows, keys = files.dedupe(rows, keys, self.config.ordering_field)
        base = BaseFile(f"{Machine().new_id()}-0", token, self.begin)
        data = files.write_base_file(rows, keys=keys, partition=partition, base_file=base, table_name=self.config.name)
        self._put(partition, base, data, MarkerKind.CREATE)
        count = rows.num_rows
        return WriteStat(
            base.file_id,
            join(partition, base.name),
            partition,
            num_writes=count,
            num_inserts=count,
            file_size=len(data),
        )

    def rewrite(
        self, old: FileSlice, upserts: pa.Table, upsert_keys: pa.Array, delete_keys: pa.Array, token: str
    ) -> WriteStat | None:
        """Write the next slice of a file group; None if nothing in it changes."""
        upserts, upsert_keys = files.dedupe(upserts, upsert_keys, self.config.ordering_field)
        merged = files.merge_rows(
            self.place.read(old.path),
            upserts,
            upsert_keys=upsert_keys,
            delete_keys=delete_keys,
            ordering_field=self.config.ordering_field,
        )
        if not merged.changed:
            return None
        base = BaseFile(old.file_id, token, self.begin)
        data = files.write_base_file(
            merged.rows,
            keys=merged.keys,
            partition=old.partition,
            base_file=base,
            table_name=self.config.name,
            commit_times=merged.commit_times,
            seqnos=merged.seqnos,
        )
        self._put(old.partition, base, data, MarkerKind.MERGE)
        return WriteStat(
            file_id=base.file_id,
            path=join(old.partition, base.name),
            partition=old.partition,
            prev_commit=old.begin,
            prev_base_file=old.path.rpartition("/")[2],
            num_writes=merged.rows.num_rows,
            num_inserts=merged.inserts,
            num_updates=merged.updates,
            num_deletes=merged.deletes,
            file_size=len(data),
        )

    def _put(self, partition: str, base: BaseFile, data: bytes, kind: MarkerKind) -> None:
        store = self.place.store
        store.put_if_absent(marker_path(self.begin, partition, base.name, kind), b"").unwrap()
        if kind is MarkerKind.CREATE:
            path, content = partition_metafile(partition, self.begin)
            store.put_if_absent(path, content, create_once=True)  # another writer's serves as well
        store.put_if_absent(join(partition, base.name), data, create_once=True).unwrap()


def plain_columns(schema: pa.Schema, columns: list[str] | None) -> pa.Schema:
    """The schema of a read: all columns without Hudi's own, or the named ones.

    Raises:
        InvalidRecords: a column that the table does not have.
    """
    if columns is None:
        return schema
    full = hudi_schema.with_meta(schema)
    missing = [name for name in columns if name not in full.names]
    if missing:
        raise InvalidRecords(f"columns {missing} are not in the table, which has {schema.names}")
    return pa.schema([full.field(name) for name in columns])
