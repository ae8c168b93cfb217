from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from lockprovider.table.files.encoding import ends, java_order

EDGES = st.sampled_from(["", "a", "\u00e9", "\ud7ff", "\ue000", "\ufffd", "\uffff", "\U00010000", "\U0010ffff"])
keys = st.lists(st.lists(EDGES, max_size=4).map("".join) | st.text(), min_size=1, max_size=12)


@given(keys)
def test_ends_are_least_and_greatest_by_utf16_units(texts: list[str]) -> None:
    ordered = sorted(texts, key=java_order)
    assert ends(pa.array(texts)) == (ordered[0], ordered[-1])
    assert ends(pa.array(texts, pa.large_string())) == (ordered[0], ordered[-1])


def test_surrogates_come_before_the_private_use_area() -> None:
    assert ends(pa.array(["\ue000", "\U00010000"])) == ("\U00010000", "\ue000")  # by UTF-8 it is the other way round


def test_no_keys_have_no_ends() -> None:
    assert ends(pa.array([], pa.string())) is None
