"""State files: `lockprovider.recipes.state` by its public name.

state = lockprovider.state.open("s3://bucket/pipelines/orders.json", default=dict)
"""

from lockprovider.recipes.state import (
    UNCHANGED,
    AsyncState,
    Codec,
    CoordinationError,
    Difference,
    Edit,
    Editor,
    Fenced,
    MalformedObject,
    NoRevision,
    NotChanged,
    Overloaded,
    Revision,
    State,
    StateConflict,
    StateLocked,
    open,  # noqa: A004 - it reads as lockprovider.state.open
)

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
    "NoRevision",
    "NotChanged",
    "Overloaded",
    "Revision",
    "State",
    "StateConflict",
    "StateLocked",
    "open",
]
