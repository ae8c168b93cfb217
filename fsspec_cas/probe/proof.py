"""Proof that an S3 store other than Amazon's obeys conditions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from fsspec_cas.answer import Applied, ConditionFailed
from fsspec_cas.arguments import check_seconds
from fsspec_cas.async_store import AsyncStore
from fsspec_cas.backends import off_thread
from fsspec_cas.backends.last_byte import run_race
from fsspec_cas.bridge.drive import OnLoop, drive_of
from fsspec_cas.errors import CasError, NotSupported, OutcomeUnknown, Unavailable
from fsspec_cas.machine import Machine, World
from fsspec_cas.outcome import ABSENT, Condition, Version, Won, won_or_lost
from fsspec_cas.sender import delay_s, undocumented_endpoint
from fsspec_cas.store import Store

if TYPE_CHECKING:
    from fsspec_cas.probe.checks import Bench

_ROUNDS = 2
_MATCHES = 2
_PAIRS = 4  # each at its own path: more at one path detect no more
_TIMEOUT_S = 30.0
_TRIES = 8
_AFTER_S = 0.5  # lets requests time out first
_CLEAN_S = 2.0


_PROVED: set[tuple[str, str]] = set()


def require_safe_for_locks(store: Store, *, timeout: float = _TIMEOUT_S) -> None:
    """Test, once per process and bucket, that an undocumented S3 endpoint refuses false conditions.

    "Proof before a lock" in SPECIFICATION.md describes the test: 56 requests, on its own objects below the store's
    root, which it tries to delete. It sends none for Amazon S3, GCS, Azure, local files and memory. `timeout` (seconds)
    limits the whole test, which takes at most 3 s more.

    Raises:
        NotSupported: the store ignores a condition, or two writers won. A lock there may have two holders.
        StoreError: the store cannot be used.
        InvalidInput: the test is needed, and the store has no root, so no bucket.
        Unavailable: the store did not answer in time.

    >>> require_safe_for_locks(Store.from_url("memory://docs"))  # documented, so nothing is asked
    """
    if store.kind != "s3":
        return
    clock = Machine()
    begun_s, timeout = clock.monotonic_s(), check_seconds(timeout)
    key = drive_of(clock, store.backend).run(undocumented_endpoint(store.backend, store.root, timeout))
    if key is None or key in _PROVED:
        return
    racing = AsyncStore(off_thread(store.backend), store.root)
    OnLoop().run(require_conditions(racing, timeout=timeout, spent_s=clock.monotonic_s() - begun_s))
    _PROVED.add(key)


async def require_conditions(
    store: AsyncStore, *, timeout: float = _TIMEOUT_S, spent_s: float = 0.0, world: World | None = None
) -> None:
    """Race writes of test objects below the root of any store, then try to delete them, even on error.

    `spent_s`: what the caller has used of the `timeout`.

    Raises NotSupported if a condition is ignored, Unavailable without an answer in time.
    """
    from fsspec_cas.probe.checks import Bench  # noqa: PLC0415

    path = f"cas-probe-{(world or Machine()).new_id()}"
    now_s, left_s = asyncio.get_running_loop().time, max(0.0, timeout - spent_s)
    end_s = now_s() + left_s + _AFTER_S
    try:
        await asyncio.wait_for(_require(Bench(store, 2, left_s), path), left_s + _AFTER_S)
    except (asyncio.TimeoutError, OutcomeUnknown) as error:
        outcome = error.outcome if isinstance(error, OutcomeUnknown) else None
        why = "it took too long" if outcome is None else outcome.why
        message = f"the store did not prove within {timeout:g} s that it refuses stale writes, which locks need: {why}"
        raise Unavailable(message, path=path) from error
    finally:
        paths = [path, *(race_path for n in range(_ROUNDS) for race_path in _paths(path, n))]
        with suppress(CasError, asyncio.TimeoutError):
            await asyncio.wait_for(store.delete_all(paths, timeout=_CLEAN_S), end_s + _CLEAN_S - now_s())


def _paths(path: str, number: int) -> list[str]:
    return [f"{path}-{number}-{pair}" for pair in range(_PAIRS)]


async def _require(bench: Bench, path: str) -> None:
    """Write and race objects at `path` and `_paths`, which remain; NotSupported if a condition is broken."""
    first = (await bench.write_or_raise(path)).version
    outcome = await bench.write(path, first)  # not raced: it determines the dialect
    if not won_or_lost(outcome):
        raise _unsafe(bench.store, "a match at the right version was refused")
    await _require_refusal(bench, path, first, "a match at a stale version")
    for number in range(_ROUNDS):
        last = await _winners(bench, dict.fromkeys(_paths(path, number), ABSENT), "creates of one object")
        for _ in range(_MATCHES):
            last = await _winners(bench, last, "matches at one version")
    heads = await asyncio.gather(*(bench.store.head(race_path, timeout=bench.timeout) for race_path in last))
    if [info.version for info in heads] != [*last.values()]:
        raise _unsafe(bench.store, "after a race the object is not the one that was reported as won")


async def _winners(bench: Bench, at: Mapping[str, Condition], races: str) -> dict[str, Version]:
    """Race two writes at each path of `at`, under its condition; return each path's version afterwards.

    Where no winner's version is known, writes once more. Raises NotSupported, with the text `races`, if both are won,
    or both refused.
    """
    pairs = [race_path for race_path in at for _ in range(2)]
    answers = await run_race(lambda: [bench.send(race_path, at[race_path]) for race_path in pairs])
    won: dict[str, Version] = {}
    for race_path in at:
        pair = [answer for path, answer in zip(pairs, answers, strict=True) if path == race_path]
        applied = [answer.version for answer in pair if isinstance(answer, Applied)]
        if len(applied) > 1:
            raise _unsafe(bench.store, f"two {races} at once were both reported as won")
        if not applied and all(isinstance(answer, ConditionFailed) for answer in pair):
            raise _unsafe(bench.store, f"two {races} at once were both refused")
        if applied and applied[0]:
            won[race_path] = applied[0]
        else:
            outcome = await bench.write(race_path, at[race_path])
            now = outcome if isinstance(outcome, Won) else await bench.store.head(race_path)
            won[race_path] = now.version
    return won


async def _require_refusal(bench: Bench, path: str, condition: Version, attempt: str) -> None:
    """Send a write that the store must refuse; retry unclear answers with delays.

    Raises NotSupported if it is applied, Unavailable after 8 tries.
    """
    for failures in range(1, _TRIES + 1):
        answer = await bench.send(path, condition)
        if isinstance(answer, ConditionFailed):
            return
        if isinstance(answer, Applied):
            raise _unsafe(bench.store, f"{attempt} was not refused")
        await asyncio.sleep(delay_s(failures, bench.world.random()))
    raise Unavailable(f"the store did not say whether {attempt} is refused: {answer}", path=path)


def _unsafe(store: AsyncStore, why: str) -> NotSupported:
    return NotSupported(f"{store.root!r} is not safe for locks: {why}; run `fsspec-cas probe URL` for details")
