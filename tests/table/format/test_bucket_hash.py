"""Which bucket a key is in: as JVM Hudi 1.2.0 says, for the values that it was asked for."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockprovider.table.format.bucket import BucketIndex, bucket_of, file_id, hash_values, java_hashes, prefix

# Hash fields, record key, and what BucketIdentifier.getBucketId said for 16, 1009 and 2147483647 buckets.
JVM = [
    ("id", "1", 0, 80, 80),
    ("id", "2", 1, 81, 81),
    ("id", "42", 13, 684, 1693),
    ("id", "-7", 9, 472, 1481),
    ("id", "9223372036854775807", 1, 544, 374332481),
    ("id", "a", 0, 128, 128),
    ("id", "", 15, 31, 31),
    ("id", "user-00001", 14, 39, 439398350),
    ("id", "The quick brown fox jumps over the lazy dog", 2, 514, 1538055538),
    ("id", "stra\xdfe", 5, 943, 1255493589),
    ("id", "\xe9", 8, 264, 264),
    ("id", "e\u0301", 11, 904, 3931),
    ("id", "\u6771\u4eac", 10, 585, 841082),
    ("id", "\U0001f600", 2, 117, 1772930),
    ("id", "x\U0001f600y\U0001d11e", 7, 533, 419246087),
    ("id", "\uffff", 14, 990, 65566),
    ("id", "\x00", 15, 31, 31),
    ("id", "1700000000000000", 5, 227, 1040709061),
    ("id", "2024-02-29", 4, 525, 1534171908),
    ("id", "true", 13, 236, 3569069),
    ("id", "12.50", 7, 677, 46788007),
    ("id", "__null__", 6, 423, 1884827558),
    ("id", "id:5", 5, 264, 3226037),
    ("id", "id:5,6", 14, 923, 52382),
    ("id", "a:b", 8, 298, 95144),
    ("id", "a,b", 6, 873, 94710),
    ("id", "a:b,c", 15, 786, 91405087),
    ("id", "a,b:c", 15, 863, 90988447),
    ("id", "id:x,y:z", 7, 151, 151),
    ("id", "a:b,id:c", 2, 130, 130),
    ("id", "a:b,id:c:d", 12, 204, 97068),
    ("id", "a:b:c,id:d", 3, 131, 131),
    ("a,b", "a:1,b:2", 2, 512, 2530),
    ("a", "a:1,b:2", 0, 80, 80),
    ("b", "a:1,b:2", 1, 81, 81),
    ("b,a", "a:1,b:2", 2, 512, 2530),
    ("a,b", "a:__null__,b:2", 3, 2, 1011),
    ("a,b", "a:1,b:__null__", 0, 462, 2480),
    ("a,b", "a:__empty__,b:x", 9, 72, 1081),
    ("a", "a:__null__,b:x", 15, 31, 31),
    ("a,b", "a:\u6771,b:\U0001f600", 3, 632, 2594771),
    ("a,b", "a:10:20:30,b:2", 5, 731, 797766581),
    ("a,b", "a:1,b:10:20:30", 14, 462, 857020846),
    ("b", "a:10:20,b:2", 1, 81, 81),
    ("a,b", "a:x,y,b:2", 14, 665, 3621966),
    ("a,b", "a:x,y:z,b:2", 11, 695, 4731),
    ("a,b", "a:x,y:z,b:p,q:r", 9, 757, 4793),
    ("a,b", "a:1,b:p,q:r", 0, 574, 2592),
    ("b", "a:x,y:z,b:2", 1, 81, 81),
    ("a", "a:x,y:z,b:2", 7, 151, 151),
    ("a,b,c", "a:1,b:2,c:3", 1, 788, 78481),
    ("a,c", "a:1,b:2,c:3", 3, 513, 2531),
    ("c,a", "a:1,b:2,c:3", 3, 513, 2531),
    ("b", "a:1,b:2,c:3", 1, 81, 81),
    ("a,c", "a:1,b:x:y,c:3", 3, 513, 2531),
    ("a,b", "a:1,b:x:y,c:3", 7, 657, 119719),
    ("a,c", "a:u,v,b:w,c:3", 5, 1001, 3532501),
    ("c", "a:1,b:b,a:c,c:3", 2, 82, 82),
]
# The JVM's search for the end of the last value, which it does not need, never ends.
HANGS = [("id", "2024-01-01 10:20:30,5"), ("a", "a:1,b:10:20"), ("a,b", "a:1,b:2,c:x:y")]
ANY = st.text(st.characters(codec="utf-8"))


def key_fields(fields: str, key: str) -> tuple[str, ...]:
    if fields == "id":
        return ("id",)
    return ("a", "b", "c") if ",c:" in key else ("a", "b")


def buckets(fields: str, keys: list[str], named: tuple[str, ...], count: int) -> list[int]:
    found: list[int] = BucketIndex(count, tuple(fields.split(","))).of(pa.array(keys, pa.string()), named).to_pylist()
    return found


@pytest.mark.parametrize(("fields", "key", "of_16", "of_1009", "of_most"), JVM)
def test_key_is_in_the_bucket_of_the_jvm(fields: str, key: str, of_16: int, of_1009: int, of_most: int) -> None:
    named = key_fields(fields, key)
    found = [buckets(fields, [key], named, count)[0] for count in (16, 1009, 2**31 - 1)]
    assert found == [of_16, of_1009, of_most]


def test_many_keys_at_once_are_hashed_as_each_alone() -> None:
    keys = [key for fields, key, *_ in JVM if fields == "id"] * 2_000
    expected = [most for fields, *_, most in JVM if fields == "id"] * 2_000
    whole = pa.array(["other", *keys])
    assert BucketIndex(2**31 - 1, ("id",)).of(whole[1:], ("id",)).to_pylist() == expected
    assert len(keys) > 65_536 / 2


@pytest.mark.parametrize(("fields", "key"), HANGS)
def test_key_that_the_jvm_hashes_forever_has_a_bucket(fields: str, key: str) -> None:
    assert 0 <= buckets(fields, [key], key_fields(fields, key), 16)[0] < 16


def java_hash(text: str) -> int:
    """Word by word from the documentation of String.hashCode."""
    total = 0
    units = text.encode("utf-16-be")
    for high, low in zip(units[::2], units[1::2], strict=True):
        total = (31 * total + (high << 8 | low)) & 0xFFFFFFFF
    return total


@given(st.lists(st.none() | ANY))
def test_hash_is_a_polynomial_over_utf16(texts: list[str | None]) -> None:
    assert java_hashes(pa.array(texts, pa.string())).tolist() == [java_hash(text or "") for text in texts]


@given(st.lists(st.tuples(ANY, ANY), min_size=1))
def test_whole_columns_of_composite_keys_are_hashed_as_one_by_one(values: list[tuple[str, str]]) -> None:
    keys = [f"a:{a or '__empty__'},b:{b or '__empty__'}" for a, b in values]
    for fields in ("a", "b", "a,b"):
        expected = []
        for key in keys:
            total = 1
            for value in hash_values(key, fields.split(",")):
                total = (31 * total + java_hash(value or "")) & 0xFFFFFFFF
            expected.append((total & 0x7FFFFFFF) % 1009)
        assert buckets(fields, keys, ("a", "b"), 1009) == expected


def test_file_id_names_its_bucket_in_eight_digits() -> None:
    made = file_id(7, "f81d4fae-7dec-11d0-a765-00a0c91e6bf6-0")
    assert made == "00000007-7dec-11d0-a765-00a0c91e6bf6-0"
    assert (bucket_of(made), prefix(7)) == (7, "00000007")
    assert bucket_of("f81d4fae-7dec-11d0-a765-00a0c91e6bf6-0") is None
    assert bucket_of("0000000") is None


def test_no_keys_are_in_no_buckets() -> None:
    assert BucketIndex(4, ("id",)).of(pa.array([], pa.string()), ("id",)).to_pylist() == []
    assert BucketIndex(4, ("a",)).of(pa.array([], pa.string()), ("a", "b")).to_pylist() == []
