"""Some bits that tell which keys may be among many: none of these is missed, of others about one in thirty passes."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from lockprovider.table.format.bloom import hashes

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BITS_PER_KEY = 32
_LEAST_BITS = 16
_MOST_BITS = 1 << 31


@dataclass(frozen=True)
class Sketch:
    """A bit is set for each key's hash; `packed` are the bits, compressed. Picklable, and small on its way."""

    packed: bytes

    @classmethod
    def of(cls, parts: Iterable[bytes]) -> Sketch:
        """The sketch of keys whose `hashes` are given, as the bytes of their arrays."""
        found = np.frombuffer(b"".join(parts), dtype=np.uint32)
        size = 1 << max(_LEAST_BITS, (len(found) * _BITS_PER_KEY - 1).bit_length())
        bits: NDArray[np.bool_] = np.zeros(min(size, _MOST_BITS), dtype=np.bool_)
        bits[found % np.uint32(len(bits))] = True
        return cls(zlib.compress(np.packbits(bits, bitorder="little").tobytes(), level=1))

    @cached_property
    def _bytes(self) -> NDArray[np.uint8]:
        return np.frombuffer(zlib.decompress(self.packed), dtype=np.uint8)

    def __getstate__(self) -> dict[str, Any]:
        return {"packed": self.packed}

    def may_have(self, keys: Any) -> pa.Array:
        """For each key of an Arrow string array: False, it is not one of these; True, it may be."""
        at = hashes(keys) % np.uint32(8 * len(self._bytes))
        return pa.array((self._bytes[at >> 3] >> (at & 7).astype(np.uint8) & 1).astype(np.bool_))
