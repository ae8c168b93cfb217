"""`State`, and `AsyncState` for tasks."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from fsspec_cas import InvalidInput, Lost, OutcomeUnknown, Store, World
from fsspec_cas.arguments import check_function, check_seconds, check_whole
from fsspec_cas.bridge.threads import on_thread, threaded
from lockprovider.recipes.base import BatchedRecipe, RecipeForTasks
from lockprovider.recipes.errors import NestedUpdate, NoRevision, StateConflict
from lockprovider.recipes.state.changes import (
    UNCHANGED,
    BeginEdit,
    EndEdit,
    NotChanged,
    StateChange,
    StopEdits,
    Update,
)
from lockprovider.recipes.state.document import Codec, Difference, Document, codec_of, difference
from lockprovider.recipes.state.writer import StateWriter
from lockprovider.recipes.values import check_storable, epoch_of
from lockprovider.settings import LockSettings
from lockprovider.storage_lock.async_lock import AsyncLease, AsyncLock
from lockprovider.storage_lock.lease import Lease
from lockprovider.storage_lock.status import LockStatus, break_lock, look

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Revision(Generic[V]):
    """State at one serial. Serial 0: it does not exist, and `value` is the default.

    Attributes:
        by, at_ms: its writer, and the writer's clock (epoch ms).
        epoch: newest `fence` until then.
        lineage: changes if the state is created again.

    >>> revision = lockprovider.state.open("memory://docs/orders.json", default=dict).read()
    >>> revision.serial, revision.value
    (0, {})
    """

    serial: int
    value: V
    by: str = ""
    at_ms: int = 0
    reason: str = ""
    epoch: int = 0
    lineage: str = ""


@dataclass(frozen=True, slots=True)
class Editor:
    """Holder of the lock of edits, and its last edit's reason.

    >>> lockprovider.state.open("memory://docs/orders.json").who().state
    'absent'
    """

    state: str  # absent, released, lapsed or held
    by: str
    since_ms: int
    reason: str
    status: LockStatus
    valid_until_ms: int = 0  # by the holder's clock, unless the lock is renewed


class Edit(Generic[V]):
    """Held edit: change `value`, or set another. The end of the `with` writes it, if no other write came between.

    >>> state = lockprovider.state.open("memory://docs/orders.json", default=dict)
    >>> with state.edit() as edit:
    ...     edit.lease.check()
    ...     edit["day"] = "mon"
    >>> edit.begun.serial, edit.revision.value
    (1, {'day': 'mon'})
    """

    def __init__(self, lease: Lease | AsyncLease, begun: Revision[V]) -> None:
        self.lease = lease
        self.begun = begun
        self.value = begun.value
        self.revision: Revision[V] | None = None  # once written

    def __repr__(self) -> str:
        return f"<Edit of serial {self.begun.serial}, {'not ' if self.revision is None else ''}written>"

    def __getitem__(self, key: Any) -> Any:
        value: Any = self.value
        return value[key]

    def __setitem__(self, key: Any, item: Any) -> None:
        value: Any = self.value
        value[key] = item

    def __contains__(self, key: object) -> bool:
        value: Any = self.value
        return key in value


_UPDATED: ContextVar[frozenset[object]] = ContextVar("_UPDATED", default=frozenset())

_TIMEOUT_S = 60.0


class State(BatchedRecipe[StateChange, Document | None], Generic[V]):
    """A state file; `open` it by its URL. Thread-safe: the threads of a process share its writes.

    "State files" in `lockprovider/recipes/README.md` has the promises.

    Args:
        codec: none for JSON, `bytes`, pydantic model's class, or object with `encode` and `decode`.
        default: makes a missing state's value.
        keep: revisions kept before the current one.
        edits: "exclusive": an update during an edit raises `StateLocked`; "advisory": the edit gets `StateConflict`.
        timeout: seconds for an update with all tries.
        pace_s: seconds between two writes (default: 1 on GCS, else 0).

    Raises:
        MalformedObject, StoreError: from any request: the object is no state, or the store failed.

    >>> state = lockprovider.state.open("memory://docs/orders.json", default=dict)
    >>> state.update(lambda old: {**old, "day": "mon"}).value
    {'day': 'mon'}
    >>> with state.edit(reason="migration 12") as doc:
    ...     doc["schema"] = 12
    >>> state.read().value
    {'day': 'mon', 'schema': 12}
    """

    def __init__(
        self,
        store: Store,
        path: str,
        *,
        codec: Any = None,
        default: Callable[[], V] | None = None,
        keep: int = 100,
        edits: Literal["exclusive", "advisory"] = "exclusive",
        timeout: float = _TIMEOUT_S,
        pace_s: float | None = None,
        lock_settings: LockSettings | None = None,
        world: World | None = None,
    ) -> None:
        super().__init__(store, path, world, pace_s)
        if edits not in ("exclusive", "advisory"):
            raise InvalidInput(f"edits={edits!r} must be 'exclusive' or 'advisory'")
        if default is not None and not callable(default):
            raise InvalidInput(f"default={default!r} must be a function that makes the value, e.g. default=dict")
        self.codec: Codec[V] = codec_of(codec)
        self.keep = check_whole(keep, "keep", least=1)
        self._default = default
        self._timeout_s = check_seconds(timeout)
        self._writer: StateWriter = StateWriter(
            self._store,
            self.path,
            self.world,
            exclusive=edits == "exclusive",
            keep=self.keep,
            timeout_s=self._timeout_s,
            lock_settings=lock_settings,
        )
        self.store = self._store
        self.lock_path = self._writer.lock_path
        self.lock_settings = lock_settings
        self._place = (store.identity, self.path)
        self._calls_since_s: float | None = None  # began the running function

    def read(self, *, max_age_s: float = 0.0) -> Revision[V]:
        """Read the state by one conditional GET, shared by concurrent readers. `max_age_s`: see `Cached.get`.

        >>> now = state.read()
        >>> now.value["day"], state.read(max_age_s=60).serial == now.serial
        ('mon', True)
        """
        return self._revision(self._writer.read(max_age_s=max_age_s)[0])

    def update(self, fn: Callable[[V], V | NotChanged], *, fence: Any = None, reason: str = "") -> Revision[V]:
        """Replace the value by `fn`'s result, unless `UNCHANGED`; return its revision.

        `fn` gets the value, or the default, and may run several times, on another thread; its errors are raised.
        Concurrent updates share a write, but no errors; the revision has the value and `reason` after the last of them.
        `fence` is a lease or its epoch; a newer one is stored even with `UNCHANGED`.

        Raises:
            Fenced: `fence` is older than the newest.
            StateLocked: another client edits the state, unless `edits` is "advisory".
            NestedUpdate: an `fn` of the same state calls it, or has run longer than the timeout.
            OutcomeUnknown: it may have been written; `settle` asks again.
            Unavailable: other writers were faster until the timeout, or the store failed; nothing was written.

        >>> state.update(lambda old: {**old, "day": "tue"}).value["day"]
        'tue'
        >>> before = state.read().serial
        >>> state.update(lambda old: lockprovider.state.UNCHANGED).serial == before
        True
        """
        check_function(fn, "fn", "of the value that returns the next one, or UNCHANGED")

        def next_value(stored: Any) -> Any:
            """Return `fn`'s result in its stored form, or UNCHANGED; marks this state as being updated meanwhile."""
            within = _UPDATED.set(_UPDATED.get() | {self._place})
            self._calls_since_s = self.world.monotonic_s()
            try:
                result = fn(self._value(stored))
            finally:
                self._calls_since_s = None
                _UPDATED.reset(within)
            return UNCHANGED if isinstance(result, NotChanged) else self.codec.encode(result)

        return self._do(Update(next_value, epoch_of(fence), check_storable(reason, "reason")))

    def put(self, value: V, *, expected: int | None = None, fence: Any = None, reason: str = "") -> Revision[V]:
        """Replace the value; with `expected`, only if its serial is that one (0: no state exists), else StateConflict.

        >>> state.put({"day": "wed"}, expected=state.read().serial).value
        {'day': 'wed'}
        """
        if expected is not None:
            check_whole(expected, "expected")
        encoded = self.codec.encode(value)
        return self._do(Update(lambda _: encoded, epoch_of(fence), check_storable(reason, "reason"), expected))

    @contextlib.contextmanager
    def edit(self, *, reason: str = "", timeout: float | None = None) -> Iterator[Edit[V]]:
        """Hold the lock of edits; write a revision at the begin, and the value after a clean end.

        Raises:
            NotAcquired: other clients edited it until the timeout.
            LeaseLost, Fenced: the lock was lost, or another edit has begun; no value was written.
            StateConflict: it was changed since the begin; no value was written.
            OutcomeUnknown, Unavailable: as `update`.

        >>> with state.edit(reason="migration 13", timeout=60) as doc:
        ...     doc["schema"] = 13
        >>> doc.revision.value["schema"]
        13
        """
        check_storable(reason, "reason")
        with self._writer.new_lock().acquire(timeout) as lease:
            edit = Edit(lease, self._do(self._beginning(lease.epoch, reason)))
            yield edit
            lease.check()
            edit.revision = self._do(self._ending(edit, reason))

    def history(self, limit: int = 20) -> list[Revision[V]]:
        """Return the newest revisions, current one first, by one GET each, up to the first trimmed one; none: no state.

        >>> [revision.reason for revision in state.history(limit=1)]
        ['migration 12']
        """
        check_whole(limit, "limit")
        current, _ = self._writer.read()
        revisions: list[Revision[V]] = []
        while current is not None and len(revisions) < limit:
            revisions.append(self._revision(current))
            current = self._writer.at(current.lineage, current.serial - 1) if current.serial > 1 else None
        return revisions

    def at(self, serial: int) -> Revision[V]:
        """Serial's revision; raises NoRevision if it does not exist or was trimmed.

        >>> state.at(1).value
        {'day': 'mon'}
        """
        return self._revision(self._document_at(serial))

    def _document_at(self, serial: int) -> Document:
        """Read a serial's document; raise NoRevision if absent or trimmed."""
        check_whole(serial, "serial")
        current, _ = self._writer.read()
        if current is not None and serial <= current.serial:
            then = current if current.serial == serial else self._writer.at(current.lineage, serial)
            if then is not None:
                return then
        last = 0 if current is None else current.serial
        raise NoRevision(f"{self.path!r} has no serial {serial}: it is at {last} and keeps {self.keep} before it")

    def diff(self, before: int, after: int) -> list[Difference]:
        """Differences of two revisions, as the codec encodes them.

        >>> state.diff(1, state.read().serial)
        [Difference(where='/schema', before=absent, after=12)]
        """
        return list(difference(*(self._document_at(serial).value for serial in (before, after))))

    def rollback(self, serial: int, *, fence: Any = None, reason: str = "") -> Revision[V]:
        """Write an earlier revision's value as the next one.

        Raises:
            NoRevision: see `at`; or it has no value to replace bytes, e.g. a state of Terraform.

        >>> state.rollback(1).value
        {'day': 'mon'}
        """
        then = self._document_at(serial).value  # the state may have been empty

        def replacing(stored: Any) -> Any:
            if then is None and isinstance(self._value(stored), bytes):
                raise NoRevision(
                    f"serial {serial} of {self.path!r} has no state (Terraform would create everything again): "
                    "choose another of `lockprovider state history URL`; `state get URL --serial N` shows it"
                )
            return then

        return self._do(Update(replacing, epoch_of(fence), check_storable(reason or f"rollback to {serial}", "reason")))

    def who(self) -> Editor:
        """Read the lock of edits and the state; return the lock's state, last holder, and that edit's reason, if begun.

        >>> with state.edit(reason="migration 13"):
        ...     who = state.who()
        >>> who.state, who.reason
        ('held', 'migration 13')
        """
        status = look(self._store, self._writer.lock_path, self.world)
        document, _ = self._writer.read()
        record, mark = status.record, document and document.edit
        holder = record and record.holder
        by, since_ms = (f"{holder.host}, pid {holder.pid}", holder.since_ms) if holder else ("", 0)
        reason = mark.reason if mark and record and mark.epoch == record.epoch else ""
        return Editor(status.state, by, since_ms, reason, status, record.valid_until_ms if record else 0)

    def unlock(self, shown: Editor) -> None:
        """Break the lock of edits, so that its holder's edit is refused; `shown`: `who`'s result.

        Also writes a revision, "unlocked", unless a newer edit has begun or no value exists. If `shown` is absent or
        released, does nothing.

        Raises:
            StateConflict: the lock has changed since `shown`; nothing was broken.
            OutcomeUnknown: call `who` again.

        >>> state.unlock(state.who())  # nobody edits it: nothing is done
        """
        if not isinstance(shown, Editor):
            raise InvalidInput(f"shown={shown!r} must be a result of who()")
        if shown.status.record is None or shown.status.record.is_free:
            return
        outcome = break_lock(self._store, self._writer.lock_path, shown.status, self.world).outcome
        if isinstance(outcome, Lost):
            raise StateConflict(f"the lock of {self.path!r} has changed since it was shown: look again")
        outcome.unwrap()
        self._do(StopEdits(shown.status.record.epoch))

    def settle(self, error: OutcomeUnknown) -> Revision[V] | None:
        """Find the outcome of a write that raised `error`, here or elsewhere; may send it again.

        None: it was not done, and never will be. OutcomeUnknown: it is still unknown.

        >>> try:
        ...     revision = state.update(lambda old: old)
        ... except OutcomeUnknown as error:
        ...     revision = state.settle(error)  # None: it never was
        """
        if not isinstance(error, OutcomeUnknown):
            raise InvalidInput(f"error={error!r} must be the OutcomeUnknown that a write raised")
        if error.outcome is None or error.outcome.data is None or error.outcome.write.path != self.path:
            raise InvalidInput(f"this error is not from a write of {self.path!r}: {error}")
        turn = self._writer.settle(error.outcome)
        return self._revision(turn.document) if turn.verdict == "mine" else None

    def _do(self, change: StateChange) -> Revision[V]:
        """Submit a change, wait, and return its revision; an interrupt cancels it, unless a write took it.

        NestedUpdate: an `fn` of this state calls it, or has run longer than the timeout.
        """
        if self._place in _UPDATED.get():
            raise NestedUpdate(
                f"an update of {self.path!r} was asked for by a function that an update of it calls: return the new "
                "value from that function, and update again after it"
            )
        answer = self._batcher.submit(change)
        try:
            while not self._batcher.wait_slice(answer):
                since_s = self._calls_since_s
                if since_s is not None and self.world.monotonic_s() - since_s > self._timeout_s and answer.cancel():
                    raise NestedUpdate(
                        f"the function of an update of {self.path!r} has run for {self._timeout_s:g} s, and all others "
                        "wait: does it wait for an update of the same state, on another thread?"
                    )
            return self._revision(answer.result())
        finally:
            answer.cancel()

    def _beginning(self, epoch: int, reason: str) -> BeginEdit:
        value = None if self._default is None else self.codec.encode(self._default())
        return BeginEdit(epoch, value, reason)

    def _ending(self, edit: Edit[V], reason: str, *, goes_on: bool = False) -> EndEdit:
        return EndEdit(edit.lease.epoch, edit.begun.serial, self.codec.encode(edit.value), reason, goes_on)

    def _value(self, stored: Any) -> Any:
        if stored is None:
            return None if self._default is None else self._default()
        return self.codec.decode(stored)

    def _revision(self, document: Document | None) -> Revision[V]:
        if document is None:
            return Revision(0, self._value(None))
        origin = (document.by, document.at_ms, document.reason, document.epoch, document.lineage)
        return Revision(document.serial, self._value(document.value), *origin)


class AsyncState(RecipeForTasks[State[V]], Generic[V]):
    """State file, for tasks; arguments as `State`.

    >>> state = lockprovider.state.AsyncState.open("memory://docs/orders.json", default=dict)
    >>> first = await state.put({"day": "mon"})
    >>> (await state.read()).value, await state.diff(1, 1)
    ({'day': 'mon'}, [])
    """

    _of = State

    read = threaded(State.read)
    update = threaded(State.update)
    put = threaded(State.put)
    history = threaded(State.history)
    at = threaded(State.at)
    diff = threaded(State.diff)
    rollback = threaded(State.rollback)
    who = threaded(State.who)
    unlock = threaded(State.unlock)
    settle = threaded(State.settle)
    close = threaded(State.close)

    @contextlib.asynccontextmanager
    async def edit(self, *, reason: str = "", timeout: float | None = None) -> AsyncIterator[Edit[V]]:
        """Hold the lock of edits; write a revision at the begin, and the value after a clean end.

        See `State.edit`.

        >>> async with state.edit(reason="migration 12") as doc:
        ...     doc["schema"] = 12
        """
        check_storable(reason, "reason")
        state = self._sync
        lock = AsyncLock(state.store, state.lock_path, state.lock_settings, world=state.world)
        async with lock.acquire(timeout) as lease:
            edit = Edit(lease, await on_thread(lambda: state._do(state._beginning(lease.epoch, reason))))  # noqa: SLF001
            yield edit
            lease.check()
            edit.revision = await on_thread(lambda: state._do(state._ending(edit, reason)))  # noqa: SLF001
