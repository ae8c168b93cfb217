"""The lock record, as one who combines reads and writes it; what a write decides is applied."""

from __future__ import annotations

from fsspec_cas import Store, Unknown, Version, Won, World
from lockprovider.errors import Unappliable
from lockprovider.storage_lock import combine
from lockprovider.storage_lock.applying import Applying
from lockprovider.storage_lock.audit_log import AuditLog
from lockprovider.storage_lock.commit_requests import SMOOTHING
from lockprovider.storage_lock.driver import REQUEST_S
from lockprovider.storage_lock.machine import hand_over_s, not_there
from lockprovider.storage_lock.pending import Pending
from lockprovider.storage_lock.record import LockRecord
from lockprovider.storage_lock.record_file import Known, RecordFile
from lockprovider.storage_lock.states import Me, Moment


class RecordWriter:
    """Of one thread.

    Attributes:
        stale: it must be looked at before anything is done by it.
        refused: how many writes in a row others were faster than.
        put_s: how long a write takes of late.
    """

    def __init__(
        self, records: Store, path: str, me: Me, world: World, *, applying: Applying, audit: AuditLog | None
    ) -> None:
        self.stale = True
        self.refused = 0
        self.put_s = 0.0
        self._me = me
        self._world = world
        self._audit = audit
        self._applying = applying
        self._file = RecordFile(records, path, world)
        self._doubt: Version | None = None  # at which a write was sent whose answer is missing
        # Of writes without an answer, by their nonces: until when what they decide may be applied.
        self._sent: dict[str, float] = {}

    @property
    def known(self) -> Known | None:
        """What it knows of the record."""
        return self._file.known

    @property
    def in_doubt(self) -> bool:
        """Whether a write may land yet."""
        return self._doubt is not None

    def learn(self, known: Known) -> None:
        """Another has seen it like that; of no use if it is older."""
        mine = self._file.known
        if mine is None or known.record.epoch > mine.record.epoch:
            self._file.known, self.stale = known, False

    def look(self) -> Known | None:
        """Read it.

        Raises:
            CasError, MalformedRecord: it is not known.
        """
        before = self._file.known
        known = self._file.read(REQUEST_S)
        self.stale = False
        if before is None or known is None or before.version != known.version:
            self._doubt = None
            sent, self._sent = self._sent, {}
            if known is not None and known.record.handed and known.record.nonce in sent:
                # A write of mine that was taken for refused. It may have been late: its time counts from when it began.
                self._applying.apply(known.record.unapplied, (), sent[known.record.nonce])
        return known

    def put(self, known: Known, batch: tuple[Pending, ...], *, duty_s: float, rest_ms: int = 0) -> bool:
        """Write it at the version that is known; whether that was won.

        Raises:
            CasError: nothing was sent.
        """
        began_s = self._world.monotonic_s()
        at = Moment(self._world.now_ms(), began_s, self._world.new_id())
        there, epoch = self._applying.there, self._file.highest_epoch
        record = combine.combine(
            self._me, known.record, batch, at, there=there, duty_ms=round(duty_s * 1000), rest_ms=rest_ms, epoch=epoch
        )
        until_s = began_s + hand_over_s(self._me.settings) / 2  # the other half is for clocks that differ
        self._sent[record.nonce] = until_s
        outcome = self._file.put(record, known.version, REQUEST_S)
        now_s = self._world.monotonic_s()
        self.put_s += (now_s - began_s - self.put_s) / (SMOOTHING if self.put_s else 1)
        if not isinstance(outcome, Won):
            self.refused += 1
            self.stale = True
            self._doubt = known.version if isinstance(outcome, Unknown) else self._doubt
            return False
        self.refused, self.stale, self._doubt, self._sent = 0, False, None, {}
        self._applying.apply(record.unapplied, batch, until_s)
        if self._audit is not None and batch:
            self._audit.taken(record)
            self._audit.ended(self._world.now_ms(), held=True)
        return True

    def move_on(self) -> None:
        """Return once nothing can land any more that was to be written over the record as it was.

        Over one that may not be written nothing is on its way.

        Raises:
            CasError, MalformedRecord: the store failed.
        """
        first = known = self.look()
        while first is not None and known is not None and known.version == first.version:
            if not combine.may_write(known.record):
                return
            self.put(known, (), duty_s=0.0)
            known = self.look()

    def unapplied(self, record: LockRecord) -> tuple[Pending, ...]:
        """What may not be there yet, as far as is known here."""
        return not_there(record, self._applying.there)

    def is_stuck(self, record: LockRecord) -> bool:
        """Whether something was decided that never can be put there: that is for a holder."""
        return isinstance(self._applying.failed, Unappliable) and bool(self.unapplied(record))
