"""`AsyncExclusive` and `Exclusive`: streams that create a whole object on close, only if its path is empty."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Coroutine
from functools import partial, wraps
from typing import Any, Concatenate

from fsspec_cas.answer import ConditionFailed, ObjectState, Upload
from fsspec_cas.arguments import Bytes, check_buffer, check_whole
from fsspec_cas.backends import Backend
from fsspec_cas.bridge.drive import A, Drive, P, SyncForm, sync, without_await
from fsspec_cas.bridge.threads import renamed
from fsspec_cas.errors import CasError, InvalidInput
from fsspec_cas.outcome import ABSENT, Lost, Outcome, Won, Write
from fsspec_cas.sender import Sender

PART_BYTES = 8 * 1024 * 1024
_ABORT_S = 10.0

_log = logging.getLogger(__name__)


class AsyncExclusive:
    """Object being written; leaving `async with` closes it and raises unless won, an exception aborts it.

    `outcome` is the result of `close`; None before it, and after `abort`.
    """

    def __init__(self, backend: Backend, write: Write, sender: Sender, *, part_size: int, timeout: float) -> None:
        rules, part_size = backend.part_rules, check_whole(part_size, "part_size", least=1)
        if part_size < rules.least_bytes or part_size % rules.multiple_bytes:
            least = f"this store takes parts of at least {rules.least_bytes} bytes"
            raise InvalidInput(f"part_size is {part_size}: {least}, in multiples of {rules.multiple_bytes}")
        self.path = write.path
        self.outcome: Outcome | None = None
        self.closed = False
        self.written = 0
        self._backend = backend
        self._write = write
        self._sender = sender
        self._part_size = part_size
        self._timeout = timeout
        self._buffer = bytearray()
        self._upload: Upload | None = None
        self._denied = False

    async def __aenter__(self) -> AsyncExclusive:
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            await self.abort()
        elif not self.closed:
            (await self.close()).unwrap()

    async def write(self, data: Bytes) -> int:
        """Append the bytes, sending each full part once more bytes follow; return their number.

        A failed part aborts the writer. If the path is found taken, bytes are dropped, and only `close` reports it.

        Raises:
            NotBytes: `data` has no buffer; nothing was appended.
            OutcomeUnknown: the store made an object of the parts so far.
            StoreError: a part could not be sent; no object will appear.
            InvalidInput: the writer is closed, or its store takes no more parts.
        """
        self._check_open()
        rest = view = check_buffer(self.path, data)
        while rest:
            if len(self._buffer) == self._part_size:
                await self._send_part()
            room = self._part_size - len(self._buffer)
            self._buffer += rest[:room]
            rest = rest[room:]
        self.written += view.nbytes
        return view.nbytes

    async def close(self) -> Outcome:
        """Create the object if the path is empty; return the outcome, also if repeated.

        Unless won, the parts sent are dropped.

        Raises:
            StoreError: the object was not created, and will not appear.
            InvalidInput: the writer was aborted, or an earlier close raised.
        """
        if self.outcome is not None:
            return self.outcome
        self._check_open()
        self.closed = True
        try:
            self.outcome = await self._finish()
        finally:
            self._buffer = bytearray()
            if not isinstance(self.outcome, Won):
                await self._drop()
        return self.outcome

    async def abort(self) -> None:
        """Close the writer, drop its data and sent parts; do nothing once closed. Store errors are logged."""
        if not self.closed:
            self.closed = True
            self._buffer = bytearray()
            await self._drop()

    def fits(self, size: int) -> bool:
        return not self.closed and len(self._buffer) + size <= self._part_size

    def take(self, data: memoryview) -> int:
        self._buffer += data
        self.written += data.nbytes
        return data.nbytes

    @property
    def cleanup(self) -> Coroutine[Any, Any, None] | None:
        return None if self.closed or self._upload is None else self.abort()

    async def _send_part(self) -> None:
        """Send the buffer as the next part, after beginning the upload; empty it.

        After a refused beginning (path taken) nothing is sent. An error aborts the writer.
        """
        part = bytes(self._buffer)
        self._buffer.clear()
        try:
            if self._upload is None and not self._denied:
                begun = await self._sender.repeat(self.path, partial(self._backend.begin, self._write), self._timeout)
                self._denied = isinstance(begun, ConditionFailed)
                self._upload = begun if isinstance(begun, Upload) else None
            if self._upload is not None:
                self._upload = await self._add(self._upload, part)
        except BaseException:
            await self.abort()  # a part is missing
            raise

    async def _add(self, upload: Upload, part: bytes) -> Upload:
        """Send one part; return the upload with it.

        Raises InvalidInput if the store takes no more, CasError if it refuses this one.
        """
        if len(upload.tags) >= self._backend.part_rules.most_parts:
            problem = f"{self.path!r} has {len(upload.tags)} parts and its store takes no more"
            raise InvalidInput(f"{problem}: choose a part_size above {self._part_size}", path=self.path)
        add = partial(self._backend.add, upload, part)
        added: Upload | ConditionFailed = await self._sender.repeat(self.path, add, self._timeout, small=False)
        if isinstance(added, ConditionFailed):
            raise CasError(f"the store refused a part of {self.path!r}, which had no condition", path=self.path)
        return added

    async def _finish(self) -> Outcome:
        """Write the object whole, or complete its upload with the buffer; return the outcome.

        After a refused beginning, read the head and return Lost.
        """
        tail = bytes(self._buffer)
        if self._denied:
            state = await self._sender.head(self.path, self._timeout)
            return Lost(self.path, self._write.condition, state.version if isinstance(state, ObjectState) else ABSENT)
        if self._upload is None:
            return await self._sender.write(self._write, tail, self._timeout)
        if not self._backend.part_rules.tail_with_finish:
            self._upload, tail = await self._add(self._upload, tail), b""
        return await self._sender.finish(self._write, partial(self._backend.finish, self._upload, tail), self._timeout)

    async def _drop(self) -> None:
        """Forget the upload, if any, then abort it; a CasError is only logged."""
        upload, self._upload = self._upload, None
        if upload is None:
            return
        try:
            await self._backend.abort(upload, timeout_s=_ABORT_S)
        except CasError as error:
            _log.warning("parts of %r may be left in the store, unseen: %s", self.path, error)

    def _check_open(self) -> None:
        if self.closed:
            raise InvalidInput(f"the writer of {self.path!r} is closed; open another one", path=self.path)


class Exclusive:
    """`AsyncExclusive` for sync callers; garbage collection aborts an unclosed writer."""

    def __init__(self, inner: AsyncExclusive, drive: Drive) -> None:
        self._async = inner
        self._drive = drive

    def __enter__(self) -> Exclusive:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.abort()
        elif not self.closed:
            self.close().unwrap()

    def __del__(self) -> None:
        cleanup = getattr(self, "_async", None) and self._async.cleanup
        if cleanup and sys.is_finalizing():
            cleanup.close()
        elif cleanup:
            self._drive.start(cleanup)

    @property
    def path(self) -> str:
        return self._async.path

    @property
    def outcome(self) -> Outcome | None:
        return self._async.outcome

    @property
    def closed(self) -> bool:
        return self._async.closed

    @property
    def written(self) -> int:
        return self._async.written

    def write(self, data: Bytes) -> int:
        """See `AsyncExclusive.write`; sends nothing while the bytes fit into the part."""
        view = check_buffer(self.path, data)
        if self._async.fits(view.nbytes):
            return self._async.take(view)
        return self._drive.run(self._async.write(view))

    close = sync(AsyncExclusive.close)
    abort = sync(AsyncExclusive.abort)


def sync_opener(
    method: Callable[Concatenate[A, P], AsyncExclusive],
) -> Callable[Concatenate[SyncForm[A], P], Exclusive]:
    """Derive the sync form of a method that opens an exclusive writer."""
    method = renamed(method, method.__qualname__.removeprefix("Async"))

    @wraps(method)
    def call(self: SyncForm[A], /, *args: P.args, **kwargs: P.kwargs) -> Exclusive:
        return Exclusive(method(self._async, *args, **kwargs), self._drive)

    call.__doc__ = without_await(method.__doc__)
    return call
