"""One candidate at the store: looks, stands, renews, resigns."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

from fsspec_cas import (
    Cached,
    Content,
    ObjectNotFound,
    Outcome,
    OutcomeUnknown,
    Store,
    Unavailable,
    Version,
    Won,
    World,
    require_safe_for_locks,
)
from lockprovider.errors import LossReason
from lockprovider.recipes.election import decide
from lockprovider.recipes.election.decide import CandidateId, Leading, Observed
from lockprovider.recipes.election.record import ElectionRecord, decode_election
from lockprovider.recipes.errors import TermLost
from lockprovider.settings import LockSettings

_REQUEST_S = 20.0  # for one write, with all its tries
_SENDS = 4  # of one renewal or resignation, each at the version that the look before it has shown


class Candidate:
    """Thread-safe for looks; one thread at a time stands, renews or resigns."""

    def __init__(self, store: Store, path: str, name: str, settings: LockSettings, world: World) -> None:
        self.world = world
        self.me = CandidateId(world.new_id(), name, round(settings.validity * 1000), settings.margin_s)
        self._store = store
        self._path = path
        self._check = settings.check_store
        self._object = Cached(store, path, timeout=_REQUEST_S, world=world)
        self._guard = threading.Lock()
        self._observed: Observed | None = None
        self._decoded: tuple[Content, ElectionRecord] | None = None
        self._highest = 0

    @property
    def observed(self) -> Observed | None:
        """As of the last look."""
        return self._observed

    def look(self) -> Observed | None:
        """What is there; None: nothing, and nothing was. One conditional GET, shared by all who look at once.

        One request more when a term is seen for the first time: its age, where the store tells it by its own clock.

        Raises:
            MalformedObject: the object there is no election.
            StoreError: the store did not answer.
        """
        content = self._object.get()
        now_s = self.world.monotonic_s()
        if content is None:
            with self._guard:
                self._observed = decide.vanished(self._observed)
                return self._observed
        record = self._record(content)
        age_s = 0.0
        if self._observed is None and record.stands_s and self._store.capabilities.own_clock:
            age_s = self._age_s(content.version)
            now_s = self.world.monotonic_s()
        with self._guard:
            self._observed = decide.observe(self._observed, record, content.version, now_s, age_s)
            self._highest = max(self._highest, record.epoch)
            return self._observed

    def stand(self, observed: Observed | None, value: Any) -> Leading | None:
        """Try to be elected, on what was observed; None if another was.

        Raises:
            OutcomeUnknown: nobody can tell; what may have been won lapses, or is won again.
            NotSupported: the store ignores conditions: there would be two leaders.
            MalformedObject, StoreError: as `look`.
        """
        self._require_safe_store()
        sent_s = self.world.monotonic_s()
        write, now_ms = self.world.new_id(), self.world.now_ms()
        record = decide.candidacy(self.me, observed, self._highest, write=write, now_ms=now_ms, value=value)
        version = None if observed is None or observed.gone else observed.version
        outcome = self._put(record, version, _REQUEST_S)
        if isinstance(outcome, Won):
            return decide.leads_by(self.me, record, outcome.version, sent_s)
        return decide.elected(self.me, record, sent_s, self.look())  # a refusal is never believed without a look

    def renew(self, leading: Leading, changes: dict[str, Any] | None = None) -> Leading:
        """Prolong the term; one write. `changes` are of the record.

        Raises:
            TermLost: it is over.
            OutcomeUnknown, StoreError: nobody can tell; the deadline stays, and it may be tried again.
        """
        for _ in range(_SENDS):
            sent_s = self.world.monotonic_s()
            left_s = leading.deadline_s - sent_s
            if left_s <= 0:
                raise TermLost(self._over(leading, "it was not renewed in time"), LossReason.LAPSED)
            record = replace(leading.record, **(changes or {}), write=self.world.new_id())
            # a request that hangs must not keep the news of the end until others may lead
            outcome = self._put(record, leading.version, min(_REQUEST_S, max(left_s, self.me.margin_s / 2)))
            if isinstance(outcome, Won):
                return decide.leads_by(self.me, record, outcome.version, sent_s)
            there = self.look()
            now = decide.renewed(self.me, leading, record, sent_s, there)
            if now is None:
                raise self._deposed(leading, there)
            if now.record.write == record.write:
                return now
            leading = now
        raise Unavailable(f"the term {leading.record.epoch} of {self._path!r} was not renewed", path=self._path)

    def resign(self, leading: Leading, heir: str) -> None:
        """End the term, in favour of `heir` if that is not empty. If it is over already, nothing is done.

        Raises:
            OutcomeUnknown, StoreError: nobody can tell; else it lapses.
        """
        for _ in range(_SENDS):
            record = leading.record.resign(self.world.new_id(), heir)
            if isinstance(self._put(record, leading.version, _REQUEST_S), Won):
                return
            there = self.look()
            if there is None or not decide.goes_on(self.me, leading, there):
                return
            leading = Leading(there.record, there.version, leading.deadline_s)
        raise OutcomeUnknown(f"the term {leading.record.epoch} of {self._path!r} may lapse only", path=self._path)

    def _put(self, record: ElectionRecord, version: Version | None, timeout_s: float) -> Outcome:
        if version is None:
            return self._store.put_if_absent(self._path, record.encode(), timeout=timeout_s)
        return self._store.put_if_match(self._path, record.encode(), version, timeout=timeout_s)

    def _record(self, content: Content) -> ElectionRecord:
        known = self._decoded
        if known is None or known[0] is not content:
            known = self._decoded = (content, decode_election(content.data, self._path))
        return known[1]

    def _age_s(self, version: Version) -> float:
        """Of the record at that version, by the store's own clock; 0 if it does not say, or there is a newer one."""
        try:
            info = self._store.head(self._path, timeout=_REQUEST_S)
        except ObjectNotFound:
            return 0.0
        if info.version != version or info.modified_ms is None or info.answered_ms is None:
            return 0.0
        return (info.answered_ms - info.modified_ms) / 1000

    def _over(self, leading: Leading, why: str) -> str:
        return f"the term {leading.record.epoch} of {self._path!r} is over: {why}; stop what it protects"

    def _deposed(self, leading: Leading, there: Observed | None) -> TermLost:
        if there is None or there.gone:
            return TermLost(self._over(leading, "its object was removed"), LossReason.BROKEN)
        now = there.record
        who = f"{now.name!r} {'has led' if now.resigned else 'leads'}, in term {now.epoch}"
        return TermLost(self._over(leading, who), LossReason.TAKEN_OVER)

    def _require_safe_store(self) -> None:
        if self._check:
            folder = self._path.rpartition("/")[0]
            require_safe_for_locks(self._store.below(folder) if folder else self._store)
            self._check = False
