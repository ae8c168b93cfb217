"""What a value becomes in a column, by Python's own numbers and texts: the road beside the one under test."""

from __future__ import annotations

import math
import uuid
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

REFUSED = object()
EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - times without a zone, too
TARGETS: dict[str, pa.DataType] = {
    "bool": pa.bool_(), "int32": pa.int32(), "int64": pa.int64(), "float32": pa.float32(), "float64": pa.float64(),
    "decimal": pa.decimal128(10, 2), "wide decimal": pa.decimal128(38, 10), "string": pa.string(),
    "binary": pa.binary(), "date": pa.date32(), "timestamp": pa.timestamp("us"),
    "timestamp UTC": pa.timestamp("us", "UTC"), "timestamp ms": pa.timestamp("ms", "UTC"),
}  # fmt: skip

_WHOLE = [
    0, 1, -1, 5, 127, 255, 2**15 - 1, 2**24, 2**24 + 1, 2**31 - 1, 2**31, -(2**31) - 1, 2**53, 2**53 + 1, 2**63,
]  # fmt: skip
_FLOATS = [
    0.0, -0.0, 1.0, 1.5, 1.25, 0.1, 1.999, 1.004, 1e300, 1e-7, float("nan"), float("inf"), 2.0**24 + 1, 2.0**31,
    2.0**53, 2.0**60, 2.0**63, 545803904.0, 46980911.48, 123456789012345.67, 99999999.99, 100000000.0,
    9007199254740.993,
]  # fmt: skip
_DECIMALS = [
    "0",
    "1",
    "-1.5",
    "1.999",
    "46980911.48",
    "0.1",
    "99999999.99",
    "100000000",
    "12345678901234567.89",
    "1152921504606846976",
    "545803904",
    "0.00",
]
_TEXTS = ["", "a", "17", "1.5", "true", "1970-01-01", "ä", "x" * 40]
_DATES = [date(1970, 1, 1), date(2024, 2, 29), date(1, 1, 1), date(9999, 12, 31)]
_SECONDS = [0, 1, 86_400, 1_709_208_000, -62_135_596_800]


def _sources() -> dict[str, tuple[pa.DataType, list[Any]]]:
    found: dict[str, tuple[pa.DataType, list[Any]]] = {
        "null": (pa.null(), [None]),
        "bool": (pa.bool_(), [True, False]),
        "date32": (pa.date32(), _DATES),
        "time64": (pa.time64("us"), [0, 1]),
        "duration": (pa.duration("us"), [0, 1]),
        "uuid": (pa.uuid(), [uuid.UUID(int=0), uuid.UUID(int=2**127 + 255)]),
        "fixed binary": (pa.binary(2), [b"ab", b"\xff\x00"]),
        "interval": (pa.month_day_nano_interval(), [(1, 1, 1)]),
        "bool8": (pa.bool8(), [True, False]),
        "date64": (pa.date64(), _DATES),
    }
    for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"):
        least, most = np.iinfo(name).min, np.iinfo(name).max
        found[name] = (getattr(pa, name)(), [n for n in [*_WHOLE, int(most), int(least)] if least <= n <= most])
    for name in ("float32", "float64"):
        found[name] = (getattr(pa, name)(), [float(np.dtype(name).type(n)) for n in _FLOATS if _holds(name, n)])
    found["float16"] = (pa.float16(), [0.0, 1.5, 0.25, 2048.0, float("nan")])
    for kind in (
        pa.decimal128(38, 18),
        pa.decimal128(19, 2),
        pa.decimal256(60, 3),
        pa.decimal32(9, 1),
        pa.decimal64(18, 2),
    ):
        found[str(kind)] = (kind, [n for n in map(Decimal, _DECIMALS) if _as_decimal(n, kind) is not REFUSED])
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        found[str(kind)] = (kind, _TEXTS)
    for kind in (pa.binary(), pa.large_binary(), pa.binary_view()):
        found[str(kind)] = (kind, [b"", b"a", b"\xff\x00", b"x" * 40])
    for zone in (None, "UTC", "Europe/Berlin"):
        for unit, parts in (("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)):
            rest = [1, 86_400 * parts + 1] if parts > 1 else []
            near = _SECONDS if unit != "ns" else [n for n in _SECONDS if abs(n) < 2**33]
            found[f"timestamp {unit} {zone}"] = (pa.timestamp(unit, zone), [*(n * parts for n in near), *rest])
    return found


def _holds(name: str, number: float) -> bool:
    with np.errstate(over="ignore"):
        return not math.isfinite(number) or math.isfinite(np.dtype(name).type(number))


def expected(value: Any, given: pa.DataType, column: pa.DataType) -> Any:
    """The value as it is read from a column of this type, or `REFUSED`."""
    if value is None or types.is_null(given):
        return None
    if types.is_boolean(column):
        return value if isinstance(value, bool) else REFUSED
    if types.is_string(column):
        return str(value) if isinstance(value, (str, uuid.UUID)) else REFUSED
    if types.is_binary(column):
        return value.bytes if isinstance(value, uuid.UUID) else value if isinstance(value, bytes) else REFUSED
    if types.is_date(column) or types.is_timestamp(column):
        return _time(value, given, column)
    is_number = types.is_integer(given) or types.is_floating(given) or types.is_decimal(given)
    return _number(value, given, column) if is_number else REFUSED


def _time(value: Any, given: pa.DataType, column: pa.DataType) -> Any:
    if isinstance(value, date):
        return value if types.is_date(column) else REFUSED
    if not types.is_timestamp(given):
        return REFUSED
    nanos = value * {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[given.unit]
    if types.is_date(column):
        days, rest = divmod(nanos, 86_400 * 10**9)
        return (EPOCH + timedelta(days=days)).date() if given.tz is None and not rest else REFUSED
    if (given.tz is None) != (column.tz is None) or nanos % {"ms": 10**6, "us": 10**3}[column.unit]:
        return REFUSED
    found = EPOCH + timedelta(microseconds=nanos // 1000)
    return found if column.tz is None else found.replace(tzinfo=timezone.utc)


def _number(value: Any, given: pa.DataType, column: pa.DataType) -> Any:
    if types.is_integer(column):
        whole = int(value) if math.isfinite(value) else None
        half = 2 ** (column.bit_width - 1)
        return whole if whole is not None and whole == value and -half <= whole < half else REFUSED
    if types.is_decimal(column):
        return _as_decimal(_text(value, given), column)
    return _float(value, given, column)


def _float(value: Any, given: pa.DataType, column: pa.DataType) -> Any:
    kind = np.float32 if types.is_float32(column) else np.float64
    if types.is_integer(given):
        return float(value) if abs(value) <= (2**24 if kind is np.float32 else 2**53) else REFUSED
    with np.errstate(over="ignore"):
        found = kind(value if isinstance(value, float) else str(value))
    if isinstance(value, float):
        return float(found) if math.isnan(value) or float(found) == value else REFUSED
    if not math.isfinite(found):
        return REFUSED
    back = Decimal(int(found)) if float(found).is_integer() else Decimal(str(found))
    return float(found) if back == value else REFUSED


def _text(value: Any, given: pa.DataType) -> Decimal:
    """The number as it is written in its shortest form; a whole number is itself."""
    if isinstance(value, float) and value.is_integer():
        return Decimal(int(value))
    return Decimal(str(np.float32(value))) if types.is_float32(given) else Decimal(str(value))


def _as_decimal(value: Decimal, column: pa.DataType) -> Any:
    if not value.is_finite():
        return REFUSED
    with localcontext() as context:
        context.prec = 400
        unscaled = value.scaleb(column.scale)
        fits = unscaled == unscaled.to_integral_value() and abs(unscaled) < 10**column.precision
        return value.quantize(Decimal(1).scaleb(-column.scale)) + 0 if fits else REFUSED


SOURCES = _sources()


def array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """An array of these values, of any of the types."""
    if kind == pa.uuid():
        storage = pa.array([None if one is None else one.bytes for one in values], pa.binary(16))
        return pa.ExtensionArray.from_storage(kind, storage)
    if kind == pa.bool8():
        return pa.ExtensionArray.from_storage(
            kind, pa.array([None if one is None else int(one) for one in values], pa.int8())
        )
    if types.is_float16(kind):
        return pa.array([None if one is None else np.float16(one) for one in values], kind)
    if types.is_string_view(kind) or types.is_binary_view(kind) or types.is_decimal32(kind) or types.is_decimal64(kind):
        wide = pa.decimal128(kind.precision, kind.scale) if types.is_decimal(kind) else None
        return pa.array(values, wide).cast(kind) if wide else pa.array(values, kind)
    return pa.array(values, kind)


def same(one: Any, other: Any) -> bool:
    """Whether two values, of any depth, are alike: NaN equals NaN, and types count."""
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return type(one) is type(other) and bool(one == other) and str(one).lstrip("-") == str(other).lstrip("-")
