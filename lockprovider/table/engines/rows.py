"""Changes of one partition, as an engine hands them on."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class PartitionChanges:
    """Rows to upsert with their keys, and keys to delete, all of one partition.

    `values` are the ordering values of the deletes of a blind write, which does not look for them.
    """

    rows: pa.Table
    keys: pa.Array
    deletes: pa.Array
    values: pa.Array | None = None
