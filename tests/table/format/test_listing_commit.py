"""What our commits change of a metadata table's listing is what JVM Hudi writes for the same commits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from table.metadata_written import NAMES, ROOT, table

from lockprovider.table.errors import InvalidRecords
from lockprovider.table.format.hfile import decode_hfile, encode_hfile
from lockprovider.table.format.log_block import BlockKind, Header, LogBlock, decode_blocks
from lockprovider.table.format.metadata import CommitMetadata, WriteStat, decode_commit, decoded
from lockprovider.table.format.metadata_table import (
    FilesRecord,
    ListingCommit,
    decode_files,
    encode_files,
    metadata_schema,
    written_files,
)

# Of the other partitions, and how the files were written.
NOT_OURS = {"runtimeStats", "totalWriteBytes", "fileSizeInBytes", "path", "logFiles"}


def commits(name: str) -> list[tuple[str, CommitMetadata, LogBlock, bytes]]:
    """Of each commit its begin, what it did, the block with its records, and the metadata table's completed file."""
    files, found = table(name), []
    for path in sorted(files):
        folder, _, instant = path.rpartition("/")
        if folder == ".hoodie/timeline" and "_" in instant and instant.endswith("commit"):
            begin = instant.partition("_")[0]
            log = next(p for p in files if p.startswith(f"{ROOT}files/.files-0000-0_{begin}.log."))
            own = next(p for p in files if p.startswith(f"{ROOT}.hoodie/timeline/{begin}_"))
            (block,) = decode_blocks(files[log], log)
            found.append((begin, decode_commit(files[path], path), block, files[own]))
    return found


COMMITS = [pytest.param(*one, id=f"{name} {one[0]}") for name in NAMES for one in commits(name)]


def records(block: LogBlock) -> tuple[FilesRecord, ...]:
    return decode_files(decode_hfile(block.content, "a log"), block.header[Header.SCHEMA], "a log")


@pytest.mark.parametrize(("begin", "metadata", "block", "completed"), COMMITS)
def test_records_of_a_commit_are_those_of_the_jvm(
    begin: str, metadata: CommitMetadata, block: LogBlock, completed: bytes
) -> None:
    del begin, completed
    assert {one.key: one for one in written_files(metadata)} == {one.key: one for one in records(block)}
    assert encode_files(records(block)) == dict(decode_hfile(block.content, "").entries), "byte for byte"
    assert metadata_schema() == block.header[Header.SCHEMA]


@pytest.mark.parametrize(("begin", "metadata", "block", "completed"), COMMITS)
def test_log_and_completed_file_equal_those_of_the_jvm(
    begin: str, metadata: CommitMetadata, block: LogBlock, completed: bytes
) -> None:
    mine = ListingCommit.of(begin, written_files(metadata))
    (ours,) = decode_blocks(mine.log, mine.log_path)
    assert (ours.kind, list(ours.header.items())) == (block.kind, list(block.header.items()))
    assert {one.key: one for one in records(ours)} == {one.key: one for one in records(block)}
    assert abs(len(ours.content) - len(block.content)) < 100
    said, theirs = decoded(mine.completed, "ours", "a record", dict), decoded(completed, "theirs", "a record", dict)
    not_here = {"partitionToWriteStats": 0, "version": 0}
    assert said | not_here == theirs | not_here  # type: ignore[operator]
    (stat,), (their_stat,) = said["partitionToWriteStats"]["files"], theirs["partitionToWriteStats"]["files"]
    assert {key: stat[key] for key in stat if key not in NOT_OURS} == {
        key: their_stat[key] for key in stat if key not in NOT_OURS
    }
    assert f"{ROOT}{stat['path']}" == mine.log_path
    assert mine.log_path == f"{ROOT}files/.files-0000-0_{begin}.log.1_0-0-0"
    assert stat["fileSizeInBytes"] == len(mine.log) < 16_000
    assert ListingCommit.of(begin, written_files(metadata)) == mine


def test_mutant_with_a_smaller_schema_is_caught() -> None:
    """The wrong twin: hudi-rs fails at it."""
    entries = encode_files(written_files(CommitMetadata({"a": (WriteStat("f", "a/f", "a", file_size=1),)}, "UPSERT")))
    small = encode_hfile(entries, metadata_schema()[:-1] + " ", 0)
    assert decode_hfile(small, "").info["schema"].decode() != metadata_schema()


def test_file_without_bytes_is_not_listed() -> None:
    stat = WriteStat("f", "a/f", "a", file_size=1)
    assert written_files(CommitMetadata({"a": (stat,)}, "UPSERT"))[1].files["f"].size == 1
    with pytest.raises(InvalidRecords, match="a/f"):
        written_files(CommitMetadata({"a": (replace(stat, file_size=0),)}, "UPSERT"))


def test_commit_without_files_names_no_partition() -> None:
    (record,) = written_files(CommitMetadata({}, "DELETE_PARTITION", replaced={"a": ("f",)}))
    assert (record.key, record.files) == ("__all_partitions__", {})
    (block,) = decode_blocks(ListingCommit.of("20260101000000000", [record]).log, "")
    assert block.kind is BlockKind.HFILE
    assert records(block) == (record,)


def test_table_root_is_a_dot() -> None:
    stat = WriteStat("f", "f", "", file_size=1)
    everything, root = written_files(CommitMetadata({"": (stat,)}, "UPSERT"))
    assert list(everything.files) == [root.key] == ["."]
