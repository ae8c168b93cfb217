"""Terraform and OpenTofu on a state: their `http` backend's requests, and S3 lock file.

`lockprovider/guides/terraform.md` lists the refused states (409), as by `terraform state push`.

Source: internal/backend/remote-state/{http,s3}/client.go and internal/states/statemgr/{migrate,locker}.go of Terraform
1.5 and 1.11, OpenTofu 1.10.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

from fsspec_cas import (
    CasError,
    InvalidInput,
    Outcome,
    OutcomeUnknown,
    Store,
    StoreError,
    Unavailable,
    Unknown,
    Version,
    Won,
    World,
)
from fsspec_cas.arguments import check_seconds
from fsspec_cas.sender import delay_s
from lockprovider.bounded import Undecodable, parse_object, text_in, undecodable_as, whole_in
from lockprovider.errors import LockError, NotAcquired
from lockprovider.recipes.base import AtUrl, StoreCheck, process_name
from lockprovider.recipes.errors import CoordinationError, MalformedObject, Overloaded, StateConflict, StateLocked
from lockprovider.recipes.state.changes import Update
from lockprovider.recipes.state.document import difference
from lockprovider.recipes.state.state import Edit, State
from lockprovider.recipes.values import check_storable
from lockprovider.storage_lock.lease import Lease

LARGEST_BODY = 128 << 20
_LARGEST_INFO = 1 << 16
_DEEPEST_STATE = 256  # read by Go
_STATUS: dict[type[Exception], HTTPStatus] = {  # the first that fits
    OutcomeUnknown: HTTPStatus.GATEWAY_TIMEOUT,
    Unavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    Overloaded: HTTPStatus.SERVICE_UNAVAILABLE,
    MalformedObject: HTTPStatus.BAD_REQUEST,
    CoordinationError: HTTPStatus.CONFLICT,
    LockError: HTTPStatus.CONFLICT,
    Exception: HTTPStatus.BAD_REQUEST,
}


@dataclass(frozen=True, slots=True)
class Reply:
    status: HTTPStatus
    body: bytes = b""
    message: str = ""

    @classmethod
    def refusal(cls, status: HTTPStatus, error: str, message: str) -> Reply:
        return cls(status, json.dumps({"error": error, "message": message}).encode(), message)


@dataclass(slots=True)
class TerraformBackend:
    """Answers requests of the `http` backend; holds the lock of edits from LOCK to UNLOCK. Thread-safe."""

    state: State[bytes]
    _held: _Held | None = None
    _released: str = ""  # ID of the last lock
    _unreleased: int = 0  # its epoch, if its release failed
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, method: str, query: str, body: bytes) -> Reply:
        """Carry out a request (GET, POST, DELETE, LOCK, UNLOCK), one at a time except GET; return its reply.

        `query` may have `ID` and `force=true`. Errors are replies: 423 with the LockInfo if locked, 405 for other
        methods, 504 unknown outcome, 503 unavailable, 409 conflict, else 400.
        """
        parameters = {name: values[0] for name, values in parse_qs(query).items()}
        handlers: dict[str, Callable[[], Reply]] = {
            "GET": self._read,
            "POST": lambda: self._write(parameters.get("ID", ""), body, force=parameters.get("force") == "true"),
            "DELETE": self._delete,
            "LOCK": lambda: self._lock(_info(body)),
            "UNLOCK": lambda: self._unlock(_info(body).get("ID")),
        }
        if method not in handlers:
            message = f"{method} is not a method of this protocol: use one of {', '.join(handlers)}"
            return Reply.refusal(HTTPStatus.METHOD_NOT_ALLOWED, "InvalidInput", message)
        try:
            try:
                with contextlib.nullcontext() if method == "GET" else self._turn:
                    return handlers[method]()
            except (StateLocked, NotAcquired) as error:
                return self._locked_by_another(str(error))
        except (CasError, CoordinationError, LockError, ValueError) as error:
            status = next(status for kind, status in _STATUS.items() if isinstance(error, kind))
            return Reply.refusal(status, type(error).__name__, str(error))

    def close(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            self._released, self._unreleased = held.info["ID"], held.lease.epoch
            held.lease.release()
            self._unreleased = 0

    def _read(self) -> Reply:
        stored, _ = self.state._writer.read()  # noqa: SLF001 - parts of the state, in this file
        if stored is None or stored.value is None:
            return Reply(HTTPStatus.NO_CONTENT)
        return Reply(HTTPStatus.OK, self.state.codec.decode(stored.value))

    def _write(self, identity: str, body: bytes, *, force: bool) -> Reply:
        """Store the state in `body` if `identity` is the ID of the lock held here, or "" while none is held.

        Another ID gets 423, or 409 if none is held. Raises MalformedObject for other bytes, LeaseLost, Fenced,
        StateLocked, StateConflict, and, without `force`, as `TerraformState.replacing`.
        """
        snapshot = TerraformState.decode(body)
        held = self._held
        if held is None and identity:
            message = f"the lock {identity} is no longer held: lock the state again, then push your local state"
            return Reply.refusal(HTTPStatus.CONFLICT, "LeaseLost", message)
        if held is None:
            self.state.update(lambda stored: snapshot.replacing(stored, force=force), reason="without a lock")
            return Reply(HTTPStatus.OK)
        if identity != held.info.get("ID"):
            return _locked(held.info)
        held.lease.check()
        held.write(snapshot.replacing(held.stored(), force=force))
        return Reply(HTTPStatus.OK)

    def _delete(self) -> Reply:
        self.state._batcher.do(Update(lambda _: None, reason="deleted"))  # noqa: SLF001
        return Reply(HTTPStatus.OK)

    def _lock(self, info: dict[str, Any]) -> Reply:
        """Acquire the lock of edits, and begin an edit that stores `info`; if that fails, release it.

        The held ID succeeds again, another gets 423. Raises InvalidInput without an ID, NotAcquired if another client
        has it.
        """
        if not info.get("ID") or not isinstance(info["ID"], str):
            raise InvalidInput(f"the LockInfo has the ID {info.get('ID')!r}: send text, by which its writes are known")
        if self._held is not None:
            same = self._held.info.get("ID") == info.get("ID")  # repeated after a lost answer
            return Reply(HTTPStatus.OK, json.dumps(info).encode()) if same else _locked(self._held.info)
        lease = self.state._writer.new_lock().acquire(0.0)  # noqa: SLF001
        try:
            self._held = _Held(self.state, lease, info)
        except BaseException:
            lease.release()
            raise
        return Reply(HTTPStatus.OK, json.dumps(info).encode())

    def _unlock(self, identity: str | None) -> Reply:
        """Release the lock held here by its ID or None; if none is held, None or "" breaks the state's lock.

        The ID released last succeeds again, and breaks its lock if the store had failed to release it; others get 409.
        """
        held = self._held
        if held is None and not identity:
            self.state.unlock(self.state.who())
        elif held is None and identity == self._released:
            self._break_unreleased()
        elif held is None or identity not in (None, held.info.get("ID")):
            message = f"the lock {identity} is not held here: nothing was unlocked"
            return Reply.refusal(HTTPStatus.CONFLICT, "StateConflict", message)
        else:
            self.close()
        return Reply(HTTPStatus.OK)

    def _break_unreleased(self) -> None:
        if self._unreleased:
            shown = self.state.who()
            if shown.status.record is not None and shown.status.record.epoch == self._unreleased:
                self.state.unlock(shown)
            self._unreleased = 0

    def _locked_by_another(self, why: str) -> Reply:
        """Read who edits the state; return 423 with the LockInfo, or one made of the lock's record.

        An empty `Info` becomes `why`.
        """
        who = self.state.who()
        try:
            info = _info(who.reason.encode())
        except ValueError:
            info = {}
        if not info:
            info = {"ID": who.status.record.owner if who.status.record else "", "Who": who.by, "Operation": who.reason}
        return _locked({**info, "Info": info.get("Info") or why})


@dataclass(frozen=True, slots=True)
class TerraformState:
    """Terraform or OpenTofu state; encryption leaves lineage and serial readable."""

    data: bytes
    lineage: str
    serial: int
    content: Mapping[str, Any]

    @classmethod
    def decode(cls, data: bytes) -> TerraformState:
        with undecodable_as(MalformedObject, "the body is not a state of Terraform or OpenTofu; nothing was written"):
            content = parse_object(data, most=LARGEST_BODY, deepest=_DEEPEST_STATE)
            lineage = text_in(content, "lineage")
            if not lineage:
                raise Undecodable("its lineage is empty")
            return cls(data, lineage, whole_in(content, "serial"), content)

    def replacing(self, stored: bytes | None, *, force: bool) -> bytes:
        """Return this state's bytes, or raise StateConflict if they may not replace `stored`.

        Refused: stored bytes that are no such state, another lineage, a lower serial, or other content of the same
        serial. `force`, or nothing stored, permits all.
        """
        if force or not stored:
            return self.data
        try:
            before = TerraformState.decode(stored)
        except MalformedObject:
            message = "the stored object is not a state of Terraform; push with force to replace it"
            raise StateConflict(message) from None
        if before.lineage != self.lineage:
            raise StateConflict(
                f"its lineage is {self.lineage}, and that of the stored state is {before.lineage}: this is the state "
                "of something else; to replace the stored one all the same, push it by force"
            )
        if self.serial < before.serial:
            raise StateConflict(
                f"its serial is {self.serial}, and that of the stored state is {before.serial}: pull the newer one, or "
                "push this one by force"
            )
        if self.serial == before.serial and any(difference(before.content, self.content)):
            raise StateConflict(
                f"its serial is {self.serial}, as that of the stored state, and its content is another: pull the "
                "stored one, or push this one by force"
            )
        return self.data


class _Held:
    """Run's lock held here: an edit with many writes. `_edit` is None after a lost answer."""

    def __init__(self, state: State[bytes], lease: Lease, info: dict[str, Any]) -> None:
        self.lease = lease
        self.info = info
        self._state = state
        self._edit: Edit[bytes] | None = self._begun()

    def stored(self) -> bytes | None:
        if self._edit is None:
            self._edit = self._begun()
        return self._edit.begun.value

    def write(self, body: bytes) -> None:
        edit, self._edit = self._edit or self._begun(), None
        edit.value = body
        reason = str(self.info.get("Operation") or "")
        self._edit = Edit(self.lease, self._state._do(self._state._ending(edit, reason, goes_on=True)))  # noqa: SLF001

    def _begun(self) -> Edit[bytes]:
        begun = self._state._beginning(self.lease.epoch, json.dumps(self.info))  # noqa: SLF001
        return Edit(self.lease, self._state._do(begun))  # noqa: SLF001


def _locked(info: Mapping[str, Any]) -> Reply:
    message = f"it is locked by {info.get('Who') or 'another run'} (ID {info.get('ID') or 'not known'})"
    return Reply(HTTPStatus.LOCKED, json.dumps(info).encode(), message)


def lock_in_words(reason: str) -> str:
    """Return an edit's reason for people: a LockInfo as operation, holder and ID; other text unchanged."""
    try:
        info = _info(reason.encode())
    except ValueError:
        return reason
    if not info.get("ID") or not info.get("Operation"):
        return reason
    return f"locked for {info['Operation']} by {info.get('Who') or 'another run'} (ID {info['ID']})"


def _info(body: bytes) -> dict[str, Any]:
    if not body.strip():
        return {}
    with undecodable_as(InvalidInput, "the body is not a LockInfo"):
        return parse_object(body, most=_LARGEST_INFO)


_TIMEOUT_S = 60.0
_SUFFIX = ".tflock"
_LARGEST = 1 << 20  # bytes


@dataclass(frozen=True, slots=True)
class TfLockFile:
    """Lock file as read. Bytes that are no LockInfo lock, too, with an empty `id`.

    >>> lock = lockprovider.state.TfLock.open("memory://docs/network.tfstate")
    >>> mine = lock.acquire(operation="apply")
    >>> mine.operation
    'apply'
    """

    id: str
    who: str
    operation: str
    info: str
    created: str
    version: Version


class TfLock(AtUrl):
    """Terraform's and OpenTofu's own S3 lock file of a state (`use_lockfile = true`): `<path>.tflock`. Thread-safe.

    `lockprovider/guides/terraform.md` has the promises. A run whose lock was removed goes on to write, unless it uses
    `lockprovider state run`. `timeout` (s) limits each request with its tries.

    >>> lock = lockprovider.state.TfLock.open("memory://docs/network.tfstate")
    >>> mine = lock.acquire(operation="apply", timeout=60)
    """

    def __init__(self, store: Store, path: str, *, timeout: float = _TIMEOUT_S, world: World | None = None) -> None:
        super().__init__(store, path, world)
        self.path += _SUFFIX
        self._timeout_s = check_seconds(timeout)
        self._store_check = StoreCheck(store, self.path)

    def shown(self) -> TfLockFile | None:
        """Read the lock file (None: the state is not locked).

        >>> lock.shown() == mine
        True
        """
        content = self._store.read_or_none(self.path, timeout=self._timeout_s)
        return None if content is None else _decoded(content.data, content.version)

    def acquire(self, *, operation: str = "", info: str = "", timeout: float = 0.0) -> TfLockFile:
        """Create the lock file, waiting up to `timeout` seconds; other clients see `operation` and `info`.

        A Ctrl-C removes it.

        Raises:
            StateLocked: another client had it until then; `reason` is its operation.
            OutcomeUnknown: the file may still appear: call `shown`, and unlock it.
            NotSupported: the store ignores conditions of writes or deletes.

        >>> lock.acquire()
        Traceback (most recent call last):
        ...
        lockprovider.recipes.errors.StateLocked: ...
        """
        check_storable(operation, "operation")
        check_storable(info, "info")
        self._store_check.require()
        self._store_check.store.require_conditional_delete(timeout=self._timeout_s)
        deadline_s, tries = self.world.monotonic_s() + check_seconds(timeout), 0
        identity = self.world.new_id()
        data = self._encoded(identity, operation, info)
        try:
            while True:
                outcome = self._store.put_if_absent(self.path, data, timeout=self._timeout_s)
                if isinstance(outcome, Won):
                    return _decoded(data, outcome.version)
                current = self._looked(outcome)
                if current is not None and current.id == identity:
                    return current
                tries += 1
                left_s = deadline_s - self.world.monotonic_s()
                if left_s <= 0:
                    if isinstance(outcome, Unknown):
                        outcome.unwrap()
                    raise _taken(self.path, current)
                self.world.sleep(min(left_s, delay_s(tries, self.world.random())))
        except KeyboardInterrupt:  # without a lease, the lock would stay
            with contextlib.suppress(CasError, StateConflict):
                current = self.shown()
                if current is not None and current.id == identity:
                    self.unlock(current)
            raise

    def unlock(self, shown: TfLockFile) -> bool:
        """Remove the shown file; return False if already gone.

        Raises:
            StateConflict: another client has it now; it was left.
            NotSupported: it was not removed.
            StoreError, OutcomeUnknown: it may be removed; do it again.

        >>> lock.unlock(mine), lock.shown()
        (True, None)
        """
        if not isinstance(shown, TfLockFile):
            raise InvalidInput(f"shown={shown!r} must be a result of shown() or acquire()")
        deadline_s = self.world.monotonic_s() + self._timeout_s
        tries, may_be_own = 0, False
        while True:
            outcome = self._store.delete_if_match(self.path, shown.version, timeout=self._timeout_s)
            if isinstance(outcome, Won):
                return True
            may_be_own = may_be_own or isinstance(outcome, Unknown)
            current = self.shown()
            if current is None:
                return may_be_own  # any client may have removed it
            if current.version != shown.version:
                raise StateConflict(
                    f"{self.path!r} has changed since it was shown: {_words(current)} holds it; look again"
                )
            tries += 1
            if self.world.monotonic_s() > deadline_s:
                outcome.unwrap()
            self.world.sleep(delay_s(tries, self.world.random()))

    def _looked(self, outcome: Outcome) -> TfLockFile | None:
        try:
            return self.shown()
        except StoreError:
            if isinstance(outcome, Unknown):
                outcome.unwrap()
            raise

    def _encoded(self, identity: str, operation: str, info: str) -> bytes:
        created = datetime.fromtimestamp(self.world.now_ms() / 1000, tz=timezone.utc).isoformat()
        fields = {"ID": identity, "Operation": operation or "lockprovider", "Info": info, "Who": process_name()}
        fields |= {"Version": "", "Created": created, "Path": self.path.removesuffix(_SUFFIX)}
        return json.dumps(fields).encode()


def _decoded(data: bytes, version: Version) -> TfLockFile:
    """Lock file of these bytes: fields as text, missing or empty ones "", without a JSON object all ""."""
    try:
        fields = parse_object(data, most=_LARGEST)
    except ValueError:
        fields = {}
    identity, who, operation, info, created = (
        str(fields.get(name) or "") for name in ("ID", "Who", "Operation", "Info", "Created")
    )
    return TfLockFile(identity, who, operation, info, created, version)


def _words(lock: TfLockFile) -> str:
    about = " ".join(word for word in (lock.operation, lock.info) if word)
    return f"{lock.who or 'an unnamed holder'} (ID {lock.id or 'not said'}{', ' + about if about else ''})"


def _taken(path: str, lock: TfLockFile | None) -> StateLocked:
    """Error that names the holder of `lock` (None: unknown)."""
    if lock is None:
        return StateLocked(f"other clients held {path!r} at each try")
    message = f"{path!r} is held by {_words(lock)} since {lock.created or 'an unknown time'}"
    return StateLocked(
        f"{message}; it has no lease: if its holder is dead, run `lockprovider state unlock URL --style tflock`",
        lock.who,
        0,
        lock.operation,
    )
