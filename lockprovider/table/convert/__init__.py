"""Conversion of values into columns, for every write to a table and every read of an old file.

    plan = compile_plan(rows.schema, table_schema, missing="refuse")    # decided from the schemas; raises DoesNotFit
    stored = plan(rows)                                                 # a pa.Table of the table's columns; the same

Promised: a plan stores each value unchanged, or refuses it with the path of its field. No store is read or written. May
import: errors, format.
"""

from lockprovider.table.convert.plan import OnMissing, Plan, compile_plan, read_as
from lockprovider.table.convert.rules import READ, WRITE, Rules

__all__ = ["READ", "WRITE", "OnMissing", "Plan", "Rules", "compile_plan", "read_as"]
