"""What a commit gives way to, said once.

Its own writer asks by what the table has (`validate`), whoever decides it by what the lock's log has (`decider`). Pure.

Source: Hudi RFC-22; `TransactionUtils.resolveWriteConflictIfAny`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from lockprovider.table.convert.columns import outline
from lockprovider.table.errors import WriteConflict
from lockprovider.table.format import schema as hudi_schema
from lockprovider.table.format.instant import Instant
from lockprovider.table.format.metadata import CommitMetadata
from lockprovider.table.timeline.conflict import ConcurrentOperation, Resolution, by_bucket

if TYPE_CHECKING:
    import pyarrow as pa


def refuse_overlap(
    mine: ConcurrentOperation, others: Sequence[ConcurrentOperation], resolution: Resolution, *, buckets: bool
) -> None:
    """Return if `mine` loses to none of the others; by buckets where the table has them.

    Raises:
        WriteConflict: it does.
    """
    overlap = (by_bucket(resolution) if buckets else resolution)(mine, others)
    if overlap is not None:
        raise WriteConflict(mine.instant.begin, overlap.lost_to.file_name, overlap.file_groups)


def refuse_columns(begin: str, columns: str, latest_first: Iterable[tuple[Instant, CommitMetadata]]) -> None:
    """Return if none of these commits has other columns, by their digest, than the one that began then knows.

    A column that was added meanwhile is not in the schema that it would state, and so would be lost. Each commit states
    all columns, and had this check too: the last one tells.

    Raises:
        WriteConflict: one has.
    """
    for other, metadata in latest_first:
        if metadata.schema_json:
            if columns_digest(hudi_schema.stated_columns(metadata.schema_json)) != columns:
                raise WriteConflict(begin, other.file_name, ())
            return


def columns_digest(columns: pa.Schema) -> str:
    """By which it is seen that columns were added."""
    return short_digest(repr(outline(columns)))


def short_digest(text: str) -> str:
    """Of a text, in 16 characters."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
