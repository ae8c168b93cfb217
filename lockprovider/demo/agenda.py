"""What each pipeline has to do next, decided from the table's own history alone.

The pipelines do not talk to each other: every commit carries a few words in its metadata, and whoever reads the
completed commits knows what was delivered, protected and corrected.

A month is protected up to the completion of the last delivery in the snapshot of the protecting transaction: one
that completes between that snapshot and the commit makes the month raw again, whichever file group it went to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lockprovider.demo.flights import Delivery

ROLE = "demo.role"
MONTH = "demo.month"
DELIVERY = "demo.delivery"
COVERS = "demo.covers"


@dataclass(frozen=True, slots=True)
class Done:
    """One completed commit of the demonstration, oldest completion first in every list of them."""

    role: str
    month: int
    completion: str
    delivery: str = ""
    covers: str = ""


def done(completion: str, extra: Mapping[str, str]) -> Done | None:
    """A commit in the demonstration's words, or None if it is somebody else's."""
    if ROLE not in extra or MONTH not in extra:
        return None
    return Done(extra[ROLE], int(extra[MONTH]), completion, extra.get(DELIVERY, ""), extra.get(COVERS, ""))


def words(role: str, month: int, *, delivery: str = "", covers: str = "") -> dict[str, str]:
    """What a commit says about itself; `done` reads it back."""
    said = {ROLE: role, MONTH: str(month), DELIVERY: delivery, COVERS: covers}
    return {name: value for name, value in said.items() if value}


def delivered(history: Iterable[Done]) -> frozenset[str]:
    """The names of the deliveries that have arrived."""
    return frozenset(entry.delivery for entry in history if entry.role == "ingest")


def to_deliver(history: Sequence[Done], plan: Sequence[Delivery]) -> tuple[Delivery, ...]:
    """The deliveries that have not arrived, in order."""
    there = delivered(history)
    return tuple(delivery for delivery in plan if delivery.name not in there)


def last_delivery(history: Iterable[Done], month: int) -> str:
    """The completion of the month's last delivery, or "" if there is none."""
    return max((d.completion for d in history if d.role == "ingest" and d.month == month), default="")


def to_protect(history: Sequence[Done]) -> tuple[int, ...]:
    """Months that hold a delivery which no protecting commit has covered, oldest delivery first."""
    months = {entry.month: last_delivery(history, entry.month) for entry in history if entry.role == "ingest"}
    open_ = [month for month, last in months.items() if last > _covered(history, month)]
    return tuple(sorted(open_, key=lambda month: (months[month], month)))


def protected_deliveries(history: Sequence[Done]) -> int:
    """How many deliveries are covered by protecting commits."""
    return sum(entry.completion <= _covered(history, entry.month) for entry in history if entry.role == "ingest")


def to_backfill(history: Sequence[Done], plan: Sequence[Delivery]) -> tuple[int, ...]:
    """Months whose deliveries are all there and which were not corrected yet, in order."""
    there = delivered(history)
    corrected = {entry.month for entry in history if entry.role == "backfill"}
    wanted: dict[int, set[str]] = {}
    for delivery in plan:
        wanted.setdefault(delivery.month, set()).add(delivery.name)
    return tuple(month for month, names in wanted.items() if names <= there and month not in corrected)


def _covered(history: Iterable[Done], month: int) -> str:
    return max((d.covers for d in history if d.role == "protect" and d.month == month), default="")
