"""PySpark: rows are read and written on the executors; see `functions`, whose names this hands on.

    from lockprovider.table.engines import spark as engine

May import: transaction, read, rewrite and below, and the engines' shared `scan`, `writer` and `changes`.
"""

from lockprovider.table.engines.spark.functions import (
    Feed,
    MatchedDelete,
    MatchedUpdate,
    NotMatchedInsert,
    append,
    changes,
    delete,
    delete_where,
    insert,
    insert_overwrite,
    merge,
    merge_into,
    overwrite,
    read,
    upsert,
    write,
)
from lockprovider.table.engines.spark.services import cluster, compact
from lockprovider.table.engines.spark.statements.views import register, sql

__all__ = [
    "Feed",
    "MatchedDelete",
    "MatchedUpdate",
    "NotMatchedInsert",
    "append",
    "changes",
    "cluster",
    "compact",
    "delete",
    "delete_where",
    "insert",
    "insert_overwrite",
    "merge",
    "merge_into",
    "overwrite",
    "read",
    "register",
    "sql",
    "upsert",
    "write",
]
