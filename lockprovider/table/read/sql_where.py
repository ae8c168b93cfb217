"""Parser of row filters in SQL syntax, for all readers and `delete`; the README has the grammar.

city = 'ulm' and (fare > 3.5 or fare is null) and day in (date '2026-01-01', '2026-01-02') and not "order" like 'a%'
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import types

from fsspec_cas import InvalidInput
from fsspec_cas.arguments import shown
from lockprovider.table.read.filters import (
    AND,
    OR,
    Chain,
    Constant,
    Filter,
    FilterStep,
    IsNull,
    Like,
    OneOf,
    compared,
    negate,
)
from lockprovider.table.read.literals import LiteralMisfit, Position, day_of, position_of, time_of

_NUMBER = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?"
_TOKEN = re.compile(
    rf"\s*(?:(?P<text>'[^']*(?:''[^']*)*')|(?P<number>{_NUMBER})(?![\w.])|`(?P<quoted>[^`]+)`|"
    r'"(?P<named>[^"]*(?:""[^"]*)*)"|(?P<word>[^\W\d]\w*)|(?P<sign><>|!=|<=|>=|==|[=<>(),])|(?P<end>\Z))'
)
_SIGNS = {"=": "=", "==": "=", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_KEYWORDS = frozenset({"and", "or", "not", "in", "is", "null", "between", "like", "true", "false"})
_OPERATORS = {"&": ": write and", "|": ": write or"}  # of pandas, polars and pyarrow
_DIGITS = 18  # Python refuses integers of thousands of digits.
_SHOWN = 60


class _Token(NamedTuple):
    kind: str
    value: str
    at: int


@dataclass
class _Group:
    start: int
    negated: bool = False
    either: Chain = field(default_factory=lambda: Chain(OR))
    all_of: Chain = field(default_factory=lambda: Chain(AND))
    term: int = 0  # first step of the present alternative


def parse_where(text: str, schema: pa.Schema) -> Filter:
    """Parse a filter; `InvalidInput` names the error's position."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"filter {shown(text)} has a lone surrogate at character {error.start + 1}") from None
    return _Parser(text, schema).parsed()


class _Parser:
    """Parser of one text, for one `parsed`; `_token` is the first unread token."""

    def __init__(self, text: str, schema: pa.Schema) -> None:
        self._text = text
        self._schema = schema
        self._columns = {name: schema.field(name).type for name in schema.names}
        self._end = 0
        self._token = _Token("", "", 0)
        self._step()

    def parsed(self) -> Filter:
        """Parse the whole text to a filter, or raise InvalidInput with the position."""
        steps: list[FilterStep] = []
        groups = [_Group(0)]
        while True:
            negated = False
            while self._accept("not"):
                negated = not negated
            if self._accept("("):
                groups.append(_Group(len(steps), negated, term=len(steps)))
                continue
            at = len(steps)
            steps.extend(self._question())
            self._join(groups[-1], steps, at, negated=negated)
            while self._accept(")"):
                if len(groups) == 1:
                    raise self._error("and, or, or the end", back=")")
                closed = groups.pop()
                closed.either.add(steps, closed.term)
                self._join(groups[-1], steps, closed.start, negated=closed.negated)
            if self._accept("or"):
                groups[-1].either.add(steps, groups[-1].term)
                groups[-1].term, groups[-1].all_of = len(steps), Chain(AND)
            elif not self._accept("and"):
                break
        if len(groups) > 1:
            raise self._error("')'")
        if self._token.kind != "end":
            raise self._error("and, or, or the end")
        groups[0].either.add(steps, groups[0].term)
        return Filter(tuple(steps))

    def _join(self, group: _Group, steps: list[FilterStep], start: int, *, negated: bool) -> None:
        if negated:
            negate(steps, start)
        group.all_of.add(steps, start)

    def _question(self) -> Iterator[FilterStep]:
        """Consume one question like `fare > 3` at once; return steps, operators last.

        Raises InvalidInput, also for leading `(` or `not`.
        """
        token = self._token
        if token.kind == "word" and token.value.lower() in {"true", "false"}:
            self._step()
            return iter([Constant(token.value.lower() == "true")])
        name = self._name()
        kind = self._columns[name]
        if self._accept("is"):
            negated = self._accept("not")
            self._expect("null")
            return iter([IsNull(name), *(["not"] if negated else [])])
        if self._token.kind == "sign" and self._token.value in _SIGNS:
            sign = _SIGNS[self._token.value]
            self._step()
            return iter([compared(name, kind, sign, self._literal(name, kind))])
        negated = self._accept("not")
        if self._accept("between"):
            low = compared(name, kind, ">=", self._literal(name, kind))
            self._expect("and")
            steps: list[FilterStep] = [low, compared(name, kind, "<=", self._literal(name, kind)), AND]
        elif self._is("like"):
            steps = [Like(name, self._pattern(name, kind))]
        elif self._accept("in"):
            steps = [self._list(name, kind)]
        elif negated:
            raise self._error("in, between or like")
        elif types.is_boolean(kind):
            steps = [compared(name, kind, "=", Position(floor=True, exact=True))]
        else:
            raise self._error("a comparison (=, !=, <, <=, >, >=, is, in, between, like)")
        if negated:
            negate(steps, 0)
        return iter(steps)

    def _name(self) -> str:
        """Consume and return a column name, unquoted; raise InvalidInput for a keyword or unknown column."""
        kind, value, at = self._token
        if kind == "named":
            value = value.replace('""', '"')
        if kind not in {"word", "quoted", "named"} or (kind == "word" and value.lower() in _KEYWORDS):
            raise self._error("a column")
        if value not in self._columns:
            columns = shown(self._schema.names)
            raise InvalidInput(f"filter {self._position(at)}: {value!r} is not a column; the columns are {columns}")
        self._step()
        return value

    def _pattern(self, name: str, kind: pa.DataType) -> str:
        """Consume `like` and a text; return it unquoted, backslashes kept.

        Raises InvalidInput for a column of no text or a bad escape.
        """
        if not types.is_string(kind):
            raise self._error(f"a comparison of numbers or times, as {name!r} is {kind}")
        self._step()
        token = self._token
        if token.kind != "text":
            raise self._error("a text in ''")
        self._step()
        pattern = _plain(token.value)
        if re.search(r"(?<!\\)(?:\\\\)*\\(?![%_\\])", pattern):
            raise InvalidInput(
                f"filter {self._position(token.at)}: in a pattern a backslash comes before %, _ or a backslash"
            )
        return pattern

    def _list(self, name: str, kind: pa.DataType) -> OneOf:
        """Consume a list in parentheses; return a `OneOf` of the values its type can hold, or raise InvalidInput."""
        self._expect("(")
        one_of = OneOf(name, kind, [])
        while True:
            if self._accept("null"):
                one_of.has_null = True
            else:
                floor, exact = self._literal(name, kind)
                one_of.values.extend([floor] if exact else ())
            if self._accept(")"):
                return one_of
            if not self._accept(","):
                raise self._error("')' or ','")

    def _literal(self, name: str, kind: pa.DataType) -> Position:
        """Consume a literal; return its position among the column's values, or raise InvalidInput."""
        token, value = self._token, None
        word = token.value.lower() if token.kind == "word" else ""
        read: Callable[[str], Any] = _LITERALS.get(word or token.kind, str)
        self._step()
        if word in {"date", "timestamp"} and self._token.kind == "text":
            value = _plain(self._token.value)
            self._step()
        elif word in {"true", "false"} or token.kind in {"number", "text"}:
            value = token.value
        if value is None:
            self._token = token
            raise self._error(_HINTS.get(word or token.kind, _HINTS[""]))
        try:
            return position_of(read(value), kind)
        except LiteralMisfit as error:
            raise InvalidInput(f"filter {self._position(token.at)}: {error}; {name!r} is {kind}") from error

    def _step(self) -> None:
        """Read the next token (at last the end) into `_token`, and move `_end` behind it.

        Raises InvalidInput for text that is none.
        """
        match = _TOKEN.match(self._text, self._end)
        if match is None:
            at = re.compile(r"\s*").match(self._text, self._end).end()  # type: ignore[union-attr]
            rest = self._text[at : at + _SHOWN]
            hint = _OPERATORS.get(rest[:1], "")
            raise InvalidInput(f"filter {self._position(at)}: cannot be understood from {rest!r} on{hint}")
        kind = str(match.lastgroup)
        self._token, self._end = _Token(kind, match[kind], match.start(kind)), match.end()

    def _accept(self, word: str) -> bool:
        if is_next := self._is(word):
            self._step()
        return is_next

    def _is(self, word: str) -> bool:
        return self._token.kind in {"word", "sign"} and self._token.value.lower() == word

    def _expect(self, word: str) -> None:
        if not self._accept(word):
            raise self._error(repr(word))

    def _error(self, expected: str, back: str | None = None) -> InvalidInput:
        value = back or self._token.value or "the end"
        return InvalidInput(f"filter {self._position(self._token.at)}: expected {expected}, not {shown(value)}")

    def _position(self, at: int) -> str:
        whole = self._text
        if len(whole) > 4 * _SHOWN:
            begin = max(0, at - _SHOWN)
            whole = f"{'...' if begin else ''}{whole[begin : at + _SHOWN]}..."
        return f"{whole!r}, at character {at + 1}"


def _plain(text: str) -> str:
    return text[1:-1].replace("''", "'")


def _number(text: str) -> int | Decimal:
    try:
        return int(text) if len(text) <= _DIGITS and text.lstrip("+-").isdecimal() else Decimal(text)
    except InvalidOperation:
        raise LiteralMisfit(f"{shown(text)} has an exponent that is too large") from None


_LITERALS: Mapping[str, Callable[[str], Any]] = {
    "number": _number, "text": _plain, "date": day_of, "timestamp": time_of, "true": bool, "false": lambda _: False
}  # fmt: skip
_HINTS: Mapping[str, str] = {
    "": "a literal (a number, a text in '', true, false, date '...', timestamp '...')",
    "null": "a literal; a comparison with null is never true, `is null` asks for it",
    "named": "a literal; double quotes are for names, a text stands in ''",
}
