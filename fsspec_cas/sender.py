"""Sends a store's requests, with retries and full-jitter pauses, until an outcome or the timeout.

Source of the pauses: AWS Architecture Blog, "Exponential Backoff And Jitter" (2015).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol, TypeVar

from fsspec_cas.answer import (
    Applied,
    FinishAnswer,
    Missing,
    NoAnswer,
    NotApplied,
    ObjectState,
    ReadAnswer,
    Unchanged,
    WriteAnswer,
)
from fsspec_cas.arguments import check_rooted, check_seconds
from fsspec_cas.backends import Backend
from fsspec_cas.backends.s3 import is_amazon, is_in_directory_bucket
from fsspec_cas.bridge.drive import Drive
from fsspec_cas.errors import NotSupported, OutcomeUnknown, StoreError, Unavailable
from fsspec_cas.machine import World
from fsspec_cas.outcome import ABSENT, Absent, Lost, Outcome, Unknown, Version, Won, Write
from fsspec_cas.settle import (
    Adapt,
    Contradicts,
    Inconclusive,
    Next,
    ReadHead,
    Send,
    WriteProgress,
    first_step,
    on_head_answer,
    on_write_answer,
)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_LOG = logging.getLogger("fsspec_cas")
_STRANGERS = 5
_SMALL_BYTES = 1 << 20
_SILENCES = 3
_NEVER = '"00000000000000000000000000000000"'
# By endpoint and bucket: whether a delete's success is proof; None: the condition is ignored.
_SUCCESS_IS_PROOF: dict[tuple[str, str], bool | None] = {}

HeadState = ObjectState | Missing | Unchanged
WARN_AFTER_S = 5.0


class Ask(Protocol[T_co]):
    def __call__(self, *, timeout_s: float) -> Coroutine[Any, Any, T_co | NotApplied | NoAnswer]:
        """Send one request; return the answer."""


Sending = Ask[FinishAnswer]


class RetryBudget:
    """Time budget of one call with all its tries; may log one warning."""

    def __init__(self, world: World, drive: Drive, path: str, timeout_s: float) -> None:
        self._world = world
        self._drive = drive
        self._path = path
        self._begun_s = world.monotonic_s()
        self._deadline_s = self._begun_s + timeout_s
        self._warned = False
        self._slowest_s = 0.0

    async def pause(self, failures: int, retry_after_s: float | None = None, why: str = "") -> float:
        """Sleep the back-off delay, if any; return the seconds left. May log the warning, with `why`.

        Returns 0, perhaps without a sleep, if they are too few for another try.
        """
        if not failures and not retry_after_s:
            return max(0.0, self._left_s())
        pause = delay_s(failures, self._world.random(), retry_after_s)
        if self._left_s() - pause < least_try_s(self._slowest_s):
            return 0.0
        if not self._warned and self._world.monotonic_s() + pause - self._begun_s >= WARN_AFTER_S:
            self._warn(f"{why or 'no answer'}; retrying")
        await self._drive.sleep(pause)
        left_s = self._left_s()
        return left_s if left_s >= least_try_s(self._slowest_s) else 0.0

    async def spend(self, ask: Coroutine[Any, Any, T], *, small: bool = True) -> T:
        """Await a try, keep the longest duration; return its result.

        `small`: may log the warning past 5 s of the call.
        """
        begun_s = self._world.monotonic_s()
        alarm = self._alarm() if small else None
        try:
            answer = await ask
        finally:
            if alarm is not None:
                alarm.cancel()
        self._slowest_s = max(self._slowest_s, self._world.monotonic_s() - begun_s)
        return answer

    def _alarm(self) -> asyncio.TimerHandle | None:
        """Schedule the warning on the event loop, 5 s after the call began; return its timer.

        None: not needed, or no loop runs.
        """
        silent_s = self._begun_s + WARN_AFTER_S - self._world.monotonic_s()
        if self._warned or silent_s >= self._left_s():
            return None
        try:
            return asyncio.get_running_loop().call_later(max(0.0, silent_s), self._warn, "no answer yet; still waiting")
        except RuntimeError:
            return None

    def _warn(self, state: str) -> None:
        self._warned = True
        _LOG.warning("%r: %s, for up to %.0f s", self._path, state, max(0.0, self._left_s()))

    def _left_s(self) -> float:
        return self._deadline_s - self._world.monotonic_s()


class Sender:
    """`timeout` (seconds) is for a whole call."""

    def __init__(
        self, backend: Backend, world: World, drive: Drive, on_throttled: Callable[[], None] | None = None
    ) -> None:
        self._backend = backend
        self._world = world
        self._drive = drive
        self._on_throttled = on_throttled
        self._clock_reading: tuple[int, float] | None = None  # (store's clock in ms, time of send)

    @property
    def time_ms(self) -> int | None:
        if self._clock_reading is None:
            return None
        answered_ms, sent_s = self._clock_reading
        return answered_ms + round((self._world.monotonic_s() - sent_s) * 1000)

    async def write(self, write: Write, data: bytes | None, timeout: float) -> Outcome:
        """Put the data, or delete the object, with retries.

        Raises StoreError or NotSupported if no copy was or will be applied.
        """
        return await self._settle(WriteProgress(write), first_step(write), self._sending(write, data), data, timeout)

    async def finish(self, write: Write, send: Sending, timeout: float) -> Outcome:
        """Complete a stream by `send`, repeated while the object stays absent; raises as `write`."""
        return await self._settle(WriteProgress(write), Send(), send, None, timeout, small=False)

    async def resume(self, unknown: Unknown, timeout: float) -> Outcome:
        """Read the object, re-send the write while its condition holds; store errors become Unknown."""
        write, data = unknown.write, unknown.data
        spent = data is None and not write.removes
        progress = WriteProgress(write, doubt=True, spent=spent, resent=unknown.resent, why=unknown.why)
        return await self._settle(progress, ReadHead(), self._sending(write, data), data, timeout)

    async def repeat(self, path: str, ask: Ask[T], timeout: float, *, small: bool = True) -> T:
        """Repeat `ask`, which must be safe to repeat, with pauses until answered; store errors pass.

        `path` is for messages; `small=False`: long silence is normal.

        Raises Unavailable at `timeout`, or after five answers of a server that never proved to be a store.
        """
        tries = RetryBudget(self._world, self._drive, path, check_seconds(timeout))
        failures, strangers, why, floor = 0, 0, "the timeout had passed", None
        while left_s := await tries.pause(failures, floor, why):
            answer = self._report_answer("request", path, await tries.spend(ask(timeout_s=left_s), small=small))
            if not isinstance(answer, (NotApplied, NoAnswer)):
                return answer
            failures, why, floor = failures + 1, answer.why, answer.retry_after_s
            strangers += isinstance(answer, NoAnswer) and answer.stranger
            if strangers >= _STRANGERS:
                raise Unavailable(
                    f"the server that answers for {path!r} is not an object store: {why}; check the endpoint", path=path
                )
        raise Unavailable(f"the store did not answer for {path!r} within {timeout:g} s: {why}", path=path)

    async def head(self, path: str, timeout: float) -> HeadState:
        return await self._repeat_read(path, partial(self._backend.head, path), timeout)

    async def get(self, path: str, unless: Version | None, timeout: float) -> HeadState:
        """Read the bytes, `Unchanged` if still at `unless`; record the store's clock."""
        state = await self._repeat_read(path, partial(self._backend.get, path, unless), timeout)
        is_at = isinstance(state, ObjectState) and state.version == unless  # the server ignored the condition
        return Unchanged() if is_at else state

    async def check_delete(self, path: str, timeout: float) -> bool:
        """Return whether a conditional delete's success proves that it removed the object.

        Raises NotSupported without such deletes, or for ignored conditions, Unavailable if the test gets no answers. An
        S3 store other than Amazon's is tested first, once per bucket and process, on an object in `path`'s folder.
        """
        name = self._backend.name
        if not self._backend.capabilities.delete_match:
            raise NotSupported(f"this client of {name} has no conditional delete: write a tombstone by put_if_match")
        bucket = path.partition("/")[0]
        if is_in_directory_bucket(name, path):
            return False
        end_s = self._world.monotonic_s() + timeout
        key = await undocumented_endpoint(self._backend, path, timeout)
        if key is None:
            return True
        if key not in _SUCCESS_IS_PROOF:
            _SUCCESS_IS_PROOF[key] = await self._try_deletes(path.rpartition("/")[0] or bucket, end_s)
        if (is_proof := _SUCCESS_IS_PROOF[key]) is None:
            why = "this store ignores the condition: write a tombstone by put_if_match"
            raise NotSupported(f"{path!r} cannot be deleted at a version, because {why}")
        return is_proof

    async def _try_deletes(self, folder: str, end_s: float) -> bool | None:
        """Create an object in `folder`, delete it at a wrong version, at its own, and again.

        True: only the second succeeds. False: also the third. None: the first succeeds, or the second does not. Each
        removes the object.

        Errors may leave the object; Unavailable: no result at `end_s`, or 3 unanswered deletes.
        """
        new_id = self._world.new_id()
        path = f"{folder}/cas-probe-{new_id}"

        def left_s() -> float:
            return max(0.0, end_s - self._world.monotonic_s())

        async def remove(version: Version | None) -> bool:
            """Delete the object at `version` (None: any); return False if refused.

            Raises Unavailable if 3 unanswered tries leave it.
            """
            silences = 0

            async def ask(*, timeout_s: float) -> WriteAnswer | None:
                nonlocal silences
                answer = await self._backend.delete(path, version, timeout_s=timeout_s)
                silences += isinstance(answer, NoAnswer)
                return None if silences >= _SILENCES else answer

            answer = await self.repeat(path, ask, left_s())
            removed = isinstance(answer, Applied) or (silences > 0 and await self.head(path, left_s()) == Missing())
            if answer is None and not removed:
                raise Unavailable(f"no answer to {_SILENCES} deletes of {path!r}", path=path)
            return removed

        try:
            version_made = (await self.write(Write(path, ABSENT, new_id), new_id.encode(), left_s())).unwrap()
            keeps_condition = True
            with contextlib.suppress(NotSupported):
                keeps_condition = not await remove(Version(version_made.backend, _NEVER))
                if keeps_condition and await remove(version_made):
                    return not await remove(version_made)
        except (OutcomeUnknown, Unavailable) as error:
            raise Unavailable(f"the store did not show what it does with the condition of a delete: {error}") from error
        if keeps_condition:
            await remove(None)
        return None

    async def _repeat_read(self, path: str, ask: Ask[HeadState], timeout: float) -> HeadState:
        """Read by `repeat`; return the answer, and keep the store's clock reading, if any."""

        async def timed(*, timeout_s: float) -> HeadState | NotApplied | NoAnswer:
            sent_s = self._world.monotonic_s()
            answer = await ask(timeout_s=timeout_s)
            if isinstance(answer, ObjectState) and answer.answered_ms is not None:
                self._clock_reading = answer.answered_ms, sent_s
            return answer

        return await self.repeat(path, timed, timeout)

    def _sending(self, write: Write, data: bytes | None) -> Sending:
        """Function that sends this write once: put `data`, or delete if `write.removes`.

        A delete's `Applied` carries `condition`; None for `Absent`.
        """
        removed = None if isinstance(write.condition, Absent) else write.condition

        async def remove(*, timeout_s: float) -> WriteAnswer:
            answer = await self._backend.delete(write.path, removed, timeout_s=timeout_s)
            return Applied(removed) if isinstance(answer, Applied) else answer

        return remove if write.removes else partial(self._backend.put, write, data or b"")

    async def _settle(
        self,
        progress: WriteProgress,
        step: Next,
        send: Sending,
        data: bytes | None,
        timeout: float,
        *,
        small: bool = True,
    ) -> Outcome:
        """Run the decision table's steps (`settle.py`) from `step`; return the outcome.

        `data` goes into an Unknown.

        Store errors, and the end of the time, raise; in doubt, or while a refusal is checked, they become Unknown. An
        interrupt's cause is OutcomeUnknown.
        """
        tries = RetryBudget(self._world, self._drive, progress.write.path, check_seconds(timeout))
        strangers, small = 0, small and len(data or b"") <= _SMALL_BYTES
        try:
            while True:
                match step:
                    case Won() | Lost():
                        return step
                    case Inconclusive(why):
                        return Unknown(progress.write, why, data, progress.resent)
                    case Contradicts(why):
                        problem = f"{progress.write.path!r} cannot be written conditionally: {why}"
                        raise NotSupported(f"{problem}; run `fsspec-cas probe`")  # noqa: TRY301 - a delete may be in doubt
                    case Send() | ReadHead() | Adapt():
                        floor = None if isinstance(step, Adapt) else step.retry_after_s
                        left_s = await tries.pause(step.after_failures, floor, progress.why)
                if left_s <= 0 or strangers >= _STRANGERS:
                    return _out_of_time(progress, data)
                answer = await tries.spend(self._send_step(progress, step, send, left_s), small=small)
                strangers += isinstance(answer, NoAnswer) and answer.stranger
                after = on_head_answer if isinstance(step, ReadHead) else on_write_answer
                progress, step = after(progress, answer)  # type: ignore[arg-type]
        except (StoreError, NotSupported) as error:
            checking = progress.refused and isinstance(step, ReadHead)
            if progress.unsure or checking:  # an unreadable store does not mean "lost"
                why = progress.why or "it was refused, perhaps as a proxy's second copy"
                return Unknown(progress.write, f"{why}; then: {error}", data, progress.resent)
            raise
        except (asyncio.CancelledError, KeyboardInterrupt) as stop:
            raise stop from _interrupted(progress, data)

    async def _send_step(
        self, progress: WriteProgress, step: Send | ReadHead | Adapt, send: Sending, left_s: float
    ) -> FinishAnswer | ReadAnswer:
        """Send one step's request (`Adapt` first switches the dialect); return its answer.

        If a delete's head finds no object, before any doubt, sends a get and returns its answer.
        """
        path = progress.write.path
        if isinstance(step, ReadHead):
            state = await self._backend.head(path, timeout_s=left_s)
            if isinstance(state, Missing) and progress.write.removes and not progress.unsure:
                state = await self._backend.get(path, None, timeout_s=left_s)  # a HEAD cannot report a missing bucket
            return self._report_answer("look", path, state)
        if isinstance(step, Adapt):
            self._backend.adapt(step.refused)
        return self._report_answer("delete" if progress.write.removes else "write", path, await send(timeout_s=left_s))

    def _report_answer(self, kind: str, path: str, answer: T) -> T:
        if _LOG.isEnabledFor(logging.DEBUG):
            detail = getattr(answer, "why", None) or getattr(answer, "version", None) or ""  # never an object's bytes
            _LOG.debug("%s of %s: %s", kind, path, f"{type(answer).__name__} {detail}".rstrip())
        if self._on_throttled is not None and _throttled(answer):
            self._on_throttled()
        return answer


def _throttled(answer: object) -> bool:
    return isinstance(answer, (NotApplied, NoAnswer)) and (answer.why[:3] in ("429", "503") or "SlowDown" in answer.why)


async def undocumented_endpoint(backend: Backend, path: str, timeout: float) -> tuple[str, str] | None:
    """Return endpoint and bucket (of `path`) of an S3 store other than Amazon's, else None.

    May look for credentials. Raises Unavailable if no client is ready within `timeout`, InvalidInput without a bucket.
    """
    endpoint_of = getattr(backend, "endpoint", None)
    if backend.name != "s3" or endpoint_of is None:
        return None
    bucket = path.partition("/")[0]
    if backend.blocking:
        endpoint = await endpoint_of()
    else:
        try:
            endpoint = await asyncio.wait_for(endpoint_of(), timeout)
        except asyncio.TimeoutError:
            raise Unavailable(f"no client of the store of {path!r} could be made within {timeout:g} s") from None
    if is_amazon(endpoint):
        return None
    check_rooted(bucket)
    return endpoint, bucket


def _out_of_time(progress: WriteProgress, data: bytes | None) -> Outcome:
    write = progress.write
    if progress.doubt or progress.refused:
        return Unknown(write, progress.why or "the read after a refusal failed", data, progress.resent)
    done, why = "removed" if write.removes else "written", progress.why or "the timeout had passed"
    raise Unavailable(f"{write.path!r} was not {done}: {why}", path=write.path)


def _interrupted(progress: WriteProgress, data: bytes | None) -> OutcomeUnknown:
    resent = progress.resent or progress.doubt
    unknown = Unknown(progress.write, "the call was interrupted before its answer came", data, resent)
    path = progress.write.path
    return OutcomeUnknown(f"the call for {path!r} may have been applied: {unknown.why}", path=path, outcome=unknown)


BASE_S = 0.05
CEILING_S = 5.0
_DOUBLINGS = 10
_LEAST_S = 0.05
_FLOOR_S = 0.5


def delay_s(failures: int, draw: float, retry_after_s: float | None = None) -> float:
    """Seconds to wait after the `failures`-th failure; `draw` is in [0, 1).

    A store's Retry-After is a lower bound, raised by up to a quarter, and capped.
    """
    ceiling = min(CEILING_S, BASE_S * (1 << min(failures, _DOUBLINGS)))
    most = min(CEILING_S, _FLOOR_S * (1 << min(max(failures - 1, 0), _DOUBLINGS)))
    return max(min(retry_after_s or 0.0, most) * (1 + draw / 4), ceiling * draw)


def least_try_s(slowest_s: float) -> float:
    return max(_LEAST_S, 2 * slowest_s)
