"""Literals of filters: locate a value among a column type's values; only floats are rounded.

    position_of(Decimal("1.505"), pa.decimal128(10, 2))      # Position(floor=Decimal("1.50"), exact=False)

So `d > 1.505` is `d > 1.50`.
"""

from __future__ import annotations

import math
import re
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import ROUND_FLOOR, Context, Decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import types

from fsspec_cas.arguments import shown

_DAY = r"(\d{4})-(\d\d)-(\d\d)"
_TIME = re.compile(
    rf"{_DAY}(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d+))?)?\s*(Z|[+-]\d\d(?::?\d\d)?)?)?", re.ASCII | re.IGNORECASE
)
_EPOCH = date(1970, 1, 1).toordinal()
_EPOCH_TIME = datetime(1970, 1, 1)  # noqa: DTZ001 - the distance of naive moments
_SECONDS_OF_DAY = 86_400
_PARTS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_WIDE = Context(prec=100)
_LARGEST_FLOAT32 = struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]


class LiteralMisfit(ValueError):
    """Error of a literal; says what to write."""


class Position(NamedTuple):
    """Position of a literal among a column type's values.

    `floor`: greatest value not above the literal, as pyarrow takes it; None if all are above. `exact`: they are equal.
    """

    floor: Any
    exact: bool


@dataclass(frozen=True, slots=True)
class TimeLiteral:
    """Moment: `units` since 1970, `per_second` of them a second.

    `zoned`: None (text without a zone) fits all columns.
    """

    units: int
    per_second: int
    zoned: bool | None


def time_of(text: str) -> TimeLiteral:
    """Parse ISO text as a moment, by default in UTC, a day as its midnight; else raise `LiteralMisfit`."""
    match = _TIME.fullmatch(text.strip())
    try:
        if match is not None:
            return _moment(match)
    except (ValueError, OverflowError):
        pass
    raise LiteralMisfit(
        f"{shown(text)} is no time; write it as 2026-01-02 12:30:00, or with a zone as 2026-01-02T12:30:00Z"
    )


def day_of(text: str) -> TimeLiteral:
    """Parse an ISO day; other text raises `LiteralMisfit`."""
    try:
        if re.fullmatch(_DAY, text, re.ASCII):
            return _midnight(date.fromisoformat(text).toordinal() - _EPOCH)
    except ValueError:
        pass
    raise LiteralMisfit(f"{shown(text)} is no day; write it as 2026-01-02")


def _midnight(days: int) -> TimeLiteral:
    return TimeLiteral(days * _SECONDS_OF_DAY, 1, None)


def _moment(match: re.Match[str]) -> TimeLiteral:
    """Convert a matched ISO text; a day, time or zone that does not exist raises ValueError."""
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    clock = [int(part or 0) for part in (hour, minute, second)]
    if clock[0] > 23 or max(clock[1:]) > 59:  # noqa: PLR2004 - of a clock
        raise ValueError
    seconds = (date(int(year), int(month), int(day)).toordinal() - _EPOCH) * _SECONDS_OF_DAY
    seconds += (clock[0] * 60 + clock[1]) * 60 + clock[2] - _offset(zone)
    parts = 10 ** len(fraction or "")
    return TimeLiteral(seconds * parts + int(fraction or 0), parts, None if zone is None else True)


def _offset(zone: str | None) -> int:
    if zone is None or zone in "Zz":
        return 0
    hours, minutes = int(zone[1:3]), int(zone[3:].lstrip(":") or 0)
    if hours > 18 or minutes > 59:  # noqa: PLR2004 - as far as zones go
        raise ValueError
    return (hours * 60 + minutes) * 60 * (-1 if zone[0] == "-" else 1)


def position_of(literal: Any, kind: pa.DataType) -> Position:
    """Locate a literal, as `literal_of` returns it, in the type; `LiteralMisfit` if they do not compare."""
    for belongs, family, find in _FAMILIES:
        if belongs(kind):
            position = find(literal, kind)
            if position is None:
                given = "a time" if isinstance(literal, TimeLiteral) else shown(literal)
                raise LiteralMisfit(f"{given} is no {family}")
            return position
    raise LiteralMisfit(f"values of type {kind} cannot be compared; only `is null` is possible")


def literal_of(value: Any) -> Any:
    """Convert values of Python, NumPy, pandas or Arrow to plain ones or a `TimeLiteral`, nulls to None; others stay."""
    if isinstance(value, np.generic):
        plain = value.item()  # a number for times that Python lacks; NaT becomes None
        value = value if isinstance(value, (np.datetime64, np.timedelta64)) and isinstance(plain, int) else plain
    if isinstance(value, (bool, int, float, Decimal, str, bytes, TimeLiteral)):
        return value
    if isinstance(value, datetime) and value == value:  # noqa: PLR0124 - pandas' NaT
        passed = datetime.combine(value.date(), value.time()) - _EPOCH_TIME - (value.utcoffset() or timedelta())
        units = passed // timedelta(microseconds=1) * 1000 + getattr(value, "nanosecond", 0)
        return TimeLiteral(units, 10**9, value.tzinfo is not None)
    try:
        scalar = value if isinstance(value, pa.Scalar) else pa.array([value], from_pandas=True)[0]
        if scalar.is_valid and types.is_timestamp(scalar.type):
            return TimeLiteral(scalar.value, _PARTS[scalar.type.unit], scalar.type.tz is not None)
        if scalar.is_valid and types.is_date(scalar.type):
            return _midnight(scalar.cast(pa.date32()).value)
        return scalar.as_py()
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return value


def _in_integers(value: Any, kind: pa.DataType) -> Position | None:
    """Locate a number among the integers of `kind`; None: no number. NaN raises LiteralMisfit.

    Above their range, the floor is the greatest integer; below it, None.
    """
    if not _is_number(value):
        return None
    bits = kind.bit_width
    signed = types.is_signed_integer(kind)
    least, greatest = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    if isinstance(value, int):
        return _within(value, least, greatest)
    return _of_decimal(_exact(value), Decimal(1), Decimal(least), Decimal(greatest), int)


def _within(value: int, least: int, greatest: int) -> Position:
    if value < least:
        return Position(None, exact=False)
    return Position(min(value, greatest), value <= greatest)


def _in_decimals(value: Any, kind: pa.DataType) -> Position | None:
    if not _is_number(value):
        return None
    unit = Decimal((0, (1,), -kind.scale))
    greatest = Decimal((0, (9,) * kind.precision, -kind.scale))
    return _of_decimal(_exact(value), unit, greatest.copy_negate(), greatest, Decimal)


def _of_decimal(value: Decimal, unit: Decimal, least: Decimal, greatest: Decimal, number_type: type) -> Position:
    if value < least:
        return Position(None, exact=False)
    if value > greatest:
        return Position(number_type(greatest), exact=False)
    floor = value.quantize(unit, ROUND_FLOOR, _WIDE)
    return Position(number_type(floor), floor == value)


def _exact(value: float | Decimal) -> Decimal:
    return Decimal(repr(value)) if isinstance(value, float) else Decimal(value)


def _in_floats(value: Any, kind: pa.DataType) -> Position | None:
    """Position of the nearest float, exact even if rounded; beyond the range, the largest float or -inf, inexact.

    None: no number. NaN raises LiteralMisfit.
    """
    if not _is_number(value):
        return None
    single = types.is_float32(kind)
    try:
        nearest = float(value)
        nearest = struct.unpack("<f", struct.pack("<f", nearest))[0] if single else nearest
    except OverflowError:
        nearest = math.inf if value > 0 else -math.inf
    if math.isinf(nearest) and value not in {math.inf, -math.inf}:
        largest = _LARGEST_FLOAT32 if single else sys.float_info.max
        return Position(largest if nearest > 0 else -math.inf, exact=False)
    return Position(nearest, exact=True)


def _among(kind: type) -> Callable[[Any, pa.DataType], Position | None]:
    return lambda value, _: Position(value, exact=True) if isinstance(value, kind) else None


def _in_texts(value: Any, _: pa.DataType) -> Position | None:
    """Position of a text, always exact; None for another value. A lone surrogate raises `LiteralMisfit`."""
    if not isinstance(value, str):
        return None
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise LiteralMisfit(f"{shown(value)} has a lone surrogate, which no stored text has: {error.reason}") from None
    return Position(value, exact=True)


def _in_days(value: Any, _: pa.DataType) -> Position | None:
    """Locate an ISO text or moment among days; None: neither. A zone or other text raises `LiteralMisfit`."""
    if isinstance(value, str):
        value = day_of(value)
    if not isinstance(value, TimeLiteral):
        return None
    if value.zoned:
        raise LiteralMisfit("a moment with a time zone is no day; leave the zone out, or write date '2026-01-02'")
    return _of_units(value, 1, _SECONDS_OF_DAY, 31)


def _in_moments(value: Any, kind: pa.DataType) -> Position | None:
    """Locate an ISO text or moment among times of `kind`; None: neither.

    Other text, or a zone that only one side has, raises `LiteralMisfit`; text without zone fits both.
    """
    if isinstance(value, str):
        value = time_of(value)
    if not isinstance(value, TimeLiteral):
        return None
    if value.zoned is not None and value.zoned != (kind.tz is not None):
        had, expected = ("has a", "none") if value.zoned else ("has no", "one")
        raise LiteralMisfit(f"it {had} time zone, and times of type {kind} have {expected}")
    return _of_units(value, _PARTS[kind.unit], 1, 63)


def _of_units(value: TimeLiteral, parts: int, seconds: int, bits: int) -> Position:
    units, rest = divmod(value.units * parts, value.per_second * seconds)
    position = _within(units, -(1 << bits), (1 << bits) - 1)
    return position if not rest else Position(position.floor, exact=False)


def _is_number(value: Any) -> bool:
    is_nan = value.is_nan() if isinstance(value, Decimal) else isinstance(value, float) and math.isnan(value)
    if is_nan:
        raise LiteralMisfit("NaN does not equal any number; use an expression, pc.field(...).is_nan()")
    return isinstance(value, (int, float, Decimal)) and not isinstance(value, bool)


_FAMILIES: tuple[tuple[Callable[[pa.DataType], bool], str, Callable[[Any, pa.DataType], Position | None]], ...] = (
    (types.is_boolean, "boolean (true or false)", _among(bool)),
    (types.is_integer, "number", _in_integers),
    (types.is_decimal, "number", _in_decimals),
    (types.is_floating, "number", _in_floats),
    (types.is_string, "text (in '')", _in_texts),
    (types.is_binary, "bytes", _among(bytes)),
    (types.is_date32, "day (date '2026-01-02')", _in_days),
    (types.is_timestamp, "time (timestamp '2026-01-02 12:30:00')", _in_moments),
)
