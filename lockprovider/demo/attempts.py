"""From what the pipelines told to what can be drawn: attempts and tenures of lock, each with its times."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lockprovider.demo.lines import Line

_BEGINS = frozenset({"begin", "compaction_scheduled"})
_ENDS = frozenset({"committed", "compacted"})
End = Literal["committed", "conflict", "open"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One instant of one pipeline, from `begin` to its commit or conflict (or to the last word of its writer)."""

    role: str
    instant: str
    doing: str
    begin_ms: int
    end_ms: int
    written_ms: int | None = None
    rolled_back_ms: int | None = None
    end: End = "open"
    lost_to: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tenure:
    """One time at the lock: asked, had, gave back. `held_ms` is None if it was never had."""

    role: str
    asked_ms: int
    held_ms: int | None
    end_ms: int


def attempts(lines: Sequence[Line]) -> tuple[Attempt, ...]:
    """Every attempt, in order of beginning."""
    known = {line.instant for line in lines if line.kind in {*_BEGINS, *_ENDS}}
    doing: dict[str, str] = {}
    found: dict[str, Attempt] = {}
    for line in lines:
        if line.kind == "progress":
            doing[line.role] = str(line.detail.get("doing", ""))
        elif line.kind in _BEGINS:
            what = doing.get(line.role, "")
            found[line.instant] = Attempt(line.role, line.instant, what, line.at_ms, line.at_ms)
        elif line.instant in found:
            found[line.instant] = _further(found[line.instant], line, known)
    return tuple(sorted(found.values(), key=lambda attempt: attempt.begin_ms))


def _further(attempt: Attempt, line: Line, known: set[str]) -> Attempt:
    match line.kind:
        case "written":
            return replace(attempt, written_ms=line.at_ms, end_ms=max(attempt.end_ms, line.at_ms))
        case kind if kind in _ENDS:
            return replace(attempt, end="committed", end_ms=line.at_ms)
        case "conflict":
            # A winner is named by its instant, or by its file on the timeline: <instant>_<completion>.<action>
            named = (words.partition("_")[0] for words in _texts(line.detail.values()))
            lost_to = tuple(i for i in dict.fromkeys(named) if i in known and i != attempt.instant)
            return replace(attempt, end="conflict", end_ms=line.at_ms, lost_to=lost_to)
        case "rolled_back":
            return replace(attempt, rolled_back_ms=line.at_ms)
        case "lock_wait" | "lock_held" if attempt.end == "open":
            return replace(attempt, end_ms=max(attempt.end_ms, line.at_ms))
        case _:
            return attempt


def _texts(values: Iterable[object]) -> list[str]:
    found: list[str] = []
    for value in values:
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += _texts(value)
    return found


def tenures(lines: Sequence[Line]) -> tuple[Tenure, ...]:
    """Every time at the lock, each pipeline's in order."""
    found: list[Tenure] = []
    for role in dict.fromkeys(line.role for line in lines):
        found += _tenures_of(role, [line for line in lines if line.role == role])
    return tuple(found)


def _tenures_of(role: str, lines: Sequence[Line]) -> list[Tenure]:
    found: list[Tenure] = []
    asked: int | None = None
    held: int | None = None
    for line in lines:
        if line.kind == "lock_wait":
            asked, held = line.at_ms, None
        elif line.kind == "lock_held":
            asked, held = (line.at_ms if asked is None else asked), line.at_ms
        elif line.kind == "lock_released" and asked is not None:
            found.append(Tenure(role, asked, held, line.at_ms))
            asked = held = None
    if asked is not None:
        found.append(Tenure(role, asked, held, lines[-1].at_ms))
    return found
