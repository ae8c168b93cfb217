"""A compaction of the metadata table's partition `files`: one base file with all that it lists.

Promised: equal arguments give equal bytes and names. NOT promised: to compact other partitions.

Source: Hudi `HoodieBackedTableMetadataWriter.compactIfNecessary`, `HoodieAvroHFileWriter`.
"""

from __future__ import annotations

from dataclasses import dataclass

from lockprovider.table.format.bloom import encode_filter
from lockprovider.table.format.instant import Action, Instant, InstantState, to_ms
from lockprovider.table.format.layout import METADATA_TABLE
from lockprovider.table.format.metadata import COMPACT, CommitMetadata, WriteStat, encode_commit
from lockprovider.table.format.metadata_table.files_records import (
    LISTING,
    FileListing,
    encode_files,
    metadata_schema,
    record_schema,
    whole_listing,
)
from lockprovider.table.format.metadata_table.hfile import encode_hfile
from lockprovider.table.format.metadata_table.listing_commit import OWN_TIMELINE
from lockprovider.table.format.plan.compaction import CompactionOperation, encode_compaction_plan

_WRITER = "0-0-0"


@dataclass(frozen=True, slots=True)
class ListingCompaction:
    """What is written of it. Paths are relative to the data table; the inflight state is empty."""

    begin: str
    base_path: str
    base: bytes
    plan: bytes
    completed: bytes

    @classmethod
    def of(
        cls, begin: str, planned: CompactionOperation, listing: FileListing, schema_json: str | None = None
    ) -> ListingCompaction:
        """The compaction of this one file slice, which comes to `listing`, with the schema that the slice has."""
        schema = schema_json or metadata_schema()
        entries = encode_files(whole_listing(listing), schema)
        bloom = encode_filter([key.decode() for key in sorted(entries)])
        base = encode_hfile(entries, schema, to_ms(begin), bloom)
        path = f"{LISTING}/{planned.file_id}_{_WRITER}_{begin}.hfile"
        stat = WriteStat(
            file_id=planned.file_id,
            path=path,
            partition=LISTING,
            prev_commit=planned.base_instant,
            num_writes=len(entries),
            num_updates=len(entries),
            file_size=len(base),
        )
        completed = encode_commit(CommitMetadata({LISTING: (stat,)}, COMPACT, record_schema(schema)))
        return cls(begin, f"{METADATA_TABLE}/{path}", base, encode_compaction_plan([planned]), completed)

    @property
    def requested_path(self) -> str:
        """Where the plan goes."""
        return self._at(InstantState.REQUESTED)

    @property
    def inflight_path(self) -> str:
        """The file of the state before the base file."""
        return self._at(InstantState.INFLIGHT)

    def completed_path(self, completion: str) -> str:
        """The file that completes it."""
        return self._at(InstantState.COMPLETED, completion)

    def _at(self, state: InstantState, completion: str | None = None) -> str:
        return OWN_TIMELINE + Instant(self.begin, Action.COMPACTION, state, completion).file_name
