"""Copy-on-write merge of one file group.

Source: Hudi `HoodieMergeHandle`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lockprovider.table.convert import read_as
from lockprovider.table.convert.columns import leaf_types
from lockprovider.table.errors import InvalidRecords, UnsupportedSchema
from lockprovider.table.files import base_file as files
from lockprovider.table.files.encoding import BATCH_BYTES, BATCH_ROWS, all_fresh, fresh
from lockprovider.table.files.merge_log import comparable, mask_of, order_of
from lockprovider.table.format import schema
from lockprovider.table.format.layout import BaseFile

_STAYS, _GOES = -1, -2
# The default pool returns large pieces to the system.
_POOL = pa.system_memory_pool()


@dataclass(frozen=True, slots=True)
class MergePlan:
    """Plan of a merge into a base file; `keys` are the next one's record keys.

    `fates` has for each old row the index of the upsert that replaces it, `_STAYS` or `_GOES`. `met` and `new` index
    the upserts with keys of the file, and those to append.
    """

    keys: pa.Array
    fates: NDArray[np.int64]
    met: NDArray[np.int64]
    new: NDArray[np.int64]

    @property
    def inserts(self) -> int:
        return len(self.new)

    @property
    def updates(self) -> int:
        return int(np.count_nonzero(self.fates >= 0))

    @property
    def deletes(self) -> int:
        return int(np.count_nonzero(self.fates == _GOES))

    @property
    def changed(self) -> bool:
        return bool(self.inserts or self.updates or self.deletes)

    def with_new(self, upsert_keys: pa.Array, delete_keys: pa.Array) -> MergePlan:
        """Copy that also appends upserts whose keys neither file nor `delete_keys` have, in order."""
        is_new = np.ones(len(upsert_keys), dtype=np.bool_)
        is_new[self.met] = False
        if len(delete_keys):
            is_new &= ~mask_of(pc.is_in(upsert_keys, value_set=delete_keys))
        new = np.flatnonzero(is_new)
        keys = pa.concat_arrays([self.keys, upsert_keys.take(pa.array(new))]) if len(new) else self.keys
        return replace(self, keys=keys, new=new)


def untouched(file: files.ParquetFile) -> MergePlan:
    keys, nothing = files.keys_of(file), np.zeros(0, dtype=np.int64)
    return MergePlan(keys, np.full(len(keys), _STAYS), nothing, nothing)


def merge_plan(
    file: files.ParquetFile,
    upserts: pa.Table,
    upsert_keys: pa.Array,
    delete_keys: pa.Array,
    ordering_field: str | None = None,
) -> MergePlan | None:
    """Read a base file's keys, and plan replaced and deleted rows; None if its range excludes all keys.

    An upsert wins unless the old row's ordering value is higher; a delete always wins. `upsert_keys` must be unique.
    Leaves new keys to `MergePlan.with_new`. Raises `UnsupportedSchema` if `upserts`, even if empty, lack a column.
    """
    _refuse_loss(file, upserts.schema)
    near, going = (_near(keys, files.key_range(file.metadata)) for keys in (upsert_keys, delete_keys))
    if not len(near) and not len(going):
        return None
    plan = untouched(file)
    fates = near.take(pc.index_in(plan.keys, value_set=upsert_keys.take(near))).fill_null(_STAYS).to_numpy()
    met = fates[fates != _STAYS]
    if ordering_field is not None:
        fates = np.where(_old_wins(file, upserts, fates, ordering_field), _STAYS, fates)
    if not len(going):
        return replace(plan, fates=fates, met=met)
    is_deleted = mask_of(pc.is_in(plan.keys, value_set=delete_keys.take(going)))
    return replace(
        plan, fates=np.where(is_deleted, _GOES, fates), met=met, keys=plan.keys.filter(pa.array(~is_deleted))
    )


def merged(file: files.ParquetFile, plan: MergePlan, upserts: pa.Table, base_file: BaseFile) -> Iterator[pa.Table]:
    """Read the old file, and yield the next base file's rows by the plan, new keys last, in at least one part.

    Upserted rows get the commit time of `base_file`; others keep theirs.
    """
    own = [pa.field(name, pa.string()) for name in (schema.COMMIT_TIME, schema.COMMIT_SEQNO)]
    target = pa.schema([*own, *upserts.schema])
    columns = schema.present(target.names, file.schema_arrow.names)
    read = done = 0
    for batch in files.in_batches(file, columns, BATCH_ROWS, BATCH_BYTES):
        old, fates = read_as(batch, target), plan.fates[read : read + batch.num_rows]
        part = _replaced(old, fates, upserts, base_file, done)
        read, done = read + old.num_rows, done + part.num_rows
        yield part
    if plan.inserts or not read:
        for part in all_fresh(upserts.take(pa.array(plan.new)), base_file, done):
            yield part.cast(target)


def _replaced(old: pa.Table, fates: NDArray[np.int64], upserts: pa.Table, base_file: BaseFile, start: int) -> pa.Table:
    """Batch without deleted rows, with upserted ones in place.

    These get `base_file`'s commit time, and sequence numbers by position from `start` on. `fates`: the batch's part of
    `MergePlan.fates`.
    """
    places = np.flatnonzero(fates != _GOES)
    changed = np.flatnonzero(fates[places] >= 0)
    if not len(changed) and len(places) == old.num_rows:
        return old
    new = fresh(upserts.take(pa.array(fates[places[changed]])), base_file, changed + start)
    places[changed] = old.num_rows + np.arange(len(changed))
    return pc.take(pa.concat_tables([old, new.cast(old.schema)]), pa.array(places), memory_pool=_POOL)


def _near(keys: pa.Array, ends: tuple[str, str] | None) -> pa.Array:
    numbers = pa.array(np.arange(len(keys)))
    if ends is None:
        return numbers
    return numbers.filter(pc.and_(pc.greater_equal(keys, ends[0]), pc.less_equal(keys, ends[1])))


def _refuse_loss(file: files.ParquetFile, target: pa.Schema) -> None:
    """Raise `UnsupportedSchema` if `target` lacks a column of the file, nested ones included."""
    stored = schema.without_meta(file.schema_arrow)
    if stored.equals(target):
        return
    columns = {path for path, _ in leaf_types(target)}
    missing = [path for path, _ in leaf_types(stored) if path not in columns]
    if missing:
        raise UnsupportedSchema(f"columns {missing} of the table are missing; add them, with nulls if need be")


def _old_wins(
    file: files.ParquetFile, upserts: pa.Table, fates: NDArray[np.int64], ordering_field: str
) -> NDArray[np.bool_]:
    upsert_values = _ordering(upserts, ordering_field).take(pa.array(fates, mask=fates < 0))
    target = pa.schema([upserts.schema.field(ordering_field)])
    old_values = _ordering(read_as(files.read_columns(file, target.names), target), ordering_field)
    return mask_of(pc.greater(old_values, upsert_values).fill_null(False))


def dedupe(rows: pa.Table, keys: pa.Array, ordering_field: str | None = None) -> tuple[pa.Table, pa.Array]:
    """Keep for each key the last row of the highest ordering value, in the rows' order.

    Null is lowest, NaN highest. A missing (`InvalidRecords`) or nested ordering column (`UnsupportedSchema`) raises
    only if keys repeat.
    """
    if are_unique(keys):
        return rows, keys
    sorting = order_of([keys, *([] if ordering_field is None else [_ordering(rows, ordering_field)])])
    ranked = keys.take(sorting)
    last = pa.concat_arrays([pc.not_equal(ranked[:-1], ranked[1:]), pa.array([True])])
    positions = pa.array(np.sort(sorting.filter(last).to_numpy()))
    return rows.take(positions), keys.take(positions)


def without(rows: pa.Table, keys: pa.Array, deletes: pa.Array) -> tuple[pa.Table, pa.Array]:
    if not len(deletes):
        return rows, keys
    is_kept = pc.invert(pc.is_in(keys, value_set=deletes))
    return rows.filter(is_kept), keys.filter(is_kept)


def are_unique(keys: pa.Array | pa.ChunkedArray) -> bool:
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
