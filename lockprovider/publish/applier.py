"""What one client puts where it was published, after it was decided: see `lockprovider.publish.steps`."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from fsspec_cas import Store
from lockprovider.errors import Unappliable
from lockprovider.lease.states import Apply
from lockprovider.publish import steps
from lockprovider.record.pending import Pending

SetsAside = Callable[[Pending, Unappliable], bool]


def never(pending: Pending, why: Unappliable) -> bool:
    """For one that does not hold the lock."""
    del pending, why
    return False


class Applier:
    """Applies, and remembers what it knows to be there and what it has sent."""

    def __init__(self, store: Store) -> None:
        self.there: Pending | None = None  # the last publish that is known to be applied, and all before it
        self._store = store
        self._ahead: tuple[tuple[Pending, Future[bool]], ...] = ()  # whether what is to be rolled forward is there
        self._sent: set[Pending] = set()  # what was begun, and may yet arrive

    def apply(self, what: Apply, data: bytes | None, left_s: steps.Left, sets_aside: SetsAside = never) -> bool:
        """Put there what was decided, in the order of the decisions; whether all of it is there.

        What cannot be, `sets_aside` may keep elsewhere.

        Raises:
            Unappliable, Unavailable, OutcomeUnknown, StoreError: as `publish.apply`.
        """
        ends = [self._ends(earlier, None, left_s, sets_aside) for earlier in what.earlier]
        self._sent.add(what.pending)
        ends.append(self._ends(what.pending, data, left_s, sets_aside))
        self._sent.discard(what.pending)
        self.there = what.pending
        return all(ends)

    def _ends(self, pending: Pending, data: bytes | None, left_s: steps.Left, sets_aside: SetsAside) -> bool:
        try:
            steps.apply(self._store, pending, data, left_s)
        except Unappliable as error:
            if not sets_aside(pending, error):
                raise
            return False
        return True

    def may_arrive(self, pending: Pending) -> bool:
        """Whether a copy of it may be on its way from here."""
        return pending in self._sent

    def look_ahead(self, unapplied: tuple[Pending, ...]) -> None:
        """Whoever handed the lock over is at these: look for them while the record is being written.

        For each: some tables let them appear in any order.
        """
        looks = all(pending.sole for pending in unapplied) and self._store.is_remote
        self._ahead = tuple(
            (pending, self._store.in_background(partial(steps.is_there, self._store, pending.path)))
            for pending in (unapplied if looks else ())
        )

    def were_seen(self, unapplied: tuple[Pending, ...]) -> bool:
        """What came of the look ahead."""
        ahead, self._ahead = self._ahead, ()
        looked = tuple(pending for pending, _ in ahead)
        return looked == unapplied and all(found.exception() is None and found.result() for _, found in ahead)
