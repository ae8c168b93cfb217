"""One commit of the metadata table's partition `files`: a log file with the records, and the completed instant.

Promised: equal changes give equal bytes and names. NOT promised: to make a file group, base files, or to write other
partitions.

Source: Hudi `HoodieBackedTableMetadataWriter`, `SparkHoodieBackedTableMetadataWriter`, `HoodieAppendHandle`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lockprovider.table.format.data_files import LogFile
from lockprovider.table.format.instant import Action, Instant, InstantState, to_ms
from lockprovider.table.format.layout import METADATA_TABLE, TIMELINE
from lockprovider.table.format.log_block import BlockKind, Header, LogBlock, encode_blocks
from lockprovider.table.format.metadata import CommitMetadata, WriteStat, encode_commit
from lockprovider.table.format.metadata_table.files_records import (
    LISTING,
    FilesRecord,
    encode_files,
    metadata_schema,
    record_schema,
)
from lockprovider.table.format.metadata_table.hfile import encode_hfile

OWN_TIMELINE = f"{METADATA_TABLE}/{TIMELINE}/"
_GROUP = "files-0000-0"  # the one file group that this partition has, for good
_WRITER = "0-0-0"
_OPERATION = "UPSERT_PREPPED"
STATISTICS = "column_stats", "partition_stats"
PARTITIONS_KEY = "hoodie.table.metadata.partitions"


@dataclass(frozen=True, slots=True)
class ListingCommit:
    """What is written for one instant of the data table; `begin` is that instant's own.

    Paths are relative to the data table.
    """

    begin: str
    log: bytes
    completed: bytes

    @classmethod
    def of(cls, begin: str, records: Iterable[FilesRecord], schema_json: str | None = None) -> ListingCommit:
        """The commit of these records, each key once, with the schema of the metadata table's other files.

        hudi-rs reads all of them by one schema.
        """
        schema = schema_json or metadata_schema()
        entries = encode_files(records, schema)
        content = encode_hfile(entries, schema, to_ms(begin))
        header: dict[int, str] = {Header.SCHEMA: schema, Header.INSTANT_TIME: begin}
        log = encode_blocks([LogBlock(BlockKind.HFILE, header, content)])
        count = len(entries)
        stat = WriteStat(
            file_id=_GROUP,
            path=f"{LISTING}/{_log_name(begin)}",
            partition=LISTING,
            prev_commit=begin,
            num_writes=count,
            num_updates=count,
            file_size=len(log),
        )
        return cls(begin, log, encode_commit(CommitMetadata({LISTING: (stat,)}, _OPERATION, record_schema(schema))))

    @property
    def log_path(self) -> str:
        """Where the records go."""
        return f"{METADATA_TABLE}/{LISTING}/{_log_name(self.begin)}"

    @property
    def pending_paths(self) -> tuple[str, str]:
        """The files of its pending states, in the order in which they are made; both are empty."""
        states = InstantState.REQUESTED, InstantState.INFLIGHT
        requested, inflight = (Instant(self.begin, Action.DELTACOMMIT, state).file_name for state in states)
        return OWN_TIMELINE + requested, OWN_TIMELINE + inflight

    def completed_path(self, completion: str) -> str:
        """The file that completes it."""
        return OWN_TIMELINE + Instant(self.begin, Action.DELTACOMMIT, InstantState.COMPLETED, completion).file_name


def _log_name(begin: str) -> str:
    return LogFile(_GROUP, begin, 1, _WRITER).name


def listing_fault(partitions: Iterable[str], inflight: Iterable[str], *, keeps: bool) -> tuple[str, str]:
    """Why a table with these partitions of a metadata table cannot be written, and what another engine does about it.

    Both are empty if it can. `keeps`: its writer keeps the listing of files.
    """
    named = tuple(dict.fromkeys((*partitions, *inflight)))
    others = [name for name in named if name != LISTING]
    if not named:
        return "", ""
    if not keeps:
        return "would hide these commits from JVM readers", ""
    if tuple(inflight):
        return "is being built", "wait until it is, then begin again"
    indexes = [f"JVM Hudi has `DROP INDEX {name} ON ...`" for name in others if name not in STATISTICS]
    elsewhere = "" if set(others) & set(STATISTICS) else "; ".join(indexes)
    return ("has more than `files`, which is all that is kept here", elsewhere) if others else ("", "")
