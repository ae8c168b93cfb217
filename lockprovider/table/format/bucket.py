"""Hudi's bucket index: a row's record key determines its file group, without a lookup.

The bucket is Java's hash of the hash fields' values, without the sign, modulo the number of buckets.

Source: Hudi `BucketIdentifier`, `KeyGenUtils.extractRecordKeysByFields`, `HoodieSimpleBucketIndex`; Java's
`String.hashCode`, `List.hashCode`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fsspec_cas.arguments import shown
from lockprovider.table.errors import InvalidRecords
from lockprovider.table.format.bloom import utf8
from lockprovider.table.format.keygen import EMPTY_KEY, NULL_KEY

Hashes = NDArray[np.uint32]

MOST_BUCKETS = 99_999_999
_DIGITS = 8
_FIXED = "-0000-0000-0000-000000000000-"  # Source: `BucketIdentifier.newBucketFileIdForNBCC`.
_FACTOR = np.uint32(31)
_INVERSE = np.uint32(pow(31, -1, 1 << 32))
_NO_SIGN = np.uint32(0x7FFFFFFF)
_SLICE = 65_536  # fits the processor's cache


@dataclass(frozen=True, slots=True)
class BucketIndex:
    """At most `buckets` file groups in each partition, by a hash of some key columns, `fields`."""

    buckets: int
    fields: tuple[str, ...]

    def checked(self, key_fields: Sequence[str]) -> BucketIndex:
        strange = sorted(set(self.fields) - set(key_fields))
        if strange:
            raise InvalidRecords(f"bucket columns {strange} are not in the record key: use columns of {[*key_fields]}")
        if not isinstance(self.buckets, int) or isinstance(self.buckets, bool) or not 1 <= self.buckets <= MOST_BUCKETS:
            raise InvalidRecords(f"a table cannot have {shown(self.buckets)} buckets: use 1 to {MOST_BUCKETS}")
        return self

    def named_by(self, file_id: str) -> int | None:
        bucket = bucket_of(file_id)
        return bucket if bucket is not None and bucket < self.buckets else None

    def of(self, keys: pa.Array, key_fields: Sequence[str]) -> pa.Array:
        """Each record key's bucket as int32, equal to JVM Hudi 1.2's."""
        hashes = np.empty(len(keys), dtype=np.uint32)
        for start in range(0, len(keys), _SLICE):
            part = keys.slice(start, _SLICE)
            hashes[start : start + len(part)] = _list_hashes(part, key_fields, self.fields)
        return pa.array(((hashes & _NO_SIGN) % np.uint32(self.buckets)).astype(np.int32))


def prefix(bucket: int) -> str:
    return f"{bucket:0{_DIGITS}d}"


def file_id(bucket: int, group: str) -> str:
    return prefix(bucket) + group[_DIGITS:]


def fixed_file_id(bucket: int, number: int = 0) -> str:
    """File id that non-blocking writers give to a bucket's first file group in every partition.

    `number` counts earlier ones that were replaced.
    """
    return f"{prefix(bucket)}{_FIXED}{number}"


def bucket_of(file_id: str) -> int | None:
    start = file_id[:_DIGITS]
    return int(start) if len(start) == _DIGITS and start.isascii() and start.isdigit() else None


def hash_values(key: str, fields: Sequence[str]) -> list[str | None]:
    """Values of `fields` in a record key, in its order; only the key if it lacks `,`, `:` or these fields.

    The null placeholder becomes None, the other empty text. A value ends at the last `,` before the next `:`; like the
    JVM's, this misreads one with `,` and then `:`.
    """
    if "," not in key or ":" not in key:
        return [key]
    values: list[str | None] = []
    position = 0
    while position < len(key):
        colon = key.index(":", position)
        end = _end(key, colon)
        if key[position:colon] in fields:
            text = key[colon + 1 : end]
            values.append(None if text == NULL_KEY else "" if text == EMPTY_KEY else text)
        position = end + 1
    return values or [key]


def _end(key: str, colon: int) -> int:
    """Offset where the value after `colon` ends.

    The last `,` before the first later `:` with a `,` between, or the key's end.
    """
    following = key.find(":", colon + 1)
    while following >= 0:
        comma = key.rfind(",", colon, following)
        if comma >= 0:
            return comma
        following = key.find(":", following + 1)
    return len(key)


def _list_hashes(keys: pa.Array, key_fields: Sequence[str], fields: Sequence[str]) -> Hashes:
    """Unsigned Java `List.hashCode` of the values of `fields` in each record key of `key_fields`.

    Values with a `:` are slow.
    """
    if len(key_fields) > 1:
        pattern = ",".join(f"{re.escape(name)}:(?P<f{at}>[^:]*)" for at, name in enumerate(key_fields))
        parts = pc.extract_regex(keys, f"(?s)^{pattern}$")
        plain = pc.is_valid(parts)
        texts = [_unmarked(parts.field(at)) for at, name in enumerate(key_fields) if name in fields]
    else:
        plain = pc.invert(pc.and_(pc.match_substring(keys, ","), pc.match_substring(keys, ":")))
        texts = [keys]
    total = np.ones(len(keys), dtype=np.uint32)
    for text in texts:
        total = total * _FACTOR + java_hashes(text)
    odd = np.flatnonzero(~np.asarray(plain))
    if len(odd):
        total[odd] = _one_by_one(keys.take(pa.array(odd)), fields)
    return total


def _unmarked(text: pa.Array) -> pa.Array:
    return pc.if_else(pc.is_in(text, value_set=pa.array([NULL_KEY, EMPTY_KEY])), "", text)


def _one_by_one(keys: pa.Array, fields: Sequence[str]) -> Hashes:
    """`_list_hashes` of any keys, which `hash_values` splits one by one."""
    values_by_key = [hash_values(key, fields) for key in keys.to_pylist()]
    parts = java_hashes(pa.array([value for values in values_by_key for value in values], pa.string())).tolist()
    totals, position = np.empty(len(values_by_key), dtype=np.uint32), 0
    for at, values in enumerate(values_by_key):
        total = 1
        for part in parts[position : position + len(values)]:
            total = (total * 31 + part) & 0xFFFFFFFF
        totals[at], position = total, position + len(values)
    return totals


def java_hashes(texts: pa.Array) -> Hashes:
    """Java's `String.hashCode` of each text, unsigned; 0 for null.

    31 has an inverse modulo 2^32: all hashes are differences of one running sum.
    """
    data, offsets = utf8(pc.fill_null(texts, ""))
    units, starts = (data, offsets) if data.max(initial=0) < 0x80 else _utf16(data, offsets)  # noqa: PLR2004 - ASCII
    count = len(units)
    falling = _powers(_INVERSE, count)
    sums = np.zeros(count + 1, dtype=np.uint32)
    np.cumsum(units.astype(np.uint32) * falling, dtype=np.uint32, out=sums[1:])
    rising = _powers(_FACTOR, count)
    ends = starts[1:]
    last = rising[np.maximum(ends - 1, 0)] if count else np.zeros(len(ends), dtype=np.uint32)
    hashes: Hashes = (sums[ends] - sums[starts[:-1]]) * last
    return hashes


def _powers(base: np.uint32, count: int) -> Hashes:
    powers = np.full(count, base, dtype=np.uint32)
    powers[:1] = 1
    return np.cumprod(powers, dtype=np.uint32)


def _utf16(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> tuple[NDArray[np.uint16], NDArray[np.int64]]:
    units = np.frombuffer(data.tobytes().decode("utf-8").encode("utf-16-le"), dtype="<u2")
    begun = ((data & 0xC0) != 0x80).astype(np.int64) + (data >= 0xF0)  # noqa: PLR2004 - UTF-8's lead bytes
    places = np.zeros(len(data) + 1, dtype=np.int64)
    np.cumsum(begun, out=places[1:])
    return units, places[offsets]
