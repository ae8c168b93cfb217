"""fsspec's `memory://` with conditional writes, atomic within the process: the specification of a backend."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any, ClassVar

from fsspec_cas.answer import (
    Applied,
    Capabilities,
    ConditionFailed,
    Entry,
    FinishAnswer,
    ListAnswer,
    Missing,
    ObjectState,
    Page,
    ReadAnswer,
    Unchanged,
    Upload,
    UploadAnswer,
    UploadGone,
    WriteAnswer,
)
from fsspec_cas.backends.base import AttributeRules, Backend, PartRules
from fsspec_cas.errors import StoreError
from fsspec_cas.outcome import Absent, Attributes, Version, Write


class MemoryBackend(Backend):
    name = "memory"
    capabilities = Capabilities(
        create=True, match=True, delete_match=True, read_changed=True, unique_versions=True, keeps_write_id=True
    )
    attribute_rules = AttributeRules()
    part_rules = PartRules()
    blocking = True

    _guard: ClassVar[threading.Lock] = threading.Lock()
    _serial: ClassVar[int] = 0

    def __init__(self, fs: Any) -> None:
        self._fs = fs
        self._parts: dict[str, list[bytes]] = {}

    async def put(self, write: Write, data: bytes, *, timeout_s: float) -> WriteAnswer:
        """Write the object if the condition holds, even in fsspec's transaction; else `ConditionFailed`.

        A folder, or a path below an object, raises StoreError.
        """
        with self._guard:
            current = self._version(write.path)
            if current != (None if isinstance(write.condition, Absent) else write.condition):
                return ConditionFailed()
            try:
                file = self._fs._open(_key(write.path), "wb", data=data)  # noqa: SLF001 - `pipe_file` returns nothing
            except FileExistsError as error:  # it must not look like a lost race
                where = f"{write.path!r} is below {str(error)!r}, which is an object, not a folder"
                raise StoreError(where, path=write.path) from None
            except IsADirectoryError:
                raise StoreError(f"{write.path!r} is a folder", path=write.path) from None
            if self._fs._intrans:  # noqa: SLF001 - a conditional write does not wait for fsspec's transaction
                file.commit()
            file.cas_write_id, file.cas_attributes = write.write_id, write.attributes
            return Applied(self._version(write.path))

    async def head(self, path: str, *, timeout_s: float) -> ReadAnswer:
        with self._guard:
            return self._object_state(path, with_data=False)

    async def get(self, path: str, unless: Version | None, *, timeout_s: float) -> ReadAnswer:
        with self._guard:
            state = self._object_state(path, with_data=True)
        return Unchanged() if isinstance(state, ObjectState) and state.version == unless else state

    async def delete(self, path: str, condition: Version | None, *, timeout_s: float) -> WriteAnswer:
        """Delete the object; `ConditionFailed` if not at `condition`. Without one a missing object is `Applied`."""
        with self._guard:
            current = self._version(path)
            if condition is not None and current != condition:
                return ConditionFailed()
            if current is not None:
                self._fs.rm_file(path)
            return Applied(None)

    async def list_page(
        self, prefix: str, start_after: str | None, token: str | None, *, timeout_s: float
    ) -> ListAnswer:
        after = "" if start_after is None else _key(start_after)
        with self._guard:
            files = sorted((n, f) for n, f in self._fs.store.items() if n.startswith(_key(prefix)) and n > after)
            return Page(tuple(Entry(n, f.size, _modified_ms(f), self._version(n)) for n, f in files))

    async def begin(self, write: Write, *, timeout_s: float) -> UploadAnswer:
        self._parts[write.write_id] = []
        return Upload(write, write.write_id)

    async def add(self, upload: Upload, data: bytes, *, timeout_s: float) -> UploadAnswer:
        if upload.token not in self._parts:
            raise StoreError(f"the upload of {upload.write.path!r} is gone; write it again", path=upload.write.path)
        self._parts[upload.token][len(upload.tags) :] = [data]
        return replace(upload, tags=(*upload.tags, ""), sent=upload.sent + len(data))

    async def finish(self, upload: Upload, tail: bytes, *, timeout_s: float) -> FinishAnswer:
        parts = self._parts.pop(upload.token, None)
        if parts is None:
            return UploadGone("the upload was removed")
        return await self.put(upload.write, b"".join((*parts, tail)), timeout_s=timeout_s)

    async def abort(self, upload: Upload, *, timeout_s: float) -> None:
        self._parts.pop(upload.token, None)

    def _file(self, path: str) -> Any:
        return self._fs.store.get(_key(path))

    def _object_state(self, path: str, *, with_data: bool) -> ObjectState | Missing:
        """Return the object's state (bytes if `with_data`) or `Missing`; mark a changed file, as `_version`.

        Call it under the guard.
        """
        version, file = self._version(path), self._file(path)
        if version is None:
            return Missing()
        data = file.getvalue() if with_data else None
        write_id = getattr(file, "cas_write_id", None)
        attributes = getattr(file, "cas_attributes", None) or Attributes()
        state = ObjectState(version, file.size, _modified_ms(file), write_id, data)
        return replace(state, content_type=attributes.content_type, metadata=attributes.metadata)

    def _version(self, path: str) -> Version | None:
        """Return the object's version or None; first mark a changed file with a new one. Call it under the guard."""
        file = self._file(path)
        if file is None:
            return None
        # A plain write makes a new MemoryFile, an append changes `modified`.
        stamp = (file.modified, file.size)
        if getattr(file, "cas_stamp", None) != stamp:
            MemoryBackend._serial += 1
            file.cas_stamp, file.cas_serial = stamp, MemoryBackend._serial
        return Version(self.name, str(file.cas_serial))


def _key(path: str) -> str:
    return "/" + path.lstrip("/")


def _modified_ms(file: Any) -> int:
    return int(file.modified.timestamp() * 1000)
