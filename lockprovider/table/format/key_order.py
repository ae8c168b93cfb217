"""The order of record keys in which JVM Hudi compares them: Java's, by UTF-16 code units.

    least, greatest = ends(keys)      # for `hoodie_min_record_key` and `hoodie_max_record_key`

Arrow, Parquet and HFiles compare UTF-8 bytes. The two orders differ only where a character from U+E000 to U+FFFF meets
one beyond U+FFFF, whose first UTF-16 unit is a surrogate (U+D800 to U+DBFF) and so comes first in Java.
Sources: `HoodieBloomFilterWriteSupport.addKey` and `HoodieBloomIndex` compare by `String.compareTo`.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_ORDERS_DIFFER_FROM = 0xEE  # the first byte of U+E000 in UTF-8; U+10000 and above begin with 0xF0 or more


def java_order(key: str) -> bytes:
    """Return a sort key: texts compare by it as Java's `String.compareTo` compares them."""
    return key.encode("utf-16-be")


def ends(keys: pa.Array) -> tuple[str, str] | None:
    """Return the least and the greatest of some keys in Java's order; None if there are no keys.

    Args:
        keys: an array of string or large_string without nulls.
    """
    if not len(keys):
        return None
    found = pc.min_max(keys)
    least, greatest = found["min"].as_py(), found["max"].as_py()
    if orders_agree(least, greatest):
        return least, greatest
    texts = keys.to_pylist()
    return min(texts, key=java_order), max(texts, key=java_order)


def orders_agree(least: str, greatest: str) -> bool:
    """Return whether these ends, found in the order of UTF-8, are certainly the ends in Java's order.

    If the greatest key differed, it would hold a character beyond U+FFFF; if the least differed, one of U+E000 to
    U+FFFF.
    """
    data = np.frombuffer((least + greatest).encode(), dtype=np.uint8)
    return not bool((data >= _ORDERS_DIFFER_FROM).any())
