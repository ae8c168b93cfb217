"""Detect, for each transaction, how a table's files spell record keys: Hudi writers differ, and do not record it.

- One key with a complex key generator: `id:1`, or `1` by Hudi 0.14.1, 0.15.0 and 1.0.0 to 1.0.2, and by later ones
  with `hoodie.write.complex.keygen.new.encoding` in tables of version 8. Both are written here.
- A timestamp: microseconds since 1970, or `2016-12-29 09:54:00.0` in the JVM's zone by `bulk_insert` with the row
  writer and `CREATE TABLE AS SELECT`. Only the first is written here.

An upsert with another spelling inserts the row again. Only one row of a few files is compared.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import types

from lockprovider.table.errors import HistoryGone, UnsupportedTable
from lockprovider.table.files import base_file
from lockprovider.table.format import schema as hudi_schema
from lockprovider.table.format.properties import TableConfig
from lockprovider.table.state.knowledge import KeySpellings
from lockprovider.table.timeline.view import FileSlice

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext

MOST = 4  # files
_ROWS, _BYTES = 1024, 1 << 20  # of a file, searched for a row without null times


def with_key_spelling(table: TableContext, config: TableConfig) -> TableConfig:
    """Return `config` with `key_is_named` as rows of up to `MOST` files spell keys; caches these samples.

    Without a single complex key or a timestamp key it reads no data file and returns `config`. Raises
    `UnsupportedSchema` for a timestamp partition column, `UnsupportedTable` for an unknown or mixed spelling.
    """
    stated = config.schema_json
    kinds = hudi_schema.from_avro(stated) if stated else table.knowledge.schema or table.schema()
    hudi_schema.refuse_timestamp_partitions(config.name, kinds, config.partition_fields)
    keys = hudi_schema.present(config.record_keys, kinds.names)
    if not config.has_complex_single_key and not any(types.is_timestamp(kinds.field(name).type) for name in keys):
        return config
    spellings = table.knowledge.key_spellings
    samples, compared = dict(spellings.samples), spellings.compared
    for slice_ in _to_compare(table, spellings):
        with contextlib.suppress(HistoryGone):  # a clean removed the file
            samples.update(_spelling(table, config, slice_))
        compared = max(compared, slice_.begin)
    table.knowledge.key_spellings = KeySpellings(compared, samples)
    if len(samples) > 1:
        raise UnsupportedTable(
            f"table {config.name!r} spells the keys of {list(config.record_keys)} in two ways, such as "
            f"{samples[True]!r} and {samples[False]!r}: an upsert would not find rows of the other spelling; rewrite "
            "the table with one writer"
        )
    return replace(config, key_is_named=next(iter(samples))) if samples else config


def _to_compare(table: TableContext, spellings: KeySpellings) -> list[FileSlice]:
    """Return the slices to sample: at first up to `MOST`, spread over all; later the newest, unless compared.

    Lists the table's files if they are not cached.
    """
    snapshot = table.current.current_files(table.now().timeline)
    files = sorted((slice_ for slice_ in snapshot.slices if slice_.path), key=lambda slice_: slice_.begin)
    if spellings.compared:
        return [slice_ for slice_ in files[-1:] if slice_.begin > spellings.compared]
    places = {at * (len(files) - 1) // (MOST - 1) for at in range(MOST)} if files else set()
    return [files[at] for at in sorted(places)]


def _spelling(table: TableContext, config: TableConfig, slice_: FileSlice) -> Mapping[bool, str]:
    """Read one row; return its key by spelling (True: it names its column), or nothing if there is no choice or no row.

    Raises `UnsupportedTable` if the key has no possible spelling, `HistoryGone` if the file was removed.
    """
    file = table.place.open(slice_.path, slice_.size)
    rows = next(iter(base_file.in_batches(file, [hudi_schema.RECORD_KEY, *config.record_keys], _ROWS, _BYTES)), None)
    if rows is None or not rows.num_rows:
        return {}
    row = rows.slice(_first_with_times(rows), 1)
    key = row.column(hudi_schema.RECORD_KEY)[0].as_py()
    ways = (False, True) if config.has_complex_single_key else (config.names_single_key,)
    texts = {named: base_file.record_keys(row, config.record_keys, named=named)[0].as_py() for named in ways}
    matching = {named: text for named, text in texts.items() if text == key}
    if not matching:
        raise UnsupportedTable(
            f"table {config.name!r} has the key {key!r} in {slice_.path}, where {list(config.record_keys)} makes "
            f"{' or '.join(map(repr, texts.values()))}: an upsert would add the row again; write the table with the "
            "engine that made it, or make a new table of its rows"
        )
    return matching if config.has_complex_single_key else {}


def _first_with_times(rows: pa.Table) -> int:
    """Return the index of the first row without a null in a timestamp column; 0 if there is none."""
    times = [column for column in rows.columns if types.is_timestamp(column.type)]
    complete = [all(value.is_valid for value in values) for values in zip(*times, strict=True)]
    return complete.index(True) if True in complete else 0
