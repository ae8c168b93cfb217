"""Adds up what the pipelines told: for the progress bars while they run, and for the summary at the end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lockprovider.demo.lines import Line


@dataclass(frozen=True, slots=True)
class Tally:
    """One pipeline so far. Times are in ms; `lock_waits_ms` has one entry for each time the lock was had."""

    role: str
    commits: int = 0
    conflicts: int = 0
    retries: int = 0
    rollbacks: int = 0
    lock_waits_ms: tuple[int, ...] = ()
    done: int = 0
    total: int = 0
    doing: str = "starts Spark"
    pid: int = 0
    finished: bool = False
    asked_at_ms: int | None = None

    @property
    def lock_wait_median_ms(self) -> int:
        """The lower median, 0 if the lock was never had."""
        return sorted(self.lock_waits_ms)[(len(self.lock_waits_ms) - 1) // 2] if self.lock_waits_ms else 0

    @property
    def lock_wait_max_ms(self) -> int:
        """The longest wait, 0 if the lock was never had."""
        return max(self.lock_waits_ms, default=0)

    def to_json(self) -> dict[str, object]:
        """What the summary says about this pipeline."""
        return {
            "pipeline": self.role,
            "commits": self.commits,
            "conflicts": self.conflicts,
            "retries": self.retries,
            "rollbacks": self.rollbacks,
            "lock_waits": len(self.lock_waits_ms),
            "lock_wait_median_ms": self.lock_wait_median_ms,
            "lock_wait_max_ms": self.lock_wait_max_ms,
            "done": self.done,
            "total": self.total,
            "finished": self.finished,
        }


def add(tally: Tally, line: Line) -> Tally:
    """The tally after one more message."""
    match line.kind:
        case "committed" | "compacted":
            changed = replace(tally, commits=tally.commits + 1)
        case "conflict":
            changed = replace(tally, conflicts=tally.conflicts + 1)
        case "retry":
            changed = replace(tally, retries=tally.retries + 1)
        case "rolled_back":
            changed = replace(tally, rollbacks=tally.rollbacks + 1)
        case "lock_wait":
            changed = replace(tally, asked_at_ms=line.at_ms)
        case "lock_held":
            changed = _held(tally, line.at_ms)
        case "started":
            changed = replace(tally, pid=_number(line, "pid"), doing="")
        case "progress":
            doing = str(line.detail.get("doing", ""))
            changed = replace(tally, done=_number(line, "done"), total=_number(line, "total"), doing=doing)
        case "finished":
            changed = replace(tally, finished=True, doing="done")
        case _:
            changed = tally
    return changed


def add_all(role: str, lines: Iterable[Line]) -> Tally:
    """The tally of one pipeline after all its messages."""
    tally = Tally(role)
    for line in lines:
        if line.role == role:
            tally = add(tally, line)
    return tally


def _held(tally: Tally, at_ms: int) -> Tally:
    if tally.asked_at_ms is None:
        return tally
    # The wall clock may step back between the two.
    waited = max(0, at_ms - tally.asked_at_ms)
    return replace(tally, lock_waits_ms=(*tally.lock_waits_ms, waited), asked_at_ms=None)


def _number(line: Line, name: str) -> int:
    value = line.detail.get(name, 0)
    return value if isinstance(value, int) else 0


def table(tallies: Sequence[Tally]) -> str:
    """The summary as text, one line a pipeline."""
    head = ("pipeline", "commits", "conflicts", "retries", "lock waits", "median ms", "max ms")
    body = [
        (
            t.role,
            str(t.commits),
            str(t.conflicts),
            str(t.retries),
            str(len(t.lock_waits_ms)),
            str(t.lock_wait_median_ms),
            str(t.lock_wait_max_ms),
        )
        for t in tallies
    ]
    widths = [max(len(row[i]) for row in (head, *body)) for i in range(len(head))]
    return "\n".join(_row(row, widths) for row in (head, *body))


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = zip(cells, widths, strict=True)
    return "  ".join((first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)))
