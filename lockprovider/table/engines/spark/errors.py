"""Errors of Spark's Python workers, as the types they were raised with."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException

from fsspec_cas import CasError, InvalidInput
from lockprovider import InvalidSettings, LockError
from lockprovider.table.errors import (
    Aborted,
    Corrupt,
    HistoryGone,
    InvalidRecords,
    TableError,
    TableNotFound,
    UnsupportedSchema,
    UnsupportedTable,
)
from lockprovider.wal import CoordinationError, Fenced, MalformedObject, NoLog, Trimmed

_TYPES: dict[str, type[Exception]] = {
    f"{kind.__module__}.{kind.__name__}": kind
    for kind in (
        Aborted,
        Corrupt,
        Fenced,
        HistoryGone,
        InvalidInput,
        InvalidRecords,
        InvalidSettings,
        MalformedObject,
        NoLog,
        TableNotFound,
        Trimmed,
        UnsupportedSchema,
        UnsupportedTable,
    )
}
# Spark hands on a worker's error as text, after words of its own: at the end is the error itself, often a traceback's.
_RAISED = re.compile(rf"\b({'|'.join(map(re.escape, _TYPES))}): (.+)$", re.MULTILINE)
_NO_TRACEBACK = "SPARK_HIDE_TRACEBACK"


@contextmanager
def typed_errors() -> Iterator[None]:
    """Around a Spark action: an error of ours that a worker raised comes out as itself, Spark's own as it is."""
    try:
        yield
    except PySparkException as error:
        found = _RAISED.findall(str(error))
        if not found:
            raise
        kind, sentence = found[-1]
        raise _TYPES[kind](sentence) from error


@contextmanager
def in_one_sentence() -> Iterator[None]:
    """In a Python worker of Spark, around all that it calls: an error of ours goes to the driver without its traceback.

    Spark's worker asks this variable of its own when it writes down the error that ends it, so it says nothing about
    other errors. Source: `pyspark.util.handle_worker_exception`.
    """
    try:
        yield
    except (CasError, CoordinationError, LockError, TableError):
        os.environ[_NO_TRACEBACK] = "1"
        raise
