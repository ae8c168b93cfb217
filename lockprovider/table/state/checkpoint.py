"""The checkpoint beside the lock: who opens a table of any age reads it, in place of listing timeline and files.

It says what the table consisted of at one place of the lock's log, and holds for as long as the record has that log and
goes back to that place: what came since is in the record. So whatever ends a log (a JVM writer, a clean, a rollback of
another's, an archival, a restore, a change of the properties) ends its checkpoints, and nobody has to touch them.

    name      `<log>/<n>`: n times so many places have passed; immutable, created once
    writer    whoever's commit is the first behind those places, afterwards, without anybody waiting (see
              `services.checkpoint`); from the one before and the log, or, if there is none, by listing the files
    reader    looks for that of the last n, and of the one before; by the name of the log in the record that it has read
    removal   the one before the last, by who writes; of logs that have ended, by a sweep

Not promised: that there is one. Without it the table is listed.
"""

from __future__ import annotations

from urllib.parse import quote

from fsspec_cas import Store
from lockprovider import Lock, Log
from lockprovider.table.timeline.checkpoint import Checkpoint

CHECKPOINTS = ".hoodie/.locks/checkpoints/"
EVERY = 64  # places: a record of small commits goes back further than that
KEPT = 2  # of a log


def checkpoint_path(log: str, number: int) -> str:
    """Where one of them is."""
    return f"{_of_log(log)}{number}"


def is_due(place: int) -> bool:
    """Whether whoever's commit has this place of the log writes a checkpoint."""
    return place > 0 and place % EVERY == 0


def find(store: Store, log: Log) -> Checkpoint | None:
    """One by which the table of now is known, with the log.

    Raises:
        CasError: the store failed.
    """
    last = log.next // EVERY
    for number in range(last, max(0, last - KEPT), -1):
        content = store.read_or_none(checkpoint_path(log.name, number))
        found = None if content is None else Checkpoint.decode(content.data)
        if found is not None and found.log == log.name and log.since(found.place) is not None:
            return found
    return None


def remove_ended(store: Store, lock: Lock) -> None:
    """Remove those of logs that have ended.

    Raises:
        CasError: the store failed; may be repeated.
    """
    found = [entry.path for entry in store.list(CHECKPOINTS)]  # first: their logs have begun
    record = lock.look() if found else None
    if record is not None:
        live = _of_log("" if record.log is None else record.log.name)
        store.delete_all([path for path in found if not path.startswith(live)])


def _of_log(log: str) -> str:
    return f"{CHECKPOINTS}{quote(log, safe='')}/"
