"""Errors of tables and logs in Spark's Python workers, restored with their types."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from fsspec_cas import CasError
from lockprovider import InvalidSettings, LockError, wal
from lockprovider.table import errors
from lockprovider.table.errors import DoesNotFit, HistoryGone, Misfit, TableError, WriteConflict
from lockprovider.wal import CoordinationError


def _kinds_of(base: type[Exception]) -> Iterator[type[Exception]]:
    yield base
    for kind in base.__subclasses__():
        yield from _kinds_of(kind)


_TYPES: dict[str, type[Exception]] = {
    f"{kind.__module__}.{kind.__name__}": kind
    for kind in (*_kinds_of(CasError), *_kinds_of(LockError), *vars(errors).values(), *vars(wal).values())
    if isinstance(kind, type) and issubclass(kind, Exception) and kind is not WriteConflict
}
# The error comes last, often at the end of a traceback.
_RAISED = re.compile(rf"\b({'|'.join(map(re.escape, _TYPES))}): (.+)$", re.MULTILINE)
_LOST = re.compile(rf"\b{re.escape(f'{WriteConflict.__module__}.WriteConflict')}: instant (\d{{17}}) lost to (\S+)")
_OTHER_PYTHON = re.compile(
    r"No module named '(?:lockprovider|fsspec_cas|fsspec|pyarrow|pandas|fastavro|numpy|pyspark)\b[^']*'"
    r"|lockprovider\.table needs \w+, which is not installed|PYTHON_VERSION_MISMATCH"
    r"|Python in worker has different version|PACKAGE_NOT_INSTALLED"
)
_NO_FILE = re.compile(
    r"\[(?:FAILED_READ_FILE\.FILE_NOT_EXIST|PATH_NOT_FOUND)\][^\n]*?([^/\s]+_\d+-\d+-\d+_\d{17}\.parquet)"
)
_OF_SPARK = ("pyspark.", "py4j.")
_NO_TRACEBACK = "SPARK_HIDE_TRACEBACK"


@contextmanager
def typed_errors() -> Iterator[None]:
    """Wrap a Spark action: raise the typed error that `translated` restores, if any, else the action's."""
    try:
        yield
    except Exception as error:
        restored = translated(str(error)) if type(error).__module__.startswith(_OF_SPARK) else None
        if restored is None:
            raise
        raise restored from error


def translated(text: str) -> Exception | None:
    """Restore the last error that Spark's text names, None if none.

    A `WriteConflict` lacks file groups and keys. A missing base file gives HistoryGone; another Python, or missing
    packages, InvalidSettings.
    """
    if matches := _RAISED.findall(text):
        kind, sentence = matches[-1]
        return _does_not_fit(sentence) if _TYPES[kind] is DoesNotFit else _TYPES[kind](sentence)
    if lost := _LOST.search(text):
        return WriteConflict(lost[1], lost[2].rstrip(":,"), ())
    if missing_file := _NO_FILE.search(text):
        return HistoryGone.with_file(missing_file[1])
    if other_python := _OTHER_PYTHON.search(text):
        return InvalidSettings(
            f"Spark's executors run another Python than {sys.executable} ({other_python[0]}): set PYSPARK_PYTHON "
            "to it before you create the session; on a cluster, install this package on the executors, or ship an "
            "environment with spark.archives"
        )
    return None


def _does_not_fit(sentence: str) -> DoesNotFit:
    return DoesNotFit((Misfit(sentence.partition(":")[0], "", "", sentence),))


@contextmanager
def without_traceback() -> Iterator[None]:
    """Wrap a call in a Python worker: the driver gets errors of this package without their traceback.

    After one, a variable of the worker's environment stays set. Source: `pyspark.util.handle_worker_exception`.
    """
    try:
        yield
    except DoesNotFit as error:
        os.environ[_NO_TRACEBACK] = "1"
        raise _does_not_fit("; ".join(map(str, error.misfits))) from error
    except (CasError, CoordinationError, LockError, TableError):
        os.environ[_NO_TRACEBACK] = "1"
        raise
