"""Checks of `probe`, in order; each runs on a `Bench` and returns state and evidence.

States: "yes": the property holds; "no": it does not; "known": a neutral fact; "skipped": it proves nothing; "failed":
no result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar

from fsspec_cas.answer import (
    Applied,
    ConditionFailed,
    Content,
    FinishAnswer,
    NoAnswer,
    NotApplied,
    ObjectState,
    Unchanged,
    Upload,
    UploadGone,
    WriteAnswer,
)
from fsspec_cas.async_store import AsyncStore
from fsspec_cas.backends.last_byte import run_race
from fsspec_cas.errors import Unavailable
from fsspec_cas.machine import Machine, World
from fsspec_cas.outcome import ABSENT, Condition, Outcome, Version, Won, Write, won_or_lost

T = TypeVar("T")

CheckState = Literal["yes", "no", "known", "skipped", "failed"]
Use = Literal["create", "locks", "streams"]
CheckResult = tuple[CheckState, str]

BROKEN = ("no", "failed", "skipped")
_PATIENCE = 13


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    proves: str
    state: CheckState
    evidence: str
    needed_for: tuple[Use, ...]


@dataclass(frozen=True, slots=True)
class Check:
    """One experiment, conclusive only after the checks in `needs`."""

    name: str
    proves: str
    run: Callable[[Bench], Awaitable[CheckResult]]
    needed_for: tuple[Use, ...] = ()
    needs: tuple[str, ...] = ()

    def finding(self, state: CheckState, evidence: str) -> Finding:
        return Finding(self.name, self.proves, state, evidence, self.needed_for)


@dataclass(slots=True)
class Bench:
    """Store under test; `timeout` (seconds) is for each call. `uploads`: begun, not completed."""

    store: AsyncStore
    racers: int
    timeout: float
    world: World = field(default_factory=Machine)
    uploads: dict[str, Upload] = field(default_factory=dict)
    _count: int = 0

    def body(self) -> bytes:
        self._count += 1
        return f"{self._count} {self.world.new_id()}".encode()

    async def write(self, path: str, condition: Condition = ABSENT, body: bytes | None = None) -> Outcome:
        body = body or self.body()
        if isinstance(condition, Version):
            return await self.store.put_if_match(path, body, condition, timeout=self.timeout)
        return await self.store.put_if_absent(path, body, timeout=self.timeout)

    async def write_or_raise(self, path: str, condition: Condition = ABSENT, body: bytes | None = None) -> Content:
        body = body or self.body()
        return Content(body, (await self.write(path, condition, body)).unwrap())

    async def read(self, path: str) -> Content | None:
        return await self.store.read_or_none(path, timeout=self.timeout)

    async def send(self, path: str, condition: Condition) -> WriteAnswer:
        """Send one write of new bytes, repeated while not applied."""
        write, body = self.new_write(path, condition), self.body()
        answer = await retry_while_not_applied(lambda: self.store.backend.put(write, body, timeout_s=self.timeout))
        if isinstance(answer, UploadGone):
            raise Unavailable(answer.why)
        return answer

    def new_write(self, path: str, condition: Condition = ABSENT) -> Write:
        return Write(f"{self.store.root}/{path}", condition, self.world.new_id())

    async def delete(self, path: str, version: Version | None) -> WriteAnswer:
        backend, full = self.store.backend, f"{self.store.root}/{path}"
        return await retry_while_not_applied(lambda: backend.delete(full, version, timeout_s=self.timeout))

    async def describe_presence(self, path: str) -> str:
        return "nothing is there" if await self.read(path) is None else "it is there"


async def retry_while_not_applied(ask: Callable[[], Awaitable[T]]) -> T:
    """Call `ask` until its answer is not `NotApplied`, with pauses; Unavailable after 13 times."""
    for n in range(_PATIENCE):
        answer = await ask()
        if not isinstance(answer, NotApplied):
            return answer
        await asyncio.sleep(min(1.1, 0.1 * (n + 1)))
    raise Unavailable(f"the store kept answering 'not now': {answer}")


def answered(answer: T | NoAnswer) -> T:
    """Return the answer; Unavailable: none came, which proves nothing."""
    if isinstance(answer, NoAnswer):
        raise Unavailable(f"the store did not answer: {answer.why}")
    return answer


async def begin_upload(bench: Bench, path: str, body: bytes) -> Upload | ConditionFailed:
    """Begin an upload, kept in `bench.uploads`; return it, or the refusal.

    Sends `body` as its part if completions carry none. Unavailable: no answer, or `NotApplied`.
    """
    backend = bench.store.backend
    opened = await backend.begin(bench.new_write(path), timeout_s=bench.timeout)
    if isinstance(opened, Upload):
        bench.uploads[opened.write.write_id] = opened
    if isinstance(opened, Upload) and not backend.part_rules.tail_with_finish:
        opened = await backend.add(opened, body, timeout_s=bench.timeout)
    if isinstance(opened, (NotApplied, NoAnswer)):
        raise Unavailable(f"the upload could not begin: {opened.why}")
    return opened


async def finish_upload(bench: Bench, opened: Upload | ConditionFailed, body: bytes) -> FinishAnswer:
    """Complete the upload, with `body` if completions carry bytes; return the answer, or the refusal.

    Then aborts it unless `Applied`, and forgets it. Unavailable: 13 times `NotApplied`.
    """
    if isinstance(opened, ConditionFailed):
        return opened
    backend = bench.store.backend
    tail = body if backend.part_rules.tail_with_finish else b""
    answer = await retry_while_not_applied(lambda: backend.finish(opened, tail, timeout_s=bench.timeout))
    if isinstance(answer, Applied):
        del bench.uploads[opened.write.write_id]
    else:
        await abort_upload(bench, opened)
    return answer


async def abort_upload(bench: Bench, upload: Upload) -> None:
    """Send the abort of an upload, and forget the upload."""
    await bench.store.backend.abort(upload, timeout_s=bench.timeout)
    del bench.uploads[upload.write.write_id]


async def check_refused(bench: Bench, path: str, before: Content, condition: Condition = ABSENT) -> CheckResult:
    """Write under this condition; "yes" if refused, and the object still equals `before`."""
    if won_or_lost(await bench.write(path, condition)):
        return "no", "it was not refused: the store reports success"
    return await check_kept(bench, path, before)


async def check_kept(bench: Bench, path: str, before: Content) -> CheckResult:
    content = await bench.read(path)
    if content is None:
        return "no", "refused, but the object is gone"
    if content == before:
        return "yes", "refused, and nothing has changed"
    return "no", "refused, but the object was changed"


async def race_flaw(bench: Bench, path: str, bodies: Sequence[bytes], outcomes: Sequence[Outcome]) -> str:
    """A race's flaw; "" if the one winner's bytes are read back. OutcomeUnknown: an unknown writer may have won."""
    won = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, Won)]
    for outcome in outcomes if not won else ():
        won_or_lost(outcome)
    if len(won) != 1:
        return f"{len(won)} of {len(bodies)} were reported as won"
    data = (await bench.store.read(path, timeout=bench.timeout)).data
    return "" if data == bodies[won[0]] else "the bytes are not the winner's"


_ROUNDS = 3
_UPLOAD_ROUNDS = 5
_WRITES = 12
_READERS = 3
_READS = 300
_BODY_BYTES = 64 * 1024
_OTHER_BYTES = "made, but something else is read back"
_OBJECTS = 2005
_AT_ONCE = 8


async def _create(bench: Bench) -> CheckResult:
    content = await bench.write_or_raise("create")
    held = await bench.read("create") == content
    return ("yes", f"made, and read back at {content.version}") if held else ("no", _OTHER_BYTES)


async def _create_refused(bench: Bench) -> CheckResult:
    return await check_refused(bench, "taken", await bench.write_or_raise("taken"))


async def _create_after_delete(bench: Bench) -> CheckResult:
    await bench.write_or_raise("again")
    await bench.store.delete("again", timeout=bench.timeout)
    made = won_or_lost(await bench.write("again"))
    return ("yes", "made again") if made else ("no", "a deleted object is in the way")


async def _race(condition_kind: str, bench: Bench) -> CheckResult:
    """Race creates ("create") or matches ("match") in three rounds; "no" at a `race_flaw`, else "yes"."""
    for n in range(_ROUNDS):
        path, bodies = f"race-{condition_kind}-{n}", [bench.body() for _ in range(bench.racers)]
        condition = (await bench.write_or_raise(path)).version if condition_kind == "match" else ABSENT
        outcomes = await run_race(partial(_writes, bench, path, condition, bodies))
        if wrong := await race_flaw(bench, path, bodies, outcomes):
            return "no", f"round {n + 1}: {wrong}"
    return "yes", f"{_ROUNDS} rounds, {bench.racers} writers at once: one winner each time"


_create_race, _match_race = partial(_race, "create"), partial(_race, "match")


def _writes(bench: Bench, path: str, condition: Condition, bodies: list[bytes]) -> list[Coroutine[Any, Any, Outcome]]:
    return [bench.write(path, condition, body) for body in bodies]


async def _match(bench: Bench) -> CheckResult:
    """Replace an object at its version; "yes" if accepted and read back, else "no"."""
    body = bench.body()
    first = await bench.write_or_raise("match")
    outcome = await bench.write("match", first.version, body)
    if not won_or_lost(outcome):
        return "no", "the right version was refused"
    held = await bench.read("match") == Content(body, outcome.unwrap())
    return ("yes", "replaced") if held else ("no", "accepted, but other bytes are read back")


async def _match_form(bench: Bench) -> CheckResult:
    """Overwrite an object to find which forms of a version the store accepts, quoted or unquoted.

    "known", or "no" for none. May leave the backend's dialect switched.
    """
    version = (await bench.write_or_raise("form")).version
    first_answer = answered(await bench.send("form", version))
    if not bench.store.backend.adapt():
        accepted = isinstance(first_answer, Applied)
        return ("known", "one form") if accepted else ("no", f"the right version: {first_answer}")
    current = (isinstance(first_answer, Applied) and first_answer.version) or version
    other = answered(await bench.send("form", current))
    if isinstance(first_answer, Applied):
        bench.store.backend.adapt()
    accepts = [form for form, answer in (("quoted", first_answer), ("unquoted", other)) if isinstance(answer, Applied)]
    return ("known", f"accepted: {' and '.join(accepts)}") if accepts else ("no", "neither quoted nor unquoted")


async def _match_stale(bench: Bench) -> CheckResult:
    first = await bench.write_or_raise("stale")
    second = await bench.write_or_raise("stale", first.version)
    return await check_refused(bench, "stale", second, first.version)


async def _match_foreign(bench: Bench) -> CheckResult:
    foreign = await bench.write_or_raise("foreign-1")
    before = await bench.write_or_raise("foreign-2")
    return await check_refused(bench, "foreign-2", before, foreign.version)


async def _match_absent(bench: Bench) -> CheckResult:
    """Write at a version where no object exists; "yes" if that is refused and creates none, else "no"."""
    foreign = await bench.write_or_raise("not-absent")
    if won_or_lost(await bench.write("absent", foreign.version)):
        return "no", "the write created an object instead of being refused"
    if await bench.read("absent") is None:
        return "yes", "refused, and no object exists"
    return "no", "refused, but an object exists"


async def _whole_reads(bench: Bench) -> CheckResult:
    """Read an object in three tasks during 11 replacements.

    "no" if a read's bytes and version do not match, else "yes".
    """
    written = [await bench.write_or_raise("whole", body=b"\0" * _BODY_BYTES)]
    contents: list[Content] = []
    done = asyncio.Event()

    async def write() -> None:
        try:
            for letter in range(1, _WRITES):
                written.append(await bench.write_or_raise("whole", written[-1].version, bytes([letter]) * _BODY_BYTES))
        finally:
            done.set()

    async def read() -> None:
        for _ in range(_READS):
            if done.is_set():
                return
            contents.append(await bench.store.read("whole", timeout=bench.timeout))
            await asyncio.sleep(0)

    await asyncio.gather(write(), *(read() for _ in range(_READERS)))
    wrong = [content for content in contents if content not in written]
    evidence = f"{len(wrong)} of {len(contents)} reads during {_WRITES - 1} replacements did not match their version"
    return ("no" if wrong else "yes"), evidence


async def _not_modified(bench: Bench) -> CheckResult:
    content = await bench.write_or_raise("same")
    get = partial(bench.store.backend.get, f"{bench.store.root}/same", content.version, timeout_s=bench.timeout)
    answer = answered(await retry_while_not_applied(get))
    if isinstance(answer, Unchanged):
        return "yes", "no body was sent"
    return "no", "the whole body was sent again" if isinstance(answer, ObjectState) else f"answered {answer}"


async def _modified(bench: Bench) -> CheckResult:
    """Read an object "if changed" after a replacement; "yes" if that brings the new bytes, else "no"."""
    body = bench.body()
    first = await bench.write_or_raise("newer")
    await bench.write_or_raise("newer", first.version, body)
    content = await bench.store.read_if_changed("newer", first.version, timeout=bench.timeout)
    if content is None:
        return "no", "a reader that asked for changes did not get one"
    return ("yes", "the new bytes were sent") if content.data == body else ("no", "other bytes than the newest")


async def _delete_refused(bench: Bench) -> CheckResult:
    """Delete at a stale version; "yes" if refused, and the object unchanged, else "no"."""
    first = await bench.write_or_raise("kept")
    second = await bench.write_or_raise("kept", first.version)
    answer = await bench.delete("kept", first.version)
    if not isinstance(answer, ConditionFailed):
        presence = await bench.describe_presence("kept")
        if presence == "it is there":
            answered(answer)
        return "no", f"not refused, though its version was another: {presence}"
    return await check_kept(bench, "kept", second)


async def _delete_match(bench: Bench) -> CheckResult:
    """Delete an object at its version; "yes" if accepted and gone.

    "known": gone, without a proving answer. "no": else.
    """
    content = await bench.write_or_raise("gone")
    answer = await bench.delete("gone", content.version)
    if not isinstance(answer, (Applied, NoAnswer)):
        return "no", f"the right version was not accepted: {answer}"
    presence = await bench.describe_presence("gone")
    if isinstance(answer, NoAnswer) and presence == "nothing is there":
        return "known", f"deleted, but the caller that deleted it is unknown: {answer.why}"
    answered(answer)
    return ("yes", "deleted") if presence == "nothing is there" else ("no", f"accepted, but {presence}")


async def _delete_nothing(bench: Bench) -> CheckResult:
    content = await bench.write_or_raise("twice")
    await bench.store.delete("twice", timeout=bench.timeout)
    answer = answered(await bench.delete("twice", content.version))
    if isinstance(answer, Applied):
        return "known", "reports success: the caller that removed an object is unknown"
    return "known", "refused"


async def _identity(bench: Bench) -> CheckResult:
    """Write an object; "yes" if a head shows its write's id, else "no".

    "known", without a write, if this store documents that it keeps none.
    """
    if not bench.store.capabilities.keeps_write_id:
        return "known", "not kept, and not needed: this store loses no answers"
    write = bench.new_write("identity")
    await retry_while_not_applied(lambda: bench.store.backend.put(write, bench.body(), timeout_s=bench.timeout))
    stored_id = (await bench.store.head("identity", timeout=bench.timeout)).write_id
    if stored_id == write.write_id:
        return "yes", "kept with the object"
    return "no", f"lost: a read shows {stored_id!r}"


async def _equal_bytes(bench: Bench) -> CheckResult:
    first = await bench.write_or_raise("equal")
    if await bench.write_or_raise("equal", first.version, first.data) != first:
        return "known", "another version"
    if bench.store.capabilities.unique_versions:
        return "no", "the same version, although the store documents otherwise"
    return "known", "the same version"


async def _listing(bench: Bench) -> CheckResult:
    """List two new objects, delete one, and list again; "yes" if both lists are right, else "no"."""
    await bench.write_or_raise("list/a")
    await bench.write_or_raise("list/b")
    shown = [entry.path for entry in await bench.store.list("list/", timeout=bench.timeout)]
    await bench.store.delete("list/a", timeout=bench.timeout)
    remaining = [entry.path for entry in await bench.store.list("list/", timeout=bench.timeout)]
    right = (shown, remaining) == (["list/a", "list/b"], ["list/b"])
    return ("yes", "shows writes and deletes at once") if right else ("no", f"showed {shown}, then {remaining}")


async def _upload(bench: Bench) -> CheckResult:
    body = bench.body()
    answer = answered(await finish_upload(bench, await begin_upload(bench, "upload", body), body))
    if not isinstance(answer, Applied):
        return "no", f"not made: {answer}"
    data = (await bench.store.read("upload", timeout=bench.timeout)).data
    return ("yes", "made") if data == body else ("no", _OTHER_BYTES)


async def _upload_refused(bench: Bench) -> CheckResult:
    """Complete an upload over an object; "yes" if refused, and the object unchanged, else "no"."""
    before, body = await bench.write_or_raise("upload-taken"), bench.body()
    answer = await finish_upload(bench, await begin_upload(bench, "upload-taken", body), body)
    if isinstance(answer, Applied):
        return "no", "it overwrote the object"
    held = await bench.read("upload-taken") == before
    if held:
        answered(answer)
    refused = isinstance(answer, ConditionFailed) and held
    return ("yes", "refused, and nothing has changed") if refused else ("no", f"answered {answer}, unchanged: {held}")


async def _upload_aborted(bench: Bench) -> CheckResult:
    """Abort an upload over an object; "yes" if the object is unchanged, or no upload begins, else "no"."""
    before = await bench.write_or_raise("upload-aborted")
    opened = await begin_upload(bench, "upload-aborted", bench.body())
    if isinstance(opened, ConditionFailed):
        return "yes", "an upload over it does not begin"
    await abort_upload(bench, opened)
    state, evidence = await check_kept(bench, "upload-aborted", before)
    return state, evidence.replace("refused", "given up")


async def _upload_race(bench: Bench) -> CheckResult:
    """Complete uploads to one path at once, in five rounds.

    "no" if two won, or none although all were answered; else "yes".
    """
    for n in range(_UPLOAD_ROUNDS):
        bodies = [bench.body() for _ in range(bench.racers)]
        uploads = [await begin_upload(bench, f"race-upload-{n}", body) for body in bodies]
        answers = await asyncio.gather(*(finish_upload(bench, *upload) for upload in zip(uploads, bodies, strict=True)))
        won = sum(isinstance(answer, Applied) for answer in answers)
        for answer in answers if not won else ():
            answered(answer)
        if won != 1:
            return "no", f"round {n + 1}: {won} of {bench.racers} that finished at once were reported as won"
    return "yes", f"{_UPLOAD_ROUNDS} rounds, {bench.racers} at once: one winner each time"


async def _paging(bench: Bench) -> CheckResult:
    """Write, list and delete 2,005 objects, at most eight writes at once.

    "yes" if all, and those after the fourth, are listed in order, else "no".
    """
    names = [f"pages/{n:05}" for n in range(_OBJECTS)]
    for n in range(0, _OBJECTS, _AT_ONCE):
        await asyncio.gather(*(bench.write_or_raise(name, body=b"-") for name in names[n : n + _AT_ONCE]))
    shown = [entry.path for entry in await bench.store.list("pages/", timeout=bench.timeout)]
    rest = [entry.path for entry in await bench.store.list("pages/", start_after=names[3], timeout=bench.timeout)]
    await bench.store.delete_all(names, timeout=bench.timeout)
    if shown != names:
        return "no", f"{len(shown)} of {_OBJECTS} objects were shown, {len(set(shown) & set(names))} of them right"
    return ("yes", f"{_OBJECTS} objects") if rest == names[4:] else ("no", f"from the fifth on {len(rest)} were shown")


_CREATE: tuple[Use, ...] = ("create",)
_LOCKS: tuple[Use, ...] = ("locks",)
_STREAMS: tuple[Use, ...] = ("streams",)

CHECKS = (
    Check("create", "a create of an absent object succeeds and is read back at its version", _create, _CREATE),
    Check("create refused", "a create does not overwrite", _create_refused, _CREATE),
    Check("create after delete", "a deleted object is absent", _create_after_delete, _CREATE, ("create",)),
    Check("create race", "one of many concurrent creates wins", _create_race, _CREATE, ("create refused",)),
    Check("match form", "the accepted forms of a version", _match_form, (), ("create",)),
    Check("match", "a write at the right version succeeds", _match, _LOCKS, ("create",)),
    Check("match stale", "a write at an old version is refused", _match_stale, _LOCKS, ("match",)),
    Check("match foreign", "a write at another object's version is refused", _match_foreign, _LOCKS, ("match",)),
    Check("match absent", "a write at a version creates no object", _match_absent, _LOCKS, ("match",)),
    Check("match race", "one of many concurrent writes at one version wins", _match_race, _LOCKS, ("match stale",)),
    Check("whole reads", "a read returns one state with its version", _whole_reads, _LOCKS, ("match stale",)),
    Check("modified", "a reader that asks for changes gets them", _modified, _LOCKS, ("match",)),
    Check("not modified", "an unchanged object is not sent again", _not_modified, (), ("create",)),
    Check("identity", "an object keeps the identity of its write", _identity, (), ("create",)),
    Check("delete refused", "a delete at an old version is refused", _delete_refused, (), ("match",)),
    Check("delete match", "a delete at the right version succeeds", _delete_match, (), ("create",)),
    Check("delete nothing", "the answer to a delete of a deleted version", _delete_nothing, (), ("delete refused",)),
    Check("equal bytes", "the version after equal bytes were written again", _equal_bytes, (), ("match",)),
    Check("listing", "a listing shows what was written and deleted before it", _listing, (), ("create",)),
    Check("upload", "a multipart create succeeds", _upload, _STREAMS, ("create",)),
    Check("upload refused", "a multipart create does not overwrite", _upload_refused, _STREAMS, ("upload",)),
    Check("upload race", "one of many uploads that finish at once wins", _upload_race, _STREAMS, ("upload refused",)),
    Check("upload aborted", "an aborted upload changes nothing", _upload_aborted, _STREAMS, ("upload",)),
)
THOROUGH = (*CHECKS, Check("paging", "a listing shows more objects than fit on a page", _paging, (), ("listing",)))
