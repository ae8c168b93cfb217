"""`Term`: what one who is elected has, until it resigns or another may lead."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from datetime import datetime, timezone
from types import TracebackType
from typing import Any, NoReturn

from fsspec_cas import CasError
from fsspec_cas.given import check_text, function
from fsspec_cas.waiting import Signal
from lockprovider.errors import LossReason, NotPicklable
from lockprovider.recipes.election.candidate import Candidate
from lockprovider.recipes.election.decide import Leading
from lockprovider.recipes.errors import TermLost
from lockprovider.recipes.values import json_copy
from lockprovider.storage_lock.heartbeat import Heartbeat

_LOG = logging.getLogger("lockprovider")


class LostEvent(Signal):
    """Set once the term is over; `is_set` says so also when its time is past and nobody had a chance to set it."""

    def __init__(self, over: Callable[[], bool]) -> None:
        super().__init__()
        self._over = over

    def is_set(self) -> bool:
        """Whether to stop."""
        return super().is_set() or self._over()


class Term:
    """A term of this candidate's. Leave it (`with`), or `resign`; it is renewed from a thread of its own meanwhile.

    It belongs to the process that was elected: a forked child finds it lost. Not promised: that nobody else leads while
    this process, or its machine, stands still for longer than the validity. Give it as `fence` to what is written then.

    Attributes:
        epoch: rises with each term: `fence=term`.
        name: the candidate's.
        lost: set once another may lead.

    >>> election = lockprovider.election.open("memory://docs/scheduler.json", name="a")
    >>> term = election.lead()
    """

    def __init__(self, candidate: Candidate, leading: Leading, renew_s: float) -> None:
        self.epoch = leading.record.epoch
        self.name = leading.record.name
        self.thread = threading.current_thread()
        self.lost: Signal = LostEvent(self._is_over)
        self._candidate = candidate
        self._leading = leading
        self._why: TermLost | None = None
        self._one_write = threading.RLock()
        self._resigned = self._deposed = False
        self._telling = threading.RLock()
        self._told: list[Callable[[], object]] = []
        self._pid = os.getpid()
        self._heartbeat = Heartbeat(self, renew_s)
        self._heartbeat.start()
        _LOG.debug("%r was elected", self)

    def __repr__(self) -> str:
        return f"<Term {self.epoch} of {self.name!r}, {'over' if self.lost.is_set() else 'goes on'}>"

    def __getstate__(self) -> NoReturn:
        raise NotPicklable(
            f"the term {self.epoch} belongs to this process and cannot be pickled or copied: give `epoch` to others"
        )

    @property
    def value(self) -> Any:
        """What it tells of itself."""
        return json_copy(self._leading.record.value, "value")

    @property
    def deadline_s(self) -> float:
        """Until when this process believes in it, on `time.monotonic`'s clock, if it is not renewed."""
        return self._leading.deadline_s

    @property
    def since(self) -> datetime:
        """When it began, by this machine's clock, UTC."""
        return datetime.fromtimestamp(self._leading.record.since_ms / 1000, timezone.utc)

    def check(self) -> None:
        """Return if nobody else leads, as far as this process can know, without a request.

        Raises:
            TermLost: stop.

        >>> term.check()
        >>> term.resign()
        >>> term.check()
        Traceback (most recent call last):
        ...
        lockprovider.recipes.errors.TermLost: ...resigned...
        """
        if self.lost.is_set():
            forked = TermLost(self._said("it belongs to the process that this one was forked from"), LossReason.FORKED)
            why = self._why or forked
            raise TermLost(str(why), why.reason)

    def proclaim(self, value: Any) -> None:
        """Tell all who ask for the leader this of oneself, JSON, from now on. One write, which renews the term, too.

        Raises:
            TermLost: it is over; nothing was told.
            OutcomeUnknown, StoreError: nobody can tell; do it again.
            InvalidInput: JSON cannot say it.

        >>> term.proclaim({"port": 8080})
        >>> election.leader().value
        {'port': 8080}
        """
        told = json_copy(value, "value")
        with self._one_write:
            self.check()
            self._renew({"value": told})

    def resign(self, to: str = "") -> None:
        """End the term; the next may begin at once. `to`: who shall lead, if it stands within a third of the validity.

        Raises:
            OutcomeUnknown, StoreError: nobody can tell; if it was not done, the term lapses.

        >>> term.resign(to="b")
        >>> election.leader() is None
        True
        """
        check_text(to, "to")
        if self._pid != os.getpid() or self._resigned:
            return
        self._resigned = True
        self.give_up("it was resigned")  # before the store hears of it
        self._heartbeat.stop()
        with self._one_write:
            if not self._deposed:
                self._candidate.resign(self._leading, to)

    def give_up(self, why: str) -> None:
        """Take it for lost; the others are told of that by `resign`, or when it lapses."""
        self._end(TermLost(self._said(why), LossReason.RELEASED))

    def when_lost(self, call: Callable[[], object]) -> None:
        """Call it once the term is over, on whatever thread finds that; at once, if it is.

        >>> term.when_lost(lambda: print("stop"))
        >>> term.resign()
        stop
        """
        function(call, "call", "of nothing")
        with self._telling:
            if not Signal.is_set(self.lost):
                self._told.append(call)
                return
        call()

    def __enter__(self) -> Term:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(CasError):  # it lapses by itself
            self.resign()

    # -- for its heartbeat ---------------------------------------------------------------------------------------------

    def renew(self) -> bool:
        """Prolong it once."""
        with self._one_write:
            if not Signal.is_set(self.lost):
                with contextlib.suppress(TermLost):
                    self._renew({})
        return True

    def abandon(self, why: str) -> None:
        """It is not renewed any more, and nobody asked for that."""
        self._end(TermLost(self._said(why), LossReason.LAPSED))

    def _renew(self, changes: dict[str, Any]) -> None:
        try:
            self._leading = self._candidate.renew(self._leading, changes)
        except TermLost as error:
            self._deposed = error.reason is not LossReason.LAPSED
            self._end(error)
            raise

    def _is_over(self) -> bool:
        if self._pid != os.getpid():
            return True
        if self._candidate.world.monotonic_s() < self._leading.deadline_s:
            return False
        self.abandon("it was not renewed in time")  # for good: an answer that comes now prolongs nothing any more
        return True

    def _said(self, why: str) -> str:
        return f"the term {self.epoch} is over: {why}; stop what it protects"

    def _end(self, why: TermLost) -> None:
        with self._telling:
            if Signal.is_set(self.lost):
                return
            self._why = why
            self.lost.set()
            told, self._told = self._told, []
            _LOG.log(logging.DEBUG if why.reason is LossReason.RELEASED else logging.INFO, "%s", why)
        for call in told:
            call()
