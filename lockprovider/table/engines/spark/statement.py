"""SQL statements that change rows: parsed, then run in a transaction.

The text is cut at its keywords, so that no expression is rewritten before Spark gets it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import sqlglot
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from sqlglot import Token, TokenType, exp
from sqlglot.errors import ParseError, TokenError

from fsspec_cas import InvalidInput
from lockprovider.table.engines.spark import functions, jobs
from lockprovider.table.engines.spark.merge_into import (
    Clause,
    MatchedDelete,
    MatchedUpdate,
    NotMatchedInsert,
    merge_into,
    with_spelling,
)
from lockprovider.table.engines.spark.views import SHOWN, RegisteredView
from lockprovider.table.errors import InvalidRecords
from lockprovider.table.transaction.transaction import Transaction

_DIALECT = "spark"
_OPENS, _CLOSES = {"(", "[", "CASE"}, {")", "]", "END"}
_QUALIFIED = 2


@dataclass(frozen=True, slots=True)
class Target:
    """View whose table changes."""

    name: str
    alias: str


@dataclass(frozen=True, slots=True)
class WhenClause:
    """WHEN [NOT] MATCHED. `values` are columns and expressions; None means `*` or, with `delete`, nothing."""

    verb: str
    where: str | None
    values: tuple[tuple[str, str], ...] | None


@dataclass(frozen=True, slots=True)
class MergeStatement:
    """MERGE. `on` pairs target columns with source columns; `on_place` is its position."""

    target: Target
    source: str
    source_alias: str
    on: tuple[tuple[str, str], ...]
    on_place: str
    clauses: tuple[WhenClause, ...]


@dataclass(frozen=True, slots=True)
class UpdateStatement:
    """UPDATE."""

    target: Target
    values: tuple[tuple[str, str], ...]
    where: str | None


@dataclass(frozen=True, slots=True)
class DeleteStatement:
    """DELETE."""

    target: Target
    where: str | None


@dataclass(frozen=True, slots=True)
class InsertStatement:
    """INSERT. `columns` is None for all columns, or if the query names them (`by_name`)."""

    target: Target
    query: str
    columns: tuple[str, ...] | None
    by_name: bool
    overwrite: bool


Statement = MergeStatement | UpdateStatement | DeleteStatement | InsertStatement


def parse_statement(text: str) -> Statement:
    """Parse one MERGE, UPDATE, DELETE or INSERT; other text raises InvalidInput with the place."""
    try:
        tokens = sqlglot.tokenize(text, dialect=_DIALECT)
    except TokenError as error:
        raise InvalidInput(f"SQL {text!r} cannot be understood: {error}") from None
    while tokens and tokens[-1].token_type is TokenType.SEMICOLON:
        tokens.pop()
    reader = _Reader(text, tokens)
    kinds: dict[str, tuple[type[exp.Expression], Callable[[_Reader], Statement]]] = {
        "MERGE": (exp.Merge, _merge),
        "UPDATE": (exp.Update, _update),
        "DELETE": (exp.Delete, _delete),
        "INSERT": (exp.Insert, _insert),
    }
    if reader.word not in kinds:
        raise reader.wrong("MERGE, UPDATE, DELETE or INSERT (to read, use spark.sql)")
    kind, parse = kinds[reader.word]
    _check_syntax(kind, reader)
    reader.take()
    return parse(reader)


def _check_syntax(kind: type[exp.Expression], reader: _Reader) -> None:
    """Raise InvalidInput unless sqlglot parses all text as one statement of `kind`; takes no token."""
    text = reader.text
    try:
        statements = sqlglot.parse(text[: reader.tokens[-1].end + 1], dialect=_DIALECT)
    except ParseError as error:
        first = error.errors[0]
        lines = text.split("\n")[: int(first["line"]) - 1]
        at = sum(len(line) + 1 for line in lines) + int(first["col"]) - len(first["highlight"]) + 1
        raise InvalidInput(
            f"SQL {text!r} cannot be understood from {first['highlight']!r} on, at character {at}: "
            f"{first['description']}"
        ) from None
    if len(statements) != 1:
        raise InvalidInput(
            f"SQL {text!r} has {len(statements)} statements: pass one per call, as each is a transaction"
        )
    if not isinstance(statements[0], kind):
        raise reader.wrong(f"a whole {reader.word} statement")


def _words(expression: str) -> list[str]:
    """Expression's tokens in lower case: names without quotes, and empty for a literal text of any kind."""
    tokens = sqlglot.tokenize(expression, dialect=_DIALECT)
    return ["" if _is_literal(token) else token.text.lower() for token in tokens]


def _is_literal(token: Token) -> bool:
    return token.token_type.name.endswith("STRING")  # raw and hexadecimal ones, too


@dataclass
class _Reader:
    """Methods consume tokens, and raise InvalidInput with the position."""

    text: str
    tokens: list[Token]
    at: int = 0

    @property
    def word(self) -> str:
        """Upper case; empty at the end and for quoted tokens."""
        if self.at >= len(self.tokens):
            return ""
        token = self.tokens[self.at]
        return "" if _is_literal(token) or token.token_type is TokenType.IDENTIFIER else token.text.upper()

    @property
    def is_over(self) -> bool:
        return self.at >= len(self.tokens)

    def place(self, at: int | None = None) -> str:
        number = self.at if at is None else at
        start = self.tokens[number].start if number < len(self.tokens) else len(self.text)
        return f"at character {start + 1}"

    def wrong(self, expected: str) -> InvalidInput:
        actual = repr(self.tokens[self.at].text) if not self.is_over else "the end"
        return InvalidInput(f"SQL {self.text!r}: expected {expected}, not {actual}, {self.place()}")

    def take(self) -> str:
        if self.is_over:
            raise self.wrong("more")
        self.at += 1
        return self.tokens[self.at - 1].text

    def took(self, *words: str) -> bool:
        """Consume these upper-case words if all come next; return whether they did."""
        start = self.at
        for word in words:
            if self.word != word:
                self.at = start
                return False
            self.at += 1
        return True

    def need(self, *words: str) -> None:
        if not self.took(*words):
            raise self.wrong(" ".join(words))

    def name(self) -> str:
        if self.is_over or not (self.tokens[self.at].text.replace("_", "a").isalnum() or not self.word):
            raise self.wrong("a name")
        if _is_literal(self.tokens[self.at]):
            raise self.wrong("a name")
        return self.take()

    def until(self, *words: str) -> str:
        """Consume and return text up to one of these upper-case words outside brackets and CASE, or the end.

        Also stops before an unopened closing bracket or END; InvalidInput for no text.
        """
        start, depth = self.at, 0
        while not self.is_over:
            is_column = self.at > start and self.tokens[self.at - 1].token_type is TokenType.DOT
            word = "" if is_column else self.word
            if depth == 0 and word in words:
                break
            depth += (word in _OPENS) - (word in _CLOSES)
            if depth < 0:
                break
            self.at += 1
        if self.at == start:
            raise self.wrong("an expression")
        return self.text[self.tokens[start].start : self.tokens[self.at - 1].end + 1]

    def end(self) -> None:
        if not self.is_over:
            raise self.wrong("the end")

    def target(self, *, aliased: bool = True) -> Target:
        name = self.name()
        if self.word == ".":
            raise self.wrong("the name of a registered view (without a dot)")
        return Target(name, self.alias("SET", "WHERE", "USING") or name if aliased else name)

    def alias(self, *reserved: str) -> str:
        if self.took("AS"):
            return self.plain_name()
        return "" if self.is_over or self.word in reserved else self.plain_name()

    def plain_name(self) -> str:
        name = self.name()
        if not name.replace("_", "a").isalnum():
            self.at -= 1
            raise self.wrong("a name of letters, digits and underscores")
        return name

    def column_of(self, target: Target) -> str:
        """Consume a column, without or with the target's alias; return its name.

        Another alias, or a struct's field, raises InvalidInput.
        """
        first = self.name()
        if not self.took("."):
            return first
        if first.lower() != target.alias.lower():
            self.at -= 2
            raise self.wrong(f"a column of {target.alias}")
        column = self.name()
        if self.word == ".":
            raise self.wrong("a whole column (a field of a struct cannot be set)")
        return column

    def assignments(self, target: Target, *ends: str) -> tuple[tuple[str, str], ...]:
        """Consume `a = 1, b = b + 1` up to a word of `ends`; return pairs of column and expression.

        A column twice raises InvalidInput.
        """
        values: dict[str, str] = {}
        while True:
            start, column = self.at, self.column_of(target)
            self.need("=")
            if column.lower() in map(str.lower, values):
                self.at = start
                raise self.wrong("each column once")
            values[column] = self.until(",", *ends)
            if not self.took(","):
                return tuple(values.items())

    def columns_of(self, target: Target) -> tuple[str, ...]:
        self.need("(")
        columns = [self.column_of(target)]
        while self.took(","):
            columns.append(self.column_of(target))
        self.need(")")
        return tuple(columns)


def _merge(reader: _Reader) -> MergeStatement:
    """Parse MERGE after its first word. Target and source need different aliases."""
    reader.need("INTO")
    target = reader.target()
    reader.need("USING")
    source, source_alias = _source(reader)
    if source_alias.lower() == target.alias.lower():
        reader.at -= 1
        raise reader.wrong(f"another name for the source than {target.alias}: USING ... AS s")
    reader.need("ON")
    start = reader.at
    on = _keys(reader, reader.until("WHEN"), start, target, source_alias)
    clauses = []
    while not reader.is_over:
        clauses.append(_when(reader, target))
    return MergeStatement(target, source, source_alias, on, reader.place(start), tuple(clauses))


def _source(reader: _Reader) -> tuple[str, str]:
    """Consume MERGE's source, a dotted name or bracketed query; return its text and alias.

    A name's default alias is its last part. A query without alias, or other text, raises InvalidInput.
    """
    start = reader.at
    if reader.took("("):
        reader.until(")")
        reader.need(")")
        name = ""
    else:
        name = reader.name()
        while reader.took("."):
            name = reader.name()
    end = reader.tokens[reader.at - 1].end + 1
    alias = reader.alias("ON") or name
    if not alias:
        raise reader.wrong("a name for the query: USING (...) AS s")
    return reader.text[reader.tokens[start].start : end], alias


def _keys(reader: _Reader, text: str, start: int, target: Target, source_alias: str) -> tuple[tuple[str, str], ...]:
    """Parse ON's text, `t.id = s.id and s.city = t.city`, into pairs of target and source column.

    Other conditions, or a key twice, raise InvalidInput with the place of token `start`.
    """
    tree = sqlglot.parse_one(text, dialect=_DIALECT).unnest()
    pairs: dict[str, tuple[str, str]] = {}
    for part in tree.flatten() if isinstance(tree, exp.And) else [tree]:
        sides = {}
        for column in (part.this, part.expression) if isinstance(part, exp.EQ) else ():
            if isinstance(column, exp.Column) and len(column.parts) == _QUALIFIED:
                sides[column.table.lower()] = column.name
        if {*sides} != {target.alias.lower(), source_alias.lower()}:
            reader.at = start
            raise InvalidInput(
                f"SQL {reader.text!r}: ON must be {target.alias}.KEY = {source_alias}.KEY for each key column, "
                f"joined by AND, not {part.sql(_DIALECT)!r}, {reader.place()}"
            )
        key = sides[target.alias.lower()]
        if key.lower() in pairs:
            reader.at = start
            raise InvalidInput(
                f"SQL {reader.text!r}: ON compares {target.alias}.{key} twice: compare each key column once, and "
                f"choose the source's rows by USING (SELECT ... WHERE ...), {reader.place()}"
            )
        pairs[key.lower()] = (key, sides[source_alias.lower()])
    return tuple(pairs.values())


def _when(reader: _Reader, target: Target) -> WhenClause:
    """Consume and return one WHEN clause; NOT MATCHED BY SOURCE raises InvalidInput."""
    reader.need("WHEN")
    start, is_insert = reader.at, reader.took("NOT")
    reader.need("MATCHED")
    if reader.took("BY", "SOURCE"):
        reader.at = start
        raise reader.wrong(
            "MATCHED or NOT MATCHED (BY SOURCE is not supported: change those rows with UPDATE or DELETE)"
        )
    if is_insert:
        reader.took("BY", "TARGET")
    where = reader.until("THEN") if reader.took("AND") else None
    reader.need("THEN")
    if not is_insert and reader.took("DELETE"):
        return WhenClause("delete", where, None)
    if not is_insert and reader.took("UPDATE"):
        reader.need("SET")
        values = None if reader.took("*") else reader.assignments(target, "WHEN")
        return WhenClause("update", where, values)
    if is_insert and reader.took("INSERT"):
        return WhenClause("insert", where, None if reader.took("*") else _inserted(reader, target))
    raise reader.wrong("INSERT" if is_insert else "UPDATE or DELETE")


def _inserted(reader: _Reader, target: Target) -> tuple[tuple[str, str], ...]:
    """Consume `(columns) VALUES (values)`; return pairs.

    InvalidInput unless each column comes once, with one value.
    """
    columns, values = reader.columns_of(target), []
    reader.need("VALUES", "(")
    while True:
        values.append(reader.until(",", ")"))
        if not reader.took(","):
            break
    reader.need(")")
    if len(columns) != len(values) or len({name.lower() for name in columns}) != len(columns):
        reader.at -= 1
        raise reader.wrong(f"one value for each of {list(columns)}, each once")
    return tuple(zip(columns, values, strict=True))


def _update(reader: _Reader) -> UpdateStatement:
    target = reader.target()
    reader.need("SET")
    values = reader.assignments(target, "WHERE")
    where = reader.until() if reader.took("WHERE") else None
    reader.end()
    return UpdateStatement(target, values, where)


def _delete(reader: _Reader) -> DeleteStatement:
    reader.need("FROM")
    target = reader.target()
    where = reader.until() if reader.took("WHERE") else None
    reader.end()
    return DeleteStatement(target, where)


def _insert(reader: _Reader) -> InsertStatement:
    """Parse INSERT after its first word; PARTITION, REPLACE and IF raise InvalidInput."""
    overwrite = reader.took("OVERWRITE")
    if not overwrite:
        reader.need("INTO")
    reader.took("TABLE")
    target = reader.target(aliased=False)
    if reader.word in {"PARTITION", "REPLACE", "IF"}:
        raise reader.wrong("a query (to replace partitions, call insert_overwrite(table, rows, partitions))")
    by_name = reader.took("BY", "NAME")
    columns = reader.columns_of(target) if not by_name and _is_list_of_names(reader) else None
    query = reader.until()
    reader.end()
    return InsertStatement(target, query, columns, by_name, overwrite)


def _is_list_of_names(reader: _Reader) -> bool:
    following = reader.tokens[reader.at + 1 : reader.at + 2]
    return (
        reader.word == "("
        and bool(following)
        and following[0].text.upper() not in {"SELECT", "WITH", "VALUES", "(", "TABLE", "FROM"}
    )


class StatementRun:
    """One attempt of the statement `text`, which changes the table of `view` in `txn`."""

    def __init__(self, spark: SparkSession, txn: Transaction, view: RegisteredView, text: str) -> None:
        self._spark, self._txn, self._view, self._text = spark, txn, view, text
        self._schema = txn.table.schema(txn.timeline)
        self._names: dict[str, str] = {name.lower(): name for name in self._schema.names}

    def run(self, statement: Statement) -> None:
        """Write the statement's changes into the transaction by Spark jobs.

        May first make the view show the transaction's snapshot, under the process-wide lock `SHOWN`.
        """
        match statement:
            case MergeStatement():
                self._merge(statement)
            case UpdateStatement():
                self._update(statement)
            case DeleteStatement():
                where = statement.where or "true"
                with self._shown(where):
                    functions.delete_where(self._spark, self._txn, where, alias=statement.target.alias)
            case InsertStatement():
                self._insert(statement)

    def _query(self, text: str) -> DataFrame:
        with SHOWN:
            self._view.show(self._spark, self._txn)
            return self._spark.sql(text)

    def _column(self, name: str) -> str:
        spelling = self._names.get(name.lower())
        if spelling is None:
            raise InvalidInput(
                f"SQL {self._text!r}: {name!r} is no column of the table, which has {self._schema.names}"
            )
        return spelling

    def _named(self, values: tuple[tuple[str, str], ...]) -> dict[str, str]:
        return {self._column(name): text for name, text in values}

    def _merge(self, statement: MergeStatement) -> None:
        """Make the view show the transaction's snapshot, then merge the source into it by jobs.

        InvalidInput unless ON has exactly the key and partition columns.
        """
        keys = self._txn.config.identifying
        on = {self._column(name): source_column for name, source_column in statement.on}
        if {*on} != {*keys}:
            raise InvalidInput(
                f"SQL {self._text!r}: ON must compare the key and partition columns, {list(keys)}, and no others, "
                f"{statement.on_place}"
            )
        rows = self._query(f"select * from {statement.source}")  # noqa: S608 - the user's own SQL
        given = source = with_spelling(rows, self._schema)
        for key, source_column in on.items():
            source = self._with_key(source, given.columns, key, source_column)
        clauses = [self._clause(clause, source, on, statement) for clause in statement.clauses]
        merge_into(self._txn, source, *clauses, names=(statement.target.alias, statement.source_alias))

    def _with_key(self, source: DataFrame, given: Sequence[str], key: str, source_column: str) -> DataFrame:
        """Source with a copy of `source_column` as `key`, unless it is `key`.

        InvalidInput if its columns as `given` lack `source_column`, or have another column `key`.
        """
        column = {name.lower(): name for name in given}.get(source_column.lower())
        if column is None:
            raise InvalidInput(f"SQL {self._text!r}: the source has no column {source_column!r}; it has {given}")
        if column == key:
            return source
        if key in given:
            raise InvalidInput(
                f"SQL {self._text!r}: the source has {key!r}, too, but ON compares its {source_column!r} with the "
                f"table's {key!r}: rename or drop the source's {key!r} in a query, USING (select ...) AS s"
            )
        return source.withColumn(key, source[column])

    def _clause(
        self, clause: WhenClause, source: DataFrame, on: Mapping[str, str], statement: MergeStatement
    ) -> Clause:
        """Translate a clause; an insert makes unnamed columns null.

        `on` maps key and partition columns to source columns. InvalidInput: a key set otherwise, or omitted by an
        insert; `*` if `source` lacks a table column.
        """
        if clause.verb == "delete":
            return MatchedDelete(clause.where)
        kind, is_insert = (NotMatchedInsert, True) if clause.verb == "insert" else (MatchedUpdate, False)
        if clause.values is None:
            lacking = sorted({*self._schema.names} - {*source.columns})
            if lacking:
                raise InvalidInput(
                    f"SQL {self._text!r}: * needs all columns of the table, and the source lacks "
                    f"{lacking}: add them, or name columns"
                )
            return kind(None, clause.where)
        values = self._named(clause.values)
        alias = statement.source_alias.lower()
        for key, source_column in on.items():
            value, name = values.pop(key, None), source_column.lower()
            words = None if value is None else _words(value)
            if (words is None and is_insert) or words not in (None, [alias, ".", name], [name]):
                raise InvalidInput(
                    f"SQL {self._text!r}: {key} is a key or partition column, and can only be set to "
                    f"{statement.source_alias}.{source_column}, as in ON"
                )
        nulls = {name: "null" for name in self._schema.names if is_insert and name not in on}
        return kind({**nulls, **values}, clause.where)

    def _update(self, statement: UpdateStatement) -> None:
        """Upsert an UPDATE's changed rows into the transaction.

        May first make the view show its snapshot. Setting key or partition columns raises InvalidRecords.
        """
        values = self._named(statement.values)
        if fixed := sorted({*values} & {*self._txn.config.identifying}):
            raise InvalidRecords(
                f"{fixed} are key or partition columns, and cannot be updated: delete and insert the rows instead"
            )
        where, alias = statement.where, statement.target.alias
        pushed = where if where is not None and jobs.pushable_filter(where, self._schema) is not None else None
        with self._shown(statement.where, *values.values()):
            rows = functions.read(self._spark, self._txn, filter=pushed, native_reads=self._view.native_reads).alias(
                alias
            )
            matching = rows if where is None else rows.where(where)
            changed = matching.select(
                *(F.expr(values.get(name, f"{alias}.`{name}`")).alias(name) for name in self._schema.names)
            )
        functions.write(self._txn, upserts=changed)

    @contextmanager
    def _shown(self, *texts: str | None) -> Iterator[None]:
        """If an expression may read views: hold `SHOWN`; the view shows the transaction from now on."""
        if not any("from" in text.lower() for text in texts if text is not None):
            yield
            return
        with SHOWN:
            self._view.show(self._spark, self._txn)
            yield

    def _insert(self, statement: InsertStatement) -> None:
        """Make the view show the transaction's snapshot, then insert queried rows, or overwrite all, in it.

        Unnamed columns become null. InvalidInput: unknown columns, or another number of them.
        """
        rows = self._query(statement.query)
        if not statement.by_name:
            names = [*map(self._column, statement.columns)] if statement.columns is not None else self._schema.names
            if len(rows.columns) != len(names) or len({*names}) != len(names):
                raise InvalidInput(
                    f"SQL {self._text!r}: the query has {len(rows.columns)} columns for {names}: select one for each"
                )
            rows = rows.toDF(*names)
        else:
            rows = rows.toDF(*map(self._column, rows.columns))
        (functions.overwrite_all if statement.overwrite else functions.insert)(self._txn, rows)
