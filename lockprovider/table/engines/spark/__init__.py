"""PySpark engine's functions: executors read and write rows, the driver runs the transaction.

Import its `data_source`, `log_source` and `stream` on their own. Raises ModuleNotFoundError without PySpark.
"""

try:
    import pyspark  # noqa: F401 - a clear error before the modules below import it
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"{__name__} needs {error.name}, which is not installed: install the extra 'spark' of fsspec-cas",
        name=error.name,
    ) from error

from lockprovider.table.engines.spark.functions import (
    Feed,
    append,
    changes,
    cluster,
    compact,
    delete,
    delete_where,
    insert,
    insert_overwrite,
    overwrite,
    read,
    upsert,
    write,
)
from lockprovider.table.engines.spark.merge_into import (
    MatchedDelete,
    MatchedUpdate,
    NotMatchedInsert,
    merge,
    merge_into,
)
from lockprovider.table.engines.spark.views import register, sql

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
