"""`Election`: one of many leads, the others wait.

Promised: at most one candidate believes that it leads, whatever the wall clocks say, if clocks go alike (to within a
tenth of the validity). Epochs rise with each term, also over resignations, crashes and restarts. What takes
`fence=term` refuses a leader that another has followed.

Not promised: that a leader that stood still does nothing elsewhere before it knows. That two do not believe where the
store's front ends differ in time by more than a tenth of the validity, or where somebody removed the object. An order
among those who wait.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from fsspec_cas import CasError, InvalidInput, Machine, OutcomeUnknown, Store, Unavailable, World, check_path
from fsspec_cas.given import seconds
from fsspec_cas.waiting import Signal
from lockprovider.recipes.election.candidate import Candidate
from lockprovider.recipes.election.decide import may_stand, pause_s
from lockprovider.recipes.election.reports import Leader, LeaderChange, change_since, leads
from lockprovider.recipes.election.term import Term
from lockprovider.recipes.election.work import Ending, OnDeposed, work_under
from lockprovider.recipes.errors import NotElected
from lockprovider.recipes.place import OfThisProcess, me, open_at
from lockprovider.recipes.values import json_copy
from lockprovider.settings import LockSettings

T = TypeVar("T")

VALIDITY_S, POLL_S = 30.0, 1.0


class Election(OfThisProcess):
    """An election, and one candidate of it. Thread-safe; `open` it by a URL.

    `name` is what others call this candidate (default: host and process), `value` what it tells of itself, JSON.
    `validity` is for how many seconds it leads without renewing, `renew` how often it renews (default: a tenth), `poll`
    how often it looks while another leads.

    Raises:
        InvalidInput: an option is not of its kind.
        InvalidSettings: the times do not fit together.

    >>> election = lockprovider.election.open("memory://docs/scheduler.json", name="a", validity=60)
    >>> with election.lead(timeout=10) as term:
    ...     term.check()
    ...     election.leader().name
    'a'
    """

    def __init__(
        self,
        store: Store,
        path: str,
        *,
        name: str | None = None,
        value: Any = None,
        validity: float = VALIDITY_S,
        renew: float | None = None,
        poll: float = POLL_S,
        world: World | None = None,
    ) -> None:
        if not isinstance(store, Store):
            raise InvalidInput(f"store={store!r} must be a Store: give Store.from_url(url), or use Election.open(url)")
        if name is not None and (not isinstance(name, str) or not name):
            raise InvalidInput(f"name={name!r} must be text, e.g. name={socket.gethostname()!r}")
        self.settings = LockSettings(validity, renew, poll=poll)
        self.path = check_path(path)
        self.name = me() if name is None else name
        self.world = world or Machine()
        self._value = json_copy(value, "value")
        self._store = store.isolated_connections()  # a busy data path must not starve the renewals
        self._be_new()
        _ALL.add(self)

    @classmethod
    def open(cls, url: str, *, storage_options: dict[str, Any] | None = None, **options: Any) -> Election:
        """The election at a URL, with fsspec's storage options; nothing is asked of the store yet.

        Raises:
            InvalidInput: the URL cannot be understood or names no object, or an option does not fit.

        >>> lockprovider.election.open("memory://docs/scheduler.json", name="b", value={"port": 80})
        <Election 'scheduler.json', 'b' does not lead>
        """
        return open_at(cls, url, storage_options, options)

    def _be_new(self) -> None:
        """A candidate of its own, that was never elected."""
        self._candidate = Candidate(self._store, self.path, self.name, self.settings, self.world)
        self._standing = threading.Lock()
        self._stopping = Signal()
        self._term: Term | None = None

    def __repr__(self) -> str:
        term = self._term
        state = "does not lead" if term is None or term.lost.is_set() else f"leads in term {term.epoch}"
        return f"<Election {self.path!r}, {self.name!r} {state}>"

    def lead(self, timeout: float | None = None) -> Term:
        """Wait until this candidate is elected (None: for ever); `with election.lead() as term:` resigns at the end.

        Two requests where nobody leads; one conditional GET each `poll` while another does.

        Raises:
            NotElected: another led for `timeout` seconds.
            MalformedObject: the object there is no election.
            StoreError: the store failed. While it is merely silent, it is asked until the timeout, and a request that
                is under way then is waited for: at most 20 s more.

        >>> with election.lead(timeout=10) as term:
        ...     term.check()  # before each piece of work
        """
        deadline_s = self.deadline_s(timeout)
        while True:
            term = self.try_once(deadline_s)
            if isinstance(term, Term):
                return term
            self._stopping.wait(term)

    def deadline_s(self, timeout: float | None) -> float:
        """When `lead` would give up, on the monotonic clock."""
        return float("inf") if timeout is None else self.world.monotonic_s() + seconds(timeout)

    def try_once(self, deadline_s: float = 0.0) -> Term | float:
        """The term, if nobody else leads; else the seconds to wait before the next try.

        Raises:
            NotElected: there is no time left for one.
            MalformedObject, StoreError: as `lead`.
        """
        if self.stopping:
            raise NotElected(f"this candidate for {self.path!r} was stopped")
        failure: Unavailable | OutcomeUnknown | None = None
        observed = None
        with self._standing:
            if self._term is None or self._term.lost.is_set():
                try:
                    observed = self._candidate.look()
                    if may_stand(self._candidate.me, observed, self.world.monotonic_s()):
                        leading = self._candidate.stand(observed, self._value)
                        if leading is not None:
                            self._term = Term(self._candidate, leading, self.settings.renew)
                            return self._term
                        observed = self._candidate.observed
                except (Unavailable, OutcomeUnknown) as error:
                    failure = error
        now_s = self.world.monotonic_s()
        if now_s >= deadline_s:
            if failure is not None:
                raise failure
            there = leads(observed, now_s)
            who = "another candidate" if there is None else f"{there.name!r}, in term {there.epoch},"
            raise NotElected(f"{who} leads {self.path!r}", "" if there is None else there.name)
        pause = pause_s(observed, now_s, self.settings.poll, self.world.random())
        return min(pause, max(0.0, deadline_s - now_s))

    def run(
        self, main: Callable[[Term], T], *, on_deposed: OnDeposed = "interrupt", grace: float | None = None
    ) -> T | None:
        """Lead and call `main(term)`, again whenever another has led meanwhile, until `main` returns; what it returns.

        `main` is called on a thread of its own. When the term is lost, `term.lost` is set, and then, by `on_deposed`:
        "event": nothing more; "interrupt": `Deposed` is raised in it, each second until it ends; "exit": the same, and
        after `grace` seconds (default: the margin by which belief ends before others may lead) this process ends with
        code 123. This candidate does not stand again before `main` has ended. None after `stop`.

        Not promised: that "interrupt" ends what blocks in C, or catches `BaseException`.

        Raises:
            What `main` raised while it led, and what `lead` raises.

        >>> election.run(lambda term: "done, in the newest term")
        'done, in the newest term'
        """
        if not callable(main):
            raise InvalidInput(f"main={main!r} must be a function of a term")
        ending = self.ending(on_deposed, grace)
        while not self.stopping:
            try:
                term = self.lead()
            except NotElected:  # stopped
                break
            with term:
                done, result = work_under(term, main, ending)
                if done:
                    return result
        return None

    def ending(self, on_deposed: OnDeposed, grace: float | None) -> Ending:
        """How `run` ends what goes on after its term.

        Raises:
            InvalidInput: there is no such way, or no such time.
        """
        return Ending(on_deposed, self.settings.margin_s if grace is None else seconds(grace, "grace"))

    def stop(self) -> None:
        """Give up the term, if there is one; let `run` end its `main` and return; let nobody here stand again.

        >>> election.stop()
        >>> election.run(lambda term: "never") is None
        True
        """
        self._stopping.set()
        if self._term is not None:
            self._term.give_up("this candidate was stopped")

    def close(self) -> None:
        """`stop`, and tell the store that the term is over; if the store fails, it lapses.

        >>> election.close()
        """
        self.stop()
        term = self._term
        if term is not None:
            with contextlib.suppress(CasError):
                term.resign()

    def __enter__(self) -> Election:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stopping.is_set()

    def leader(self) -> Leader | None:
        """Who leads, as far as one who looks on can know; None if nobody does. One conditional GET.

        One request more at the first look, where the store tells the record's age. Where it does not (memory, local
        disk), one who died is taken for the leader until its validity has passed since that look.

        Raises:
            MalformedObject: the object there is no election.
            StoreError: the store did not answer.

        >>> with election.lead():
        ...     election.leader().name
        'a'
        >>> election.leader() is None
        True
        """
        return leads(self._candidate.look(), self.world.monotonic_s())

    def watch(self) -> Iterator[LeaderChange]:
        """Each change of leader, first who leads now, until `stop`; but for what came and went between two looks.

        One conditional GET each `poll`.

        Raises:
            MalformedObject, StoreError: as `leader`; but while the store is merely silent, it is asked again.

        >>> with election.lead():
        ...     next(election.watch()).leader.name
        'a'
        """
        before: Leader | None = None
        while not self.stopping:
            change, before, wait_s = self.changed(before)
            if change is not None:
                yield change
            self._stopping.wait(wait_s)

    def changed(self, before: Leader | None) -> tuple[LeaderChange | None, Leader | None, float]:
        """What happened since `before` led; who leads now; in how many seconds to look again."""
        try:
            observed = self._candidate.look()
        except Unavailable:
            return None, before, self.settings.poll
        now_s = self.world.monotonic_s()
        wait_s = pause_s(observed, now_s, self.settings.poll, 1.0)
        if observed is not None and now_s >= observed.until_s:
            wait_s = self.settings.poll
        return change_since(before, observed, now_s), leads(observed, now_s), wait_s

    def transfer(self, to: str) -> None:
        """Resign in favour of the candidate of that name: nobody else stands for a third of the validity.

        If none of that name stands in that time, anybody leads.

        Raises:
            NotElected: this candidate does not lead.
            OutcomeUnknown, StoreError: as `Term.resign`.

        >>> term = election.lead()
        >>> election.transfer("b")
        >>> term.lost.is_set()
        True
        """
        if not isinstance(to, str) or not to:
            raise InvalidInput(
                f"to={to!r} must be the name of a candidate; to resign in favour of anybody: term.resign()"
            )
        term = self._term
        if term is None or term.lost.is_set():
            raise NotElected(f"{self.name!r} does not lead {self.path!r}, and cannot transfer it")
        term.resign(to)


_ALL: weakref.WeakSet[Election] = weakref.WeakSet()


def _in_child() -> None:
    for one in _ALL:
        one._be_new()  # noqa: SLF001 - it is of this file


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
