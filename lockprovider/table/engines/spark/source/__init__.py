"""Writes by the data source as Hudi's own options ask for them: which operation, and of which table.

May import: what Spark's other modules may.
"""
