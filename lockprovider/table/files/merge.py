"""Copy-on-write merge of one file group: plan the fate of each row, then yield the new rows in parts.

    found = merge_plan(file, upserts, upsert_keys, delete_keys, "ts")
    data = write_base_file(merged(file, found, upserts, base_file), upserts.schema, keys=found.keys, ...)

An upsert replaces the row of its key in place, or is appended. With an ordering field the higher value wins; the upsert
wins ties and nulls. A delete has no ordering value and always wins, even over an upsert of its key.

Memory: the old file's keys, a number for each row, and some rows (`BATCH_ROWS`). Nothing loops over rows in Python.

Source: Hudi `HoodieMergeHandle`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types

from lockprovider.table.convert import read_as
from lockprovider.table.convert.columns import outline
from lockprovider.table.errors import InvalidRecords, UnsupportedSchema
from lockprovider.table.files import base_file as files
from lockprovider.table.files.merge_log import comparable, mask_of
from lockprovider.table.files.write_base_file import BATCH_BYTES, BATCH_ROWS, all_fresh, fresh
from lockprovider.table.format import schema
from lockprovider.table.format.layout import BaseFile

if TYPE_CHECKING:
    from numpy.typing import NDArray

_STAYS, _GOES = -1, -2
# pyarrow's default pool returns large pieces to the system; this one keeps them for the next part.
_POOL = pa.system_memory_pool()


@dataclass(frozen=True, slots=True)
class MergePlan:
    """Planned fate of each row of a base file.

    `fates` has for each row the number of the upsert that replaces it, or `_STAYS`, or `_GOES`. `met` has the numbers
    of the upserts whose keys the file has, `new` the numbers of those to append. `keys` are the keys of the next file.
    """

    keys: pa.Array
    fates: NDArray[np.int64]
    met: NDArray[np.int64]
    new: NDArray[np.int64]

    @property
    def inserts(self) -> int:
        """The number of appended rows."""
        return len(self.new)

    @property
    def updates(self) -> int:
        """The number of replaced rows, without rows that won over an upsert by their ordering value."""
        return int(np.count_nonzero(self.fates >= 0))

    @property
    def deletes(self) -> int:
        """The number of deleted rows."""
        return int(np.count_nonzero(self.fates == _GOES))

    @property
    def changed(self) -> bool:
        """Whether the merge changes anything."""
        return bool(self.inserts or self.updates or self.deletes)

    def with_new(self, upsert_keys: pa.Array, delete_keys: pa.Array) -> MergePlan:
        """Return the plan that also appends upserts of keys that the file does not have."""
        others = np.ones(len(upsert_keys), dtype=np.bool_)
        others[self.met] = False
        if len(delete_keys):
            others &= ~mask_of(pc.is_in(upsert_keys, value_set=delete_keys))
        new = np.flatnonzero(others)
        keys = pa.concat_arrays([self.keys, upsert_keys.take(pa.array(new))]) if len(new) else self.keys
        return replace(self, keys=keys, new=new)


def untouched(file: pq.ParquetFile) -> MergePlan:
    """Return the plan that keeps all rows; it reads the keys."""
    keys, nothing = files.keys_of(file), np.zeros(0, dtype=np.int64)
    return MergePlan(keys, np.full(len(keys), _STAYS), nothing, nothing)


def merge_plan(
    file: pq.ParquetFile,
    upserts: pa.Table,
    upsert_keys: pa.Array,
    delete_keys: pa.Array,
    ordering_field: str | None = None,
) -> MergePlan | None:
    """Plan the changes to the rows of an opened base file; return None if its key range excludes all.

    To delete only, pass an empty table of the table's schema as `upserts`.

    NOT checked: that `upsert_keys` are unique (see `dedupe`).

    Raises:
        UnsupportedSchema: `upserts` lacks a column of the file.
        InvalidRecords: an old value does not fit the new column.
    """
    _refuse_loss(file, upserts.schema)
    near, going = (_near(keys, files.key_range(file.metadata)) for keys in (upsert_keys, delete_keys))
    if not len(near) and not len(going):
        return None
    found = untouched(file)
    fates = near.take(pc.index_in(found.keys, value_set=upsert_keys.take(near))).fill_null(_STAYS).to_numpy()
    met = fates[fates != _STAYS]
    if ordering_field is not None:
        fates = np.where(_old_wins(file, upserts, fates, ordering_field), _STAYS, fates)
    if not len(going):
        return replace(found, fates=fates, met=met)
    gone = mask_of(pc.is_in(found.keys, value_set=delete_keys.take(going)))
    return replace(found, fates=np.where(gone, _GOES, fates), met=met, keys=found.keys.filter(pa.array(~gone)))


def merged(file: pq.ParquetFile, found: MergePlan, upserts: pa.Table, base_file: BaseFile) -> Iterator[pa.Table]:
    """Yield the rows of the next file, in parts (at least one) for `write_base_file`."""
    stored = file.schema_arrow  # pyarrow builds this schema at each access.
    target = _as_stored(stored, upserts.schema)
    there = schema.present(target.names, stored.names)
    seen = done = 0
    for batch in files.in_batches(file, there, BATCH_ROWS, BATCH_BYTES):
        old, fates = read_as(batch, target), found.fates[seen : seen + batch.num_rows]
        part = _replaced(old, fates, upserts, base_file, done)
        seen, done = seen + old.num_rows, done + part.num_rows
        yield part
    if found.inserts or not seen:
        for part in all_fresh(upserts.take(pa.array(found.new)), base_file, done):
            yield part.cast(target)


def _as_stored(stored: pa.Schema, columns: pa.Schema) -> pa.Schema:
    """Return the schema of the parts; text that is read as dictionaries stays so."""
    encoded = {field.name: field for field in stored if types.is_dictionary(field.type)}
    own = [pa.field(name, pa.string()) for name in (schema.COMMIT_TIME, schema.COMMIT_SEQNO)]
    return pa.schema([encoded.get(column.name, column) for column in (*own, *columns)])


def _replaced(old: pa.Table, fates: NDArray[np.int64], upserts: pa.Table, base_file: BaseFile, start: int) -> pa.Table:
    """Return the next rows for some old rows; `start` is the position of the first in the next file."""
    places = np.flatnonzero(fates != _GOES)
    changed = np.flatnonzero(fates[places] >= 0)
    if not len(changed) and len(places) == old.num_rows:
        return old
    new = fresh(upserts.take(pa.array(fates[places[changed]])), base_file, changed + start)
    places[changed] = old.num_rows + np.arange(len(changed))
    return pc.take(pa.concat_tables([old, new.cast(old.schema)]), pa.array(places), memory_pool=_POOL)


def _near(keys: pa.Array, ends: tuple[str, str] | None) -> pa.Array:
    """Return the numbers of the keys within these bounds."""
    numbers = pa.array(np.arange(len(keys)))
    if ends is None:
        return numbers
    return numbers.filter(pc.and_(pc.greater_equal(keys, ends[0]), pc.less_equal(keys, ends[1])))


def _refuse_loss(file: pq.ParquetFile, target: pa.Schema) -> None:
    there = {path for path, _ in outline(target)}
    missing = [path for path, _ in outline(schema.without_meta(file.schema_arrow)) if path not in there]
    if missing:
        raise UnsupportedSchema(f"columns {missing} of the table are missing; add them, with nulls if need be")


def _old_wins(
    file: pq.ParquetFile, upserts: pa.Table, fates: NDArray[np.int64], ordering_field: str
) -> NDArray[np.bool_]:
    theirs = _ordering(upserts, ordering_field).take(pa.array(fates, mask=fates < 0))
    target = pa.schema([upserts.schema.field(ordering_field)])
    mine = _ordering(read_as(files.read_columns(file, target.names), target), ordering_field)
    return mask_of(pc.greater(mine, theirs).fill_null(False))


# -- rows of one key ---------------------------------------------------------------------------------------------------


def dedupe(rows: pa.Table, keys: pa.Array, ordering_field: str | None = None) -> tuple[pa.Table, pa.Array]:
    """Keep one row for each key, in order: the highest ordering value, else (or of equals) the last.

    A null ordering value is lower than any other, NaN higher.

    Raises:
        UnsupportedSchema: the ordering column cannot be compared.
        InvalidRecords: the column is missing.
    """
    if are_unique(keys):
        return rows, keys
    columns = {"key": keys, "place": pa.array(np.arange(len(keys)))}
    by = ["key", "place"]
    if ordering_field is not None:
        order = _ordering(rows, ordering_field)
        columns |= {"filled": pc.is_valid(order), "order": order}
        by[1:1] = ["filled", "order"]
    sorting = pc.sort_indices(pa.table(columns), sort_keys=[(name, "ascending") for name in by])
    ranked = keys.take(sorting)
    last = pa.concat_arrays([pc.not_equal(ranked[:-1], ranked[1:]), pa.array([True])])
    kept = pa.array(np.sort(sorting.filter(last).to_numpy()))
    return rows.take(kept), keys.take(kept)


def are_unique(keys: pa.Array | pa.ChunkedArray) -> bool:
    """Whether all keys are different; quick if each is longer than the previous one, or as long and greater."""
    before, after = keys[:-1], keys[1:]
    lengths = pc.binary_length(before), pc.binary_length(after)
    rising = pc.or_(pc.less(*lengths), pc.and_(pc.equal(*lengths), pc.less(before, after)))
    return pc.all(rising).as_py() is not False or len(pc.unique(keys)) == len(keys)


def _ordering(rows: pa.Table, field: str) -> pa.Array:
    if field not in rows.column_names:
        raise InvalidRecords(f"ordering column {field!r} is missing; the rows have {rows.column_names}")
    values = files.array_of(rows.column(field))
    schema.refuse_nested_ordering(field, values.type)
    return comparable(values)
