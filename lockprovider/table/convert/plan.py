"""Compiler of conversion plans, which convert rows of one schema to rows of another.

Fields match by name, with their case, at every depth; never by position.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from lockprovider.table.convert.columns import without_own
from lockprovider.table.convert.kernels import (
    ARRAY_BYTES,
    Kernel,
    TooLong,
    WouldChange,
    elements_of,
    ends_of,
    equal_keys,
    kernel_for,
    lengths_of,
    runs_of,
    without_hidden,
)
from lockprovider.table.convert.rules import READ, REFUSED, WRITE, Rules, advice, is_list
from lockprovider.table.errors import Corrupt, DoesNotFit, InvalidRecords, Misfit
from lockprovider.table.format.schema import META_COLUMNS

OnMissing = Literal["null", "refuse"]
Convert = Callable[[pa.Array], pa.Array]


def compile_plan(
    given: pa.Schema,
    table: pa.Schema,
    missing: OnMissing = "null",
    rules: Rules = WRITE,
    *,
    needed: Collection[str] = (),
) -> Plan:
    """Compile a plan that converts rows of `given` to rows of `table`, from the schemas alone.

    Hudi's meta columns that `table` lacks are left out, with a warning. `missing`: a column or inner field that `given`
    lacks becomes null (`null`) or a misfit (`refuse`); a column in `needed` always is one. With rules `READ` missing
    columns become null, and columns that `table` lacks are left out.

    Raises:
        DoesNotFit: the message names every field that does not fit.
        Corrupt: the same, with `READ`.
    """
    plan = Plan(given, table, missing, rules, tuple(needed))
    plan.steps  # noqa: B018 - raises
    return plan


def read_as(rows: pa.Table | pa.RecordBatch, columns: pa.Schema) -> pa.Table:
    """Convert a file's rows to the table's current columns: new columns are null, widened ones read as in the JVM.

    Raises Corrupt if none of Hudi's promotions explains a column's type.
    """
    return compile_plan(rows.schema, columns, rules=READ)(rows)


# -- steps ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ColumnStep:
    """Conversion of one field's arrays, unchanged without `run`; `renames`: only names inside the type change."""

    run: Convert | None = None
    renames: bool = True

    def __call__(self, values: pa.Array) -> pa.Array:
        """Convert one array."""
        return values if self.run is None else self.run(values)


_SAME = ColumnStep()


class _Unfit(Exception):
    """Error: `kernel` refuses one of `values`; without both, `misfit` is complete."""

    def __init__(
        self, misfit: Misfit, values: pa.Array | None = None, kernel: Callable[..., Any] | None = None
    ) -> None:
        super().__init__(misfit)
        self.misfit, self.values, self.kernel = misfit, values, kernel

    def found(self, row: int) -> Misfit:
        """Return the misfit with the row and the first value that does not fit."""
        if self.values is None or self.kernel is None:
            return self.misfit.at(row, self.misfit.value)
        place = _first(self.kernel, self.values)
        return self.misfit.at(row, self.values[place].as_py())


def _first(run: Callable[[pa.Array], Any], values: pa.Array) -> int:
    """Find the first value that `run` refuses, given that it refuses the whole array."""
    start, count = 0, len(values)
    while count > 1:
        half = count // 2
        try:
            run(values.slice(start, half))
        except (WouldChange, _Unfit):
            count = half
        else:
            start, count = start + half, count - half
    return start


@dataclass(slots=True)
class _Compiler:
    """Collector of the steps and misfits between two schemas."""

    missing: OnMissing
    rules: Rules
    misfits: list[Misfit] = field(default_factory=list)

    def columns(
        self, given: pa.Schema, table: pa.Schema, needed: Collection[str]
    ) -> list[tuple[int | None, ColumnStep]]:
        """Return each table column's index in the rows (None if missing) and its step; records misfits."""
        if self.rules is not READ:
            without_own(given)
        return self._fields(list(given), list(table), "", set(needed))

    def _fields(
        self,
        given: Sequence[pa.Field],
        wanted: Sequence[pa.Field],
        path: str,
        needed: Collection[str] = (),
    ) -> list[tuple[int | None, ColumnStep]]:
        """Match fields by name; return each wanted field's index (None if missing) and step, and record misfits."""
        places = {one.name: place for place, one in enumerate(given)}
        names = [one.name for one in wanted]
        if len(places) < len(given):
            self._twice([one.name for one in given], path)
        if self.rules is not READ:
            self._strangers(given, names, path)
        found: list[tuple[int | None, ColumnStep]] = []
        for one in wanted:
            place, inner = places.get(one.name), f"{path}.{one.name}" if path else one.name
            if place is not None:
                found.append((place, self.step(given[place].type, one, inner)))
                continue
            if self.rules is not READ and (self.missing == "refuse" or one.name in needed or not one.nullable):
                self.misfits.append(Misfit.missing(inner, str(one.type)))
            found.append((None, _SAME))
        return found

    def _twice(self, names: list[str], path: str) -> None:
        for name in sorted({name for name in names if names.count(name) > 1}):
            self.misfits.append(Misfit.twice(f"{path}.{name}" if path else name))

    def _strangers(self, given: Sequence[pa.Field], names: list[str], path: str) -> None:
        known = {*names} if path else {*names, *META_COLUMNS}
        strangers = [one for one in given if one.name not in known]
        near = {name.lower(): name for name in names} if strangers else {}
        for one in strangers:
            self.misfits.append(Misfit.stranger(path, one.name, str(one.type), names, near.get(one.name.lower())))

    # -- of one type ------------------------------------------------------------------------------------------------

    def step(self, given: pa.DataType, field: pa.Field, path: str) -> ColumnStep:
        """Return the step from a type to a field; the step refuses nulls if the field is required."""
        found = self._of_type(given, field.type, path)
        if field.nullable or self.rules is READ:
            return found
        return ColumnStep(_required(found, Misfit.null(path, str(field.type))), renames=False)

    def _of_type(self, given: pa.DataType, wanted: pa.DataType, path: str) -> ColumnStep:
        """Return the step from one type to another; records types that do not fit as a misfit."""
        if types.is_dictionary(given) and not types.is_dictionary(wanted):
            return _decoded(self._of_type(given.value_type, wanted, path), wanted)
        if types.is_run_end_encoded(given):
            return _expanded(self._of_type(given.value_type, wanted, path))
        if given.equals(wanted, check_metadata=True) and not (self.rules is WRITE and _has_checks(wanted)):
            return _SAME
        if types.is_null(given):
            return ColumnStep(lambda values: pa.nulls(len(values), wanted), renames=False)
        return self._nested(given, wanted, path) or self._value(given, wanted, path)

    def _nested(self, given: pa.DataType, wanted: pa.DataType, path: str) -> ColumnStep | None:
        """Return the step between two nested types of one kind; None for other types."""
        if types.is_struct(given) and types.is_struct(wanted):
            return self._struct(given, wanted, path)
        if types.is_map(given) and types.is_map(wanted):
            return self._map(given, wanted, path)
        if is_list(given) and types.is_list(wanted):
            step = self.step(given.value_type, wanted.value_field, f"{path}.element")
            if step.renames and given.id == wanted.id:
                return _rename(wanted)
            return ColumnStep(_list_of(step, wanted), renames=False)
        return None

    def _value(self, given: pa.DataType, wanted: pa.DataType, path: str) -> ColumnStep:
        rule = self.rules.rule(given, wanted)
        if rule == REFUSED:
            self.misfits.append(Misfit.types(path, str(given), str(wanted), advice(given, wanted)))
            return _SAME
        return _plain(kernel_for(given, wanted, rule), wanted, Misfit.of_value(path, str(given), str(wanted)))

    def _struct(self, given: pa.DataType, wanted: pa.DataType, path: str) -> ColumnStep:
        inner = [given.field(place) for place in range(given.num_fields)]
        outer = [wanted.field(place) for place in range(wanted.num_fields)]
        steps = self._fields(inner, outer, path)
        in_order = [place for place, _ in steps] == list(range(len(inner)))
        alike = in_order and all(one.nullable == other.nullable for one, other in zip(inner, outer, strict=False))
        if alike and all(step.renames for _, step in steps):
            return _rename(wanted)
        return ColumnStep(_struct_of(steps, outer), renames=False)

    def _map(self, given: pa.DataType, wanted: pa.DataType, path: str) -> ColumnStep:
        keys = self._of_type(given.key_type, wanted.key_type, f"{path}.key")
        items = self.step(given.item_type, wanted.item_field, f"{path}.value")
        if self.rules is READ:
            if keys.renames and items.renames and given.item_field.nullable == wanted.item_field.nullable:
                return _rename(wanted)
            return ColumnStep(_map_of(keys, items, wanted, None), renames=False)
        return ColumnStep(
            _map_of(keys, items, wanted, Misfit.repeated(f"{path}.key", str(wanted.key_type))), renames=False
        )


def _has_checks(kind: pa.DataType) -> bool:
    """Return whether values of this very type can be refused, for equal map keys or required fields."""
    if types.is_map(kind):
        return True
    inner = [kind.field(place) for place in range(kind.num_fields)]
    return any(not one.nullable or _has_checks(one.type) for one in inner)


def _rename(wanted: pa.DataType) -> ColumnStep:
    return ColumnStep(lambda values: values.cast(wanted), renames=True)


def _plain(kernel: Kernel, wanted: pa.DataType, misfit: Misfit) -> ColumnStep:
    """Return the step that runs a kernel; a value that would change raises `_Unfit`."""

    def checked(values: pa.Array) -> pa.Array:
        return kernel(values, wanted)

    def run(values: pa.Array) -> pa.Array:
        try:
            return kernel(values, wanted)
        except WouldChange as error:
            raise _Unfit(misfit, values, checked) from error

    return ColumnStep(run, renames=False)


def _required(step: ColumnStep, misfit: Misfit) -> Convert:
    def run(values: pa.Array) -> pa.Array:
        if values.null_count:
            raise _Unfit(misfit)
        return step(values)

    return run


def _decoded(step: ColumnStep, wanted: pa.DataType) -> ColumnStep:
    """Return the step that converts a dictionary's values, then looks them up; ignores misfits that no row uses."""

    def run(values: pa.Array) -> pa.Array:
        """Convert one dictionary array; may raise TooLong."""
        words = values.dictionary
        try:
            found = step(words)
        except _Unfit:
            used = pc.unique(values.indices.drop_null())
            places = pc.index_in(values.indices, value_set=used)
            return step(words.take(used)).take(places)
        if types.is_string(wanted) or types.is_binary(wanted):
            most = pc.max(pc.binary_length(found)).as_py() or 0
            if (
                most * len(values) > ARRAY_BYTES
                and pc.sum(pc.binary_length(found).take(values.indices)).as_py() > ARRAY_BYTES
            ):
                raise TooLong
        return found.take(values.indices)

    return ColumnStep(run, renames=False)


def _expanded(step: ColumnStep) -> ColumnStep:
    """Return the step that converts the values of a run-end encoded array, then repeats them."""

    def run(values: pa.Array) -> pa.Array:
        if not types.is_run_end_encoded(values.type):
            return step(values)  # `without_hidden` has expanded the runs.
        runs, places = runs_of(values)
        return step(runs).take(places)

    return ColumnStep(run, renames=False)


def _struct_of(steps: Iterable[tuple[int | None, ColumnStep]], fields: Sequence[pa.Field]) -> Convert:
    """Return the conversion of structs by the steps of their fields."""
    steps = list(steps)

    def run(values: pa.Array) -> pa.Array:
        """Convert one array of structs."""
        parts, some = values.flatten(), values.null_count > 0
        if values.null_count == len(values):
            return pa.nulls(len(values), pa.struct(list(fields)))
        if some:
            parts = [without_hidden(part, values) for part in parts]
        found = []
        for (place, step), one in zip(steps, fields, strict=True):
            if place is None:
                found.append(pa.nulls(len(values), one.type))
            elif one.nullable or not some:
                found.append(step(parts[place]))
            else:  # Under a null struct, a required field gets the value of another row.
                there = values.is_valid()
                numbers = np.cumsum(there.to_numpy(zero_copy_only=False)) - 1
                found.append(step(parts[place].filter(there)).take(pa.array(np.maximum(numbers, 0))))
        return pa.StructArray.from_arrays(found, fields=list(fields), mask=values.is_null() if some else None)

    return run


def _list_of(step: ColumnStep, wanted: pa.DataType) -> Convert:
    def run(values: pa.Array) -> pa.Array:
        lengths = lengths_of(values)
        mask = values.is_null() if values.null_count else None
        inner = step(elements_of(values, lengths))
        return pa.ListArray.from_arrays(ends_of(lengths), inner, type=wanted, mask=mask)

    return run


def _map_of(keys: ColumnStep, items: ColumnStep, wanted: pa.DataType, misfit: Misfit | None) -> Convert:
    """Return the conversion of maps, which refuses equal keys if `misfit` is given."""

    def run(values: pa.Array) -> pa.Array:
        entries = _entries(values)
        lengths = lengths_of(entries)
        its_keys, its_items = elements_of(entries, lengths).flatten()
        its_keys = keys(its_keys)
        if misfit is not None and (place := equal_keys(its_keys, lengths)) is not None:
            raise _Unfit(misfit.at(0, its_keys[place].as_py()))
        mask = values.is_null() if values.null_count else None
        return pa.MapArray.from_arrays(ends_of(lengths), its_keys, items(its_items), type=wanted, mask=mask)

    return run


def _entries(maps: pa.Array) -> pa.Array:
    """Return maps as lists of structs, without a copy."""
    inner = maps.values
    _, offsets = maps.buffers()[:2]
    return pa.Array.from_buffers(
        pa.list_(inner.type), len(maps), [maps.buffers()[0], offsets], maps.null_count, maps.offset, children=[inner]
    )


# -- the plan ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """Conversion of rows of one schema to another, made by `compile_plan` from the same arguments. Picklable."""

    given: pa.Schema
    table: pa.Schema
    missing: OnMissing
    rules: Rules
    needed: tuple[str, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "steps"}

    @cached_property
    def steps(self) -> list[tuple[int | None, ColumnStep]]:
        """Each table column's index in the rows (None if missing) and its step; compiled once, may raise DoesNotFit."""
        compiler = _Compiler(self.missing, self.rules)
        steps = compiler.columns(self.given, self.table, self.needed)
        if compiler.misfits:
            raise self._error(compiler.misfits)
        return steps

    def _error(self, misfits: Sequence[Misfit]) -> Exception:
        error = DoesNotFit(tuple(misfits))
        return Corrupt(f"an old file does not fit the table: {error}") if self.rules is READ else error

    def __call__(self, rows: pa.Table | pa.RecordBatch) -> pa.Table:
        """Convert rows; those of another schema than `given` get a plan of their own.

        Raises DoesNotFit (with `READ` Corrupt), which names the first value that does not fit, and its row.
        """
        if rows.schema is not self.given and not rows.schema.equals(self.given, check_metadata=True):
            return compile_plan(rows.schema, self.table, self.missing, self.rules, needed=self.needed)(rows)
        columns = [
            pa.nulls(rows.num_rows, one.type) if place is None else self._column(rows.column(place), step, one.type)
            for (place, step), one in zip(self.steps, self.table, strict=True)
        ]
        return pa.Table.from_arrays(columns, schema=self.table)

    def _column(self, column: Any, step: ColumnStep, kind: pa.DataType) -> Any:
        """Convert one column, chunk by chunk."""
        if step.run is None:
            return column
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        found: list[pa.Array] = []
        start = 0
        for chunk in chunks:
            parts = _applied(step, chunk)
            # Raised outside of the handler: an error with that context could not be pickled.
            if parts is None:
                raise self._unfit(step, chunk, start)
            found += parts
            start += len(chunk)
        return pa.chunked_array(found, kind)

    def _unfit(self, step: ColumnStep, chunk: pa.Array, start: int) -> Exception:
        row = _first(step, chunk)
        try:
            step(chunk.slice(row, 1))
        except _Unfit as unfit:
            return self._error([unfit.found(start + row)])
        raise AssertionError  # pragma: no cover - it refused the same row


def _applied(step: ColumnStep, chunk: pa.Array) -> list[pa.Array] | None:
    """Convert one array, in halves if the result is too long for 32-bit offsets; return None on a misfit."""
    half = len(chunk) // 2
    try:
        return [step(chunk)]
    except _Unfit:
        return None
    except TooLong as error:
        if not half:
            raise InvalidRecords(f"one value is longer than {ARRAY_BYTES} bytes or elements; split it") from error
    parts = [_applied(step, chunk.slice(0, half)), _applied(step, chunk.slice(half))]
    return (
        None if any(part is None for part in parts) else [array for part in parts if part is not None for array in part]
    )
