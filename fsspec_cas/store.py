"""`Store` and `AsyncStore`: conditional writes whose outcome is true.

    store = Store.from_url("s3://bucket/folder")
    match store.put_if_absent("leader.json", b"me"):
        case Won(version): ...
        case Lost(): ...
        case Unknown() as unknown: store.resolve(unknown)

Promised, of writes and conditional deletes: what is reported `Won` was applied, as a whole, while its condition held;
what is reported `Lost` never was and never will be. What cannot be told is `Unknown`, never a guess. `Won` and `Lost`
say where this ends: copies that come late, and what something on the way sends twice. Not promised: a bound on time
beyond `timeout` per call, order between clients other than through conditions, or anything for stores that ignore the
conditions (see `fsspec-cas probe`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from fsspec_cas.answer import (
    Applied,
    Entry,
    ListAnswer,
    Missing,
    NoAnswer,
    NotNow,
    Page,
    ReadAnswer,
    Seen,
    Unchanged,
    WriteAnswer,
    throttled,
)
from fsspec_cas.backends import Backend, backend_for, off_thread, place_of, split_url
from fsspec_cas.capability import Capabilities
from fsspec_cas.clock import Machine, World
from fsspec_cas.content import Bytes, check_bytes
from fsspec_cas.errors import (
    InvalidInput,
    InvalidVersion,
    NotSupported,
    ObjectNotFound,
    OutcomeUnknown,
    StoreError,
    Unavailable,
)
from fsspec_cas.exclusive import PART_BYTES, AsyncExclusive, Exclusive, Sends
from fsspec_cas.given import seconds
from fsspec_cas.naming import check_path, check_root
from fsspec_cas.outcome import Lost, Outcome, Unknown, Won, Write
from fsspec_cas.send.begun import begun, done
from fsspec_cas.send.drive import Inline, OnLoop, OwnLoop
from fsspec_cas.send.resolve import (
    Adapt,
    Attempt,
    Contradicts,
    Inconclusive,
    Look,
    Next,
    Send,
    first_step,
    on_look_answer,
    on_write_answer,
)
from fsspec_cas.send.retry import delay_s
from fsspec_cas.send.tries import Tries
from fsspec_cas.version import ABSENT, Absent, Condition, Version

T = TypeVar("T")
TIMEOUT_S = 60.0
_BATCH = 1000  # S3's most


@dataclass(frozen=True, slots=True)
class Content:
    """The bytes of an object and their version, out of one response."""

    data: bytes
    version: Version


@dataclass(frozen=True, slots=True)
class Info:
    """What a look at an object shows.

    `modified_ms` and `answered_ms` are the store's own clock, epoch ms: when the object was written, and when this was
    said (over HTTP cut down to a whole second). None where the store does not say.
    """

    path: str
    version: Version
    size: int
    modified_ms: int | None
    write_id: str | None
    answered_ms: int | None = None


class AsyncStore:
    """Conditional writes below one root, for async callers.

    Bound to the event loop it is first used on; close it there (`async with`). Paths are relative to the root.
    """

    def __init__(
        self,
        backend: Backend,
        root: str = "",
        *,
        world: World | None = None,
        drive: Inline | OnLoop | OwnLoop | None = None,
        on_throttled: Callable[[], None] | None = None,
    ) -> None:
        self.backend = backend
        self._on_throttled = on_throttled
        self.root = check_root(root)
        self._world = world or Machine()
        self._drive = drive or OwnLoop()

    @classmethod
    def from_url(cls, url: str, storage_options: dict[str, Any] | None = None) -> AsyncStore:
        """Open the store that `url` names, with fsspec's storage options.

        Raises:
            InvalidUrl: the URL cannot be understood.
            NotSupported: no backend for this protocol.
        """
        fs, root = split_url(url, storage_options)
        return cls(off_thread(backend_for(fs)), root)

    @classmethod
    def from_filesystem(cls, fs: Any, root: str = "") -> AsyncStore:
        """Open a store on an fsspec filesystem as its user set it up; its credentials and endpoint are used."""
        return cls(off_thread(backend_for(fs)), root)

    def below(self, folder: str) -> AsyncStore:
        """The same store, rooted one folder deeper."""
        return AsyncStore(self.backend, self._below(folder), world=self._world, drive=self._drive)

    async def __aenter__(self) -> AsyncStore:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.backend.close()

    @property
    def capabilities(self) -> Capabilities:
        """What this kind of store is documented to do."""
        return self.backend.capabilities

    async def read(self, path: str, *, timeout: float = TIMEOUT_S) -> Content:
        """The object's bytes and version, from one request.

        Raises:
            ObjectNotFound: there is none.
            StoreError: the store did not answer, or refused access.
        """
        full = self._full(path)
        answer = await self._look(full, lambda left: self.backend.get(full, None, timeout_s=left), timeout)
        return _content(answer, full)

    async def read_or_none(self, path: str, *, timeout: float = TIMEOUT_S) -> Content | None:
        """The object as `read` gives it; None if there is none."""
        try:
            return await self.read(path, timeout=timeout)
        except ObjectNotFound:
            return None

    async def read_if_changed(self, path: str, version: Version | str, *, timeout: float = TIMEOUT_S) -> Content | None:
        """The object if it is not at `version` any more, else None; then no body was moved, where the store can."""
        full, version = self._full(path), self._own(version)
        answer = await self._look(full, lambda left: self.backend.get(full, version, timeout_s=left), timeout)
        if isinstance(answer, Unchanged) or (isinstance(answer, Seen) and answer.version == version):
            return None  # the second: a server that ignores the condition sends the body all the same
        return _content(answer, full)

    async def head(self, path: str, *, timeout: float = TIMEOUT_S) -> Info:
        """Version, size and time of an object.

        Raises:
            ObjectNotFound: there is none.
        """
        full = self._full(path)
        answer = await self._look(full, lambda left: self.backend.head(full, timeout_s=left), timeout)
        if not isinstance(answer, Seen):
            raise ObjectNotFound(f"there is no object at {full!r}", path=full)
        return Info(full, answer.version, answer.size, answer.modified_ms, answer.write_id, answer.answered_ms)

    async def put_if_absent(
        self, path: str, data: Bytes, *, create_once: bool = False, timeout: float = TIMEOUT_S
    ) -> Outcome:
        """Create the object, or lose to whoever did.

        `create_once=True` promises that nobody ever overwrites or deletes this path; then a lost answer can always
        be settled.

        Raises:
            NotBytes: `data` is not bytes; nothing was sent.
            StoreError: the store did not do it, and no copy of this write can still arrive.
        """
        write = self._new_write(path, ABSENT, create_once=create_once)
        return await self._write(write, check_bytes(path, data), timeout)

    async def put_if_match(
        self, path: str, data: Bytes, version: Version | str, *, timeout: float = TIMEOUT_S
    ) -> Outcome:
        """Replace the object if it still is at `version`, given as such or as its text.

        Where versions are not unique (S3), an object that went A-B-A is "still at A"; write bytes that never repeat.
        """
        write = self._new_write(path, self._own(version), create_once=False)
        return await self._write(write, check_bytes(path, data), timeout)

    def open_exclusive(
        self, path: str, *, part_size: int = PART_BYTES, create_once: bool = False, timeout: float = TIMEOUT_S
    ) -> AsyncExclusive:
        """A writer whose object appears when it is closed, as a whole, and only if nothing is there then.

        Memory is bounded by a few times `part_size` bytes, whatever is written. What fits into one part is a
        `put_if_absent`; more goes in parts, and the completion carries the condition. An exception inside `async with`,
        or no `close`, leaves nothing. `timeout` is for each part and for the end, in seconds.

        Not promised: more than the store's own conditional completion. SeaweedFS 4.48 lets several of many completions
        at the same moment succeed, fake-gcs-server ignores their conditions; `fsspec-cas probe` shows it.

        Raises:
            InvalidInput: the store does not take parts of this size.
        """
        write = self._new_write(path, ABSENT, create_once=create_once)
        timeout = seconds(timeout)
        return AsyncExclusive(self.backend.uploads, write, _Calls(self), part_size=part_size, timeout=timeout)

    async def resolve(self, unknown: Unknown, *, timeout: float = TIMEOUT_S) -> Outcome:
        """Take up a write whose outcome was unknown: look again, and re-send it under its own condition.

        What cannot be sent again (a stream) is only looked for. A delete whose object is gone stays unknown.
        """
        write, data = unknown.write, unknown.data
        spent = data is None and not write.removes
        attempt = Attempt(write, doubt=True, spent=spent, resent=unknown.resent, why=unknown.why)
        return await self._settle(attempt, Look(), self._sending(write, data), data, timeout)

    async def delete_if_match(self, path: str, version: Version | str, *, timeout: float = TIMEOUT_S) -> Outcome:
        """Remove the object if it still is at `version`; `Won` carries the version removed.

        It looks first: what is gone or replaced by then is `Lost`. Refused after that look, with the object gone or
        replaced, it is `Unknown`: a delete leaves nothing behind by which one could tell mine from another's.

        Raises:
            NotSupported: this store has no conditional delete; nothing was deleted.
        """
        full, version = self._full(path), self._own(version)
        if not self.capabilities.delete_match:
            raise NotSupported(f"{self.backend.name} has no conditional delete; write a tombstone instead")
        return await self._write(Write(full, version, self._world.new_id(), removes=True), None, timeout)

    async def delete(self, path: str, *, timeout: float = TIMEOUT_S) -> None:
        """Remove the object, whatever it is; one that is not there is fine."""
        full = self._full(path)
        await self._repeat(full, lambda left: self.backend.delete(full, None, timeout_s=left), timeout)

    async def delete_all(self, paths: Iterable[str], *, timeout: float = TIMEOUT_S) -> None:
        """Remove these objects, as `delete` does; many in one request, where the store can. `timeout` is for each.

        Raises:
            StoreError: some may be gone, and some not; may be repeated.
        """
        left = [check_path(path) for path in paths]
        if hasattr(type(self.backend), "delete_batch"):
            with contextlib.suppress(NotSupported):
                while len(left) > 1:
                    await self._delete_batch([self._full(path) for path in left[:_BATCH]], timeout)
                    del left[:_BATCH]
        for path in left:
            await self.delete(path, timeout=timeout)

    async def _delete_batch(self, full: list[str], timeout: float) -> None:
        backend: Any = self.backend

        def ask(left: float) -> Coroutine[Any, Any, WriteAnswer]:
            answer: Coroutine[Any, Any, WriteAnswer] = backend.delete_batch(full, timeout_s=left)
            return answer

        await self._repeat(full[0], ask, timeout)

    async def list(
        self, prefix: str, *, start_after: str | None = None, stop_at: str | None = None, timeout: float = TIMEOUT_S
    ) -> list[Entry]:
        """All objects whose path starts with `prefix`, ordered by path; paths relative to the root.

        Only those after `start_after` and before `stop_at`; no page beyond `stop_at` is asked for. A listing of several
        pages is not one moment of the store.
        """
        full = self._below(prefix)
        after = None if start_after is None else self._below(start_after)
        found: list[Entry] = []
        token: str | None = None
        while True:
            page = await self._page(full, after, token, timeout)
            found += [Entry(self._relative(one.path), one.size, one.modified_ms) for one in page.entries]
            token = page.token
            if token is None or (stop_at is not None and found and found[-1].path >= stop_at):
                kept = (entry for entry in found if stop_at is None or entry.path < stop_at)
                return sorted(kept, key=lambda entry: entry.path)  # a hierarchical Azure account has another order

    async def update(self, path: str, fn: Callable[[bytes | None], bytes], *, timeout: float = TIMEOUT_S) -> Version:
        """Read, apply `fn`, write back under the version read; again from the start if somebody was faster.

        `fn` gets None where there is no object. It may be called several times and must have no side effects.

        Raises:
            NotBytes: `fn` returned something else than bytes; nothing was written.
            OutcomeUnknown: the answer to the write was lost and could not be settled.
            Unavailable: still losing races at the timeout.
        """
        deadline = self._world.monotonic_s() + seconds(timeout)
        if not callable(fn):
            raise InvalidInput(f"fn={fn!r} must be a function of the old bytes (or None) that returns the new ones")
        failures = 0
        while (left := deadline - self._world.monotonic_s()) > 0:
            outcome = await self._update_once(path, fn, left)
            if not isinstance(outcome, Lost):
                return outcome.unwrap()
            failures += 1
            await self._drive.sleep(min(delay_s(failures, self._world.random()), max(left, 0)))
        raise Unavailable(f"{path!r} was changed by others at each of {failures} tries", path=path)

    async def _update_once(self, path: str, fn: Callable[[bytes | None], bytes], timeout: float) -> Outcome:
        try:
            content = await self.read(path, timeout=timeout)
        except ObjectNotFound:
            return await self.put_if_absent(path, fn(None), timeout=timeout)
        return await self.put_if_match(path, fn(content.data), content.version, timeout=timeout)

    def _new_write(self, path: str, condition: Condition, *, create_once: bool) -> Write:
        if check_path(path).endswith("/"):
            raise InvalidInput(f"{path!r} names a folder: write the object's path without the slash", path=path)
        return Write(self._full(path), condition, self._world.new_id(), create_once)

    async def _write(self, write: Write, data: bytes | None, timeout: float) -> Outcome:
        return await self._settle(Attempt(write), first_step(write), self._sending(write, data), data, timeout)

    def _sending(self, write: Write, data: bytes | None) -> Sends:
        path, condition = write.path, write.condition

        async def remove(left: float) -> WriteAnswer:
            removed = None if isinstance(condition, Absent) else condition
            answer = await self.backend.delete(path, removed, timeout_s=left)
            return Applied(removed) if isinstance(answer, Applied) else answer

        async def put(left: float) -> WriteAnswer:
            return await self.backend.put(path, data or b"", condition, write.write_id, timeout_s=left)

        return remove if write.removes else put

    async def _settle(self, attempt: Attempt, step: Next, send: Sends, data: bytes | None, timeout: float) -> Outcome:
        """Do what `resolve` says until it knows, or until the deadline; `data` is for whoever takes it up later."""
        tries = self._tries(timeout)
        try:
            while True:
                match step:
                    case Won() | Lost():
                        return step
                    case Inconclusive(why):
                        return Unknown(attempt.write, why, data, attempt.resent)
                    case Contradicts(why):
                        _blame_the_store(attempt.write, why)
                    case Send() | Look() | Adapt():
                        floor = None if isinstance(step, Adapt) else step.retry_after_s
                        left = await tries.pause(step.after_failures, floor)
                if left <= 0:
                    return _out_of_time(attempt, data)
                attempt, step = await tries.spend(self._do(attempt, step, send, left))
        except (StoreError, NotSupported) as error:
            if attempt.unsure:  # the store cannot be asked: that does not mean "lost"
                return Unknown(attempt.write, f"{attempt.why}; then: {error}", data, attempt.resent)
            raise
        except (asyncio.CancelledError, KeyboardInterrupt) as stop:
            raise stop from _interrupted(attempt, data)

    async def _do(
        self,
        attempt: Attempt,
        step: Send | Look | Adapt,
        send: Sends,
        left: float,
    ) -> tuple[Attempt, Next]:
        if isinstance(step, Look):
            path = attempt.write.path
            seen = await self.backend.head(path, timeout_s=left)
            if isinstance(seen, Missing) and attempt.write.removes and not attempt.unsure:
                seen = await self.backend.get(path, None, timeout_s=left)  # a HEAD cannot say "there is no bucket"
            return on_look_answer(attempt, self._heard(seen))
        if isinstance(step, Adapt):
            self.backend.adapt(step.refused)
        return on_write_answer(attempt, self._heard(await send(left)))

    def _heard(self, answer: T) -> T:
        if self._on_throttled is not None and throttled(answer):
            self._on_throttled()
        return answer

    def _tries(self, timeout: float) -> Tries:
        return Tries(self._world, self._drive, seconds(timeout))

    async def _look(
        self, full: str, ask: Callable[[float], Coroutine[Any, Any, ReadAnswer]], timeout: float
    ) -> Seen | Missing | Unchanged:
        return await self._repeat(full, ask, timeout)

    async def _page(self, full: str, after: str | None, token: str | None, timeout: float) -> Page:
        def ask(left: float) -> Coroutine[Any, Any, ListAnswer]:
            return self.backend.list_page(full, after, token, timeout_s=left)

        return await self._repeat(full, ask, timeout)

    async def _repeat(
        self, full: str, ask: Callable[[float], Coroutine[Any, Any, T | NotNow | NoAnswer]], timeout: float
    ) -> T:
        """Ask again, with pauses, until there is an answer; only for calls that may be repeated freely."""
        tries, failures, why, floor = self._tries(timeout), 0, "the timeout had passed", None
        while left := await tries.pause(failures, floor):
            answer = self._heard(await tries.spend(ask(left)))
            if not isinstance(answer, (NotNow, NoAnswer)):
                return answer
            failures, why, floor = failures + 1, answer.why, answer.retry_after_s
        raise Unavailable(f"the store did not answer for {full!r} within {timeout:g} s: {why}", path=full)

    def _full(self, path: str) -> str:
        return self._below(check_path(path))

    def _below(self, folder: str) -> str:
        return f"{self.root}/{check_root(folder)}" if self.root else check_root(folder)

    def _relative(self, full: str) -> str:
        plain = full if self.root.startswith("/") else full.lstrip("/")
        return plain[len(self.root) + 1 :] if self.root else plain

    def _own(self, given: Version | str) -> Version:
        """The version, which may be given as its text."""
        version = Version.of(given)
        if version.backend != self.backend.name:
            raise InvalidVersion(f"version {version} is not one of {self.backend.name}")
        if version.token.strip('"') == "*" or (version.backend == "gcs" and version.token.strip("0") == ""):
            raise InvalidVersion(f"{version} is a wildcard of the store's and no version of an object")
        return version


def _content(answer: ReadAnswer, full: str) -> Content:
    if not isinstance(answer, Seen) or answer.data is None:
        raise ObjectNotFound(f"there is no object at {full!r}", path=full)
    return Content(answer.data, answer.version)


def _blame_the_store(write: Write, why: str) -> NoReturn:
    raise NotSupported(f"{write.path!r} cannot be written conditionally: {why}; run `fsspec-cas probe`")


@dataclass(frozen=True, slots=True)
class _Calls:
    """What an exclusive writer may ask of its store."""

    store: AsyncStore

    async def put(self, write: Write, data: bytes, timeout: float) -> Outcome:
        return await self.store._write(write, data, timeout)  # noqa: SLF001

    async def finish(self, write: Write, send: Sends, timeout: float) -> Outcome:
        return await self.store._settle(Attempt(write), Send(), send, None, timeout)  # noqa: SLF001

    async def repeat(
        self, path: str, ask: Callable[[float], Coroutine[Any, Any, T | NotNow | NoAnswer]], timeout: float
    ) -> T:
        return await self.store._repeat(path, ask, timeout)  # noqa: SLF001

    async def current(self, path: str, timeout: float) -> Condition:
        backend = self.store.backend
        seen = await self.store._look(path, lambda left: backend.head(path, timeout_s=left), timeout)  # noqa: SLF001
        return seen.version if isinstance(seen, Seen) else ABSENT


def _out_of_time(attempt: Attempt, data: bytes | None) -> Outcome:
    write = attempt.write
    if attempt.doubt or attempt.refused:
        return Unknown(write, attempt.why or "the look after a refusal failed", data, attempt.resent)
    done, why = "removed" if write.removes else "written", attempt.why or "the timeout had passed"
    raise Unavailable(f"{write.path!r} was not {done}: {why}", path=write.path)


def _interrupted(attempt: Attempt, data: bytes | None) -> OutcomeUnknown:
    resent = attempt.resent or attempt.doubt
    unknown = Unknown(attempt.write, "the call was interrupted before its answer came", data, resent)
    path = attempt.write.path
    return OutcomeUnknown(
        f"it is not known what came of the call for {path!r}: {unknown.why}", path=path, outcome=unknown
    )


class Store:
    """Conditional writes below one root, for sync callers.

    Thread-safe. `s3`, `gcs` and `azure` run on fsspec's own loop thread; local files and memory in the calling thread.
    The methods are those of `AsyncStore`, with the same promises.
    """

    def __init__(
        self,
        backend: Backend,
        root: str = "",
        *,
        world: World | None = None,
        on_throttled: Callable[[], None] | None = None,
    ) -> None:
        self._world = world or Machine()
        self._drive: Inline | OnLoop = Inline(self._world) if backend.blocking else OnLoop()
        self._async = AsyncStore(backend, root, world=self._world, drive=self._drive, on_throttled=on_throttled)
        self._apart: Store | None = None

    @classmethod
    def from_url(cls, url: str, storage_options: dict[str, Any] | None = None) -> Store:
        """Open the store that `url` names, with fsspec's storage options.

        Raises:
            InvalidUrl: the URL cannot be understood.
            NotSupported: no backend for this protocol.
        """
        fs, root = split_url(url, storage_options)
        return cls(backend_for(fs), root)

    @classmethod
    def from_filesystem(cls, fs: Any, root: str = "") -> Store:
        """Open a store on an fsspec filesystem as its user set it up; its credentials and endpoint are used."""
        return cls(backend_for(fs), root)

    def below(self, folder: str) -> Store:
        """The same store, rooted one folder deeper."""
        return Store(self._async.backend, self._async._below(folder), world=self._world)  # noqa: SLF001

    def apart(self) -> Store:
        """The same store over connections of its own (one more set, however often it is asked for).

        For what must get through while all connections of this one are busy. Where nothing is connected, this one.
        """
        make = getattr(type(self.backend), "apart", None)
        if make is None:
            return self
        self._apart = self._apart or Store(make(self.backend), self.root, world=self._world)
        return self._apart

    def telling(self, on_throttled: Callable[[], None]) -> Store:
        """The same store, that calls this each time it is asked for patience (429, 503), before it sends again.

        On whatever thread the request runs; what it raises fails the call.
        """
        return Store(self.backend, self.root, world=self._world, on_throttled=on_throttled)

    def beside(self, call: Callable[[], T]) -> Future[T]:
        """Begin a call that asks this store, and go on; where requests wait for no network, it is over on return.

        It has a thread of its own, and goes on if nobody waits for it.
        """
        if self.backend.blocking:
            return done(call)
        pool = ThreadPoolExecutor(1, "beside")
        try:
            return begun(pool, call)
        finally:
            pool.shutdown(wait=False)

    @property
    def backend(self) -> Backend:
        """What sends the requests."""
        return self._async.backend

    @property
    def root(self) -> str:
        """What all paths are relative to."""
        return self._async.root

    @property
    def place(self) -> object:
        """Equal for two stores that lead to the same place with the same options; unequal proves nothing."""
        return place_of(self._async.backend), self._async.root

    @property
    def kind(self) -> str:
        """What kind of store it is: `s3`, `gcs`, `azure`, `local` or `memory`."""
        return self._async.backend.name

    @property
    def capabilities(self) -> Capabilities:
        """What this kind of store is documented to do."""
        return self._async.capabilities

    def read(self, path: str, *, timeout: float = TIMEOUT_S) -> Content:
        """See `AsyncStore.read`."""
        return self._drive.run(self._async.read(path, timeout=timeout))

    def read_or_none(self, path: str, *, timeout: float = TIMEOUT_S) -> Content | None:
        """See `AsyncStore.read_or_none`."""
        return self._drive.run(self._async.read_or_none(path, timeout=timeout))

    def read_if_changed(self, path: str, version: Version | str, *, timeout: float = TIMEOUT_S) -> Content | None:
        """See `AsyncStore.read_if_changed`."""
        return self._drive.run(self._async.read_if_changed(path, version, timeout=timeout))

    def head(self, path: str, *, timeout: float = TIMEOUT_S) -> Info:
        """See `AsyncStore.head`."""
        return self._drive.run(self._async.head(path, timeout=timeout))

    def put_if_absent(
        self, path: str, data: Bytes, *, create_once: bool = False, timeout: float = TIMEOUT_S
    ) -> Outcome:
        """See `AsyncStore.put_if_absent`."""
        return self._drive.run(self._async.put_if_absent(path, data, create_once=create_once, timeout=timeout))

    def put_if_match(self, path: str, data: Bytes, version: Version | str, *, timeout: float = TIMEOUT_S) -> Outcome:
        """See `AsyncStore.put_if_match`."""
        return self._drive.run(self._async.put_if_match(path, data, version, timeout=timeout))

    def open_exclusive(
        self, path: str, *, part_size: int = PART_BYTES, create_once: bool = False, timeout: float = TIMEOUT_S
    ) -> Exclusive:
        """See `AsyncStore.open_exclusive`."""
        inner = self._async.open_exclusive(path, part_size=part_size, create_once=create_once, timeout=timeout)
        return Exclusive(inner, self._drive)

    def resolve(self, unknown: Unknown, *, timeout: float = TIMEOUT_S) -> Outcome:
        """See `AsyncStore.resolve`."""
        return self._drive.run(self._async.resolve(unknown, timeout=timeout))

    def delete_if_match(self, path: str, version: Version | str, *, timeout: float = TIMEOUT_S) -> Outcome:
        """See `AsyncStore.delete_if_match`."""
        return self._drive.run(self._async.delete_if_match(path, version, timeout=timeout))

    def delete(self, path: str, *, timeout: float = TIMEOUT_S) -> None:
        """See `AsyncStore.delete`."""
        self._drive.run(self._async.delete(path, timeout=timeout))

    def delete_all(self, paths: Iterable[str], *, timeout: float = TIMEOUT_S) -> None:
        """See `AsyncStore.delete_all`."""
        self._drive.run(self._async.delete_all(paths, timeout=timeout))

    def list(
        self, prefix: str, *, start_after: str | None = None, stop_at: str | None = None, timeout: float = TIMEOUT_S
    ) -> list[Entry]:
        """See `AsyncStore.list`."""
        return self._drive.run(self._async.list(prefix, start_after=start_after, stop_at=stop_at, timeout=timeout))

    def update(self, path: str, fn: Callable[[bytes | None], bytes], *, timeout: float = TIMEOUT_S) -> Version:
        """See `AsyncStore.update`."""
        return self._drive.run(self._async.update(path, fn, timeout=timeout))
