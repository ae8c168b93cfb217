"""HFiles: every one that the JVM wrote is understood to the last byte of its data; a damaged one is not misread."""

from __future__ import annotations

import itertools
import struct
from secrets import token_bytes

import pytest
from table.metadata_written import TRAILER_BYTES, blocks_of, data_of, encoded, hfiles, trailer_of

from lockprovider.table.errors import Corrupt, UnsupportedTable
from lockprovider.table.format import hfile
from lockprovider.table.format.hfile import HFile, decode_hfile, encode_hfile
from lockprovider.table.format.metadata_table import (
    FilesRecord,
    ListedFile,
    decode_files,
    merge_files,
)

FILES = hfiles()
ONE = next(path for path in FILES if "/files/" in path and ".log." in path)


def test_stored_hfiles_of_all_kinds_exist() -> None:
    assert len(FILES) >= 30
    assert {path.split("/")[3] for path in FILES} == {"files", "column_stats", "partition_stats", "record_index"}
    assert any(path.endswith(".hfile") for path in FILES)


@pytest.mark.parametrize("path", FILES)
def test_every_hfile_of_the_jvm_is_read_to_its_last_byte(path: str) -> None:
    found = decode_hfile(FILES[path], path)
    keys = [key for key, _ in found.entries]
    assert keys == sorted(set(keys))
    assert encoded(found.entries) == data_of(FILES[path])
    assert found.info["hfile.LASTKEY"] == struct.pack(">h", len(keys[-1])) + keys[-1]
    values = [value for _, value in found.entries]
    assert struct.unpack(">i", found.info["hfile.AVG_KEY_LEN"]) == (sum(map(len, keys)) // len(keys),)
    assert struct.unpack(">i", found.info["hfile.AVG_VALUE_LEN"]) == (sum(map(len, values)) // len(values),)


def test_truncated_hfile_is_refused_by_name() -> None:
    data = FILES[ONE]
    for end in range(0, len(data), 97):
        with pytest.raises(Corrupt, match=f"{ONE}.*restore the file"):
            decode_hfile(data[:end], ONE)


def test_entry_of_a_negative_length_is_refused() -> None:
    back_to_the_start = hfile._ENTRY.pack(-21 + hfile._AROUND_KEY, 0, -21) + bytes(22 - hfile._ENTRY.size)
    with pytest.raises(ValueError, match="wrong length"):
        list(itertools.islice(hfile._pairs(back_to_the_start), 3))


def test_damaged_hfile_is_read_unchanged_or_refused() -> None:
    data = FILES[ONE]
    whole = decode_hfile(data, ONE).entries
    for at in range(0, len(data), 5):
        damaged = data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]
        try:
            found = decode_hfile(damaged, ONE)
        except (Corrupt, UnsupportedTable):
            continue
        assert found.entries == whole


def test_another_version_or_compression_is_refused_with_the_next_step() -> None:
    data = FILES[ONE]
    with pytest.raises(UnsupportedTable, match=r"version 00000002.*JVM Hudi"):
        decode_hfile(data[:-1] + b"\2", ONE)
    trailer = len(data) - TRAILER_BYTES
    codec = data.index(b"KVComparator", trailer) + len(b"KVComparator")
    assert data[codec : codec + 2] == b"\x60\x01"
    with pytest.raises(UnsupportedTable, match="compression 4"):
        decode_hfile(data[: codec + 1] + b"\4" + data[codec + 2 :], ONE)


def test_records_of_a_commit_name_its_partitions_and_files() -> None:
    found = decode_hfile(FILES[ONE], ONE)
    everything, *partitions = decode_files(found, found.info["schema"].decode(), ONE)
    assert everything.key == "__all_partitions__"
    assert set(everything.files) == {one.key for one in partitions}
    assert all(name.endswith(".parquet") and one.size > 0 for p in partitions for name, one in p.files.items())


def test_records_of_another_partition_are_refused() -> None:
    path = next(path for path in FILES if "/column_stats/" in path)
    found = decode_hfile(FILES[path], path)
    with pytest.raises(Corrupt, match="no listing of files"):
        decode_files(found, found.info["schema"].decode(), path)
    with pytest.raises(Corrupt, match="no listing of files"):
        decode_files(HFile(((b"a", b"\1\2"),), {}), decode_hfile(FILES[ONE], ONE).info["schema"].decode(), ONE)


def record(key: str, **files: int | None) -> FilesRecord:
    return FilesRecord(key, {name: ListedFile(size or 0, size is None) for name, size in files.items()})


def test_larger_size_wins_and_deleted_file_is_gone_until_listed_again() -> None:
    found = merge_files(
        [
            FilesRecord("__all_partitions__", {"a": ListedFile(0, False), ".": ListedFile(0, False)}),
            record("a", x=1, y=2, z=3, w=4),
            record(".", v=1),
            record("a", x=5, y=1, z=None, w=None),
            record("a", w=3),
        ]
    )
    assert found.files == {"a": {"x": 5, "y": 2, "w": 3}, "": {"v": 1}}
    assert found.sizes == {"a/x": 5, "a/y": 2, "a/w": 3, "v": 1}


def test_files_of_a_partition_that_is_not_listed_are_not_found() -> None:
    gone = FilesRecord("__all_partitions__", {"a": ListedFile(0, True)})
    here = FilesRecord("__all_partitions__", {"a": ListedFile(0, False)})
    assert merge_files([record("a", x=1)]).sizes == {}
    assert merge_files([here, record("a", x=1), gone]).sizes == {}
    assert merge_files([here, record("a", x=1), gone, here]).sizes == {"a/x": 1}


@pytest.mark.parametrize("path", [path for path in FILES if ".log." in path])
def test_written_hfile_has_the_blocks_of_the_jvm_except_for_compression(path: str) -> None:
    theirs = decode_hfile(FILES[path], path)
    made_ms = struct.unpack(">q", theirs.info["hfile.CREATE_TIME_TS"])[0]
    ours = encode_hfile(dict(theirs.entries), theirs.info["schema"].decode(), made_ms)
    assert decode_hfile(ours, path) == theirs
    (*most, index, meta, _), (*most_of_theirs, their_index, their_meta, _) = blocks_of(ours), blocks_of(FILES[path])
    assert most == most_of_theirs
    assert index[0] == their_index[0]
    assert index[1][:8] + index[1][12:] == their_index[1][:8] + their_index[1][12:], "but for the size of the block"
    assert meta == their_meta
    of_info, of_index = trailer_of(ours).pop(1), trailer_of(ours).pop(2)
    assert (of_index, of_info) == (len_of(ours, 1), len_of(ours, 3))
    assert {k: v for k, v in trailer_of(ours).items() if k > 2} == {
        k: v for k, v in trailer_of(FILES[path]).items() if k > 2
    }
    assert abs(len(ours) - len(FILES[path])) < 50


@pytest.mark.parametrize("path", [path for path in FILES if path.endswith(".hfile") and "/files/" in path])
def test_base_file_has_the_blocks_of_the_jvm(path: str) -> None:
    theirs = decode_hfile(FILES[path], path)
    made_ms = struct.unpack(">q", theirs.info["hfile.CREATE_TIME_TS"])[0]
    (_, bloom), *_ = (block for block in blocks_of(FILES[path]) if block[0] == b"METABLKc")
    ours = encode_hfile(dict(theirs.entries), theirs.info["schema"].decode(), made_ms, bloom.decode())
    assert decode_hfile(ours, path) == theirs
    (*most, index, meta, info), (*most_of_theirs, their_index, their_meta, their_info) = map(
        blocks_of, (ours, FILES[path])
    )
    assert (*most, info) == (*most_of_theirs, their_info)
    assert index[1][:8] + index[1][12:] == their_index[1][:8] + their_index[1][12:], "but for the size of the block"
    assert meta[1][12:] == their_meta[1][12:], "but for where the filter is, and its size"
    assert struct.unpack_from(">qi", meta[1]) == (len_of(ours, 1), len_of(ours, 2) - len_of(ours, 1))
    assert trailer_of(ours)[2] == len_of(ours, 2)
    assert {k: v for k, v in trailer_of(ours).items() if k > 2} == {
        k: v for k, v in trailer_of(FILES[path]).items() if k > 2
    }


def len_of(data: bytes, blocks: int) -> int:
    """The bytes of the first blocks."""
    at = 0
    for _ in range(blocks):
        at += 33 + struct.unpack_from(">i", data, at + 8)[0]
    return at


@pytest.mark.parametrize("length", [1, 125, 126, 300, 70_000 - 40_000])
def test_keys_of_all_lengths_and_values_of_all_sizes_are_read_again(length: int) -> None:
    entries = {b"k" * length: b"v" * length * 3, b"j": b""}
    data = encode_hfile(entries, "{}", 7)
    assert decode_hfile(data, "x").entries == tuple(sorted(entries.items()))
    assert data == encode_hfile(dict(reversed(entries.items())), "{}", 7)


def test_no_entries_and_keys_that_are_too_long_are_refused() -> None:
    with pytest.raises(ValueError, match="0 entries"):
        encode_hfile({}, "{}", 0)
    with pytest.raises(ValueError, match="32,767"):
        encode_hfile({b"k" * 32768: b""}, "{}", 0)


def test_block_of_a_large_listing_is_read_if_its_compressed_size_is_plausible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hfile, "LARGEST_OBJECT", 1 << 20)
    entries = {b"a": token_bytes(2 << 20), b"b": token_bytes(2 << 20)}
    data = encode_hfile(entries, "{}", 0)
    assert decode_hfile(data, "x").entries == tuple(entries.items())
    with pytest.raises(Corrupt, match="are the most that is read"):
        decode_hfile(encode_hfile({b"a": bytes(8 << 20)}, "{}", 0), "x")
