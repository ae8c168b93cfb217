"""Instants of the timeline: parse and build their file names.

Source: Hudi table versions 8 and 9, `InstantFileNameGeneratorV2`, `HoodieInstantTimeGenerator`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from enum import Enum
from functools import lru_cache

from lockprovider.table.errors import Corrupt


class Action(str, Enum):
    """Action of an instant."""

    COMMIT = "commit"
    DELTACOMMIT = "deltacommit"
    REPLACECOMMIT = "replacecommit"
    CLUSTERING = "clustering"
    COMPACTION = "compaction"
    LOGCOMPACTION = "logcompaction"
    CLEAN = "clean"
    ROLLBACK = "rollback"
    RESTORE = "restore"
    INDEXING = "indexing"
    SAVEPOINT = "savepoint"


class InstantState(str, Enum):
    """State of an instant."""

    REQUESTED = "requested"
    INFLIGHT = "inflight"
    COMPLETED = "completed"


# Hudi names completed services by the action with their effect.
_COMPLETED_AS = {
    Action.CLUSTERING: Action.REPLACECOMMIT,
    Action.COMPACTION: Action.COMMIT,
    Action.LOGCOMPACTION: Action.DELTACOMMIT,
}
_WRITES = frozenset({Action.COMMIT, Action.DELTACOMMIT, Action.REPLACECOMMIT})
_TIME = r"\d{17}|\d{14}"
_ACTIONS = "|".join(action.value for action in Action)
_PENDING = re.compile(rf"({_TIME})(?:\.({_ACTIONS}))?\.(requested|inflight)", re.ASCII)
_COMPLETED = re.compile(rf"({_TIME})_({_TIME})\.({_ACTIONS})", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_SECONDS_ONLY = 14


@dataclass(frozen=True, slots=True)
class Instant:
    """One state of one action on the timeline; only a completed instant has a `completion` time.

    A completed service parses as the commit that its file name states.
    """

    begin: str
    action: Action
    state: InstantState
    completion: str | None = None

    @property
    def is_completed(self) -> bool:
        return self.state is InstantState.COMPLETED

    @property
    def changes_rows(self) -> bool:
        return _COMPLETED_AS.get(self.action, self.action) in _WRITES

    @property
    def file_name(self) -> str:
        if self.state is InstantState.COMPLETED:
            return f"{self.begin}_{self.completion}.{_COMPLETED_AS.get(self.action, self.action).value}"
        if self.action is Action.COMMIT and self.state is InstantState.INFLIGHT:
            return f"{self.begin}.inflight"  # Hudi's old name, without an action
        return f"{self.begin}.{self.action.value}.{self.state.value}"


@lru_cache(maxsize=1 << 15)
def parse_instant(name: str) -> Instant | None:
    """Return the instant that a timeline file name states; None for any other name."""
    if done := _COMPLETED.fullmatch(name):
        return Instant(done[1], Action(done[3]), InstantState.COMPLETED, done[2])
    pending = _PENDING.fullmatch(name)
    if pending is None:
        return None
    state = InstantState(pending[3])
    if pending[2] is None:
        return Instant(pending[1], Action.COMMIT, state) if state is InstantState.INFLIGHT else None
    if pending[2] == Action.COMMIT.value and state is InstantState.INFLIGHT:
        return None
    return Instant(pending[1], Action(pending[2]), state)


def format_ms(ms: int) -> str:
    moment = _EPOCH + timedelta(milliseconds=ms)
    return f"{moment:%Y%m%d%H%M%S}".zfill(_SECONDS_ONLY) + f"{ms % 1000:03d}"


def to_ms(text: str) -> int:
    """Parse 14 or 17 digits in UTC as epoch milliseconds; raise `Corrupt` for other text or an impossible date.

    As in Hudi, 14 digits mean the last millisecond of their second.
    """
    if not re.fullmatch(_TIME, text, re.ASCII):
        raise Corrupt(f"{text!r} is not an instant time; expected yyyyMMddHHmmssSSS")
    try:
        moment = datetime.strptime(text[:_SECONDS_ONLY], "%Y%m%d%H%M%S").replace(tzinfo=timezone.utc)
    except ValueError as error:
        raise Corrupt(f"{text!r} is not an instant time: {error}") from error
    ms = 999 if len(text) == _SECONDS_ONLY else int(text[_SECONDS_ONLY:])
    return (moment - _EPOCH) // timedelta(milliseconds=1) + ms


def after(text: str) -> str:
    return format_ms(to_ms(text) + 1)
