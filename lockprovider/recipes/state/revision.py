"""What a state's callers get: revisions, an edit, and who edits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from lockprovider.storage_lock.async_lock import AsyncLease
from lockprovider.storage_lock.lease import Lease
from lockprovider.storage_lock.status import LockStatus

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Revision(Generic[V]):
    """The state at one serial. Serial 0 is a state that is not there, with the default as its value.

    Attributes:
        by, at_ms, reason: who wrote it, when by that one's clock (epoch ms), and why, if that was said.
        epoch: the newest that was given as `fence` until then.
        lineage: the same for all revisions of one state, another if it was removed and made anew.

    >>> revision = lockprovider.state.open("memory://docs/orders.json", default=dict).read()
    >>> revision.serial, revision.value
    (0, {})
    """

    serial: int
    value: V
    by: str = ""
    at_ms: int = 0
    reason: str = ""
    epoch: int = 0
    lineage: str = ""


@dataclass(frozen=True, slots=True)
class Editor:
    """Who may edit now: what the lock of edits says, and the mark of the last edit in the state.

    >>> lockprovider.state.open("memory://docs/orders.json").who().state
    'absent'
    """

    state: str  # absent, released, lapsed or held
    by: str
    since_ms: int
    reason: str
    status: LockStatus
    valid_until_ms: int = 0  # the edit is over then, if its lock is not renewed; by the holder's clock


class Edit(Generic[V]):
    """A held edit: change `value`, or set another. It is written at the end of the `with`, if nobody came between.

    >>> state = lockprovider.state.open("memory://docs/orders.json", default=dict)
    >>> with state.edit() as edit:
    ...     edit.lease.check()
    ...     edit["day"] = "mon"
    >>> edit.begun.serial, edit.revision.value
    (1, {'day': 'mon'})
    """

    def __init__(self, lease: Lease | AsyncLease, begun: Revision[V]) -> None:
        self.lease = lease
        self.begun = begun
        self.value = begun.value
        self.revision: Revision[V] | None = None  # what it was written as, once it is

    def __repr__(self) -> str:
        return f"<Edit of serial {self.begun.serial}, {'not ' if self.revision is None else ''}written>"

    def __getitem__(self, key: Any) -> Any:
        value: Any = self.value
        return value[key]

    def __setitem__(self, key: Any, item: Any) -> None:
        value: Any = self.value
        value[key] = item

    def __contains__(self, key: object) -> bool:
        value: Any = self.value
        return key in value
