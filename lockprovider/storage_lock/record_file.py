"""The lock record in the store, as one client knows it."""

from __future__ import annotations

from dataclasses import dataclass, field

from fsspec_cas import Condition, Content, ObjectNotFound, Outcome, Store, Version, Won, World
from lockprovider.storage_lock.record import LockRecord


@dataclass(frozen=True, slots=True)
class Known:
    """What a client knows of the record.

    `understood`: we would write it with the very same bytes. `seen_s`: since when it is known to have been so, on the
    monotonic clock.
    """

    record: LockRecord
    version: Version
    understood: bool
    seen_s: float = field(default=0.0, compare=False)


def newest(*seen: Known | None) -> Known | None:
    """The last of these to be written: whoever looks and finds that it still stands is sent no body."""
    return max(filter(None, seen), key=lambda known: known.record.epoch, default=None)


class RecordFile:
    """Reads the record, without its body while it has not changed, and writes it under a condition."""

    def __init__(self, store: Store, path: str, world: World, known: Known | None = None) -> None:
        self.known = known
        self._store = store
        self._path = path
        self.world = world
        self.highest_epoch = 0  # that was seen

    def read(self, timeout_s: float) -> Known | None:
        """The record now; None if there is none.

        Raises:
            MalformedRecord: the object there is not a lock record.
            CasError: the store failed.
        """
        try:
            content = self._content(timeout_s)
        except ObjectNotFound:
            self.known = None
            return None
        if content is not None:
            record = LockRecord.decode(content.data, self._path)
            understood = record.nonce != "" and record.encode() == content.data
            self.known = Known(record, content.version, understood, self.world.monotonic_s())
        if self.known is not None:
            self.highest_epoch = max(self.highest_epoch, self.known.record.epoch)
        return self.known

    def put(self, record: LockRecord, condition: Condition, timeout_s: float) -> Outcome:
        """Write it, if what is there is what the condition says.

        Raises:
            CasError: the store failed; the record was not written.
        """
        data = record.encode()
        if isinstance(condition, Version):
            outcome = self._store.put_if_match(self._path, data, condition, timeout=timeout_s)
        else:
            outcome = self._store.put_if_absent(self._path, data, timeout=timeout_s)
        if isinstance(outcome, Won):
            self.known = Known(record, outcome.version, understood=True, seen_s=self.world.monotonic_s())
            self.highest_epoch = max(self.highest_epoch, record.epoch)
        return outcome

    def _content(self, timeout_s: float) -> Content | None:
        if self.known is None:
            return self._store.read(self._path, timeout=timeout_s)
        return self._store.read_if_changed(self._path, self.known.version, timeout=timeout_s)
