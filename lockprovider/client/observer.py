"""Who is told of what one client does: its metrics and its audit log."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from fsspec_cas import Outcome, World
from lockprovider.lease.states import Done, Held, Me, State, Transition
from lockprovider.observe.metrics import Recorder

if TYPE_CHECKING:
    from lockprovider.observe.audit_log import AuditLog


_LOG = logging.getLogger("lockprovider")


class ClientObserver:
    """Hands on what the driver tells (`lease.driver.Observer`), and the end of a lease."""

    def __init__(self, me: Me, world: World, metrics: Recorder, audit: AuditLog | None) -> None:
        self._me = me
        self._world = world
        self._metrics = metrics
        self._audit = audit

    def stepped(self, me: Me, transition: Transition) -> None:
        """See `Recorder.stepped`."""
        self._metrics.stepped(me, transition)

    def wrote(self, state: State, outcome: Outcome) -> None:
        """See `Recorder.wrote`."""
        self._metrics.wrote(state, outcome)

    def done(self, done: Done, held: Held) -> None:
        """Into the log, and the audit if there is one."""
        if _LOG.isEnabledFor(logging.DEBUG):
            _LOG.debug("%s of %s, epoch %d", done.what, self._me.owner, held.record.epoch)
        if self._audit is None:
            return
        if done.what == "acquired":
            self._audit.taken(held.record)
        elif done.what in ("renewed", "committed"):
            self._audit.renewed(held.record, self._me.settings.validity)

    def ended(self, at_ms: int, *, held: bool) -> None:
        """The lock was released, if `held`; else it is known not to be held any more."""
        if self._audit is not None:
            self._audit.ended(at_ms, held=held)
