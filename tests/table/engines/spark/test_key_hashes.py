"""Hashes of keys miss none of them, and let few others pass."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given, settings
from hypothesis import strategies as st
from table.format.test_bloom import murmur

from lockprovider.table.engines.spark.tasks import may_be_in
from lockprovider.table.format import bloom

texts = st.lists(st.text(min_size=1, max_size=12), max_size=30)


def numbers(first: int, end: int) -> pa.Array:
    return pa.array(np.arange(first, end)).cast(pa.string())


def hashed(*parts: pa.Array) -> np.ndarray:
    return np.unique(np.concatenate([bloom.hashes(part) for part in parts]))


@settings(max_examples=50)
@given(texts)
def test_hashes_are_the_plain_algorithms_in_the_order_of_the_keys(keys: list[str]) -> None:
    found = bloom.hashes(pa.array(keys, pa.string())).astype(np.int32).tolist()
    assert found == [murmur(key.encode(), 0) for key in keys]


def test_no_key_is_missed_and_few_others_pass() -> None:
    wanted = hashed(numbers(0, 30_000), numbers(30_000, 70_001))
    assert pc.all(may_be_in(wanted, numbers(0, 70_001))).as_py()
    assert 0 < pc.sum(may_be_in(wanted, numbers(100_000, 1_100_000))).as_py() < 100


def test_hashes_of_other_keys_would_be_found_out() -> None:
    assert not pc.all(may_be_in(hashed(numbers(1, 1_000)), numbers(0, 1_000))).as_py()


def test_no_keys_let_none_pass() -> None:
    assert not pc.any(may_be_in(hashed(numbers(0, 0)), numbers(0, 1_000))).as_py()
    assert may_be_in(hashed(numbers(0, 10)), pa.array([], pa.string())).to_pylist() == []
