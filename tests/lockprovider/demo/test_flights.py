"""The deliveries, from a handful of made-up flights and from the real ones."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lockprovider.demo import proof
from lockprovider.demo.proof import delivery, plan


@pytest.fixture(scope="module")
def real() -> pa.Table:
    return proof.load()


def keys(table: pa.Table) -> list[tuple[object, ...]]:
    return list(zip(*(table[key].to_pylist() for key in proof.KEYS), strict=True))


def test_late_corrections_follow_the_main_delivery_of_the_next_month():
    names = [f"{kind}-{month}" for kind, month in plan((1, 2, 3))]
    assert names == ["main-1", "main-2", "late-1", "main-3", "late-2", "late-3"]


def test_real_flights_are_complete_with_whole_numbers_and_distinct_keys(real):
    assert real.num_rows == 336_776
    assert real.schema == proof.SCHEMA
    assert len(set(keys(real))) == real.num_rows
    assert [column for column in real.column_names if pc.any(pc.is_null(real[column])).as_py()] == [
        "dep_time", "dep_delay", "arr_time", "arr_delay", "air_time", "tailnum",
    ]  # fmt: skip


def test_main_and_late_together_bring_every_row_of_the_month_in_full(real):
    february = real.filter(pc.equal(real["month"], 2))
    main, late = delivery(real, "main", 2), delivery(real, "late", 2)
    last = dict(zip(keys(main), main.to_pylist(), strict=True))
    last |= dict(zip(keys(late), late.to_pylist(), strict=True))
    assert last == dict(zip(keys(february), february.to_pylist(), strict=True))


def test_late_corrections_overlap_the_main_delivery_and_add_rows(real):
    main, late = keys(delivery(real, "main", 2)), keys(delivery(real, "late", 2))
    both = set(main) & set(late)
    assert len(both) > 1000
    assert len(set(late) - both) > 200


def test_main_delivery_alone_is_not_the_truth(real):
    february = real.filter(pc.equal(real["month"], 2))
    main = delivery(real, "main", 2)
    assert main["air_time"].null_count > february["air_time"].null_count + 1000
