"""The bloom filter in a base file's footer: as the JVM writes it, of a size that fits the keys.

It is Hadoop's dynamic bloom filter with a bound (type code `DYNAMIC_V0`), of one row of bits. The JVM's has 2,587,966
bits (431 KB in the footer) for up to 60,000 keys, whatever there are, and twice as many for more: of 500,000 keys it
finds a third of all others, too. Here a filter has room for the keys that there are, up to the next power of two, at
the rate of false positives of the JVM's, one in a billion, while that is no larger than the JVM's largest; of more keys
it is as large as that one, with fewer hashes (of 500,000 keys: 4, and one in a hundred). Readers take its size and the
number of hashes from itself. JVM writers with the bloom index fail on a file without a filter.

Source: Hudi `InternalDynamicBloomFilter`, `BloomFilterUtils`; Hadoop `MurmurHash`, `HashFunction`.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, log
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from lockprovider.table.errors import Corrupt

if TYPE_CHECKING:
    from numpy.typing import NDArray

TYPE_CODE = "DYNAMIC_V0"

_MOST_HASHES = 30
_MOST_BITS = 2 * 2_587_966
_HASHES_A_BIT = 0.45  # for each key, where room is short: 0.69 would be best, hardly better, and half as slow again
_BITS_PER_KEY = -log(1e-9) / log(2) ** 2  # at one false positive in a billion
_LEAST_ROOM = 16
_VERSION, _MURMUR = -1, 1
_HEADER = struct.Struct(">iibi")
_COUNTS = struct.Struct(">iii")
_M = np.uint32(0x5BD1E995)
# Hashing in slices keeps the work in the processor's cache, and memory flat.
_SLICE = 32_768


@dataclass(frozen=True, slots=True)
class KnownFilter:
    """A filter that is there already: base64 text, and of how many keys it is."""

    text: str
    count: int


def encode_filter(keys: Any, known: KnownFilter | None = None, *, room: int | None = None) -> str:
    """The filter of these keys (a list of str, or an Arrow string array, none empty) as base64 text.

    `known` is the filter of the first of these keys, in this order; only the others are hashed then. It is not used if
    it is not such a filter as this writes, or too small. `room` is for how many keys the filter is, and for as many as
    there are if None.
    """
    count = len(keys)
    room = room or _room(count)
    found = None if known is None else _fitting(known, count, room)
    if known is None or found is None:
        bits, done = np.zeros(_row_bytes(_bits(room)) * 8, dtype=np.bool_), 0
    elif known.count == count:
        return known.text
    else:
        bits = np.unpackbits(np.frombuffer(found.rows[0], np.uint8), bitorder="little").view(np.bool_)
        done = known.count
    _add(bits, keys[done:], room)
    return _text(bits, count, room)


def _text(bits: NDArray[np.bool_], count: int, room: int) -> str:
    header = _HEADER.pack(_VERSION, _hashes(room), _MURMUR, _bits(room))
    body = np.packbits(bits, bitorder="little").tobytes()
    return base64.b64encode(b"".join((header, _COUNTS.pack(room, count, 1), header, body))).decode()


def encode_filters(groups: Sequence[pa.Array]) -> Iterator[str]:
    """The filter of each group of keys, as of `encode_filter`; small groups are hashed together: much quicker."""
    batch: list[pa.Array] = []
    for keys in groups:
        if batch and sum(map(len, batch)) + len(keys) > _SLICE:
            yield from _encode_together(batch)
            batch = []
        batch.append(keys)
    yield from _encode_together(batch)


def _encode_together(groups: Sequence[pa.Array]) -> Iterator[str]:
    rooms = [_room(len(keys)) for keys in groups]
    if len(groups) <= 1 or {_hashes(room) for room in rooms} != {_MOST_HASHES}:
        yield from map(encode_filter, groups)
        return
    counts = [len(keys) for keys in groups]
    starts = np.cumsum([0, *(_row_bytes(_bits(room)) * 8 for room in rooms)])
    bits = np.zeros(starts[-1], dtype=np.bool_)
    data, offsets = utf8(pa.concat_arrays(groups))
    sizes = np.repeat(np.array([_bits(room) for room in rooms], dtype=np.uint32), counts)
    for at in _positions(data, offsets, _MOST_HASHES, sizes, np.repeat(starts[:-1], counts)):
        bits[at] = True
    for count, room, (start, stop) in zip(counts, rooms, pairwise(starts), strict=True):
        yield _text(bits[start:stop], count, room)


def hashes(keys: Any) -> NDArray[np.uint32]:
    """One 32-bit hash of each key, in their order; the same in all processes."""
    data, offsets = utf8(keys)
    out = np.empty(len(offsets) - 1, dtype=np.uint32)
    for start in range(0, len(out), _SLICE):
        ends = offsets[start : min(start + _SLICE, len(out)) + 1]
        lengths = np.diff(ends)
        order = np.argsort(lengths, kind="stable")
        h: NDArray[np.uint32] = np.zeros(len(lengths), dtype=np.uint32)
        _blocks(data, ends[:-1][order], lengths[order]).hash(h, np.empty_like(h))
        out[start : start + len(h)][order] = h
    return out


def _add(bits: NDArray[np.bool_], keys: Any, room: int) -> None:
    """Set the bits of keys, from the first to the last: those of many are more than the processor's cache holds."""
    data, offsets = utf8(keys)
    places = np.empty((_hashes(room), len(offsets) - 1), dtype=np.int32)
    for start in range(0, len(offsets) - 1, _SLICE):
        for number, at in enumerate(_positions(data, offsets[start : start + _SLICE + 1], len(places), _bits(room))):
            places[number, start : start + len(at)] = at
    bits[np.sort(places, axis=None)] = True


def _fitting(known: KnownFilter, count: int, room: int) -> BloomFilter | None:
    """A known filter, if it is as this writes them, of that room, and of no more than `count` keys."""
    try:
        found = BloomFilter.parse(known.text)
    except Corrupt:
        return None
    form = (found.bits, found.hashes, len(found.rows), found.recorded)
    return found if form == (_bits(room), _hashes(room), 1, known.count) and known.count <= count else None


def _room(keys: int) -> int:
    """Powers of two: a file that grows row by row has its keys hashed anew only when their number has doubled."""
    return max(_LEAST_ROOM, 1 << (keys - 1).bit_length())


def _bits(room: int) -> int:
    return min(ceil(room * _BITS_PER_KEY), _MOST_BITS)


def _hashes(room: int) -> int:
    bits = _bits(room)
    return _MOST_HASHES if bits < _MOST_BITS else max(1, round(_HASHES_A_BIT * bits / room))


@dataclass(frozen=True, slots=True)
class BloomFilter:
    """A filter as read: `rows` are the bit vectors, least significant bit first.

    `recorded` is how many keys it says it is of; the JVM's is wrong where there are several rows.
    """

    bits: int
    hashes: int
    rows: tuple[bytes, ...]
    recorded: int = 0

    @classmethod
    def parse(cls, text: str) -> BloomFilter:
        """Read base64 text from a footer.

        Raises:
            Corrupt: it is not such a filter.
        """
        try:
            raw = base64.b64decode(text, validate=True)
            version, hashes, kind, bits = _HEADER.unpack_from(raw, 0)
            _, recorded, count = _COUNTS.unpack_from(raw, _HEADER.size)
        except (ValueError, struct.error) as error:
            raise Corrupt(f"a bloom filter in a footer cannot be read: {error}; rewrite the file") from error
        start, size = _HEADER.size + _COUNTS.size, _HEADER.size + _row_bytes(bits)
        if version != _VERSION or kind != _MURMUR or len(raw) != start + count * size:
            raise Corrupt(f"a bloom filter in a footer is of version {version}, hash {kind}, {len(raw)} bytes")
        starts = (start + index * size for index in range(count))
        return cls(bits, hashes, tuple(raw[at + _HEADER.size : at + size] for at in starts), recorded)

    def might_contain_any(self, asked: Asked) -> bool:
        """False: certainly none of these keys is in the file. True: one may be."""
        for row in self.rows:
            bits, left = np.frombuffer(row, dtype=np.uint8), np.arange(asked.count)
            for at in asked.positions(self.hashes, self.bits):
                mine = at[left]
                left = left[(bits[mine >> 3] >> (mine & 7).astype(np.uint8) & 1).astype(np.bool_)]
                if not len(left):
                    break
            if len(left):
                return True
        return False

    def might_contain_each(self, keys: Any) -> NDArray[np.bool_]:
        """The same of each of many keys (a list of str, or an Arrow string array)."""
        data, offsets = utf8(keys)
        lengths = np.diff(offsets)
        bits = [np.frombuffer(row, dtype=np.uint8) for row in self.rows]
        there = np.ones((len(bits), len(lengths)), dtype=np.bool_)
        for at in _positions(data, offsets, self.hashes, self.bits):
            for number, row in enumerate(bits):
                there[number] &= (row[at >> 3] >> (at & 7).astype(np.uint8) & 1).astype(np.bool_)
        found = np.empty(len(lengths), dtype=np.bool_)
        found[np.argsort(lengths, kind="stable")] = there.any(axis=0)  # the order that the positions come in
        return found


class Asked:
    """Keys (a list of str, or an Arrow string array) to ask many filters for: hashed once for each size."""

    def __init__(self, keys: Any) -> None:
        self._data, self._offsets = utf8(keys)
        self.count = len(self._offsets) - 1
        self._found: dict[tuple[int, int], list[NDArray[np.int64]]] = {}

    def positions(self, hashes: int, bits: int) -> list[NDArray[np.int64]]:
        """For each hash the bit of every key, in the same order."""
        form = hashes, bits
        if form not in self._found:
            self._found[form] = [at.copy() for at in _positions(self._data, self._offsets, hashes, bits)]
        return self._found[form]


def _row_bytes(bits: int) -> int:
    return (bits + 7) // 8


def utf8(keys: Any) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """All keys' bytes end to end, and where each begins (one more entry for the end)."""
    array = pa.array(keys, pa.large_string()) if isinstance(keys, Sequence) else keys.cast(pa.large_string())
    array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    if len(array) == 0:
        return np.zeros(0, dtype=np.uint8), np.zeros(1, dtype=np.int64)
    _, offset_buffer, data_buffer = array.buffers()
    offsets = np.frombuffer(offset_buffer, dtype=np.int64)[array.offset : array.offset + len(array) + 1]
    data = np.frombuffer(data_buffer or b"", dtype=np.uint8)[offsets[0] : offsets[-1]]
    return data, offsets - offsets[0]


def _positions(
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    hashes: int,
    bits: int | NDArray[np.uint32],
    owners: NDArray[np.int64] | None = None,
) -> Iterator[NDArray[np.int64]]:
    """For each hash the bit of every key; each hash is seeded with the one before.

    `bits` is how many there are; or how many each key has, from its `owners` on.

    The keys come in no order, and each array is the one before, filled anew.
    """
    lengths = np.diff(offsets)
    order = np.argsort(lengths, kind="stable")
    blocks = _blocks(data, offsets[:-1][order], lengths[order])
    first_bits = np.zeros(1, dtype=np.int64) if owners is None else owners[order]
    size = np.uint32(bits) if isinstance(bits, int) else bits[order]
    out = np.empty(len(lengths), dtype=np.int64)
    h: NDArray[np.uint32] = np.zeros(len(lengths), dtype=np.uint32)
    spare, bit = np.empty_like(h), np.empty_like(h)
    for _ in range(hashes):
        blocks.hash(h, spare)
        # Java's % keeps the sign, so |h % n| is |h| % n; and % of numpy is slower than division.
        np.abs(h.view(np.int32), out=bit.view(np.int32))
        np.floor_divide(bit, size, out=spare)
        np.multiply(spare, size, out=spare)
        np.subtract(bit, spare, out=bit)
        yield np.add(first_bits, bit, out=out)


@dataclass(frozen=True, slots=True)
class _Blocks:
    """The part of the hash that does not depend on the seed, for keys sorted by length.

    `words` are the mixed 4-byte words: the j-th belongs to the keys from `firsts[j]` on, the others are too short.
    """

    lengths: NDArray[np.uint32]
    words: tuple[NDArray[np.uint32], ...]
    firsts: tuple[int, ...]
    tails: NDArray[np.uint32]
    tail_factors: NDArray[np.uint32]

    def hash(self, h: NDArray[np.uint32], spare: NDArray[np.uint32]) -> None:
        """Turn every key's seed `h` into Hadoop's Murmur hash of the key; `spare` is overwritten."""
        h ^= self.lengths
        for word, first in zip(self.words, self.firsts, strict=True):
            part = h[first:]
            part *= _M
            part ^= word
        h ^= self.tails
        h *= self.tail_factors
        h ^= np.right_shift(h, np.uint32(13), out=spare)
        h *= _M
        h ^= np.right_shift(h, np.uint32(15), out=spare)


def _blocks(data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> _Blocks:
    if len(lengths) and lengths[0] == lengths[-1] > 0:
        length = int(lengths[0])
        return _blocks_of_one_length(data[starts[0] : starts[-1] + length].reshape(-1, length))
    counts = lengths // 4
    firsts = tuple(int(np.searchsorted(counts, j, side="right")) for j in range(int(counts.max(initial=0))))
    words = tuple(_mixed(_word(data, starts[first:] + 4 * j)) for j, first in enumerate(firsts))
    tails = np.zeros(len(lengths), dtype=np.uint32)
    ends, left = starts + lengths, lengths % 4
    # Hadoop takes the last bytes from the end backwards and, unlike other Murmurs, with their sign.
    for back in (1, 2, 3):
        has = left >= back
        signed = data[ends[has] - back].view(np.int8).astype(np.int32)
        tails[has] ^= (signed << (8 * (back - 1))).view(np.uint32)
    factors = np.where(left > 0, _M, np.uint32(1))  # a key without a tail is left as it is
    return _Blocks(lengths.astype(np.uint32), words, firsts, tails, factors)


def _blocks_of_one_length(keys: NDArray[np.uint8]) -> _Blocks:
    """Of keys that lie side by side, a row each: nothing has to be gathered."""
    count, length = keys.shape
    words = tuple(
        _mixed(np.ascontiguousarray(keys[:, at : at + 4]).view("<u4").reshape(-1)) for at in range(0, length - 3, 4)
    )
    tails = np.zeros(count, dtype=np.uint32)
    for back in range(1, length % 4 + 1):
        tails ^= (keys[:, -back].view(np.int8).astype(np.int32) << (8 * (back - 1))).view(np.uint32)
    factor = _M if length % 4 else np.uint32(1)
    return _Blocks(np.asarray(length, np.uint32), words, (0,) * len(words), tails, np.asarray(factor))


def _word(data: NDArray[np.uint8], at: NDArray[np.int64]) -> NDArray[np.uint32]:
    byte = [data[at + k].astype(np.uint32) << np.uint32(8 * k) for k in range(4)]
    word: NDArray[np.uint32] = byte[0] | byte[1] | byte[2] | byte[3]
    return word


def _mixed(word: NDArray[np.uint32]) -> NDArray[np.uint32]:
    mixed = word * _M
    mixed ^= mixed >> np.uint32(24)
    mixed *= _M
    return mixed
