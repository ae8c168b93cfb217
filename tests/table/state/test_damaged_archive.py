"""A damaged file of the archive: `Corrupt` that names it, or its instants as they were."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fsspec_cas import Store, Unavailable
from lockprovider.table.errors import Corrupt
from lockprovider.table.files.place import TablePlace
from lockprovider.table.format.layout import HISTORY
from lockprovider.table.format.lsm import SCHEMA, Archived, Digest, encode_file, rows_of
from lockprovider.table.state.archive_index import names_in
from lockprovider.table.state.knowledge import TableKnowledge

NAME = "20260101000000001_20260101000000003_0.parquet"
ROWS = rows_of(Archived(f"2026010100000000{n}", f"2026010100000010{n}", "commit", b"{}") for n in (1, 2, 3))
NAMES = [f"{row['instantTime']}_{row['completionTime']}.commit" for row in ROWS]


def read(data: bytes) -> list[str]:
    store = Store.from_url("memory://archive")
    path = f"{HISTORY}/{NAME}"
    store.delete(path)
    store.put_if_absent(path, data).unwrap()
    return names_in(TableKnowledge(TablePlace.of(store, "memory://archive", None)), NAME, len(data))


def read_or_error(data: bytes) -> list[str] | Corrupt:
    try:
        return read(data)
    except Corrupt as error:
        return error


def encoded(columns: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out, store_schema=False)
    return out.getvalue()


def flipped(data: bytes, draw: random.Random) -> Iterator[bytes]:
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << draw.randrange(8)
        yield bytes(damaged)


def test_flipped_bits_of_archive_file_raise_corrupt_or_change_nothing_else(seed: int) -> None:
    data = encode_file(ROWS, Digest())
    assert read(data) == NAMES
    refused = 0
    for damaged in flipped(data, random.Random(seed)):
        found = read_or_error(damaged)
        if isinstance(found, Corrupt):
            refused += 1
            assert NAME in str(found)
        else:
            assert len(found) == len(NAMES)
    assert refused > len(data) // 8


@pytest.mark.parametrize("name", ["instantTime", "completionTime", "action"])
def test_archive_file_without_a_column_of_times_raises_corrupt(name: str) -> None:
    columns = {column: [row[column] for row in ROWS] for column in SCHEMA.names}
    for other in ({}, {name: [1, 2, 3]}, {name: [None, "1", "2"]}, {name: [b"\xff", b"1", b"2"]}):
        rest = {column: values for column, values in columns.items() if column != name}
        with pytest.raises(Corrupt, match="restore the file"):
            read(encoded({**rest, **other}))


def test_store_error_while_reading_the_archive_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode_file(ROWS, Digest())
    assert read(data) == NAMES

    def fail(*_: object) -> bytes:
        raise Unavailable("the store is out of reach")

    monkeypatch.setattr(Store, "read", fail)
    with pytest.raises(Unavailable, match="out of reach"):
        read(data)
