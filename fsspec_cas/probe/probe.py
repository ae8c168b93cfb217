"""Probe of a live store's conditional writes, by experiment."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fsspec_cas.arguments import check_rooted, check_whole
from fsspec_cas.async_store import AsyncStore
from fsspec_cas.backends import off_thread
from fsspec_cas.bridge.drive import OnLoop
from fsspec_cas.errors import CasError, NotSupported
from fsspec_cas.machine import Machine, World
from fsspec_cas.probe.checks import BROKEN, CHECKS, Bench, Check, Finding, Use
from fsspec_cas.store import Store

RACERS = 8
_TIMEOUT_S = 30.0

Progress = Callable[[Finding, int, int], None]


@dataclass(frozen=True, slots=True)
class ProbeVerdict:
    """Uses for which the store is safe, with each reason against."""

    create_once: bool
    locks: bool
    streams: bool
    why_not: tuple[str, ...]

    def __str__(self) -> str:
        if self.locks:
            return "safe for locks and create-once" + ("" if self.streams else ", not for multipart creates")
        use = "safe for create-once only" if self.create_once else "not safe"
        return f"{use}: {self.why_not[0]}"


@dataclass(frozen=True, slots=True)
class Report:
    """All findings of one probe."""

    root: str
    kind: str
    racers: int
    findings: tuple[Finding, ...]
    verdict: ProbeVerdict
    left_behind: tuple[str, ...] = ()

    def to_json(self) -> str:
        """JSON text; `verdict.text` is the verdict in words."""
        return json.dumps({**asdict(self), "verdict": {**asdict(self.verdict), "text": str(self.verdict)}}, indent=2)

    def __getitem__(self, name: str) -> Finding:
        return {finding.name: finding for finding in self.findings}[name]


def probe(
    store: Store | str,
    storage_options: dict[str, Any] | None = None,
    *,
    racers: int = RACERS,
    timeout: float = _TIMEOUT_S,
    progress: Progress | None = None,
    checks: Sequence[Check] = CHECKS,
) -> Report:
    """Run the checks on a store or its URL.

    It sends some 200 small requests below a fresh prefix, and removes its objects. A few races do not find a rare loss,
    so a store that passed may be wrong.

    `racers`: writers in each race; `timeout` (seconds) is for each call. `progress` gets each finding, its number from
    1, and the number of checks. A check that `checks` lacks counts against each verdict that needs it.

    Raises:
        StoreError: the store is unusable: no such bucket, no access, no answer.
        InvalidInput: the store has no root, so no bucket; or fewer than 2 racers.
    """
    opened = Store.from_url(store, storage_options) if isinstance(store, str) else store
    asking = AsyncStore(off_thread(opened.backend), opened.root)
    return OnLoop().run(async_probe(asking, racers=racers, timeout=timeout, progress=progress, checks=checks))


async def async_probe(
    store: AsyncStore,
    *,
    racers: int = RACERS,
    timeout: float = _TIMEOUT_S,
    progress: Progress | None = None,
    checks: Sequence[Check] = CHECKS,
    world: World | None = None,
) -> Report:
    """Run the checks below a new folder of the store, delete its objects, and report, also what remains.

    `progress` follows each check.

    Raises StoreError if the store is unusable, InvalidInput without a root or two racers.
    """
    check_rooted(store.root)
    check_whole(racers, "racers", least=2)
    prefix = f"cas-probe-{(world or Machine()).new_id()}"
    bench = Bench(store.below(prefix), racers, timeout)
    await bench.read("reach")  # raises the error of an unusable store
    with suppress(NotSupported):
        await bench.write("reach")
    findings: list[Finding] = []
    try:
        for number, check in enumerate(checks, 1):
            findings.append(await _run(check, bench, findings))
            if progress is not None:
                progress(findings[-1], number, len(checks))
    finally:
        left_behind = await _clean(bench)
    return Report(store.root, store.backend.name, racers, tuple(findings), _judge(findings), left_behind)


async def _run(check: Check, bench: Bench, before: list[Finding]) -> Finding:
    """Run one check; return its finding.

    "skipped": a check that it needs is broken; "no" for NotSupported; "failed" for another error.
    """
    missing = [finding.name for finding in before if finding.name in check.needs and finding.state in BROKEN]
    if missing:
        return check.finding("skipped", f"not conclusive while {missing[0]!r} is broken")
    try:
        return check.finding(*await check.run(bench))
    except NotSupported as error:
        return check.finding("no", str(error))
    except Exception as error:  # noqa: BLE001 - a strange store makes an SDK fail in strange ways
        return check.finding("failed", f"{type(error).__name__}: {error}")


def _judge(findings: list[Finding]) -> ProbeVerdict:
    """Return the verdict on each use; a needed check without "yes", or not run, counts against it.

    Locks and streams also need what creates need.
    """
    by_name = {finding.name: finding for finding in findings}

    def against(use: Use) -> list[str]:
        needed = (check for check in CHECKS if use in check.needed_for)
        tried = (by_name.get(check.name) or check.finding("skipped", "not tested") for check in needed)
        return [f"{finding.name}: {finding.evidence}" for finding in tried if finding.state != "yes"]

    create, locks, streams = (against(use) for use in ("create", "locks", "streams"))
    return ProbeVerdict(not create, not create and not locks, not create and not streams, (*create, *locks, *streams))


async def _clean(bench: Bench) -> tuple[str, ...]:
    """Abort open uploads, and delete all objects below the bench's root, locally its folder too.

    Returns the paths that remain, or the error.
    """
    store = bench.store
    try:
        for upload in bench.uploads.values():
            with suppress(CasError):
                await store.backend.abort(upload, timeout_s=bench.timeout)
        for entry in await store.list("", timeout=bench.timeout):
            with suppress(CasError):
                await store.delete(entry.path, timeout=bench.timeout)
        remaining = tuple(entry.path for entry in await store.list("", timeout=bench.timeout))
    except CasError as error:
        return (f"{store.root}: {error}",)
    if store.backend.name == "local" and not remaining:
        shutil.rmtree(Path(store.root), ignore_errors=True)
    return remaining
