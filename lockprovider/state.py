"""Public names of `lockprovider.recipes.state`.

Example: `state = lockprovider.state.open("s3://bucket/pipelines/orders.json", default=dict)`.
"""

from lockprovider.recipes.errors import (
    CoordinationError,
    Fenced,
    MalformedObject,
    NestedUpdate,
    NoRevision,
    Overloaded,
    StateConflict,
    StateLocked,
)
from lockprovider.recipes.state.changes import UNCHANGED, NotChanged
from lockprovider.recipes.state.document import Codec, Difference
from lockprovider.recipes.state.state import AsyncState, Edit, Editor, Revision, State
from lockprovider.recipes.state.terraform import TfLock, TfLockFile

open = State.open  # noqa: A001 - it reads as lockprovider.state.open

__all__ = [
    "UNCHANGED",
    "AsyncState",
    "Codec",
    "CoordinationError",
    "Difference",
    "Edit",
    "Editor",
    "Fenced",
    "MalformedObject",
    "NestedUpdate",
    "NoRevision",
    "NotChanged",
    "Overloaded",
    "Revision",
    "State",
    "StateConflict",
    "StateLocked",
    "TfLock",
    "TfLockFile",
    "open",
]
