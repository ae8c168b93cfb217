"""SQL's MERGE over DataFrames, by record key.

Conditions and values are Spark SQL text, in which `t` is the table's row and `s` the source's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType
from typing import cast

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StringType, StructType

from fsspec_cas import InvalidInput
from lockprovider.table.engines.spark import jobs, tasks
from lockprovider.table.engines.writer import plan_for_tasks, start_for_tasks
from lockprovider.table.errors import InvalidRecords
from lockprovider.table.files.group_writer import GroupWriter
from lockprovider.table.state.context import TableContext
from lockprovider.table.timeline.view import FileSlice
from lockprovider.table.transaction.transaction import WHOLE_RETRIES, AnyTransaction, CommitResult, inside, transact

_VALUES, _MOST = "hudi values", "hudi most"


@dataclass(frozen=True, slots=True)
class MatchedUpdate:
    """Set columns of a table row whose key the source has; `values=None`: all source columns."""

    values: Mapping[str, str] | None = None
    where: str | None = None


@dataclass(frozen=True, slots=True)
class MatchedDelete:
    """Delete a table row whose key the source has."""

    where: str | None = None


@dataclass(frozen=True, slots=True)
class NotMatchedInsert:
    """Insert a source row whose key the table lacks; columns not in `values` come from the source, else are null."""

    values: Mapping[str, str] | None = None
    where: str | None = None


Clause = MatchedUpdate | MatchedDelete | NotMatchedInsert


def merge(
    table: TableContext,
    source: DataFrame,
    *clauses: Clause,
    retries: int = WHOLE_RETRIES,
    extra: Mapping[str, str] | None = None,
) -> CommitResult:
    """`merge_into` in one transaction."""
    return transact(table, lambda txn: merge_into(txn, source, *clauses), retries=retries, extra=extra)


def merge_into(txn: AnyTransaction, source: DataFrame, *clauses: Clause, names: tuple[str, str] = ("t", "s")) -> None:
    """Run jobs that merge `source` by key into `txn`, each row by the first clause that holds.

    Other rows change nothing; Spark caches rows. `source` has the key and partition columns, in any case. `names`: the
    table's alias and the source's.

    Raises:
        InvalidInput: the source has a column twice, or a clause is malformed.
        InvalidRecords: the source has a key twice, a clause sets a key or unknown column, or no clause
            is given.
    """
    txn = inside(txn)
    txn.operation = "UPSERT"
    if not clauses:
        raise InvalidRecords("nothing to merge: give at least one clause")

    def split(planner: GroupWriter) -> DataFrame:
        rows = with_spelling(jobs.frame(source, "source"), planner.schema)
        jobs.check_frame(planner, rows, "deletes", "source")
        for clause in clauses:
            _check(clause, planner)
        kind = StructType([*rows.schema.fields]).add(tasks.KEY, StringType()).add(tasks.PARTITION, StringType())
        return rows.mapInArrow(tasks.tagger(planner), kind)

    plan, steps = plan_for_tasks(txn, split), jobs.Steps(txn, "merge", 4)
    with jobs.computed_once(plan.changes) as keyed:
        counts = _counts(keyed, steps)
        writer = start_for_tasks(txn, plan.planner.schema)
        numbered = tasks.Numbered.of(txn.remaining(counts), counts, writer.config.bucket_index)
        with jobs.computed_once(jobs.with_groups(keyed, numbered, writer, steps)) as grouped:
            groups, step = grouped.select(tasks.GROUP).distinct(), steps.at(3, "look the source's keys up")
            numbers = {row[tasks.GROUP] for row in jobs.collect_rows(groups, grouped.schema, step)}
            touched = [(number, file_slice) for number, file_slice in numbered.old.items() if number in numbers]
            changes = _changes(_joined(grouped, touched, writer, names), keyed.columns, clauses, writer, names)
            txn.add(jobs.write_changes(steps, writer, changes, numbered))


def with_spelling(source: DataFrame, schema: pa.Schema) -> DataFrame:
    """Give the source's columns the table's letter case; InvalidInput if several become one."""
    spellings = {name.lower(): name for name in schema.names}
    names = [spellings.get(name.lower(), name) for name in source.columns]
    if repeated := [name for name, times in Counter(map(str.lower, names)).items() if times > 1]:
        raise InvalidInput(
            f"the source has several columns {repeated}; it has {source.columns}: rename or drop all but one"
        )
    return source.toDF(*names)


def _check(clause: Clause, writer: GroupWriter) -> None:
    """Raise InvalidInput for a malformed clause, InvalidRecords if it sets unknown, key or partition columns."""
    if not isinstance(clause, Clause):
        raise InvalidInput(f"{clause!r} is no clause: give MatchedUpdate, MatchedDelete or NotMatchedInsert")
    values = {} if isinstance(clause, MatchedDelete) or clause.values is None else clause.values
    texts = (*values, *values.values()) if isinstance(values, Mapping) else (None,)
    if not isinstance(clause.where, (str, NoneType)) or not all(isinstance(text, str) for text in texts):
        raise InvalidInput(f"{clause!r}: give conditions and values as Spark SQL texts, {{'n': 't.n + s.n'}}")
    columns = set(values)
    if strange := sorted(columns - set(writer.schema.names)):
        raise InvalidRecords(f"{clause} sets {strange}, which are not in the table: use some of {writer.schema.names}")
    if fixed := sorted(columns & {*writer.config.identifying}):
        raise InvalidRecords(
            f"{clause} sets the key or partition columns {fixed}, which always come from the source: leave them out; "
            "to change a key, delete and insert the row"
        )


def _counts(keyed: DataFrame, steps: jobs.Steps) -> dict[str, int]:
    """Report and run the first of `steps`; return the source's row count per partition.

    A key twice raises InvalidRecords.
    """
    per_key = keyed.groupBy(tasks.PARTITION, tasks.KEY).count()
    summed = per_key.groupBy(tasks.PARTITION).agg(
        F.sum("count").alias("count"), F.max("count").alias(_MOST), F.max_by(tasks.KEY, "count").alias(tasks.KEY)
    )
    rows = jobs.collect_rows(summed, keyed.schema, steps.at(1, "count the source's rows"))
    for row in rows:
        if row[_MOST] > 1:
            raise InvalidRecords(f"the source has key {row[tasks.KEY]!r} {row[_MOST]} times: keep one row per key")
    return {row[tasks.PARTITION]: row["count"] for row in rows}


def _joined(
    grouped: DataFrame, touched: list[tuple[int, FileSlice]], writer: GroupWriter, names: tuple[str, str]
) -> DataFrame:
    """Describe each source row joined with the row of its key and file group in `touched` slices, if any.

    `names`: table's, source's alias.
    """
    located = jobs.run_per_piece(
        grouped.sparkSession,
        touched,
        tasks.locator(writer, writer.schema),
        pa.schema([*writer.schema, *tasks.KEYS]),
    )
    table_alias, source_alias = names
    same = [F.col(f"{source_alias}.{name}") == F.col(f"{table_alias}.{name}") for name in tasks.KEYS.names]
    return grouped.alias(source_alias).join(located.alias(table_alias), same, "left")


def _changes(
    joined: DataFrame, source: list[str], clauses: tuple[Clause, ...], writer: GroupWriter, names: tuple[str, str]
) -> DataFrame:
    """Describe changes by the first clause that holds for each row; other rows have none.

    `source`: its column names. `names`: table's, source's alias. Unfit types raise DoesNotFit.
    """
    numbers = [F.when(_holds(clause, names[0]), number) for number, clause in enumerate(clauses)]
    chosen = joined.withColumn(tasks.CLAUSE, F.coalesce(*numbers))
    chosen = chosen.where(F.col(tasks.CLAUSE).isNotNull())
    values = [None if isinstance(clause, MatchedDelete) else f"{_VALUES} {n}" for n, clause in enumerate(clauses)]
    structs = [
        F.when(
            F.col(tasks.CLAUSE) == number,
            F.struct(*(_value(clause, column, source, names).alias(column) for column in writer.schema.names)),
        ).alias(name)
        for number, (clause, name) in enumerate(zip(clauses, values, strict=True))
        if name is not None
    ]
    tags = [F.col(f"{names[1]}.{name}").alias(name) for name in tasks.KEYS.names]
    handed = chosen.select(tasks.CLAUSE, *tags, *structs)
    for name in filter(None, values):
        struct = cast("StructType", handed.schema[name].dataType)
        writer.plan(jobs.arrow_schema(struct))
    kind = pa.schema([*tasks.change_schema(writer.schema), (tasks.GROUP, pa.int64())])
    return handed.mapInArrow(tasks.merger(writer, values), from_arrow_schema(kind))


def _holds(clause: Clause, table_alias: str) -> Column:
    table_key = F.col(f"{table_alias}.{tasks.KEY}")
    applies = table_key.isNull() if isinstance(clause, NotMatchedInsert) else table_key.isNotNull()
    return applies if clause.where is None else applies & F.expr(clause.where)


def _value(clause: Clause, name: str, source: list[str], names: tuple[str, str]) -> Column:
    """Column's new value: the clause's expression, else the table's.

    An insert takes the source's instead, or null; an update without values the source's, if any. `names`: table's,
    source's alias.
    """
    table_column, source_column = f"{names[0]}.`{name}`", f"{names[1]}.`{name}`" if name in source else None
    match clause:
        case MatchedDelete():
            return F.col(table_column)
        case MatchedUpdate():
            unnamed = source_column or table_column
            return F.col(unnamed) if clause.values is None else F.expr(clause.values.get(name, table_column))
        case NotMatchedInsert():
            return F.expr((clause.values or {}).get(name, source_column or "null"))
