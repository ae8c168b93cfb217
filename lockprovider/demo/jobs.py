"""The three jobs on one thread, in pandas: what the shared table must hold in the end.

Nothing here is used by the Spark pipelines, and nothing of theirs is used here; only the data, the
deliveries and the constants of the pseudonym are common.

Definitions, exact in integers so that no engine can differ by a rounding:

* lower median of n values = the value at position (n - 1) // 2 of the sorted values;
* a route is (origin, dest) within one month;
* planned air time of a flight = air_time + dep_delay - arr_delay: what the schedule allowed for;
* backfill, where a departed flight has no air_time: air_time = the route's lower median; and
  arr_delay = dep_delay + air_time - the route's lower median of the planned air time;
  a route without any complete flight in the month stays as it is;
* protect: tailnum = prefix + keyed BLAKE2b, unless it is missing or has the prefix already;
* a flight without dep_time was cancelled and is deleted.

Copies of a median do not move a lower median, so a second backfill changes nothing. No job reads what
protect writes, and backfill reads a month only after its last delivery: hence the order does not matter.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow as pa

from lockprovider.demo.flights import (
    KEYS,
    PSEUDONYM_BYTES,
    PSEUDONYM_KEY,
    PSEUDONYM_PREFIX,
    SCHEMA,
    plan,
    rows,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

ROUTE = ["month", "origin", "dest"]


def reference(flights: pa.Table, months: Sequence[int]) -> pa.Table:
    """The table that any interleaving of the three jobs must end in, sorted by key."""
    done = delete_cancelled(backfill(protect(ingest(flights, months))))
    return pa.Table.from_pandas(done.sort_values(list(KEYS)), SCHEMA, preserve_index=False)


def ingest(flights: pa.Table, months: Sequence[int]) -> pd.DataFrame:
    """Every delivery in order; the last version of a row wins."""
    batches = [_frame(rows(flights, delivery)) for delivery in plan(months)]
    return pd.concat(batches, ignore_index=True).drop_duplicates(list(KEYS), keep="last")


def protect(frame: pd.DataFrame) -> pd.DataFrame:
    """Tail numbers replaced by pseudonyms."""
    alias = {tail: pseudonym(tail) for tail in frame["tailnum"].dropna().unique()}
    return frame.assign(tailnum=[alias.get(tail) for tail in frame["tailnum"]])


def pseudonym(tail: str) -> str:
    """One tail number's pseudonym; a pseudonym's own is itself."""
    if tail.startswith(PSEUDONYM_PREFIX):
        return tail
    digest = blake2b(tail.encode(), key=PSEUDONYM_KEY, digest_size=PSEUDONYM_BYTES)
    return PSEUDONYM_PREFIX + digest.hexdigest()


def backfill(frame: pd.DataFrame) -> pd.DataFrame:
    """Missing air times and arrival delays filled from the route."""
    frame = frame.assign(planned=frame["air_time"] + frame["dep_delay"] - frame["arr_delay"])
    whole = frame.dropna(subset=["air_time", "planned"])
    usual = whole.groupby(ROUTE, sort=True)[["air_time", "planned"]].agg(lower_median)
    usual.columns = pd.Index(["usual_air_time", "usual_planned"])
    frame = frame.merge(usual, left_on=ROUTE, right_index=True, how="left")
    fill = frame["air_time"].isna() & frame["dep_time"].notna() & frame["usual_air_time"].notna()
    filled = frame["usual_air_time"]
    delay = frame["dep_delay"] + filled - frame["usual_planned"]
    frame["air_time"] = frame["air_time"].mask(fill, filled)
    frame["arr_delay"] = frame["arr_delay"].mask(fill, delay)
    return frame.drop(columns=["planned", "usual_air_time", "usual_planned"])


def lower_median(values: pd.Series) -> int:
    """The lower of the two middle values, or the middle one."""
    ordered = sorted(int(v) for v in values)
    return ordered[(len(ordered) - 1) // 2]


def delete_cancelled(frame: pd.DataFrame) -> pd.DataFrame:
    """The flights that departed."""
    return frame[frame["dep_time"].notna()]


def _frame(table: pa.Table) -> pd.DataFrame:
    # Nullable integers: a float column would round nothing here, but would prove less.
    kinds = {pa.int32(): pd.Int32Dtype()}
    return table.to_pandas(types_mapper=kinds.get)
