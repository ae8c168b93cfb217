"""Conversion plans, compiled from two schemas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from lockprovider.table.convert import kernels
from lockprovider.table.convert.columns import READ, REFUSED, WRITE, Rules, advice, is_list, without_meta_columns
from lockprovider.table.convert.kernels import Kernel, TooLong, WouldChange, kernel_for
from lockprovider.table.errors import Corrupt, DoesNotFit, InvalidRecords, Misfit
from lockprovider.table.format.schema import META_COLUMNS

OnMissing = Literal["null", "refuse"]
Convert = Callable[[pa.Array], pa.Array]


def compile_plan(
    source: pa.Schema,
    table: pa.Schema,
    missing: OnMissing = "null",
    rules: Rules = WRITE,
    *,
    needed: Collection[str] = (),
) -> Plan:
    """Make the plan to convert rows of schema `source` to `table`'s columns.

    A missing field becomes null, or a misfit if it is `needed`, not nullable, or `missing` is `refuse`. `READ` makes it
    null, and leaves out columns that `table` lacks. Raises DoesNotFit (with `READ` Corrupt) with every misfit.
    """
    plan = Plan(source, table, missing, rules, tuple(needed))
    plan.steps  # noqa: B018 - raises
    return plan


def read_as(rows: pa.Table | pa.RecordBatch, columns: pa.Schema) -> pa.Table:
    """Convert stored rows to `columns`: new ones are null, widened ones read as in the JVM. Corrupt for other types."""
    found = rows.schema
    if found.names == columns.names and all(
        stored.equals(wanted, check_metadata=True) for stored, wanted in zip(found.types, columns.types, strict=True)
    ):
        return pa.Table.from_arrays(rows.columns, schema=columns)
    return compile_plan(found, columns, rules=READ)(rows)


# A step raises `_ValueMisfit`, or TooLong beyond 32-bit offsets.


def _same(values: pa.Array) -> pa.Array:
    return values


class _ValueMisfit(Exception):
    """`kernel` refuses one of `values`; without both, `misfit` is complete."""

    def __init__(
        self, misfit: Misfit, values: pa.Array | None = None, kernel: Callable[..., Any] | None = None
    ) -> None:
        super().__init__(misfit)
        self.misfit, self.values, self.kernel = misfit, values, kernel

    def located(self, row: int) -> Misfit:
        if self.values is None or self.kernel is None:
            return self.misfit.at(row, self.misfit.value)
        position = _first(partial(_is_refused, self.kernel), self.values)
        return self.misfit.at(row, in_python(self.values[position]))


def _alias(kind: pa.DataType) -> str | None:
    """Text that pyarrow takes for this type, or None."""
    with suppress(ValueError):
        return str(kind) if pa.type_for_alias(str(kind)) == kind and not types.is_null(kind) else None
    return None


def in_python(value: pa.Scalar) -> Any:
    """Convert an Arrow value, at any depth; times of years that Python lacks become text."""
    try:
        return value.as_py()
    except (ValueError, OverflowError):
        match value:
            case pa.StructScalar():
                return {name: in_python(item) for name, item in value.items()}
            case pa.MapScalar() if value.values is not None:
                return [tuple(map(in_python, pair.values())) for pair in value.values]
            case pa.ListScalar() if value.values is not None:
                return [in_python(item) for item in value.values]
            case _:
                return value.cast(pa.string()).as_py()


def _is_refused(kernel: Callable[[pa.Array], Any], values: pa.Array) -> bool:
    try:
        kernel(values)
    except WouldChange:
        return True
    return False


def _first(is_refused: Callable[[pa.Array], bool], values: pa.Array) -> int:
    """Position of the first refused value, by bisection; there must be one. `is_refused` tests slices."""
    start, count = 0, len(values)
    while count > 1:
        half = count // 2
        if is_refused(values.slice(start, half)):
            count = half
        else:
            start, count = start + half, count - half
    return start


@dataclass(slots=True)
class _Compiler:
    """Maker of a plan's steps. Its methods raise nothing, and append to `misfits`; `path` names the field there."""

    missing: OnMissing
    rules: Rules
    misfits: list[Misfit] = field(default_factory=list)

    def fields(
        self,
        source: Sequence[pa.Field],
        target: Sequence[pa.Field],
        path: str,
        needed: Collection[str] = (),
    ) -> list[tuple[int | None, Convert]]:
        """Match fields by name; return each target field's source index (None if missing) and step.

        Appends misfits of types and repeated fields; except with `READ`, of unknown ones, and missing ones that are
        `needed`, not nullable, or refused by `missing`. `path`: their struct's, empty for columns.
        """
        places = {column.name: index for index, column in enumerate(source)}
        names = [column.name for column in target]
        if len(places) < len(source):
            twice = sorted(name for name, count in Counter(column.name for column in source).items() if count > 1)
            self.misfits += [Misfit.twice(f"{path}.{name}" if path else name) for name in twice]
        if self.rules is not READ:
            self._strangers(source, names, path)
        steps: list[tuple[int | None, Convert]] = []
        for column in target:
            index, inner = places.get(column.name), f"{path}.{column.name}" if path else column.name
            if index is not None:
                steps.append((index, self.step(source[index].type, column, inner)))
                continue
            if self.rules is not READ and (self.missing == "refuse" or column.name in needed or not column.nullable):
                self.misfits.append(Misfit.missing(inner, str(column.type), identifies=column.name in needed))
            steps.append((None, _same))
        return steps

    def _strangers(self, source: Sequence[pa.Field], names: list[str], path: str) -> None:
        """Append a misfit for each source field that `names` lacks; the top level ignores Hudi's meta columns."""
        expected = {*names} if path else {*names, *META_COLUMNS}
        strangers = [column for column in source if column.name not in expected]
        near = {name.lower(): name for name in names} if strangers else {}
        for column in strangers:
            given, alike = str(column.type), near.get(column.name.lower())
            self.misfits.append(Misfit.unknown(path, column.name, given, names, alike, alias=_alias(column.type)))

    def step(self, source: pa.DataType, field: pa.Field, path: str) -> Convert:
        conversion = self._of_type(source, field.type, path)
        if field.nullable or self.rules is READ:
            return conversion
        return _required(conversion, Misfit.null(path, str(field.type)))

    def _of_type(self, source: pa.DataType, target: pa.DataType, path: str) -> Convert:
        """Step that decodes and converts arrays of field `path`.

        If types do not fit, appends a misfit; that step must not run.
        """
        if (types.is_dictionary(source) and not types.is_dictionary(target)) or types.is_run_end_encoded(source):
            return _encoded(self._of_type(source.value_type, target, path))
        if source.equals(target, check_metadata=True) and not (self.rules is WRITE and _has_checks(target)):
            return _same
        if types.is_null(source):
            return lambda values: pa.nulls(len(values), target)
        return self._nested(source, target, path) or self._value(source, target, path)

    def _nested(self, source: pa.DataType, target: pa.DataType, path: str) -> Convert | None:
        """Step between two structs, two maps or two lists, appending their misfits; None for other types."""
        if types.is_struct(source) and types.is_struct(target):
            inner, outer = ([kind.field(index) for index in range(kind.num_fields)] for kind in (source, target))
            return _struct_of(self.fields(inner, outer, path), outer)
        if types.is_map(source) and types.is_map(target):
            return self._map(source, target, path)
        if is_list(source) and types.is_list(target):
            return _list_of(self.step(source.value_type, target.value_field, f"{path}.element"), target)
        return None

    def _value(self, source: pa.DataType, target: pa.DataType, path: str) -> Convert:
        rule = self.rules.rule(source, target)
        if rule == REFUSED:
            self.misfits.append(Misfit.types(path, str(source), str(target), advice(source, target)))
            return _same
        return _plain(kernel_for(source, target, rule), target, Misfit.of_value(path, str(source), str(target)))

    def _map(self, source: pa.DataType, target: pa.DataType, path: str) -> Convert:
        keys = self.step(source.key_type, target.key_field, f"{path}.key")
        items = self.step(source.item_type, target.item_field, f"{path}.value")
        repeated_key = None if self.rules is READ else Misfit.repeated(f"{path}.key", str(target.key_type))
        return _map_of(keys, items, target, repeated_key)


def _has_checks(kind: pa.DataType) -> bool:
    if types.is_map(kind):
        return True
    inner = [kind.field(index) for index in range(kind.num_fields)]
    return any(not part.nullable or _has_checks(part.type) for part in inner)


def _plain(kernel: Kernel, target: pa.DataType, misfit: Misfit) -> Convert:
    """Step that runs `kernel`, and raises `_ValueMisfit` with `misfit` for WouldChange; TooLong passes."""

    def convert(values: pa.Array) -> pa.Array:
        return kernel(values, target)

    def run(values: pa.Array) -> pa.Array:
        try:
            return convert(values)
        except WouldChange as error:
            raise _ValueMisfit(misfit, values, convert) from error

    return run


def _required(step: Convert, misfit: Misfit) -> Convert:
    """`step` with a check: a null in its result raises `_ValueMisfit` with `misfit`."""

    def run(values: pa.Array) -> pa.Array:
        converted = step(values)
        if converted.null_count:
            raise _ValueMisfit(misfit)
        return converted

    return run


def _encoded(step: Convert) -> Convert:
    """Step that converts a dictionary's or runs' values, then repeats them.

    It ignores a dictionary's misfits that no row uses.
    """

    def run(values: pa.Array) -> pa.Array:
        """Convert each encoded value once; after a dictionary's misfit, only the used ones."""
        if types.is_dictionary(values.type):
            words, places = values.dictionary, values.indices
        elif types.is_run_end_encoded(values.type):
            words, places = kernels.runs_of(values)
        else:
            return step(values)  # `without_hidden` has expanded the runs.
        try:
            return kernels.repeated(step(words), places)
        except _ValueMisfit:
            if not types.is_dictionary(values.type):
                raise
        used = pc.unique(places.drop_null())
        return kernels.repeated(step(words.take(used)), pc.index_in(places, value_set=used))

    return run


def _struct_of(steps: Iterable[tuple[int | None, Convert]], fields: Sequence[pa.Field]) -> Convert:
    """Step between structs; `steps` holds each field's source index (None: nulls) and step."""
    steps = list(steps)

    def run(values: pa.Array) -> pa.Array:
        """Convert each field of a struct array, ignoring values that null structs hide."""
        parts, some = values.flatten(), values.null_count > 0
        if values.null_count == len(values):
            return pa.nulls(len(values), pa.struct(list(fields)))
        if some:
            parts = [kernels.without_hidden(part, values) for part in parts]
        converted = []
        for (index, step), target in zip(steps, fields, strict=True):
            if index is None:
                converted.append(pa.nulls(len(values), target.type))
            elif target.nullable or not some:
                converted.append(step(parts[index]))
            else:  # Under a null struct, a required field gets another row's value.
                is_present = values.is_valid()
                numbers = np.cumsum(is_present.to_numpy(zero_copy_only=False)) - 1
                converted.append(step(parts[index].filter(is_present)).take(pa.array(np.maximum(numbers, 0))))
        return pa.StructArray.from_arrays(converted, fields=list(fields), mask=values.is_null() if some else None)

    return run


def _list_of(step: Convert, target: pa.DataType) -> Convert:
    """Step that converts lists of any kind to `target`, their elements by `step`; null lists stay null."""

    def run(values: pa.Array) -> pa.Array:
        lengths = kernels.lengths_of(values)
        mask = values.is_null() if values.null_count else None
        inner = step(kernels.elements_of(values, lengths))
        return pa.ListArray.from_arrays(kernels.ends_of(lengths), inner, type=target, mask=mask)

    return run


def _map_of(keys: Convert, items: Convert, target: pa.DataType, misfit: Misfit | None) -> Convert:
    """Step between maps; a repeated key raises `_ValueMisfit` with `misfit`; without, both stay."""

    def run(values: pa.Array) -> pa.Array:
        """Convert an array of maps."""
        # lists of structs, without a copy
        inner, buffers = values.values, values.buffers()[:2]
        entries = pa.Array.from_buffers(
            pa.list_(inner.type), len(values), buffers, values.null_count, values.offset, children=[inner]
        )
        lengths = kernels.lengths_of(entries)
        its_keys, its_items = kernels.elements_of(entries, lengths).flatten()
        its_keys = keys(its_keys)
        if misfit is not None and (position := kernels.equal_keys(its_keys, lengths)) is not None:
            raise _ValueMisfit(misfit.at(0, its_keys[position].as_py()))
        mask = values.is_null() if values.null_count else None
        return pa.MapArray.from_arrays(kernels.ends_of(lengths), its_keys, items(its_items), type=target, mask=mask)

    return run


@dataclass(frozen=True)
class Plan:
    """Conversion of rows, made by `compile_plan` from the same arguments. Picklable."""

    source: pa.Schema
    table: pa.Schema
    missing: OnMissing
    rules: Rules
    needed: tuple[str, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "steps"}

    @cached_property
    def steps(self) -> list[tuple[int | None, Convert]]:
        """Each table column's index in the rows (None if missing) and step.

        Raises DoesNotFit (with `READ` Corrupt) with all misfits. Except with `READ`, warns of meta columns.
        """
        if self.rules is not READ:
            without_meta_columns(self.source)
        compiler = _Compiler(self.missing, self.rules)
        steps = compiler.fields(list(self.source), list(self.table), "", set(self.needed))
        if compiler.misfits:
            raise self._error(compiler.misfits)
        return steps

    def _error(self, misfits: Sequence[Misfit]) -> Exception:
        error = DoesNotFit(tuple(misfits))
        return Corrupt(f"an old file does not fit the table: {error}") if self.rules is READ else error

    def __call__(self, rows: pa.Table | pa.RecordBatch) -> pa.Table:
        """Convert rows; those of another schema than `source` get their own plan.

        Raises DoesNotFit (with `READ` Corrupt) with the first misfit's value and row, InvalidRecords for a too long
        value.
        """
        if rows.schema is not self.source and not rows.schema.equals(self.source, check_metadata=True):
            return compile_plan(rows.schema, self.table, self.missing, self.rules, needed=self.needed)(rows)
        columns = [
            pa.nulls(rows.num_rows, column.type)
            if index is None
            else self._column(rows.column(index), step, column.type)
            for (index, step), column in zip(self.steps, self.table, strict=True)
        ]
        return pa.Table.from_arrays(columns, schema=self.table)

    def _column(self, column: Any, step: Convert, kind: pa.DataType) -> Any:
        """Convert an array or chunked one by `step` to a chunked array of `kind`; `_same` leaves it unchanged.

        Raises as `__call__`.
        """
        if step is _same:
            return column
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        converted: list[pa.Array] = []
        start = 0
        for chunk in chunks:
            parts = _applied(step, chunk)
            # Outside the handler: an error with that context cannot be pickled.
            if parts is None:
                raise self._first_error(step, chunk, start)
            converted += parts
            start += len(chunk)
        return pa.chunked_array(converted, kind)

    def _first_error(self, step: Convert, chunk: pa.Array, start: int) -> Exception:
        row = _first(lambda part: _applied(step, part) is None, chunk)
        try:
            step(chunk.slice(row, 1))
        except _ValueMisfit as refusal:
            return self._error([refusal.located(start + row)])
        raise AssertionError  # pragma: no cover - it refused the same row


def _applied(step: Convert, chunk: pa.Array) -> list[pa.Array] | None:
    """Convert an array, to several where 32-bit offsets do not suffice; None on a misfit.

    Raises InvalidRecords if one value is too long.
    """
    half = len(chunk) // 2
    try:
        return [step(chunk)]
    except _ValueMisfit:
        return None
    except TooLong as error:
        if not half:
            raise InvalidRecords(
                f"one value is longer than {kernels.ARRAY_BYTES} bytes or elements; split it"
            ) from error
    parts = [_applied(step, chunk.slice(0, half)), _applied(step, chunk.slice(half))]
    return (
        None if any(part is None for part in parts) else [array for part in parts if part is not None for array in part]
    )
