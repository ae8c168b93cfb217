"""Table errors; README.md, "Errors", says what a caller does about each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from lockprovider.bounded import Undecodable


class TableError(Exception):
    """Base class of table errors."""


class TableNotFound(TableError):
    """No table exists at this path."""


class TableExists(TableError):
    """A table exists at this path."""


class TableReplaced(TableError):
    """Another table was made at this URL since this one was opened; nothing was changed."""


class UnsupportedTable(TableError):
    """The table has a feature unsafe or impossible here."""


class UnsupportedSchema(TableError):
    """A column's type cannot be stored, or the schema change is not allowed."""


class InvalidRecords(TableError):
    """The rows cannot be written: null or duplicate key, missing column."""


_SHOWN = 80
_LISTED = 20
_INDEX = "if it is a pandas or Dask index, call reset_index()"
_ADVICE = {("double", "float"): 'use astype("float32") if values may be rounded'}


@dataclass(frozen=True)
class Misfit:
    """Field, or field's value, that does not fit the table.

    Attributes:
        path: `column.field`, `.element` of a list, `.key` and `.value` of a map.
        given: its type; empty for a missing field.
        wanted: table's type; empty for a field that it lacks.
        text: fault and next step; `{at}` stands for value and row.
        row: the first that does not fit; None if the types alone show it.
    """

    path: str
    given: str
    wanted: str
    text: str
    row: int | None = None
    value: Any = None

    @classmethod
    def types(cls, path: str, given: str, wanted: str, advice: str) -> Misfit:
        return cls(path, given, wanted, f"{path}: {given} does not fit {wanted}{{at}}; {advice}")

    @classmethod
    def of_value(cls, path: str, given: str, wanted: str) -> Misfit:
        return cls.types(path, given, wanted, _ADVICE.get((given, wanted), "cast it, or give it a wider column"))

    @classmethod
    def repeated(cls, path: str, kind: str) -> Misfit:
        return cls(
            path, kind, kind, f"{path}: equal keys in one map{{at}}; many readers keep one of them: drop the other"
        )

    @classmethod
    def missing(cls, path: str, wanted: str, *, identifies: bool = False) -> Misfit:
        """`identifies`: the missing field is a record key or partition column."""
        why = ", and identifies each row; add it" if identifies else "; add it, with nulls if that is what is meant"
        advice = "" if "." in path else f"; {_INDEX}"
        return cls(path, "", wanted, f"{path} is missing, of type {wanted}{why}{advice}")

    @classmethod
    def unknown(
        cls, parent: str, name: str, given: str, names: Sequence[str], near: str | None, *, alias: str | None = None
    ) -> Misfit:
        """Misfit of a field that the table lacks.

        `given`: its type; `names`: table's fields in `parent` ("": columns); `near`: a field of other case; `alias`:
        type's name for `pa.schema`, if any.
        """
        path, owner = (f"{parent}.{name}", f", whose {parent}") if parent else (name, ", which")
        more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        call = f"table.add_columns(pa.schema([({path!r}, {repr(alias) if alias else 'TYPE'})]))"
        advice = f"`{near}`; rename it" if near else f"{list(names[:_LISTED])}{more}; drop it, or first call {call}"
        if path == "_operation":  # of `Table.changes`: without it, deleted rows would be written
            advice = f"{list(names[:_LISTED])}{more}; write the rows of each operation apart: upserts=..., deletes=..."
        return cls(path, given, "", f"{path} is {given} and not in the table{owner} has {advice}")

    @classmethod
    def null(cls, path: str, wanted: str) -> Misfit:
        return cls(path, wanted, wanted, f"{path}: null does not fit {wanted} not null{{at}}; give it a value")

    @classmethod
    def twice(cls, path: str) -> Misfit:
        return cls(path, "", "", f"{path} comes twice; rename one")

    def at(self, row: int, value: object) -> Misfit:
        return replace(self, row=row, value=value)

    def __str__(self) -> str:
        shown = (
            ""
            if self.value is None
            else f": {_cut(repr(self.value) if isinstance(self.value, (str, bytes)) else str(self.value))}"
        )
        return self.text.replace("{at}", "" if self.row is None else f"{shown}, in row {self.row}")


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


class DoesNotFit(InvalidRecords, UnsupportedSchema):
    """Rows that do not fit the table's columns; nothing was written.

    Attributes:
        misfits: all misfits of types, or the first value's.
        path, given, wanted, row, value: of the first misfit.
    """

    def __init__(self, misfits: tuple[Misfit, ...]) -> None:
        super().__init__(misfits)
        self.misfits = misfits
        self.path, self.given, self.wanted = misfits[0].path, misfits[0].given, misfits[0].wanted
        self.row, self.value = misfits[0].row, misfits[0].value

    def __str__(self) -> str:
        if len(self.misfits) == 1:
            return str(self.misfits[0])
        more = [f"and {len(self.misfits) - _LISTED} more"] if len(self.misfits) > _LISTED else []
        return "\n".join([f"{len(self.misfits)} fields do not fit:", *map(str, self.misfits[:_LISTED]), *more])


ARCHIVED = "commits that were archived since"
_PLANNED = ".clustering.requested"
_IN_TURNS = "take turns: lock another object (on=) and write with table.under(lease)"


class WriteConflict(TableError):
    """Another commit changed the same file groups first; nothing of this instant is visible.

    Attributes:
        instant: begin time of the loser.
        lost_to: file name of the winner: a completed instant, planned clustering or restore; `ARCHIVED` if archived
            since.
        file_groups: (partition, file id) pairs that both wrote; empty after a restore or added columns.
        keys: record keys that both inserted, if checked.
        tries: how often the write was tried by a call with `retries`, else 0.
    """

    def __init__(
        self, instant: str, lost_to: str, file_groups: tuple[tuple[str, str], ...], keys: tuple[str, ...] = ()
    ) -> None:
        self.instant = instant
        self.lost_to = lost_to
        self.file_groups = file_groups
        self.keys = keys
        self.tries = 0
        # BaseException gets all arguments, so that the error can be pickled.
        super().__init__(instant, lost_to, file_groups, keys)

    def __str__(self) -> str:
        lost, again = f"instant {self.instant} lost to {self.lost_to}", "read a fresh snapshot and try again"
        if self.tries:
            count = "once" if self.tries == 1 else f"{self.tries} times, each from a fresh snapshot"
            again = f"tried {count}: give more tries (retries=), or {_IN_TURNS}"
        groups = ", ".join(f"{partition or '.'}/{file_id}" for partition, file_id in self.file_groups)
        if self.lost_to == ARCHIVED:
            return f"{lost} its snapshot, and what they changed is unknown; {again}"
        if self.keys:
            more = f" and {len(self.keys) - 1} more" if len(self.keys) > 1 else ""
            return f"{lost}: both inserted key {self.keys[0]!r}{more}; {again}"
        if not self.file_groups:
            return f"{lost}, which undid commits that it had read, or added columns; {again}"
        if self.lost_to.endswith(_PLANNED):
            ways = "run that plan (`lockprovider table cluster --run`) or remove it (`--unschedule`)"
            return f"{lost}, which plans to rewrite {groups}; {ways}, then try again from a fresh snapshot"
        return f"{lost}: both wrote {groups}; {again}"


class AlreadyCommitted(TableError):
    """The table already contains this batch; nothing was written."""


class WrongCheckpoint(TableError):
    """The stream continues from another checkpoint than the table records; nothing was written."""


class Aborted(TableError):
    """The operation cannot complete: a dead heartbeat, a rollback, a changed table, or another process prevents it."""


class PropertiesChanged(Aborted):
    """The table's properties changed before the transaction wrote; a retry uses the new ones."""


class HistoryGone(TableError):
    """The requested time or instant never existed, or is gone: cleaned, archived or undone."""

    @classmethod
    def with_file(cls, path: str) -> HistoryGone:
        return cls(f"{path!r} was cleaned before it was read; read again, from a fresh snapshot")


class Corrupt(TableError):
    """A file of the table cannot be parsed; the message names it, where known."""


_SHORT = 200


@contextmanager
def undamaged(text: str) -> Iterator[None]:
    """Raise `Corrupt` from any error of the block but a `TableError`; the block must only decode bytes.

    `text`, for people, names file and fault.
    """
    try:
        yield
    except TableError:
        raise
    except Exception as error:
        why = str(error) if isinstance(error, Undecodable) else repr(error)
        raise Corrupt(f"{text} ({why[:_SHORT]}); restore the file, or remove it") from error
