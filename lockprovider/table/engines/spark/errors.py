"""Errors of Spark's Python workers, as the types they were raised with."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from fsspec_cas import CasError, InvalidInput
from lockprovider import InvalidSettings, LockError, wal
from lockprovider.table import errors
from lockprovider.table.errors import DoesNotFit, HistoryGone, Misfit, TableError, WriteConflict
from lockprovider.wal import CoordinationError

# Of all these one sentence makes an error; of a conflict it does not.
_TYPES: dict[str, type[Exception]] = {
    f"{kind.__module__}.{kind.__name__}": kind
    for kind in (InvalidInput, InvalidSettings, *vars(errors).values(), *vars(wal).values())
    if isinstance(kind, type) and issubclass(kind, Exception) and kind is not WriteConflict
}
# Spark hands on a worker's error as text, after words of its own: at the end is the error itself, often a traceback's.
_RAISED = re.compile(rf"\b({'|'.join(map(re.escape, _TYPES))}): (.+)$", re.MULTILINE)
_LOST = re.compile(rf"\b{re.escape(f'{WriteConflict.__module__}.WriteConflict')}: instant (\d{{17}}) lost to (\S+)")
# What a worker says whose interpreter is not that of the driver, or lacks what is installed there.
_OTHER_PYTHON = re.compile(
    r"No module named '(?:lockprovider|fsspec_cas|fsspec|pyarrow|pandas|fastavro|numpy|pyspark)\b[^']*'"
    r"|lockprovider\.table needs \w+, which is not installed|PYTHON_VERSION_MISMATCH"
    r"|Python in worker has different version|PACKAGE_NOT_INSTALLED"
)
# What Spark's own reader says of a base file that is not there.
_NO_FILE = re.compile(
    r"\[(?:FAILED_READ_FILE\.FILE_NOT_EXIST|PATH_NOT_FOUND)\][^\n]*?([^/\s]+_\d+-\d+-\d+_\d{17}\.parquet)"
)
_OF_SPARK = ("pyspark.", "py4j.")  # modules; some errors of the JVM's are py4j's
_NO_TRACEBACK = "SPARK_HIDE_TRACEBACK"


@contextmanager
def typed_errors() -> Iterator[None]:
    """Around a Spark action: an error of ours that a worker raised comes out as itself, Spark's own as it is.

    What Spark's own reader says of a base file that was cleaned comes out as `HistoryGone`. A worker whose Python is
    another one, without this package, comes out as `InvalidSettings`, with what to do.
    """
    try:
        yield
    except Exception as error:
        found = translated(str(error)) if type(error).__module__.startswith(_OF_SPARK) else None
        if found is None:
            raise
        raise found from error


def translated(text: str) -> Exception | None:
    """What a worker raised, or a reader missed, from the words that Spark made of it; None if it is Spark's own."""
    if found := _RAISED.findall(text):
        kind, sentence = found[-1]
        return _told(sentence) if _TYPES[kind] is DoesNotFit else _TYPES[kind](sentence)
    if lost := _LOST.search(text):
        return WriteConflict(lost[1], lost[2].rstrip(":,"), ())
    if gone := _NO_FILE.search(text):
        return HistoryGone.with_file(gone[1])
    if other := _OTHER_PYTHON.search(text):
        return InvalidSettings(
            f"Spark's executors run another Python than {sys.executable} ({other[0]}): set PYSPARK_PYTHON to it before "
            "the session is made; on a cluster install this package there, or ship an environment by spark.archives"
        )
    return None


def _told(sentence: str) -> DoesNotFit:
    return DoesNotFit((Misfit(sentence.partition(":")[0], "", "", sentence),))


@contextmanager
def in_one_sentence() -> Iterator[None]:
    """In a Python worker of Spark, around all that it calls: an error of ours goes to the driver without its traceback.

    Spark's worker asks this variable of its own when it writes down the error that ends it, so it says nothing about
    other errors. Source: `pyspark.util.handle_worker_exception`.
    """
    try:
        yield
    except DoesNotFit as error:  # its misfits in one line
        os.environ[_NO_TRACEBACK] = "1"
        raise _told("; ".join(map(str, error.misfits))) from error
    except (CasError, CoordinationError, LockError, TableError):
        os.environ[_NO_TRACEBACK] = "1"
        raise
