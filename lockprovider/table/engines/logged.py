"""Writes into a merge-on-read table whose keys are looked up: changed rows go to log files of the groups they are in.

A key is looked up in the base files, as JVM writers do, and in the logs of groups that have no base file. So a key that
was deleted since the last compaction, and comes again, goes where it was. If several groups have it, as after a row was
appended whose key had been deleted, the one with a row of it does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lockprovider.table.files.group_writer import GroupWriter
from lockprovider.table.files.keys import KeyFile, NumberMatch, number_match
from lockprovider.table.files.merge_log import MergeRule
from lockprovider.table.files.slice_rows import rows_of_keys
from lockprovider.table.format.metadata import WriteStat
from lockprovider.table.format.schema import RECORD_KEY
from lockprovider.table.state.parallel import in_order
from lockprovider.table.timeline.view import FileSlice

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NOBODY = -1


def home_of(writer: GroupWriter, slices: Sequence[FileSlice], keys: pa.Array, limit: int) -> pa.Array:
    """Of each of some different keys the number of the slice that it is in; -1 if it is in none."""
    homes = np.full(len(keys), _NOBODY)
    writer.place.footer_notes.look_up(writer.place.store, [one.path for one in slices if one.path])
    several = np.zeros(len(keys), dtype=np.bool_)
    by_number = number_match(keys, writer.config.key_column, writer.schema)
    jobs = [partial(_has, writer, one, keys, by_number) for one in slices]
    for number, here in enumerate(in_order(jobs, limit)):
        several |= here & (homes != _NOBODY)
        homes[here] = number
    if several.any():
        asked = keys.filter(pa.array(several))
        for number, one in enumerate(slices):
            live = _rows_in(writer, one, asked)
            homes[_mask(pc.is_in(keys, value_set=live))] = number
    return pa.array(homes)


def changes_of(
    writer: GroupWriter,
    slices: Sequence[FileSlice],
    changes: tuple[pa.Table, pa.Array, pa.Array],
    token: str,
    limit: int,
) -> tuple[list[Callable[[], WriteStat | None]], pa.Array]:
    """What there is to write for rows of different keys, and other keys to delete, of a partition: a call a file group.

    Besides the numbers of the rows whose keys are in no group.
    """
    rows, keys, deletes = changes
    deletes = pc.unique(deletes)
    there = home_of(writer, slices, pa.concat_arrays([keys, deletes]), limit)
    mine, gone = there[: len(keys)], there[len(keys) :]
    jobs: list[Callable[[], WriteStat | None]] = []
    for number in pc.unique(there).to_pylist():
        if number == _NOBODY:
            continue
        here, ended = pc.equal(mine, number), pc.equal(gone, number)
        part = (rows.filter(here), keys.filter(here), deletes.filter(ended))
        jobs.append(partial(writer.log, slices[number], *part, token))
    return jobs, pc.indices_nonzero(pc.equal(mine, _NOBODY))


def _has(writer: GroupWriter, one: FileSlice, keys: pa.Array, by_number: NumberMatch | None) -> NDArray[np.bool_]:
    if not one.path:
        return _mask(pc.is_in(keys, value_set=_rows_in(writer, one, keys)))
    return KeyFile(writer.place, one.path, one.size).has(keys, by_number)


def _rows_in(writer: GroupWriter, one: FileSlice, keys: pa.Array) -> pa.Array:
    found = rows_of_keys(writer.place, one, writer.schema, MergeRule.of(writer.config), keys)
    return found.column(RECORD_KEY).combine_chunks()


def _mask(values: pa.Array) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = values.to_numpy(zero_copy_only=False)
    return found
