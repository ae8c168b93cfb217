"""The one conversion of values into columns: every way into a table, and every read of an old file, passes through it.

    plan = compile_plan(rows.schema, table_schema, missing="refuse")    # decided from the schemas; raises DoesNotFit
    stored = plan(rows)                                                 # a pa.Table of the table's columns; the same

Promised: a value that a plan lets pass is the value that is stored; any other is refused with the path of its field.
Nothing here reads or writes a store. It may import `errors` and `format`.
"""

from lockprovider.table.convert.plan import OnMissing, Plan, compile_plan, read_as
from lockprovider.table.convert.rules import READ, WRITE, Rules

__all__ = ["READ", "WRITE", "OnMissing", "Plan", "Rules", "compile_plan", "read_as"]
