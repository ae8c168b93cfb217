"""The bench on which a store is tried: what the checks of `checks` are made of.

State of a finding: "yes" it holds; "no" it does not; "known" a fact that is neither good nor bad; "skipped" it would
say nothing here; "failed" it could not be found out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from fsspec_cas.answer import Applied, Denied, FinishAnswer, Gone, NoAnswer, NotNow, Upload, WriteAnswer
from fsspec_cas.async_store import AsyncStore
from fsspec_cas.clock import Machine, World
from fsspec_cas.errors import NotSupported, Unavailable
from fsspec_cas.outcome import Lost, Outcome, Unknown, Won
from fsspec_cas.version import Condition, Version

CheckState = Literal["yes", "no", "known", "skipped", "failed"]
Use = Literal["create", "locks", "streams"]
Said = tuple[CheckState, str]

BROKEN = ("no", "failed", "skipped")
_PATIENCE = 12  # answers "not now" in a row


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check came to. `needed_for` says which uses need it to hold."""

    name: str
    proves: str
    state: CheckState
    evidence: str
    needed_for: tuple[Use, ...]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing to try. `needs` are checks without which this one would say nothing."""

    name: str
    proves: str
    run: Callable[[Bench], Awaitable[Said]]
    needed_for: tuple[Use, ...] = ()
    needs: tuple[str, ...] = ()

    def found(self, state: CheckState, evidence: str) -> Finding:
        """The finding."""
        return Finding(self.name, self.proves, state, evidence, self.needed_for)


@dataclass(slots=True)
class Bench:
    """A fresh folder of the store under test. Bytes never repeat unless a check means them to."""

    store: AsyncStore
    racers: int
    timeout: float
    world: World = field(default_factory=Machine)
    _count: int = 0

    def body(self) -> bytes:
        """Bytes that were never written before."""
        self._count += 1
        return f"{self._count} {self.world.new_id()}".encode()

    async def reach(self) -> None:
        """Raise what keeps the store from being used at all: no such bucket, no access, no answer."""
        await self.store.read_or_none("reach", timeout=self.timeout)
        with suppress(NotSupported):
            await self.create("reach")

    async def create(self, path: str, body: bytes | None = None) -> Outcome:
        """`put_if_absent`."""
        return await self.store.put_if_absent(path, body or self.body(), timeout=self.timeout)

    async def made(self, path: str, body: bytes | None = None) -> Version:
        """The same, where it must be won."""
        return (await self.create(path, body)).unwrap()

    async def match(self, path: str, version: Version, body: bytes | None = None) -> Outcome:
        """`put_if_match`."""
        return await self.store.put_if_match(path, body or self.body(), version, timeout=self.timeout)

    async def send(self, path: str, condition: Condition) -> WriteAnswer:
        """One write, sent once: what the store says, before anything is made of it."""
        backend, full, write_id = self.store.backend, f"{self.store.root}/{path}", self.world.new_id()
        body = self.body()
        answer = await patiently(lambda: backend.put(full, body, condition, write_id, timeout_s=self.timeout))
        if isinstance(answer, Gone):
            raise Unavailable(answer.why)
        return answer

    async def plain_write(self, path: str, body: bytes) -> str:
        """Write by the user's own filesystem, without a condition, as other programs do; else why that cannot be."""
        backend: Any = self.store.backend
        fs = getattr(getattr(backend, "_inner", backend), "_given", None)
        if fs is None or getattr(fs, "asynchronous", False):
            return "this client has no filesystem to write by"
        try:
            await asyncio.to_thread(fs.pipe_file, f"{self.store.root}/{path}", body)
        except Exception as error:  # noqa: BLE001 - it says nothing about conditions
            return f"its filesystem fails with {type(error).__name__}: {error}"
        return ""

    async def delete(self, path: str, version: Version | None) -> WriteAnswer:
        """One delete, sent once: what the store says. `delete_if_match` looks first, and would not ask."""
        backend, full = self.store.backend, f"{self.store.root}/{path}"
        return await patiently(lambda: backend.delete(full, version, timeout_s=self.timeout))  # type: ignore[return-value]

    async def found(self, path: str) -> str:
        """What is at a path, for the evidence of a finding."""
        return (
            "nothing is there" if await self.store.read_or_none(path, timeout=self.timeout) is None else "it is there"
        )

    async def holds(self, path: str, body: bytes, version: Version) -> bool:
        """Whether this is what is there."""
        content = await self.store.read_or_none(path, timeout=self.timeout)
        return content is not None and (content.data, content.version) == (body, version)


async def patiently(ask: Callable[[], Awaitable[FinishAnswer]]) -> FinishAnswer:
    """Ask again while the store says "not now"; a second apart at last, as a store with a pace wants it."""
    answer = await ask()
    for n in range(_PATIENCE):
        if not isinstance(answer, NotNow):
            return answer
        await asyncio.sleep(min(1.1, 0.1 * (n + 1)))
        answer = await ask()
    raise Unavailable(f"the store says 'not now' for too long: {answer}")


async def begun(bench: Bench, path: str, body: bytes) -> Upload | Denied:
    """An upload that needs nothing more than to be finished."""
    uploads, full = bench.store.backend.uploads, f"{bench.store.root}/{path}"
    opened = await uploads.begin(full, bench.world.new_id(), timeout_s=bench.timeout)
    if isinstance(opened, Upload) and not uploads.rules.tail_with_finish:
        opened = await uploads.add(opened, body, timeout_s=bench.timeout)
    if isinstance(opened, (NotNow, NoAnswer)):
        raise Unavailable(f"the upload could not begin: {opened.why}")
    return opened


async def finish_upload(bench: Bench, opened: Upload | Denied, body: bytes) -> FinishAnswer:
    """Finish it: what the store says."""
    if isinstance(opened, Denied):
        return opened
    uploads = bench.store.backend.uploads
    tail = body if uploads.rules.tail_with_finish else b""
    answer = await patiently(lambda: uploads.finish(opened, tail, timeout_s=bench.timeout))
    if not isinstance(answer, Applied):
        await uploads.abort(opened, timeout_s=bench.timeout)
    return answer


async def check_refused(bench: Bench, path: str, body: bytes, version: Version, outcome: Outcome) -> Said:
    """Whether a write was refused, and left there what was there."""
    if not isinstance(outcome, Lost):
        return "no", f"it was not refused: {describe_outcome(outcome)}"
    return await check_kept(bench, path, body, version)


async def check_kept(bench: Bench, path: str, body: bytes, version: Version) -> Said:
    """Whether what was there is there still, after a refusal."""
    content = await bench.store.read_or_none(path, timeout=bench.timeout)
    if content is None:
        return "no", "refused, but what was there is gone"
    same = (content.data, content.version) == (body, version)
    return ("yes", "refused, and nothing has changed") if same else ("no", "refused, but it was changed all the same")


async def flaw(bench: Bench, path: str, bodies: Sequence[bytes], outcomes: Sequence[Outcome]) -> str:
    """What is wrong with the end of a race; nothing if one won and its bytes are there."""
    won = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, Won)]
    unknown = sum(isinstance(outcome, Unknown) for outcome in outcomes)
    if len(won) != 1 and not (not won and unknown):
        return f"{len(won)} of {len(bodies)} were told that they won"
    data = (await bench.store.read(path, timeout=bench.timeout)).data
    return "" if not won or data == bodies[won[0]] else "the bytes are not the winner's"


def current(answer: WriteAnswer, before: Version) -> Version:
    """The version after a send."""
    return answer.version if isinstance(answer, Applied) and answer.version else before


def describe_outcome(outcome: Outcome) -> str:
    """An outcome in words."""
    match outcome:
        case Won():
            return "the store says that it did it"
        case Lost():
            return "the store refused"
        case Unknown(why=why):
            return f"unknown: {why}"
