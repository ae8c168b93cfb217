"""One document that many read, change and edit, with a history: `lockprovider.state`.

    state = lockprovider.state.open("s3://bucket/pipelines/orders.json", default=dict)
    state.update(lambda s: {**s, "watermark": new})

`document.py` is what is stored, `changes.py` what may be done to it, `turn.py` how a write comes to its end (pure);
`file.py` asks the store, `writer.py` writes for all callers of a process; `State` and `AsyncState` are the front.
"""

from lockprovider.recipes.errors import (
    CoordinationError,
    Fenced,
    MalformedObject,
    NoRevision,
    Overloaded,
    StateConflict,
    StateLocked,
)
from lockprovider.recipes.state.aio import AsyncState
from lockprovider.recipes.state.changes import UNCHANGED, NotChanged
from lockprovider.recipes.state.codecs import Codec
from lockprovider.recipes.state.difference import Difference
from lockprovider.recipes.state.revision import Edit, Editor, Revision
from lockprovider.recipes.state.state import State

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
    "NoRevision",
    "NotChanged",
    "Overloaded",
    "Revision",
    "State",
    "StateConflict",
    "StateLocked",
    "open",
]
