"""Bloom filter in a base file's footer: Hadoop's dynamic one with one row of bits, sized to its keys.

JVM writers with the bloom index fail without it.

Source: Hudi `InternalDynamicBloomFilter`, `BloomFilterUtils`; Hadoop `MurmurHash`, `HashFunction`.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, log
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lockprovider.table.errors import Corrupt, undamaged

TYPE_CODE = "DYNAMIC_V0"

_MOST_HASHES = 30
_MOST_READ_HASHES = 1000  # a damaged number would take hours
_MOST_BITS = 2 * 2_587_966
# 0.69 is hardly better
_HASHES_A_BIT = 0.45
_BITS_PER_KEY = -log(1e-9) / log(2) ** 2  # false positives
_LEAST_ROOM = 16
_VERSION, _MURMUR = -1, 1
_HEADER = struct.Struct(">iibi")
_COUNTS = struct.Struct(">iii")
_M = np.uint32(0x5BD1E995)
_SLICE = 32_768  # fits the processor's cache


@dataclass(frozen=True, slots=True)
class KnownFilter:
    """Existing filter as base64 text."""

    text: str
    count: int


def encode_filter(keys: Any, known: KnownFilter | None = None, *, room: int | None = None) -> str:
    """Bloom filter of `keys`, non-empty texts, as base64 text.

    `known`: filter of the first keys, so that only others are hashed; ignored if damaged or of another size. `room`:
    keys to size for; None: the next power of two.
    """
    count = len(keys)
    room = room or _room(count)
    parsed = None if known is None else _fitting(known, count, room)
    if known is None or parsed is None:
        bits, done = np.zeros(_row_bytes(_bits(room)) * 8, dtype=np.bool_), 0
    elif known.count == count:
        return known.text
    else:
        bits = np.unpackbits(np.frombuffer(parsed.rows[0], np.uint8), bitorder="little").view(np.bool_)
        done = known.count
    _add(bits, keys[done:], room)
    return _text(bits, count, room)


def _text(bits: NDArray[np.bool_], count: int, room: int) -> str:
    header = _HEADER.pack(_VERSION, _hashes(room), _MURMUR, _bits(room))
    body = np.packbits(bits, bitorder="little").tobytes()
    return base64.b64encode(b"".join((header, _COUNTS.pack(room, count, 1), header, body))).decode()


def encode_filters(groups: Sequence[pa.Array]) -> Iterator[str]:
    """Yield each group's bloom filter as base64 text, in order; small groups are hashed together."""
    batch: list[pa.Array] = []
    for keys in groups:
        if batch and sum(map(len, batch)) + len(keys) > _SLICE:
            yield from _encode_together(batch)
            batch = []
        batch.append(keys)
    yield from _encode_together(batch)


def _encode_together(groups: Sequence[pa.Array]) -> Iterator[str]:
    """Yield each group's bloom filter, as `encode_filters`; hash all in one pass unless one is too large."""
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
    """Each key's 32-bit Murmur hash, equal in all processes; `keys`: str or Arrow strings."""
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
    data, offsets = utf8(keys)
    places = np.empty((_hashes(room), len(offsets) - 1), dtype=np.int32)
    for start in range(0, len(offsets) - 1, _SLICE):
        for number, at in enumerate(_positions(data, offsets[start : start + _SLICE + 1], len(places), _bits(room))):
            places[number, start : start + len(at)] = at
    bits[np.sort(places, axis=None)] = True  # sorted for the cache


def _fitting(known: KnownFilter, count: int, room: int) -> BloomFilter | None:
    try:
        parsed = BloomFilter.parse(known.text)
    except Corrupt:
        return None
    form = (parsed.bits, parsed.hashes, len(parsed.rows), parsed.recorded)
    return parsed if form == (_bits(room), _hashes(room), 1, known.count) and known.count <= count else None


def _room(keys: int) -> int:
    return max(_LEAST_ROOM, 1 << (keys - 1).bit_length())


def _bits(room: int) -> int:
    return min(ceil(room * _BITS_PER_KEY), _MOST_BITS)


def _hashes(room: int) -> int:
    bits = _bits(room)
    return _MOST_HASHES if bits < _MOST_BITS else max(1, round(_HASHES_A_BIT * bits / room))


@dataclass(frozen=True, slots=True)
class BloomFilter:
    """Parsed filter: `rows` are bit vectors, least significant bit first.

    `recorded`, the JVM's number of keys, is wrong if there are several rows.
    """

    bits: int
    hashes: int
    rows: tuple[bytes, ...]
    recorded: int = 0

    @classmethod
    def parse(cls, text: str) -> BloomFilter:
        """Parse a footer's base64 text; raise `Corrupt` if damaged, of an unknown form, or above 1,000 hashes."""
        with undamaged("a bloom filter in a footer cannot be read"):
            raw = base64.b64decode(text, validate=True)
            version, hashes, kind, bits = _HEADER.unpack_from(raw, 0)
            _, recorded, count = _COUNTS.unpack_from(raw, _HEADER.size)
            start, size = _HEADER.size + _COUNTS.size, _HEADER.size + _row_bytes(bits)
            form = version, kind, 0 < hashes <= _MOST_READ_HASHES, min(bits, count) > 0, len(raw) - start - count * size
            if form != (_VERSION, _MURMUR, True, True, 0):
                raise ValueError(
                    f"it is of version {version}, hash {kind} {hashes} times, {len(raw)} bytes, {bits} bits, "
                    f"{count} rows"
                )
        starts = (start + index * size for index in range(count))
        return cls(bits, hashes, tuple(raw[at + _HEADER.size : at + size] for at in starts), recorded)

    def might_contain_any(self, asked: Asked) -> bool:
        """Return False if the file certainly has none of these keys; cache their hashed positions in `asked`."""
        for row in self.rows:
            bits, candidates = np.frombuffer(row, dtype=np.uint8), np.arange(asked.count)
            for at in asked.positions(self.hashes, self.bits):
                positions = at[candidates]
                candidates = candidates[(bits[positions >> 3] >> (positions & 7).astype(np.uint8) & 1).astype(np.bool_)]
                if not len(candidates):
                    break
            if len(candidates):
                return True
        return False

    def might_contain_each(self, keys: Any) -> NDArray[np.bool_]:
        """Mask of `keys`, str or Arrow strings: False where the file certainly lacks the key."""
        data, offsets = utf8(keys)
        lengths = np.diff(offsets)
        bits = [np.frombuffer(row, dtype=np.uint8) for row in self.rows]
        is_set = np.ones((len(bits), len(lengths)), dtype=np.bool_)
        for at in _positions(data, offsets, self.hashes, self.bits):
            for number, row in enumerate(bits):
                is_set[number] &= (row[at >> 3] >> (at & 7).astype(np.uint8) & 1).astype(np.bool_)
        result = np.empty(len(lengths), dtype=np.bool_)
        result[np.argsort(lengths, kind="stable")] = is_set.any(axis=0)
        return result


class Asked:
    """Keys to look up in many filters."""

    def __init__(self, keys: Any) -> None:
        self._data, self._offsets = utf8(keys)
        self.count = len(self._offsets) - 1
        self._found: dict[tuple[int, int], list[NDArray[np.int64]]] = {}

    def positions(self, hashes: int, bits: int) -> list[NDArray[np.int64]]:
        form = hashes, bits
        if form not in self._found:
            self._found[form] = [at.copy() for at in _positions(self._data, self._offsets, hashes, bits)]
        return self._found[form]


def _row_bytes(bits: int) -> int:
    return (bits + 7) // 8


def utf8(keys: Any) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """UTF-8 bytes of `keys`, str or Arrow strings, end to end, and each key's first offset, then the end."""
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
    """Yield `hashes` arrays of bit positions, keys stably sorted by length; each overwrites the previous array.

    `bits`: the filter's size, or each key's filter's; `owners`: its first bit, added; both in `offsets`' order.
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
        # In Java |h % n| is |h| % n. numpy's % is slow.
        np.abs(h.view(np.int32), out=bit.view(np.int32))
        np.floor_divide(bit, size, out=spare)
        np.multiply(spare, size, out=spare)
        np.subtract(bit, spare, out=bit)
        yield np.add(first_bits, bit, out=out)


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Seedless part of the hash, for keys sorted by length.

    The j-th of `words` covers the keys from `firsts[j]` on; earlier ones are too short.
    """

    lengths: NDArray[np.uint32]
    words: tuple[NDArray[np.uint32], ...]
    firsts: tuple[int, ...]
    tails: NDArray[np.uint32]
    tail_factors: NDArray[np.uint32]

    def hash(self, h: NDArray[np.uint32], spare: NDArray[np.uint32]) -> None:
        """Replace each key's seed in `h` by Hadoop's 32-bit Murmur hash of the key; overwrite `spare`."""
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
    """Compute the parts of the keys' Murmur hashes that need no seed.

    `starts` and `lengths` locate the keys in `data`, sorted by length.
    """
    counts = lengths // 4
    firsts = tuple(int(np.searchsorted(counts, j, side="right")) for j in range(int(counts.max(initial=0))))
    words = tuple(_mixed(_word(data, starts[first:] + 4 * j)) for j, first in enumerate(firsts))
    tails = np.zeros(len(lengths), dtype=np.uint32)
    ends, tail_lengths = starts + lengths, lengths % 4
    # Hadoop takes the last bytes backwards and signed.
    for back in (1, 2, 3):
        has = tail_lengths >= back
        signed = data[ends[has] - back].view(np.int8).astype(np.int32)
        tails[has] ^= (signed << (8 * (back - 1))).view(np.uint32)
    factors = np.where(tail_lengths > 0, _M, np.uint32(1))
    return _Blocks(lengths.astype(np.uint32), words, firsts, tails, factors)


def _word(data: NDArray[np.uint8], at: NDArray[np.int64]) -> NDArray[np.uint32]:
    byte = [data[at + k].astype(np.uint32) << np.uint32(8 * k) for k in range(4)]
    word: NDArray[np.uint32] = byte[0] | byte[1] | byte[2] | byte[3]
    return word


def _mixed(word: NDArray[np.uint32]) -> NDArray[np.uint32]:
    mixed = word * _M
    mixed ^= mixed >> np.uint32(24)
    mixed *= _M
    return mixed
