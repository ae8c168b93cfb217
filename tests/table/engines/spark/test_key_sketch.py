"""A sketch of keys misses none of them, and lets few others pass."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given, settings
from hypothesis import strategies as st
from table.format.test_bloom import murmur

from lockprovider.table.engines.spark.tasks import Sketch
from lockprovider.table.format import bloom

texts = st.lists(st.text(min_size=1, max_size=12), max_size=30)


def numbers(first: int, end: int) -> pa.Array:
    return pa.array(np.arange(first, end)).cast(pa.string())


def sketch_of(*parts: pa.Array) -> Sketch:
    return Sketch.of(bloom.hashes(part).tobytes() for part in parts)


@settings(max_examples=50)
@given(texts)
def test_hashes_are_the_plain_algorithms_in_the_order_of_the_keys(keys: list[str]) -> None:
    found = bloom.hashes(pa.array(keys, pa.string())).astype(np.int32).tolist()
    assert found == [murmur(key.encode(), 0) for key in keys]


def test_no_key_is_missed_and_few_others_pass() -> None:
    sketch = pickle.loads(pickle.dumps(sketch_of(numbers(0, 30_000), numbers(30_000, 70_001))))
    assert pc.all(sketch.may_have(numbers(0, 70_001))).as_py()
    others = pc.sum(sketch.may_have(numbers(100_000, 200_000))).as_py()
    assert 0 < others < 5_000


def test_sketch_of_other_keys_would_be_found_out() -> None:
    assert not pc.all(sketch_of(numbers(1, 1_000)).may_have(numbers(0, 1_000))).as_py()


def test_sketch_of_no_keys_has_none() -> None:
    assert not pc.any(sketch_of().may_have(numbers(0, 1_000))).as_py()
    assert sketch_of(numbers(0, 10)).may_have(pa.array([], pa.string())).to_pylist() == []
