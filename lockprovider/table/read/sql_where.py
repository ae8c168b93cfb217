"""A row filter written as in SQL, as an Arrow expression: the one grammar of every reader and of `delete`.

    city = 'ulm' and (fare > 3.5 or fare is null) and day in ('2026-01-01', '2026-01-02')

Comparisons of a column with a literal (`= != <> < <= > >=`), `in`, `between`, `is null`, joined by `and`, `or`, `not`
and parentheses. A literal is taken as a value of its column's type, dates and times from ISO text. As in SQL a
comparison with null is neither true nor false, and only rows for which the whole is true are kept.

Not promised: anything else of SQL; it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from fsspec_cas import InvalidInput

_TOKEN = re.compile(r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<number>-?\d+(?:\.\d+)?)|`(?P<quoted>[^`]+)`|"
                    r"(?P<word>[A-Za-z_]\w*)|(?P<sign><>|!=|<=|>=|[=<>(),]))")  # fmt: skip
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_WORDS = {"true": True, "false": False}
_END = ("end", "the end")


def parse_where(text: str, schema: pa.Schema) -> Any:
    """The filter as an expression over the columns of `schema`.

    Raises:
        InvalidInput: it cannot be understood, or names a column or value that does not fit; the message says where.
    """
    parser = _Parser(text, schema, _tokens(text))
    found = parser.either()
    if parser.peek() != _END:
        raise parser.wrong("and, or, or the end")
    return found


def _tokens(text: str) -> list[tuple[str, str, int]]:
    """Each with its kind and its place."""
    tokens, at = [], 0
    while text[at:].strip():
        found = _TOKEN.match(text, at)
        if found is None:
            raise InvalidInput(f"filter {text!r} cannot be understood from {text[at:]!r} on")
        tokens.append((str(found.lastgroup), found[str(found.lastgroup)], found.start(str(found.lastgroup))))
        at = found.end()
    return [*tokens, (*_END, len(text))]


@dataclass
class _Parser:
    """One pass over the tokens, each method one rule of the grammar."""

    text: str
    schema: pa.Schema
    tokens: list[tuple[str, str, int]]
    at: int = 0

    def peek(self) -> tuple[str, str]:
        return self.tokens[self.at][:2]

    def next(self) -> tuple[str, str]:
        self.at += 1
        return self.tokens[self.at - 1][:2]

    def took(self, *words: str) -> bool:
        """Step over these words or signs, if they are next."""
        here = self.tokens[self.at : self.at + len(words)]
        there = [value.lower() for kind, value, _ in here if kind in {"word", "sign"}]
        if there != list(words):
            return False
        self.at += len(words)
        return True

    def wrong(self, expected: str) -> InvalidInput:
        return InvalidInput(f"filter {self.text!r}: expected {expected}, not {self.peek()[1]!r}, {self.place()}")

    def place(self, back: int = 0) -> str:
        """Where it stands."""
        return f"at character {self.tokens[self.at - back][2] + 1}"

    def need(self, word: str) -> None:
        if not self.took(word):
            raise self.wrong(repr(word))

    def either(self) -> Any:
        found = self.both()
        while self.took("or"):
            found = found | self.both()
        return found

    def both(self) -> Any:
        found = self.one()
        while self.took("and"):
            found = found & self.one()
        return found

    def one(self) -> Any:
        if self.took("not"):
            return ~self.one()
        if self.took("("):
            found = self.either()
            self.need(")")
            return found
        return self.comparison()

    def comparison(self) -> Any:
        kind, name = self.next()
        if kind not in {"word", "quoted"} or name not in self.schema.names:
            raise InvalidInput(
                f"filter {self.text!r}: {name!r}, {self.place(1)}, is no column; there are {self.schema.names}"
            )
        column = pc.field(name)
        if self.took("is", "null"):
            return column.is_null()
        if self.took("is", "not", "null"):
            return column.is_valid()
        negated = self.took("not")
        found = self.range_or_list(name) if negated or self.peek()[0] == "word" else self.compared(name)
        return ~found if negated else found

    def range_or_list(self, name: str) -> Any:
        column = pc.field(name)
        if self.took("between"):
            low = self.literal(name)
            self.need("and")
            return (column >= low) & (column <= self.literal(name))
        self.need("in")
        self.need("(")
        found = column == self.literal(name)  # not `isin`, which takes a null for "not in"
        while self.took(","):
            found = found | (column == self.literal(name))
        self.need(")")
        return found

    def compared(self, name: str) -> Any:
        compare = _COMPARE.get(self.peek()[1])
        if compare is None:
            raise self.wrong("a comparison")
        self.next()
        return compare(pc.field(name), self.literal(name))

    def literal(self, name: str) -> Any:
        kind, value = self.next()
        plain: Any = value[1:-1].replace("''", "'") if kind == "text" else _WORDS.get(value.lower())
        if kind == "number":
            plain = float(value) if "." in value else int(value)
        if plain is None or kind not in {"text", "number", "word"}:
            self.at -= 1
            raise self.wrong("a literal (a text in '')")
        return self.cast(name, plain)

    def cast(self, name: str, value: Any) -> Any:
        column = self.schema.field(name).type
        if isinstance(value, str) != (pa.types.is_string(column) or pa.types.is_temporal(column)):
            raise InvalidInput(f"filter {self.text!r}: {value!r}, {self.place(1)}, is no {column}, which {name!r} is")
        zone = "" if not pa.types.is_timestamp(column) or column.tz is None or _has_zone(str(value)) else "Z"
        try:
            return pc.scalar(pa.scalar(f"{value}{zone}" if isinstance(value, str) else value).cast(column))
        except pa.ArrowException as error:
            raise InvalidInput(
                f"filter {self.text!r}: {value!r}, {self.place(1)}, is no {column}, which {name!r} is"
            ) from error


def _has_zone(text: str) -> bool:
    return re.search(r"(Z|[+-]\d\d:?\d\d)$", text) is not None
