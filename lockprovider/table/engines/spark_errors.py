"""Errors of executors, as the types they were raised with."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException

from lockprovider.table.errors import Aborted, Corrupt, HistoryGone, InvalidRecords, TableError, UnsupportedSchema

# Spark hands on the traceback of a task as text; its last line is the error itself.
_RAISED = re.compile(rf"^{re.escape(TableError.__module__)}\.(\w+): (.+)$", re.MULTILINE)
_TYPES: dict[str, type[TableError]] = {
    kind.__name__: kind for kind in (Aborted, Corrupt, HistoryGone, InvalidRecords, UnsupportedSchema)
}


@contextmanager
def typed_errors() -> Iterator[None]:
    """Around a Spark action: an error of ours that a task raised comes out as itself, Spark's own as it is."""
    try:
        yield
    except PySparkException as error:
        found = _RAISED.findall(str(error))
        kind = _TYPES.get(found[-1][0]) if found else None
        if kind is None:
            raise
        raise kind(found[-1][1]) from error
