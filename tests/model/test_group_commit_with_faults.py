"""Group commit in worlds that take longer to search."""

from __future__ import annotations

from typing import Any

import pytest

from model.group_commit import Budget, GroupCommit
from model.test_group_commit import every_promise_holds

WORLDS: dict[str, dict[str, Any]] = {
    "a late request, a withdrawal": {"budget": Budget(late=1, withdrawals=1)},
    "a late request, a lost answer": {"budget": Budget(late=1, lost=1)},
    "a crash, a holder that rolls back": {"budget": Budget(crashes=1, holders=1, ends=1)},
    "a holder that rolls back, a withdrawal": {"budget": Budget(holders=1, ends=1, withdrawals=1)},
    "a JVM writer, a holder that rolls back": {"budget": Budget(guests=1, holders=1, ends=1)},
    "a short log, a doubled post, a lost answer": {"budget": Budget(doubled=1, lost=1, withdrawals=1), "short": True},
}
LARGE: dict[str, dict[str, Any]] = {
    "a late request, and one that applies too slowly": {"budget": Budget(slow=1, late=1)},
    "a JVM writer, a late request": {"budget": Budget(guests=1, late=1)},
    "two crashes, a late request, a withdrawal": {"budget": Budget(crashes=2, late=1, withdrawals=1)},
    "a crash, a doubled post, a holder that rolls back": {"budget": Budget(crashes=1, doubled=1, holders=1, ends=1)},
    "two holders, a withdrawal": {"budget": Budget(holders=2, ends=1, withdrawals=1)},
    "one on duty has died, a late request": {"abandoned": True, "budget": Budget(late=1, crashes=1)},
    "three, of which two meet, a withdrawal": {"bodies": "xxy", "budget": Budget(withdrawals=1)},
    "three that do not know of each other, a crash": {"bodies": "xyz", "meets": False, "budget": Budget(crashes=1)},
    "three": {"bodies": "xyz"},
}


@pytest.mark.parametrize("name", WORLDS)
def test_every_promise_holds_with_more_faults(name: str) -> None:
    every_promise_holds(GroupCommit(**WORLDS[name]))


@pytest.mark.soak
@pytest.mark.parametrize("name", LARGE)
def test_every_promise_holds_in_larger_worlds(name: str) -> None:
    every_promise_holds(GroupCommit(**LARGE[name]))
