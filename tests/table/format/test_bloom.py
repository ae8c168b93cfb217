from __future__ import annotations

import base64
import io
import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table.jvm_written import base_files, contents

from lockprovider.table.errors import Corrupt
from lockprovider.table.files import base_file
from lockprovider.table.format import bloom

ROOM, BITS = 60_000, 2_587_966  # the JVM's
LEAST, FEW_BITS = 16, 691  # for 16 keys


def java_int(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value & (1 << 31) else value


def murmur(data: bytes, seed: int, *, canonical: bool = False) -> int:
    """One key at a time, in Java's arithmetic; `canonical` is the tail as everyone but Hadoop has it."""
    m, h = 0x5BD1E995, (seed ^ len(data)) & 0xFFFFFFFF
    whole = len(data) - len(data) % 4
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & 0xFFFFFFFF
        h = (h * m & 0xFFFFFFFF) ^ ((k ^ k >> 24) * m & 0xFFFFFFFF)
    tail = data[whole:] if canonical else data[whole:][::-1]
    for place, byte in enumerate(tail):
        signed = byte if canonical or byte < 128 else byte - 256
        h ^= (signed << 8 * place) & 0xFFFFFFFF
    if tail:
        h = h * m & 0xFFFFFFFF
    h = (h ^ h >> 13) * m & 0xFFFFFFFF
    return java_int(h ^ h >> 15)


def expected_bits(key: str, bits: int = BITS, *, canonical: bool = False) -> set[int]:
    seeds = itertools.accumulate(range(30), lambda h, _: murmur(key.encode(), h, canonical=canonical), initial=0)
    return {abs(h) % bits for h in itertools.islice(seeds, 1, None)}


def found_bits(text: str) -> set[int]:
    (row,) = bloom.BloomFilter.parse(text).rows
    return set(np.flatnonzero(np.unpackbits(np.frombuffer(row, np.uint8), bitorder="little")).tolist())


@pytest.mark.parametrize(("table", "path"), base_files())
def test_filters_are_the_jvms_byte_for_byte(table: str, path: str) -> None:
    data = contents(table)[path]
    theirs = pq.ParquetFile(io.BytesIO(data)).metadata.metadata[b"org.apache.hudi.bloomfilter"].decode()
    keys = base_file.keys_of(base_file.open_base_file(data))
    assert len(keys) >= 1
    assert bloom.encode_filter(keys, room=ROOM) == theirs
    assert bloom.encode_filter(keys.to_pylist(), room=ROOM) == theirs
    assert len(bloom.encode_filter(keys)) < max(500, 17 * len(keys))


@settings(max_examples=30)
@given(st.text(min_size=1, max_size=30))
def test_any_key_sets_the_bits_of_the_plain_algorithm(key: str) -> None:
    assert found_bits(bloom.encode_filter([key], room=ROOM)) == expected_bits(key)
    assert found_bits(bloom.encode_filter([key])) == expected_bits(key, FEW_BITS)


def test_mutant_with_common_murmur_tail_is_caught() -> None:
    assert expected_bits("ab") != expected_bits("ab", canonical=True)
    assert found_bits(bloom.encode_filter(["ab"], room=ROOM)) == expected_bits("ab")


@settings(max_examples=10)
@given(st.lists(st.text(min_size=1, max_size=40), min_size=1, max_size=20))
def test_keys_of_mixed_lengths_do_not_disturb_each_other(keys: list[str]) -> None:
    assert found_bits(bloom.encode_filter(keys, room=ROOM)) == set().union(*map(expected_bits, keys))
    assert found_bits(bloom.encode_filter(keys[:LEAST])) == set().union(
        *(expected_bits(k, FEW_BITS) for k in keys[:LEAST])
    )
    assert bloom.encode_filter(pa.chunked_array([keys, keys[:1]])) == bloom.encode_filter([*keys, keys[0]])
    assert bloom.encode_filter(pa.array(["x", *keys])[1:]) == bloom.encode_filter(keys)


@pytest.mark.parametrize("length", range(1, 10))
def test_keys_of_one_length_are_hashed_as_they_are_among_others(length: int) -> None:
    keys = ["é" * (length // 2) + "x" * (length % 2), "abcdefghi"[:length], "ihgfedcba"[:length]]
    assert found_bits(bloom.encode_filter(keys, room=ROOM)) == set().union(*map(expected_bits, keys))
    assert bloom.hashes(keys).tolist() == bloom.hashes([*keys, "a longer one"]).tolist()[:-1]


@pytest.mark.parametrize("counts", [[], [3], [0, 1, 17, 0, 300], [5, 40_000, 20_000, 20_000, 7]])
def test_filters_made_together_are_those_of_each(counts: list[int]) -> None:
    groups = [
        pa.array([f"{'long-' * (number % 3)}{number}-{n}" for n in range(count)], pa.string())
        for number, count in enumerate(counts)
    ]
    assert list(bloom.encode_filters(groups)) == [bloom.encode_filter(keys) for keys in groups]


def test_key_put_in_is_found_and_others_hardly_ever() -> None:
    keys = [f"2013-01-01:UA:{number}" for number in range(2_000)]
    found = bloom.BloomFilter.parse(bloom.encode_filter(keys))
    assert found.might_contain_each(keys[::50]).all()
    assert not found.might_contain_each([f"{key}x" for key in keys[::50]]).any()


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 1000, 1025, 32_768, 40_000])
def test_filter_fits_its_keys_and_keeps_its_rate(count: int) -> None:
    keys, others = (pa.array([f"{prefix}{n}" for n in range(max(1, count))]) for prefix in ("key-", "other-"))
    text = bloom.encode_filter(keys[:count])
    found = bloom.BloomFilter.parse(text)
    assert len(text) < 17 * max(count, 16) < 431_000 * 2
    assert found.might_contain_each(keys).all() == (count > 0)
    assert not found.might_contain_each(others).any()
    assert found.bits >= 43 * count


def test_no_keys_make_an_empty_filter() -> None:
    assert found_bits(bloom.encode_filter([])) == set()
    assert bloom.encode_filter(pa.array([], pa.string())) == bloom.encode_filter([])


@pytest.mark.parametrize(("count", "hashes", "rate"), [(70_000, 18, 1e-6), (200_000, 9, 1e-3), (500_000, 4, 0.02)])
def test_filter_of_many_keys_is_as_large_as_the_jvms_and_better(count: int, hashes: int, rate: float) -> None:
    keys = pa.array(np.arange(count)).cast(pa.string())
    text = bloom.encode_filter(keys)
    head = base64.b64decode(text[:40])
    assert int.from_bytes(head[13:17], "big") >= count == int.from_bytes(head[17:21], "big")
    found = bloom.BloomFilter.parse(text)
    assert (len(found.rows), found.bits, found.hashes) == (1, 2 * BITS, hashes)
    assert found.might_contain_each(keys[::7]).all()
    others = pa.array(np.arange(count, count + 100_000)).cast(pa.string())
    assert found.might_contain_each(others).mean() < rate


@pytest.mark.parametrize(
    ("first", "count"),
    [(0, 0), (0, 7), (7, 7), (5, 16), (16, 17), (17, 30), (5, 60_001), (60_000, 60_003), (120_005, 120_007)],
)
def test_filter_that_grows_is_the_filter_of_all_its_keys(first: int, count: int) -> None:
    keys = pa.array(np.arange(count)).cast(pa.string())
    known = bloom.KnownFilter(bloom.encode_filter(keys[:first]), first)
    assert bloom.encode_filter(keys, known) == bloom.encode_filter(keys)


def test_filter_of_other_keys_is_detected_and_another_form_is_not_used() -> None:
    keys = pa.array(["a", "b", "c"])
    of_one = bloom.encode_filter(keys[:1])
    assert bloom.encode_filter(keys, bloom.KnownFilter(bloom.encode_filter(["z"]), 1)) != bloom.encode_filter(keys)
    assert bloom.encode_filter(keys, bloom.KnownFilter(of_one, 1)) == bloom.encode_filter(keys)
    other_bits = base64.b64encode(base64.b64decode(of_one)[:9] + b"\0\0\0\x08" + base64.b64decode(of_one)[13:]).decode()
    too_large = bloom.KnownFilter(bloom.encode_filter(keys[:1], room=ROOM), 1)
    for known in (
        too_large,
        bloom.KnownFilter(of_one, 2),
        bloom.KnownFilter(of_one, 5),
        bloom.KnownFilter("AAAA", 1),
        bloom.KnownFilter(other_bits, 1),
    ):
        assert bloom.encode_filter(keys, known) == bloom.encode_filter(keys)


def counting(bits: int, rows: int) -> str:
    """A filter that states so many bits and rows, and has no bytes for them."""
    header = bloom._HEADER.pack(bloom._VERSION, 1, bloom._MURMUR, bits)
    return base64.b64encode(header + bloom._COUNTS.pack(0, 0, rows)).decode()


@pytest.mark.parametrize(
    "text", ["", "AAAA", "%%%", bloom.encode_filter(["a"])[:-8], counting(64, 0), counting(0, 0), counting(0, 1)]
)
def test_broken_filter_is_named_corrupt(text: str) -> None:
    with pytest.raises(Corrupt, match="bloom filter"):
        bloom.BloomFilter.parse(text)
