"""The three jobs in pandas, against values worked out by hand."""

from __future__ import annotations

import itertools
import subprocess

import pandas as pd
import pyarrow as pa
import pytest

from lockprovider.demo import proof
from lockprovider.demo.proof import SCHEMA


def frame(*rows: dict[str, object]) -> pd.DataFrame:
    usual = {"month": 1, "origin": "EWR", "dest": "BOS", "dep_time": 600, "dep_delay": 0, "tailnum": "N1"}
    columns = ["month", "origin", "dest", "dep_time", "dep_delay", "arr_delay", "air_time", "tailnum"]
    made = pd.DataFrame([usual | row for row in rows], columns=columns)
    return made.astype({name: "Int32" for name in columns if SCHEMA.field(name).type == pa.int32()})


@pytest.mark.parametrize(
    ("values", "median"), [([3], 3), ([4, 1], 1), ([9, 1, 5], 5), ([4, 1, 3, 2], 2), ([7, 7, 1, 1], 1)]
)
def test_lower_median_is_the_lower_of_the_two_in_the_middle(values, median):
    assert proof.lower_median(pd.Series(values)) == median


@pytest.mark.parametrize("values", [list(p) for p in itertools.product((1, 2, 5), repeat=4)])
def test_copies_of_a_lower_median_do_not_move_it(values):
    median = proof.lower_median(pd.Series(values))
    for copies in range(1, 4):
        assert proof.lower_median(pd.Series(values + [median] * copies)) == median


def test_missing_air_time_and_the_delay_at_arrival_come_from_the_route():
    made = frame(
        {"air_time": 40, "arr_delay": 5, "dep_delay": 10},  # planned 45
        {"air_time": 50, "arr_delay": 0, "dep_delay": 4},  # planned 54
        {"air_time": 60, "arr_delay": 20, "dep_delay": 0},  # planned 40
        {"air_time": None, "arr_delay": None, "dep_delay": 7},
    )
    filled = proof.backfill(made)
    assert filled["air_time"].tolist() == [40, 50, 60, 50]
    assert filled["arr_delay"].tolist() == [5, 0, 20, 7 + 50 - 45]


def test_flight_of_another_route_or_month_says_nothing():
    made = frame(
        {"air_time": 40, "arr_delay": 5, "dest": "SFO"},
        {"air_time": 40, "arr_delay": 5, "month": 2},
        {"air_time": None, "arr_delay": None},
    )
    assert proof.backfill(made)["air_time"].isna().tolist() == [False, False, True]


def test_cancelled_flight_is_deleted_and_never_filled():
    made = frame({"air_time": 40, "arr_delay": 5}, {"dep_time": None, "dep_delay": None})
    assert proof.backfill(made)["air_time"].isna().tolist() == [False, True]
    assert len(proof.delete_cancelled(made)) == 1


def test_every_order_of_protect_backfill_and_delete_ends_in_the_same_rows():
    made = frame(
        {"air_time": 40, "arr_delay": 5},
        {"air_time": 44, "arr_delay": 1, "tailnum": "N2"},
        {"air_time": None, "arr_delay": None, "dep_delay": 3},
        {"dep_time": None, "dep_delay": None, "tailnum": None},
    )
    steps = (proof.protect, proof.backfill, proof.delete_cancelled)
    ends = []
    for order in {*itertools.permutations((*steps, proof.protect, proof.backfill))}:
        now = made
        for step in order:
            now = step(now)
        ends.append(now.reset_index(drop=True))
    for end in ends:
        pd.testing.assert_frame_equal(end, ends[0])


def test_pseudonym_is_the_keyed_hash_that_openssl_computes():
    command = ["openssl", "dgst", "-sha256", "-r"]
    answer = subprocess.run(command, input=b"lockprovider demo" + b"N14228", capture_output=True, check=True)
    assert proof.pseudonym("N14228") == "anon-" + answer.stdout.decode()[:16]


def test_pseudonym_maps_to_itself_and_missing_tail_number_stays_missing():
    once = proof.protect(frame({"tailnum": "N14228"}, {"tailnum": None}))
    twice = proof.protect(once)
    assert once["tailnum"].tolist() == ["anon-2abfeb2e76584cbf", None]
    assert twice["tailnum"].tolist() == once["tailnum"].tolist()
