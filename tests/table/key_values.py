"""Values as keys and as partitions, and what JVM Hudi makes of them, as `jvm/test_key_texts.py` has stored it."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

STORED = Path(__file__).parent / "data" / "jvm_key_texts.json"
VERSIONS = ("0.15.0", "1.0.2", "1.1.1", "1.2.0")
UTC = dt.timezone.utc
_BETWEEN = " | "
# What stands for the partitions that are no values: of a row whose partition column is null, or an empty text.
NULL, EMPTY = "NULL", "EMPTY"


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of column: in SQL, in Arrow, and values of it by their literal in SQL."""

    sql: str
    arrow: pa.DataType
    values: Mapping[str, Any]

    @property
    def is_time(self) -> bool:
        return pa.types.is_temporal(self.arrow)


KINDS: Mapping[str, Kind] = {
    "string": Kind("string", pa.string(), {"'a'": "a", "'a b é'": "a b é", "'x,y'": "x,y"}),
    "int": Kind("int", pa.int32(), {"0": 0, "-7": -7, "2147483647": 2147483647}),
    "long": Kind("bigint", pa.int64(), {"-1": -1, "9007199254740993": 9007199254740993}),
    "float": Kind("float", pa.float32(), {"1.5": 1.5, "1e10": 1e10}),
    "double": Kind("double", pa.float64(), {"1.5": 1.5, "1e300": 1e300}),
    "boolean": Kind("boolean", pa.bool_(), {"true": True, "false": False}),
    "decimal": Kind(
        "decimal(10,2)",
        pa.decimal128(10, 2),
        {"12.50": Decimal("12.50"), "-0.01": Decimal("-0.01"), "0": Decimal("0.00")},
    ),
    "decimal of many places": Kind(
        "decimal(20,10)",
        pa.decimal128(20, 10),
        {"1": Decimal("1.0000000000"), "0.0000000001": Decimal("1E-10"), "0": Decimal("0E-10")},
    ),
    "decimal of none": Kind("decimal(38,0)", pa.decimal128(38, 0), {"12": Decimal(12), "1" * 30: Decimal("1" * 30)}),
    "date": Kind("date", pa.date32(), {"'2016-12-29'": dt.date(2016, 12, 29), "'1969-12-31'": dt.date(1969, 12, 31)}),
    "timestamp": Kind(
        "timestamp",
        pa.timestamp("us", "UTC"),
        {
            "'2016-12-29T09:54:00Z'": dt.datetime(2016, 12, 29, 9, 54, tzinfo=UTC),
            "'1969-12-31T23:59:59.678901Z'": dt.datetime(1969, 12, 31, 23, 59, 59, 678901, tzinfo=UTC),
        },
    ),
    "timestamp_ntz": Kind(
        "timestamp_ntz",
        pa.timestamp("us"),
        {
            "'2016-12-29T09:54:00'": dt.datetime(2016, 12, 29, 9, 54),  # noqa: DTZ001 (has no zone)
            "'1969-12-31T23:59:59.678901'": dt.datetime(1969, 12, 31, 23, 59, 59, 678901),  # noqa: DTZ001
        },
    ),
    "bytes": Kind("binary", pa.binary(), {"'abc'": b"abc"}),
}
# Characters that are encoded, or are not: of partitions with URL encoding. `/` without it makes folders.
ENCODED = "a b/c:d=e%f?g#h&i+j'k\"l*m\\n[o]{p}^q~é日"
TEXTS: Mapping[str, str] = {f"letter {ord(one):X}": one for one in ENCODED} | {"%2F": "%2F", "%%": "%%"}


def stored() -> dict[str, list[dict[str, Any]]]:
    """By shape and type: each set of texts that some writer makes, and by which ways of which version."""
    found: dict[str, list[dict[str, Any]]] = json.loads(STORED.read_text()) if STORED.exists() else {}
    return {shape: [group | {"by": _each(group["by"])} for group in alike] for shape, alike in found.items()}


def store(groups: Mapping[str, list[dict[str, Any]]]) -> None:
    """The same back into its file, a group a line."""
    shapes = []
    for shape, alike in groups.items():
        lines = (json.dumps(group | {"by": _alike(group["by"])}, ensure_ascii=False) for group in alike)
        shapes.append(f" {json.dumps(shape)}: [\n  " + ",\n  ".join(lines) + "\n ]")
    STORED.write_text("{\n" + ",\n".join(shapes) + "\n}\n")


def _alike(by: Mapping[str, list[str]]) -> dict[str, str]:
    """Versions with the same ways in one."""
    found: dict[str, list[str]] = {}
    for version, ways in by.items():
        found.setdefault(_BETWEEN.join(ways), []).append(version)
    return {_BETWEEN.join(versions): ways for ways, versions in found.items()}


def _each(by: Mapping[str, str]) -> dict[str, list[str]]:
    return {version: ways.split(_BETWEEN) for versions, ways in by.items() for version in versions.split(_BETWEEN)}
