"""Converts rows to a table's columns."""

from lockprovider.table.convert.columns import READ, WRITE, Rules
from lockprovider.table.convert.plan import OnMissing, Plan, compile_plan, read_as

__all__ = ["READ", "WRITE", "OnMissing", "Plan", "Rules", "compile_plan", "read_as"]
