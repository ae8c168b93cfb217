"""The lock with one part done wrong, each as somebody does it somewhere; every one breaks a promise in some history."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

from model.twins import CLOCKS, PUBLISHING, never_settles

from fsspec_cas import OutcomeUnknown
from fsspec_cas.outcome import Write
from lockprovider import Intent, Lease, Lock, LockRecord, Log, PublishUnknown
from lockprovider.storage_lock import commit_rules, driver, machine
from lockprovider.storage_lock.acquire import Fifo, FifoTurn
from lockprovider.storage_lock.commit_writes import RecordWriter
from lockprovider.storage_lock.committer import CommitSteps
from simulate.histories import START_S, History
from simulate.network import Network

Wrong = contextlib.AbstractContextManager[Any]


def _step(twin: Callable[..., Any]) -> Callable[[], Wrong]:
    wrong = SimpleNamespace(**{**vars(machine), "step": twin})
    return lambda: mock.patch.object(driver, "machine", wrong)


def _timed(twin: Callable[..., Any]) -> Callable[[], Wrong]:
    """A twin that is told the time of the history it is in."""

    @contextlib.contextmanager
    def patched() -> Iterator[None]:
        histories: list[History] = []
        begin = History.__init__

        def note(self: History, *given: Any) -> None:
            begin(self, *given)
            histories[:] = [self]

        def step(me: Any, state: Any, event: Any) -> Any:
            return twin(me, state, event, START_S + histories[0].scheduler.now_s)

        with mock.patch.object(History, "__init__", note), _step(step)():
            yield

    return patched


def _checks_then_writes(lease: Lease, path: str, data: bytes, *, new: bool = False) -> None:
    """Terraform, and every lock without a fence."""
    lease.check()
    try:
        lease._client.publisher._store.put_if_absent(path, data).unwrap()
    except OutcomeUnknown as error:
        raise PublishUnknown(str(error)) from error


async def _put_whatever_is_there(network: Network, write: Write, data: bytes, *, timeout_s: float) -> Any:
    """A store that ignores the conditions of what is written."""
    seen = await network._inner.head(write.path, timeout_s=timeout_s)
    now = replace(write, condition=getattr(seen, "version", write.condition))
    return network._ask("put", write.path, lambda: network._inner.put(now, data, timeout_s=timeout_s), timeout_s)


class _NoTurns(Fifo):
    """The threads of one client do not wait for each other."""

    def ask(self, turn: FifoTurn) -> None:
        """Put it at the beginning, and all others out of the line."""
        self._turns.clear()
        super().ask(turn)


@contextlib.contextmanager
def _no_turns() -> Iterator[None]:
    be_new = Lock._be_new

    def be(lock: Lock) -> None:
        be_new(lock)
        lock._client.turn = _NoTurns()

    with mock.patch.object(Lock, "_be_new", be):
        yield


_OF_PUBLISHING = (
    "a take-over drops the pending publish",
    "a take-over adopts without rolling forward",
    "the owner in the record is enough",
    "a pending publish blocks the next holder",
    "a released record counts as held",
)

# What is dropped may be missed by the next holder first, or by whoever finds its publish in the log.
_ALSO = {
    "a take-over drops the pending publish": "truth",
    "a take-over adopts without rolling forward": "truth",
}


def _forgets_what_is_not_there(me: Any, seen: LockRecord, *given: Any, last_applied: Any, **more: Any) -> LockRecord:
    """As if all that was decided before were there."""
    return _COMBINE(me, seen, *given, last_applied=seen.pending or last_applied, **more)


def _whatever_the_log(log: Log | None, intent: Intent, decider: Any) -> Any:
    """An intent that was judged by another log."""
    return _VERDICT(log, intent if log is None else replace(intent, log=log.name), decider)


_COMBINE, _VERDICT = commit_rules.combine, commit_rules.verdict

_NEVER_SETTLES = SimpleNamespace(**{**vars(machine), "publish_next": never_settles})


WRONG: dict[str, tuple[str, Callable[[], Wrong]]] = {
    **{
        name: (f"{PUBLISHING[name][0]}|{_ALSO.get(name, PUBLISHING[name][0])}", _step(PUBLISHING[name][2].step))
        for name in _OF_PUBLISHING
    },
    # "told" is the model's alone: a lease that is being given back passes no check, whether it lapses or not.
    **{name: (promise, _timed(twin)) for name, (promise, _, twin) in CLOCKS.items() if promise == "one"},
    "a publish is a check and a write": ("fence", lambda: mock.patch.object(Lease, "publish", _checks_then_writes)),
    "a lease that ended is taken for not written": (
        "truth",
        lambda: mock.patch.object(driver, "machine", _NEVER_SETTLES),
    ),
    "the store ignores conditions": ("", lambda: mock.patch.object(Network, "put", _put_whatever_is_there)),
    "the threads of a client do not take turns": ("fence", _no_turns),
    "who combines forgets what is not there yet": (
        "fence|truth",
        lambda: mock.patch.object(commit_rules, "combine", _forgets_what_is_not_there),
    ),
    "what is decided is there": ("truth", lambda: mock.patch.object(RecordWriter, "all_pending", return_value=())),
    "what is given up never was": ("truth", lambda: mock.patch.object(CommitSteps, "_withdraw", return_value=False)),
    "an intent holds for any log": (
        "fence|truth",
        lambda: mock.patch.object(commit_rules, "verdict", _whatever_the_log),
    ),
}
