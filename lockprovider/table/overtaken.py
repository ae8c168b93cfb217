"""Whether a transaction's own work failed only because others were faster, so that another try may succeed.

The files of a snapshot go when others have committed since: replaced files are cleaned, old commits are archived, later
ones are taken back. Whoever reads by the snapshot meets a file that is not there, and in Spark only the text of that.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fsspec_cas import ObjectNotFound
from lockprovider.table import clean
from lockprovider.table.errors import HistoryGone, WriteConflict
from lockprovider.table.timeline import Timeline

if TYPE_CHECKING:
    from lockprovider.table.manager import Table

_GONE = (ObjectNotFound, HistoryGone)
_SAID = re.compile("^(?:{}): ".format("|".join(re.escape(f"{e.__module__}.{e.__name__}") for e in _GONE)), re.MULTILINE)


def is_overtaken(table: Table, seen: Timeline, error: Exception) -> bool:
    """Whether `error`, of work on the snapshot `seen`, is a conflict, or of a file that others have removed since."""
    if isinstance(error, WriteConflict):
        return True
    if not misses_file(error):
        return False
    return clean.has_overtaken(table, seen) or not seen.written <= table.timeline().written


def misses_file(error: Exception) -> bool:
    """Whether it says that a file of the table was not there, by its type or in an engine's report of a task."""
    return isinstance(error, _GONE) or _SAID.search(str(error)) is not None
