"""Row filters: select a table's rows, and exclude files and row groups without such rows.

A filter is a postfix program that a loop runs: a pyarrow expression of thousands of parts crashes the process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from fsspec_cas import InvalidInput
from fsspec_cas.arguments import check_items, shown
from lockprovider.table.read.literals import LiteralMisfit, Position, literal_of, position_of

AND, OR, NOT = "and", "or", "not"
_MOST_BOUNDS = 256  # questions in a bound
_MANY_VALUES = 1 << 12  # The bound of more is a range.
_PART_ROWS = 1 << 16  # a deep filter has a mask for each level
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}


@dataclass(frozen=True, slots=True)
class IsNull:
    """`column is null`."""

    column: str


@dataclass(frozen=True, slots=True)
class Constant:
    """One answer for all rows."""

    value: bool


@dataclass(frozen=True, slots=True)
class Compared:
    """`column sign value`, with `<`, `<=`, `>` or `>=`."""

    column: str
    sign: str
    value: pa.Scalar


@dataclass(frozen=True, slots=True)
class Like:
    """`column like pattern`: `%` is any text, `_` one character, a backslash escapes these."""

    column: str
    pattern: str


@dataclass(slots=True)
class OneOf:
    """`column in (values)` or `not in`; `=` has one value, or none if the type lacks it.

    `Chain.add` and `negate` change it while a filter is built. `matches_null`: null is a value, as in pyarrow; else as
    in SQL.
    """

    column: str
    kind: pa.DataType
    values: list[Any] = field(repr=False)
    negated: bool = False
    has_null: bool = False
    matches_null: bool = False
    _array: pa.Array | None = field(default=None, repr=False, compare=False)

    def mask(self, column: pa.ChunkedArray) -> Any:
        answers = self._is_in(column)
        if self.matches_null:
            answers = pc.if_else(pc.is_null(column), self.has_null, answers)
        elif self.has_null:
            answers = pc.if_else(answers, answers, pa.scalar(None, pa.bool_()))
        return pc.invert(answers) if self.negated else answers

    def _is_in(self, column: pa.ChunkedArray) -> Any:
        """Mask of rows whose value is in `array`; ignores `negated`. Null rows give null; -0.0 equals 0.0."""
        array = self.array
        if len(array) == 0:  # Also of types that cannot be compared.
            return pc.if_else(pc.is_valid(column), False, pa.scalar(None, pa.bool_()))
        if len(array) == 1:
            return pc.equal(column, array[0])
        if types.is_floating(self.kind):
            column = pc.add(column, pa.scalar(0.0, self.kind))  # This turns -0.0 into 0.0.
        return pc.if_else(pc.is_valid(column), pc.is_in(column, value_set=array), pa.scalar(None, pa.bool_()))

    @property
    def array(self) -> pa.Array:
        if self._array is None:
            array = pa.array(self.values, self.kind)
            self._array = pc.add(array, pa.scalar(0.0, self.kind)) if types.is_floating(self.kind) else array
        return self._array

    def bounds(self) -> tuple[Any, Any]:
        """Expressions that hold for each row whose mask is true, and false; or None."""
        within, without = self._within(), None
        if len(self.array) == 1 and not (types.is_floating(self.kind) or self.matches_null or self.has_null):
            without = pc.field(self.column) != self.array[0]
        return (without, within) if self.negated else (within, without)

    def _within(self) -> Any:
        """Expression true of all rows in the list; ignores `negated`. None for floats and many booleans.

        For other lists of many values, it covers their range.
        """
        column = pc.field(self.column)
        if types.is_floating(self.kind):
            return None
        if not len(self.array):
            return column.is_null() if self.matches_null and self.has_null else pc.scalar(False)
        if len(self.array) == 1:
            bound = column == self.array[0]
        elif len(self.array) < _MANY_VALUES:
            bound = column.isin(self.array)
        elif types.is_boolean(self.kind):
            return None
        else:
            ends = pc.min_max(self.array)
            bound = (column >= ends["min"]) & (column <= ends["max"])
        return bound | column.is_null() if self.matches_null and self.has_null else bound


@dataclass(frozen=True, slots=True)
class OfArrow:
    """pyarrow expression that reads `columns`."""

    expression: pc.Expression
    columns: Sequence[str]


Question = IsNull | Constant | Compared | Like | OneOf | OfArrow
FilterStep = Question | str


@dataclass(frozen=True, slots=True)
class Filter:
    """Row filter: questions, and `AND`, `OR`, `NOT` after their operands. Picklable."""

    steps: tuple[FilterStep, ...]

    @property
    def columns(self) -> list[str]:
        name_lists = (_columns_of(step) for step in self.steps if not isinstance(step, str))
        return list(dict.fromkeys(name for names in name_lists for name in names))

    def kept(self, rows: pa.Table) -> pa.Table:
        starts = range(0, max(1, rows.num_rows), _PART_ROWS)
        parts = (rows.slice(start, _PART_ROWS) for start in starts)
        return pa.concat_tables([part.filter(self._mask(part)) for part in parts])

    def goes_by_statistics(self, schema: pa.Schema) -> bool:
        """Whether `bound` may use Parquet's statistics, which ignore NaN and zero's sign."""
        name_lists = (step.columns for step in self.steps if isinstance(step, OfArrow))
        return not any(has_floats(schema.field(name).type) for names in name_lists for name in names)

    def bound(self) -> Any:
        """Expression of limited size that holds for all kept rows; None excludes no row."""
        stack: list[tuple[_Bound, _Bound]] = []
        for step in self.steps:
            if not isinstance(step, str):
                true, false = _bounds_of(step)
                stack.append(((true, 1), (false, 1)))
            elif step == NOT:
                stack.append(stack.pop()[::-1])
            else:
                (true, false), (first_true, first_false) = stack.pop(), stack.pop()
                if step == AND:
                    stack.append((_within_both(first_true, true), _within_either(first_false, false)))
                else:
                    stack.append((_within_either(first_true, true), _within_both(first_false, false)))
        return stack[0][0][0]

    def _mask(self, rows: pa.Table) -> Any:
        """Evaluate all steps; return true, false or null for each row."""
        stack: list[Any] = []
        for step in self.steps:
            if not isinstance(step, str):
                stack.append(_mask_of(step, rows))
            elif step == NOT:
                stack.append(pc.invert(stack.pop()))
            else:
                join = pc.and_kleene if step == AND else pc.or_kleene
                last = stack.pop()
                stack.append(join(stack.pop(), last))
        return stack[0]


def _columns_of(question: Question) -> Sequence[str]:
    if isinstance(question, OfArrow):
        return question.columns
    return () if isinstance(question, Constant) else (question.column,)


def _mask_of(question: Question, rows: pa.Table) -> Any:
    """Mask of true, false or null for each row; for a pyarrow expression, imports acero and pandas."""
    match question:
        case IsNull(column):
            mask = pc.is_null(rows.column(column))
        case Constant(value):
            mask = pa.repeat(pa.scalar(value), rows.num_rows)
        case Compared(column, sign, value):
            mask = _COMPARE[sign](rows.column(column), value)
        case Like(column, pattern):
            mask = pc.match_like(rows.column(column), pattern)
        case OneOf(column):
            mask = question.mask(rows.column(column))
        case OfArrow(expression):
            acero = import_module("pyarrow.acero")  # loads pandas
            source = acero.Declaration("table_source", acero.TableSourceNodeOptions(rows))
            projection = acero.Declaration("project", acero.ProjectNodeOptions([expression], ["mask"]))
            mask = acero.Declaration.from_sequence([source, projection]).to_table(use_threads=False).column(0)
    return mask


def _bounds_of(question: Question) -> tuple[Any, Any]:
    """Expressions that hold for each row whose mask is true, and false; None where statistics cannot tell."""
    bounds: tuple[Any, Any] = (None, None)
    match question:
        case IsNull(column):
            bounds = pc.field(column).is_null(), pc.field(column).is_valid()
        case Constant(value):
            bounds = (None, pc.scalar(False)) if value else (pc.scalar(False), None)
        case Compared(column, sign, value) if not types.is_floating(value.type):  # Statistics ignore NaN.
            reference = pc.field(column)
            bounds = _COMPARE[sign](reference, value), _COMPARE[_OPPOSITE[sign]](reference, value)
        case Like(column, pattern):
            bounds = _from_prefix(pc.field(column), re.split(r"[%_\\]", pattern, maxsplit=1)[0]), None
        case OneOf():
            bounds = question.bounds()
        case OfArrow(expression):
            bounds = expression, None
    return bounds


def _from_prefix(column: Any, prefix: str) -> Any:
    if not prefix:
        return None
    following = ord(prefix[-1]) + 1
    if following in {0xD800, 0x110000}:
        return column >= prefix
    return (column >= prefix) & (column < prefix[:-1] + chr(following))


_Bound = tuple[Any, int]  # an expression or None, its number of questions


def _within_both(first: _Bound, second: _Bound) -> _Bound:
    if first[0] is None or second[0] is None:
        return second if first[0] is None else first
    count = first[1] + second[1]
    return first if count > _MOST_BOUNDS else (first[0] & second[0], count)


def _within_either(first: _Bound, second: _Bound) -> _Bound:
    count = first[1] + second[1]
    if first[0] is None or second[0] is None or count > _MOST_BOUNDS:
        return None, 0
    return first[0] | second[0], count


def both(first: Filter, second: Filter) -> Filter:
    return Filter((*first.steps, *second.steps, AND))


@dataclass
class Chain:
    """Terms joined by one word.

    `=` terms of one column in an `or`, and `!=` in an `and`, become one question.
    """

    word: str
    terms: int = 0
    _folded: dict[str, OneOf] = field(default_factory=dict)

    def add(self, steps: list[FilterStep], start: int) -> None:
        """Join the term from index `start` of `steps` to earlier ones, if any; change chain and `steps`.

        Appends the word, or moves the values of an `in` list (AND: `not in`) into an earlier question on its column.
        """
        last = steps[-1]
        if len(steps) - start == 1 and isinstance(last, OneOf) and last.negated is (self.word == AND):
            first = self._folded.setdefault(last.column, last)
            if first is not last and first.matches_null is last.matches_null:
                first.values, last.values = sorted((first.values, last.values), key=len, reverse=True)
                first.values.extend(last.values)
                first.has_null |= last.has_null
                steps.pop()
                return
        self.terms += 1
        if self.terms > 1:
            steps.append(self.word)


def negate(steps: list[FilterStep], start: int) -> None:
    """Negate in place the last term of `steps`, from index `start`."""
    last = steps[-1]
    if len(steps) - start == 1 and isinstance(last, OneOf):
        last.negated = not last.negated
    elif last == NOT:
        steps.pop()
    else:
        steps.append(NOT)


def compared(column: str, kind: pa.DataType, sign: str, literal: Position) -> Question:
    """Question `column sign literal` of a column of type `kind`.

    It is a `OneOf` for `=`, `!=` and literals below all values.
    """
    floor, exact = literal
    if sign in {"=", "!="}:
        return OneOf(column, kind, [floor] if exact else [], negated=sign == "!=")
    if floor is None:
        return OneOf(column, kind, [], negated=sign in {">", ">="})
    if not exact:  # No value lies between floor and literal.
        sign = {"<": "<=", ">=": ">"}.get(sign, sign)
    return Compared(column, sign, pa.scalar(floor, kind))


def has_floats(kind: pa.DataType) -> bool:
    inner = (kind.field(number).type for number in range(kind.num_fields))
    return bool(types.is_floating(kind)) or any(map(has_floats, inner))


def of_expression(expression: pc.Expression, schema: pa.Schema) -> Filter:
    """Convert a pyarrow expression; `InvalidInput` if it does not fit the columns, or names one by its number."""
    empty = schema.empty_table()
    try:
        empty.filter(expression)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidInput(
            f"filter {expression} does not fit the table ({error}); its columns are {schema.names}"
        ) from error
    if "FieldPath(" in str(expression):
        raise InvalidInput(f"filter {expression} refers to a column by its number; use its name, one of {schema.names}")

    def among(names: list[str]) -> Iterator[str]:
        try:
            empty.drop_columns(names).filter(expression)
        except pa.ArrowInvalid:
            half = len(names) // 2
            yield from names if not half else [*among(names[:half]), *among(names[half:])]

    return Filter((OfArrow(expression, tuple(among(schema.names))),))


def check_kind(value: Any) -> None:
    """Raise `InvalidInput` if `value` is no form of a filter; checks no columns."""
    if not isinstance(value, (str, pc.Expression, Filter)):
        _alternatives(value)


def of_tuples(tuples: Any, schema: pa.Schema) -> Filter:
    """Convert tuples `(column, sign, value)` that must all be true, or lists of these, of which one must be.

    Raises InvalidInput.
    """
    steps: list[FilterStep] = []
    either = Chain(OR)
    for terms in _alternatives(tuples):
        start, all_of = len(steps), Chain(AND)
        for term in terms:
            at = len(steps)
            steps.extend(_of_tuple(term, schema))
            all_of.add(steps, at)
        either.add(steps, start)
    return Filter(tuple(steps))


def _alternatives(tuples: Any) -> list[list[Any]]:
    """Lists of tuples (column, sign, value), a flat list as one; raises `InvalidInput` for other shapes."""
    alternatives = list(tuples) if isinstance(tuples, (list, tuple)) else []
    if alternatives and all(
        isinstance(term, (list, tuple)) and term and isinstance(term[0], str) for term in alternatives
    ):
        alternatives = [alternatives]
    if not alternatives or not all(isinstance(terms, (list, tuple)) and terms for terms in alternatives):
        raise InvalidInput(
            f"filter {shown(tuples)} is no filter: give SQL text, a pyarrow expression, or tuples [('fare', '>', 3)]"
        )
    for term in chain.from_iterable(alternatives):
        if not (
            isinstance(term, (list, tuple))
            and len(term) == 3  # noqa: PLR2004 - column, sign, value
            and isinstance(term[0], str)
            and isinstance(term[1], str)
        ):
            raise InvalidInput(f"filter {shown(term)} is not a tuple (column, sign, value), such as ('fare', '>', 3)")
    return alternatives


def _of_tuple(term: Any, schema: pa.Schema) -> tuple[FilterStep, ...]:
    """Convert a tuple into one step. Raises InvalidInput unless column, sign and value fit; None fits only in lists."""
    column, sign, value = term
    misfit = f"filter {shown(term)} does not fit the table"
    if column not in schema.names:
        raise InvalidInput(f"{misfit}: {shown(column)} is not a column; the columns are {schema.names}")
    kind, sign = schema.field(column).type, "=" if sign == "==" else sign
    try:
        if sign in {"in", "not in"}:
            return (_listed(column, kind, value, negated=sign == "not in"),)
        if sign in {"=", "!="} or sign in _COMPARE:
            literal = literal_of(value)
            if literal is None:
                raise InvalidInput(f"filter {shown(term)} is never true; to find nulls use ({column!r}, 'in', [None])")
            return (compared(column, kind, sign, position_of(literal, kind)),)
    except LiteralMisfit as error:
        raise InvalidInput(f"{misfit}: {error}; {column!r} is {kind}") from error
    signs = "=, !=, <, <=, >, >=, in, not in; SQL text also has between, like and is null"
    raise InvalidInput(f"{misfit}: {shown(sign)} is none of {signs}")


def _listed(column: str, kind: pa.DataType, value: Any, *, negated: bool) -> OneOf:
    literals = [literal_of(item) for item in check_items(value, f"filter on {column!r}: in", "values")]
    positions = (position_of(literal, kind) for literal in literals if literal is not None)
    exact = [floor for floor, exact in positions if exact]
    has_null = any(literal is None for literal in literals)
    return OneOf(column, kind, exact, negated=negated, has_null=has_null, matches_null=True)
