"""PySpark: rows are read and written on the executors; see `functions`, whose names this hands on.

    from lockprovider.table.engines import spark as engine

May import: transaction, read and below, and the engines' shared `writer` and `rows`.
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
    register,
    upsert,
    write,
)

__all__ = [
    "Feed",
    "MatchedDelete",
    "MatchedUpdate",
    "NotMatchedInsert",
    "append",
    "changes",
    "delete",
    "delete_where",
    "insert",
    "insert_overwrite",
    "merge",
    "merge_into",
    "overwrite",
    "read",
    "register",
    "upsert",
    "write",
]
