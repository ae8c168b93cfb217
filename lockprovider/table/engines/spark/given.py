"""What a user gives to the functions: checked in the driver, before a job starts.

A frame is checked by the schemas alone. The tasks convert its rows by the same plan, and refuse single values.
"""

from __future__ import annotations

from typing import Any, Literal, cast

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from fsspec_cas import InvalidInput
from lockprovider.table.errors import DoesNotFit, Misfit
from lockprovider.table.files.group_writer import GroupWriter

RowsFor = Literal["new", "whole", "deletes", "valued deletes"]  # what rows are for; see `refuse_unfit`


def arrow_schema(schema: StructType) -> pa.Schema:
    """The columns in which Spark hands the rows of such a frame to Python.

    Raises:
        DoesNotFit: naming the columns of types that no table holds.
    """
    columns: list[pa.Field] = []
    misfits: list[Misfit] = []
    for field in schema.fields:
        try:
            found = to_arrow_schema(
                StructType([field]), error_on_duplicated_field_names_in_struct=True, timezone="UTC"
            ).field(0)
        except (PySparkException, KeyError):  # what Arrow has no type for
            found = None
        if found is None or _has_variants(field.dataType):
            misfits.append(_unheld(field))
        else:
            columns.append(found.with_metadata(None))
    if misfits:
        raise DoesNotFit(tuple(misfits))
    return pa.schema(columns)


def _unheld(field: StructField) -> Misfit:
    kind = field.dataType.simpleString()
    return Misfit(field.name, kind, "", f"{field.name}: Spark's {kind} fits no column of a table; cast it first")


def _has_variants(kind: DataType) -> bool:
    """Whether a value of Spark's `variant` is inside, which comes to Python as a struct of two binaries."""
    match kind:
        case ArrayType():
            return _has_variants(kind.elementType)
        case MapType():
            return _has_variants(kind.keyType) or _has_variants(kind.valueType)
        case StructType():
            return any(_has_variants(field.dataType) for field in kind.fields)
    return kind.typeName() == "variant"


def refuse_unfit(writer: GroupWriter, rows: Any, use: RowsFor, name: str = "rows") -> pa.Schema:
    """Return the frame's columns if it can be written.

    Args:
        writer: of the table.
        rows: the frame.
        use: `new` rows lack what is null; `whole` rows replace others, and have all columns; of `deletes` the columns
            of key and partition count, of `valued deletes` the ordering column, too.
        name: the argument's, for the error.

    Raises:
        InvalidInput: this is no frame of Spark.
        DoesNotFit: naming the columns.
    """
    if not isinstance(rows, DataFrame):
        raise InvalidInput(f"{name} is a {type(rows).__name__}, and must be a DataFrame of Spark")
    if use in {"deletes", "valued deletes"}:
        names = {*writer.config.identifying, *([writer.config.ordering_field] if use == "valued deletes" else [])}
        schema = arrow_schema(StructType([field for field in rows.schema.fields if field.name in names]))
        writer.deletes(schema.empty_table(), valued=use == "valued deletes")
        return schema
    schema = arrow_schema(rows.schema)
    writer.plan(schema, "null" if use == "new" else "refuse")
    return schema


def session(spark: Any) -> SparkSession:
    """The session that was given.

    Raises:
        InvalidInput: it is none.
    """
    if not isinstance(spark, SparkSession) and not type(spark).__module__.startswith("pyspark.sql.connect"):
        raise InvalidInput(f"spark is a {type(spark).__name__}, and must be a SparkSession")
    return cast("SparkSession", spark)
