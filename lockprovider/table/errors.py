"""What can go wrong with a table, grouped by what the caller would do about it.

    TableError
    |-- TableNotFound        look at the path, or create the table
    |-- TableExists          open it instead
    |-- UnsupportedTable     change the table (or use another engine), then open again
    |-- UnsupportedSchema    cast the named column
    |-- InvalidRecords       fix the rows
    |-- WriteConflict        read a fresh snapshot and do the work again
    |-- Aborted              this attempt is over; begin a new one
    |-- AlreadyCommitted     go on with the next batch
    |-- WrongCheckpoint      start the query with the checkpoint that it had, or as a new stream
    |-- HistoryGone          ask for a later time
    `-- Corrupt              repair or restore the named file

Every message names the bad value and the next step.
"""

from __future__ import annotations


class TableError(Exception):
    """Base of everything this package raises on purpose."""


class TableNotFound(TableError):
    """There is no table at this path."""


class TableExists(TableError):
    """There is a table at this path already."""


class UnsupportedTable(TableError):
    """The table uses a feature that is not safe or not possible here (version, type, metadata table, ...)."""


class UnsupportedSchema(TableError):
    """A column has a type that cannot be stored, or the schema changed in a way that is not allowed."""


class InvalidRecords(TableError):
    """The rows cannot be written: a null key, a duplicate key, a missing column."""


ARCHIVED = "commits that were archived since"
_PLANNED = ".clustering.requested"


class WriteConflict(TableError):
    """Another commit changed the same file groups first; nothing of this instant is visible.

    Attributes:
        instant: begin time of the instant that gave way.
        lost_to: file name of the instant it lost to: a completed one, a planned clustering, or a restore.
        file_groups: the (partition, file id) pairs both had written; none after a restore, or when columns were added.
        keys: the record keys both had inserted, where keys are checked; empty otherwise.
    """

    def __init__(
        self, instant: str, lost_to: str, file_groups: tuple[tuple[str, str], ...], keys: tuple[str, ...] = ()
    ) -> None:
        self.instant = instant
        self.lost_to = lost_to
        self.file_groups = file_groups
        self.keys = keys
        # All of them go to BaseException, so that a worker process can pickle the error to its parent.
        super().__init__(instant, lost_to, file_groups, keys)

    def __str__(self) -> str:
        """One sentence with the next step."""
        if self.lost_to == ARCHIVED:
            return (
                f"instant {self.instant} lost to {ARCHIVED} its snapshot, so that nobody can tell what they changed; "
                "read a fresh snapshot and try again"
            )
        if self.keys:
            more = f" and {len(self.keys) - 1} more" if len(self.keys) > 1 else ""
            return (
                f"instant {self.instant} lost to {self.lost_to}: both inserted key {self.keys[0]!r}{more}; "
                "read a fresh snapshot and try again"
            )
        if not self.file_groups:
            return (
                f"instant {self.instant} lost to {self.lost_to}, which took back what it had read, or added columns; "
                "read a fresh snapshot and try again"
            )
        groups = ", ".join(f"{partition or '.'}/{file_id}" for partition, file_id in self.file_groups)
        if self.lost_to.endswith(_PLANNED):
            return (
                f"instant {self.instant} lost to {self.lost_to}, which is going to rewrite {groups}; run it "
                "(`lockprovider table cluster --run`) or take it back (`--unschedule`), then try again from a fresh "
                "snapshot"
            )
        return (
            f"instant {self.instant} lost to {self.lost_to}: both wrote {groups}; read a fresh snapshot and try again"
        )


class AlreadyCommitted(TableError):
    """This batch of this stream is in the table already; nothing was written again."""


class WrongCheckpoint(TableError):
    """A stream goes on from another checkpoint than the table's commits say; nothing was written."""


class Aborted(TableError):
    """This instant can no longer be completed: its heartbeat expired, it was rolled back, or the table changed."""


class PropertiesChanged(Aborted):
    """They are not what a transaction went by that has not written anything yet: with the new ones it may go on."""


class HistoryGone(TableError):
    """The table cannot be read at that time: its files were cleaned, or it was not there yet."""

    @classmethod
    def with_file(cls, path: str) -> HistoryGone:
        """A reader's file is not there any more."""
        return cls(f"{path!r} was cleaned before it was read; read again, from a fresh snapshot")


class Corrupt(TableError):
    """A metadata file cannot be understood; the message names the file."""
