"""Kernels: functions that convert an array to a column's type.

A kernel is pyarrow's cast, except where that rounds, truncates, parses, or is one bit off.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import types

from lockprovider.table.convert.columns import MOST_DIGITS, ROUNDED, family

Kernel = Callable[[pa.Array, pa.DataType], pa.Array]

ARRAY_BYTES = (1 << 31) - 1  # in one array with 32-bit offsets
_WHOLE_WIDTH = 128


class WouldChange(Exception):
    """A value would change."""


class TooLong(Exception):
    """Too long for one array; half the rows may fit."""


def kernel_for(value_type: pa.DataType, column: pa.DataType, rule: str) -> Kernel:
    """Kernel that converts arrays to `column`; it raises TooLong and, unless `rule` is `ROUNDED`, WouldChange.

    `rule` must not be `REFUSED`.
    """
    source, target = family(value_type), family(column)
    # pyarrow does not cast narrow decimals to whole numbers.
    if source == "decimal" and value_type.bit_width < _WHOLE_WIDTH:
        wide = pa.decimal128(value_type.precision, value_type.scale)
        kernel = kernel_for(wide, column, rule)
        return lambda values, kind: kernel(values.cast(wide), kind)
    if rule == ROUNDED and target == "string":
        return _java_text
    if rule == ROUNDED:
        return _by_text if source == "float32" and target == "float64" else _unsafe
    if target in ("string", "binary"):
        if value_type in (pa.large_string(), pa.large_binary()) and source == target:
            return _large_to_bytes
        return _UUID[target] if source == "uuid" else _to_bytes
    return _PAIRS.get((_kind(source), _kind(target)), _cast)


def _kind(name: str) -> str:
    if name.startswith(("int", "uint")):
        return "whole"
    return "float" if name.startswith("float") else "timestamp" if name.startswith("timestamp") else name


def validity(values: pa.Array) -> pa.Buffer | None:
    if not values.null_count:
        return None
    return pa.py_buffer(np.packbits(values.is_valid().to_numpy(zero_copy_only=False), bitorder="little"))


def _cast(values: pa.Array, column: pa.DataType) -> pa.Array:
    try:
        return values.cast(column)
    except pa.ArrowInvalid as error:
        raise WouldChange(str(error)) from error


def _unsafe(values: pa.Array, column: pa.DataType) -> pa.Array:
    return values.cast(column, safe=False)


def _there_and_back(values: pa.Array, column: pa.DataType) -> pa.Array:
    converted = values.cast(column, safe=False)
    same = pc.equal(converted.cast(values.type, safe=False), values)
    if types.is_floating(values.type):
        same = pc.or_(same, pc.is_nan(values))
    return _if_all(same, converted)


def _if_all(same: pa.Array, converted: pa.Array) -> pa.Array:
    if pc.all(same).as_py() is False:
        raise WouldChange
    return converted


def _float_to_float(values: pa.Array, column: pa.DataType) -> pa.Array:
    return _there_and_back(values, column) if values.type.bit_width > column.bit_width else values.cast(column)


def _stored(values: pa.Array, column: pa.DataType) -> pa.Array:
    return values.storage.cast(column)


def _whole_to_decimal(values: pa.Array, column: pa.DataType) -> pa.Array:
    digits = 20 + column.scale
    wide = pa.decimal128(digits, column.scale) if digits <= MOST_DIGITS else pa.decimal256(digits, column.scale)
    return _cast(values.cast(wide), column)


def _float_to_decimal(values: pa.Array, column: pa.DataType) -> pa.Array:
    """Convert floats to the decimals of their shortest text, large whole numbers exactly.

    Raises WouldChange for NaN, infinity, and too many digits.
    """
    floats = values.fill_null(0.0).to_numpy(zero_copy_only=False)
    if (np.abs(floats.astype(np.float64)) > 10.0 ** (column.precision - column.scale)).any():
        raise WouldChange  # pyarrow would parse many more digits as 0.
    large = np.abs(floats) >= 2.0 ** np.finfo(floats.dtype).nmant
    texts = values.cast(pa.string())
    if large.any():
        whole = pa.array([str(int(number)) for number in floats[large]])
        texts = pc.replace_with_mask(texts, pa.array(large), whole)
    return _cast(texts, column)


def _decimal_to_float(values: pa.Array, column: pa.DataType) -> pa.Array:
    """Convert by text, as pyarrow's cast is one bit off for many decimals (arrow #35942)."""
    floats = values.cast(pa.string()).cast(column)
    return _if_all(pc.equal(_float_to_decimal(floats, values.type), values), floats)


def _by_text(values: pa.Array, column: pa.DataType) -> pa.Array:
    return _cast(values.cast(pa.string()), column)


def _java_text(values: pa.Array, column: pa.DataType) -> pa.Array:
    encoded = values.cast(pa.string()).dictionary_encode()
    words = [_java_number(word) for word in encoded.dictionary.to_pylist()]
    return repeated(pa.array(words, column), encoded.indices)


def _java_number(word: str) -> str:
    """Rewrite a float's text as Java does: plain from 0.001 to below 10,000,000, else with an exponent; `Infinity`."""
    number = Decimal(word)
    if not number.is_finite():
        return "NaN" if number.is_nan() else f"{'-' if number < 0 else ''}Infinity"
    sign, digits, exponent = number.normalize().as_tuple()
    text, point = "".join(map(str, digits)), len(digits) + int(exponent)
    if number == 0:
        text, point = "0", 1
    if not _JAVA_PLAIN[0] <= point <= _JAVA_PLAIN[1]:
        return f"{'-' * sign}{text[0]}.{text[1:] or '0'}E{point - 1}"
    text = "0" * (1 - point) + text.ljust(point, "0")
    point = max(point, 1)
    return f"{'-' * sign}{text[:point]}.{text[point:] or '0'}"


_JAVA_PLAIN = (-2, 7)  # positions of the point in 0.001 and in 9,999,999


def _to_bytes(values: pa.Array, column: pa.DataType) -> pa.Array:
    """Convert text or bytes of any kind to 32-bit offsets, numbers to text.

    Raises TooLong beyond 2 GiB, WouldChange for bytes that are no text.
    """
    if types.is_string_view(values.type) or types.is_binary_view(values.type):
        lengths = np.frombuffer(values.buffers()[1] or b"", dtype="<i4").reshape(-1, 4)[values.offset :, 0]
        if lengths[: len(values)][values.is_valid().to_numpy(zero_copy_only=False)].sum(dtype=np.int64) > ARRAY_BYTES:
            raise TooLong
    try:
        return (values.storage if isinstance(values, pa.ExtensionArray) else values).cast(column)
    except pa.ArrowInvalid as error:
        if "UTF8" in str(error) or "UTF-8" in str(error):
            raise WouldChange(str(error)) from error
        raise TooLong(str(error)) from error


def _large_to_bytes(values: pa.Array, column: pa.DataType) -> pa.Array:
    """Rebase large text or bytes, also of slices, to 32-bit offsets, or raise TooLong."""
    if len(values) == 0:
        return pa.array([], column)
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, dtype="<i8", count=values.offset + len(values) + 1)[values.offset :]
    if ends[-1] - ends[0] > ARRAY_BYTES:
        raise TooLong
    starts = pa.py_buffer((ends - ends[0]).astype("<i4"))
    part = None if data is None else data.slice(int(ends[0]), int(ends[-1] - ends[0]))
    return pa.Array.from_buffers(column, len(values), [validity(values), starts, part])


_UUID_TEXT = 36


def _uuid_to_text(values: pa.Array, column: pa.DataType) -> pa.Array:
    if len(values) * _UUID_TEXT > ARRAY_BYTES:
        raise TooLong
    texts = (None if raw is None else raw.hex() for raw in values.storage.to_pylist())
    return pa.array([t and f"{t[:8]}-{t[8:12]}-{t[12:16]}-{t[16:20]}-{t[20:]}" for t in texts], column)


_UUID: dict[str, Kernel] = {"string": _uuid_to_text, "binary": _stored}
_PAIRS: dict[tuple[str, str], Kernel] = {
    ("bool8", "bool"): _stored,
    ("whole", "decimal"): _whole_to_decimal,
    ("float", "decimal"): _float_to_decimal,
    ("decimal", "float"): _decimal_to_float,
    ("float", "float"): _float_to_float,
    ("timestamp", "date"): _there_and_back,
}


def equal_keys(keys: pa.Array, lengths: NDArray[np.int64]) -> int | None:
    """Position of the first key that equals an earlier one of its map, or None; `lengths`: each map's."""
    if lengths.max(initial=0) <= 1:
        return None
    encoded = keys.dictionary_encode()
    rows = np.repeat(np.arange(len(lengths)), lengths)
    both = rows * len(encoded.dictionary) + encoded.indices.to_numpy()
    first = np.unique(both, return_index=True)[1]
    return None if len(first) == len(both) else int(np.setdiff1d(np.arange(len(both)), first)[0])


def lengths_of(lists: pa.Array) -> NDArray[np.int64]:
    lengths: NDArray[np.int64] = (
        pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    )
    return lengths


def ends_of(lengths: Any) -> pa.Array:
    ends = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=ends[1:])
    if ends[-1] > ARRAY_BYTES:
        raise TooLong
    return pa.array(ends.astype(np.int32))


def elements_of(lists: pa.Array, lengths: NDArray[np.int64]) -> pa.Array:
    """Elements of all lists, in order, without those hidden under null lists; `lengths`: the lists'."""
    elements = lists.values
    filled = lengths > 0
    if not filled.any():
        return elements.slice(0, 0)
    if types.is_fixed_size_list(lists.type):
        return lists.flatten()
    starts, lengths = lists.offsets.to_numpy()[: len(lists)][filled], lengths[filled]
    if (starts[1:] == starts[:-1] + lengths[:-1]).all():
        return elements.slice(int(starts[0]), int(lengths.sum()))
    ends = np.cumsum(lengths)
    places = np.repeat(starts - (ends - lengths), lengths) + np.arange(ends[-1])
    try:
        return elements.take(pa.array(places))
    except pa.ArrowNotImplementedError:  # pyarrow cannot take from run-end encoded elements.
        return lists.flatten()


def repeated(values: pa.Array, places: pa.Array) -> pa.Array:
    """Values at these positions, null at null ones; raises TooLong if 32-bit offsets may not suffice."""
    if types.is_string(values.type) or types.is_binary(values.type):
        lengths = pc.binary_length(values)
        size = (pc.max(lengths).as_py() or 0) * len(places)
        if size > ARRAY_BYTES:
            size = pc.sum(lengths.take(places)).as_py() or 0
    else:
        size = values.nbytes * len(places) if values.type.num_fields and len(places) > 1 else 0
    if size > ARRAY_BYTES:
        raise TooLong
    return values.take(places)


def runs_of(values: pa.Array) -> tuple[pa.Array, pa.Array]:
    first, count = values.find_physical_offset(), values.find_physical_length()
    ends = values.run_ends.slice(first, count).to_numpy().astype(np.int64) - values.offset
    lengths = np.diff(np.minimum(ends, len(values)), prepend=0)
    return values.values.slice(first, count), pa.array(np.repeat(np.arange(count), lengths))


def without_hidden(part: pa.Array, structs: pa.Array) -> pa.Array:
    """Expand a run-end encoded field, with nulls under null structs; return others unchanged."""
    if not types.is_run_end_encoded(part.type):
        return part
    runs, places = runs_of(part)
    if types.is_string_view(runs.type) or types.is_binary_view(runs.type):
        runs = runs.cast(pa.large_string() if types.is_string_view(runs.type) else pa.large_binary())
    return pc.if_else(structs.is_valid(), runs.take(places), pa.scalar(None, runs.type))
