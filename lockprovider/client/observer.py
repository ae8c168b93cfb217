"""Who is told of what one client does: its metrics, its audit log, and what accompanies an acquisition."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from fsspec_cas import Outcome, World
from lockprovider.lease.states import Done, Held, Me, State, Transition
from lockprovider.observe.metrics import Recorder
from lockprovider.publish.applier import Applier
from lockprovider.record.record import LockRecord

if TYPE_CHECKING:
    from lockprovider.observe.audit_log import AuditLog


_LOG = logging.getLogger("lockprovider")


class Meanwhile(Protocol):
    """Reads that an acquisition is accompanied by, so that they are there when the lock is.

    The take is conditional on the version at which the record was seen. Once it has succeeded, nobody can have held the
    lock since; what was begun with the last `start` is as good as begun under the lock, if no `drop` came after it.
    """

    def start(self, seen: LockRecord) -> None:
        """The lock was seen free, as `seen`, and is about to be taken: read, from the start. Shall not keep the caller.

        What is pending in `seen` is decided, and may not be applied yet.
        """

    def drop(self) -> None:
        """What was read is not to be relied on; read again once the lock is there."""


class ClientObserver:
    """Hands on what the driver tells (`driving.Observer`)."""

    def __init__(self, me: Me, world: World, metrics: Recorder, audit: AuditLog | None, applier: Applier) -> None:
        self.meanwhile: Meanwhile | None = None
        self._me = me
        self._world = world
        self._metrics = metrics
        self._audit = audit
        self._applier = applier

    def stepped(self, me: Me, transition: Transition) -> None:
        """See `Recorder.stepped`."""
        self._metrics.stepped(me, transition)

    def takes(self, record: LockRecord, seen: LockRecord | None) -> None:
        """Look for the pending publish, and begin the reads that accompany the acquisition."""
        self._applier.look_ahead(record.pending)
        if self.meanwhile is None:
            return
        # Not if whoever had it let it lapse, or was made to, and may still be at work.
        given = seen is not None and (seen.handed or (seen.expired and seen.pending is None))
        if seen is not None and given and seen.tells_all:
            self.meanwhile.start(seen)
        else:
            self.meanwhile.drop()

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
            self._audit.renewed(held.record, self._me.settings.validity_s)

    def ended(self, at_ms: int, *, held: bool) -> None:
        """Likewise."""
        if self._audit is not None:
            self._audit.ended(at_ms, held=held)

    def turned(self, record: LockRecord) -> None:
        """Likewise: as if it were taken, and released."""
        if self._audit is not None:
            self._audit.taken(record)
            self._audit.ended(self._world.now_ms(), held=True)
