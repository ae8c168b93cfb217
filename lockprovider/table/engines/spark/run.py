"""SQL statements that change rows, each one transaction: `sql(spark, "delete from trips where fare < 0")`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it

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
from lockprovider.table.engines.spark.statement import (
    DeleteStatement,
    InsertStatement,
    MergeStatement,
    Statement,
    UpdateStatement,
    WhenClause,
    parse_statement,
)
from lockprovider.table.engines.spark.views import SHOWN, RegisteredView, writable_view
from lockprovider.table.errors import InvalidRecords
from lockprovider.table.transaction.retry import WHOLE_RETRIES, transact
from lockprovider.table.transaction.transaction import CommitResult, Transaction


def run_sql(
    spark: SparkSession, text: str, *, retries: int = WHOLE_RETRIES, extra: Mapping[str, str] | None = None
) -> CommitResult:
    """Run a statement as one transaction, then make its view show the result; see `views.sql`.

    After an error the view may show the version that the statement read.
    """
    statement = parse_statement(text)
    view = writable_view(spark, statement.target.name)
    result = transact(view.table, lambda txn: _Run(spark, txn, view, text).run(statement), retries=retries, extra=extra)
    with SHOWN:
        view.show(spark, view.table)
    return result


class _Run:
    """One attempt of the statement `text`: `run` writes changes into `txn`, and may make `view` show `txn`."""

    def __init__(self, spark: SparkSession, txn: Transaction, view: RegisteredView, text: str) -> None:
        self._spark, self._txn, self._view, self._text = spark, txn, view, text
        self._schema = txn.table.schema(txn.timeline)
        self._names: dict[str, str] = {name.lower(): name for name in self._schema.names}

    def run(self, statement: Statement) -> None:
        """Write the statement's changes into the transaction, without a commit.

        May raise InvalidInput or InvalidRecords.
        """
        match statement:
            case MergeStatement():
                self._merge(statement)
            case UpdateStatement():
                self._update(statement)
            case DeleteStatement():
                self._delete(statement)
            case InsertStatement():
                self._insert(statement)

    def _query(self, text: str) -> DataFrame:
        """Make the view show the transaction, from now on, and describe the rows of the query `text`."""
        with SHOWN:
            self._view.show(self._spark, self._txn)
            return self._spark.sql(text)

    def _column(self, name: str) -> str:
        """Return the table's spelling of a column name; raise InvalidInput for an unknown column."""
        spelling = self._names.get(name.lower())
        if spelling is None:
            raise InvalidInput(
                f"SQL {self._text!r}: {name!r} is no column of the table, which has {self._schema.names}"
            )
        return spelling

    def _named(self, values: tuple[tuple[str, str], ...]) -> dict[str, str]:
        return {self._column(name): text for name, text in values}

    def _merge(self, statement: MergeStatement) -> None:
        """Run a MERGE; raise InvalidInput unless ON compares exactly the key and partition columns."""
        keys = self._txn.config.identifying
        on = {self._column(name): source_column for name, source_column in statement.on}
        if {*on} != {*keys}:
            raise InvalidInput(
                f"SQL {self._text!r}: ON must compare the key and partition columns, {list(keys)}, and no others, "
                f"{statement.on_place}"
            )
        rows = self._query(f"select * from {statement.source}")  # noqa: S608 - the user's own SQL
        source = with_spelling(rows, self._schema)
        for key, source_column in on.items():
            source = self._with_key(source, key, source_column)
        clauses = [self._clause(clause, source, on, statement) for clause in statement.clauses]
        merge_into(self._txn, source, *clauses, names=(statement.target.alias, statement.source_alias))

    def _with_key(self, source: DataFrame, key: str, source_column: str) -> DataFrame:
        """Return the source with a copy of `source_column` as column `key`, unless it has that name.

        Raises InvalidInput if that column is missing, or another one has the name.
        """
        column = {name.lower(): name for name in source.columns}.get(source_column.lower())
        if column is None:
            raise InvalidInput(
                f"SQL {self._text!r}: the source has no column {source_column!r}; it has {source.columns}"
            )
        if column == key:
            return source
        if key in source.columns:
            raise InvalidInput(
                f"SQL {self._text!r}: the source has {key!r}, too, but ON compares its {source_column!r} with the "
                f"table's {key!r}: rename or drop the source's {key!r} in a query, USING (select ...) AS s"
            )
        return source.withColumn(key, source[column])

    def _clause(
        self, clause: WhenClause, source: DataFrame, on: Mapping[str, str], statement: MergeStatement
    ) -> Clause:
        """Translate a parsed clause, without effect; key columns may only be set to their source columns in `on`.

        Raises InvalidInput for others, for unknown columns, for `*` if the source lacks columns, and for an INSERT of
        named columns without a key column.
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
            value = values.pop(key, None)
            normalized = None if value is None else value.replace("`", "").replace(" ", "").lower()
            if (normalized is None and is_insert) or normalized not in {
                None,
                f"{alias}.{source_column.lower()}",
                source_column.lower(),
            }:
                raise InvalidInput(
                    f"SQL {self._text!r}: {key} is a key or partition column, and can only be set to "
                    f"{statement.source_alias}.{source_column}, as in ON"
                )
        nulls = {name: "null" for name in self._schema.names if is_insert and name not in on}
        return kind({**nulls, **values}, clause.where)

    def _update(self, statement: UpdateStatement) -> None:
        """Run an UPDATE: upsert matching rows with the new values into the transaction.

        Key and partition columns among them raise InvalidRecords.
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

    def _delete(self, statement: DeleteStatement) -> None:
        where = statement.where or "true"
        with self._shown(where):
            functions.delete_where(self._spark, self._txn, where, alias=statement.target.alias)

    @contextmanager
    def _shown(self, *texts: str | None) -> Iterator[None]:
        """Make the view show the transaction, holding `SHOWN` in the block, if an expression has the text `select`.

        The view stays so afterwards.
        """
        if not any("select" in text.lower() for text in texts if text is not None):
            yield
            return
        with SHOWN:
            self._view.show(self._spark, self._txn)
            yield

    def _insert(self, statement: InsertStatement) -> None:
        """Run an INSERT into the transaction, with the query's columns in the table's order or by name.

        Other columns raise InvalidInput.
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
