"""POSIX files with exact conditional writes, among threads and processes of one machine.

create: the bytes go to a temporary file in the same folder, are synced, and `link` gives them their name, which
fails if the name is taken. replace: under a `flock` on the folder the current version is compared and `rename`
puts the new file in place. A reader sees the old bytes or the new ones, never a mixture, and after a crash one
of the two is there. A temporary file that a crash left behind has a name that begins with `.cas-`.

The version is the file's inode, size and modification time in ns; each write here gives the file a time above the
one before it, so a version does not come back. A plain write by another program changes the version too, but is
not excluded by the lock: only writers that come through here exclude each other.

Not promised: NFS and other network file systems (flock and link semantics vary there), Windows.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from stat import S_ISDIR

from fsspec_cas.answer import (
    Applied,
    Denied,
    Entry,
    FinishAnswer,
    Gone,
    ListAnswer,
    Missing,
    NoAnswer,
    Page,
    ReadAnswer,
    Seen,
    Unchanged,
    Upload,
    UploadAnswer,
    WriteAnswer,
)
from fsspec_cas.backends.base import PartRules
from fsspec_cas.capability import Capabilities
from fsspec_cas.clock import Machine, time_ns
from fsspec_cas.errors import AccessDenied, NotSupported, StoreError
from fsspec_cas.version import Absent, Condition, Version

TEMPORARY = ".cas-"
_CAPABILITIES = Capabilities(
    create=True, match=True, delete_match=True, read_changed=True, unique_versions=True, keeps_write_id=False
)


class LocalBackend:
    """Conditional writes to local files. A file system call has no lost answers, so no identity is kept."""

    name = "local"
    capabilities = _CAPABILITIES
    blocking = True

    @property
    def uploads(self) -> LocalUploads:
        """Parts, in a temporary file beside their target."""
        return LocalUploads()

    async def put(
        self, path: str, data: bytes, condition: Condition, write_id: str, *, timeout_s: float
    ) -> WriteAnswer:
        """Link or rename a synced temporary file into place."""
        del timeout_s
        target = Path(path)
        with _as_store_error(path):
            if isinstance(condition, Absent):
                return _create(target, data, write_id)
            return _replace(target, data, condition, write_id)

    async def head(self, path: str, *, timeout_s: float) -> ReadAnswer:
        """Stat."""
        del timeout_s
        with _as_store_error(path):
            try:
                stat = _stat(Path(path))
            except IsADirectoryError:
                return Missing()
            return Missing() if stat is None else replace(_seen(stat, None), answered_ms=time_ns() // 1_000_000)

    async def get(self, path: str, unless: Version | None, *, timeout_s: float) -> ReadAnswer:
        """Read and stat one open file, so that both speak of the same bytes."""
        del timeout_s
        with _as_store_error(path):
            try:
                with Path(path).open("rb") as file:
                    stat = os.fstat(file.fileno())
                    return Unchanged() if _version(stat) == unless else _seen(stat, file.read())
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return Missing()

    async def delete(self, path: str, condition: Version | None, *, timeout_s: float) -> WriteAnswer:
        """Unlink, under the folder's lock if there is a condition."""
        del timeout_s
        target = Path(path)
        with _as_store_error(path):
            if condition is None:
                target.unlink(missing_ok=True)
                return Applied(None)
            return _delete(target, condition)

    async def list_page(
        self, prefix: str, start_after: str | None, token: str | None, *, timeout_s: float
    ) -> ListAnswer:
        """One page: what is below the deepest folder that `prefix` names in full."""
        del token, timeout_s
        after = start_after or ""
        with _as_store_error(prefix):
            found = [e for e in _walk(prefix.rpartition("/")[0] or "/") if e.path.startswith(prefix)]
        return Page(tuple(sorted((e for e in found if e.path > after), key=lambda entry: entry.path)))

    def adapt(self, refused: str = "") -> bool:
        """There is one dialect."""
        del refused
        return False

    async def close(self) -> None:
        """Nothing is open."""


class LocalUploads:
    """One temporary file that grows, and gets its name by `link`. A writer that is killed leaves it: `.cas-*`."""

    rules = PartRules()

    async def begin(self, path: str, write_id: str, *, timeout_s: float) -> UploadAnswer:
        """Make the temporary file."""
        del timeout_s
        target = Path(path)
        with _as_store_error(path):
            _make_folders(target.parent)
            temporary = _temporary_name(target, write_id)
            temporary.touch(exist_ok=False)
        return Upload(path, write_id, str(temporary))

    async def add(self, upload: Upload, data: bytes, *, timeout_s: float) -> UploadAnswer:
        """Write behind what is there."""
        del timeout_s
        with _as_store_error(upload.path), Path(upload.token).open("r+b") as file:
            file.truncate(upload.sent)
            file.seek(upload.sent)
            file.write(data)
        return replace(upload, tags=(*upload.tags, ""), sent=upload.sent + len(data))

    async def finish(self, upload: Upload, tail: bytes, *, timeout_s: float) -> FinishAnswer:
        """Sync, and link."""
        with _as_store_error(upload.path):
            if not Path(upload.token).exists():
                return Gone("its temporary file is not there any more")
            await self.add(upload, tail, timeout_s=timeout_s)
            try:
                _sync_file(Path(upload.token), time_ns())
                return _publish(Path(upload.token), Path(upload.path))
            finally:
                Path(upload.token).unlink(missing_ok=True)

    async def abort(self, upload: Upload, *, timeout_s: float) -> None:
        """Remove the temporary file."""
        del timeout_s
        with _as_store_error(upload.path):
            Path(upload.token).unlink(missing_ok=True)


def _create(target: Path, data: bytes, write_id: str) -> WriteAnswer:
    if _stat(target) is not None:
        return Denied()  # saves the write; the link below is what decides
    _make_folders(target.parent)
    with _temporary(target, data, write_id, time_ns()) as temporary:
        return _publish(temporary, target)


def _publish(temporary: Path, target: Path) -> WriteAnswer:
    if _stat(target) is not None:
        return Denied()
    version = _version(temporary.stat())
    try:
        os.link(temporary, target)
    except FileExistsError:
        return Denied()
    return _in_place(target, version)


def _in_place(target: Path, version: Version) -> WriteAnswer:
    """Others can see it now; unless its folder is synced, a crash may take it away again."""
    try:
        _sync_folder(target.parent)
    except OSError as error:
        return NoAnswer(f"it is in place, but its folder could not be synced: {error}")
    return Applied(version)


def _replace(target: Path, data: bytes, condition: Version, write_id: str) -> WriteAnswer:
    if _stat(target) is None:
        return Denied()
    with _locked(target.parent):
        stat = _stat(target)
        if stat is None or _version(stat) != condition:
            return Denied()
        stamp = max(time_ns(), stat.st_mtime_ns + 1)
        with _temporary(target, data, write_id, stamp) as temporary:
            version = _version(temporary.stat())
            if version == condition:
                raise NotSupported(f"the file system of {str(target)!r} keeps no times in nanoseconds")
            temporary.rename(target)
        return _in_place(target, version)


def _delete(target: Path, condition: Version) -> WriteAnswer:
    if _stat(target) is None:
        return Denied()
    with _locked(target.parent):
        stat = _stat(target)
        if stat is None or _version(stat) != condition:
            return Denied()
        target.unlink()
        return Applied(None)


@contextlib.contextmanager
def _temporary(target: Path, data: bytes, write_id: str, mtime_ns: int) -> Iterator[Path]:
    path = _temporary_name(target, write_id)
    try:
        path.write_bytes(data)
        _sync_file(path, mtime_ns)
        yield path
    finally:
        path.unlink(missing_ok=True)


def _temporary_name(target: Path, write_id: str) -> Path:
    return target.with_name(f"{TEMPORARY}{write_id}-{Machine().new_id()[:8]}")


def _sync_file(path: Path, mtime_ns: int) -> None:
    with path.open("r+b") as file:
        os.utime(file.fileno(), ns=(mtime_ns, mtime_ns))
        if os.fstat(file.fileno()).st_size:  # what is empty is all there with its name
            os.fsync(file.fileno())


_FLOCKS: set[int] = set()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    _FLOCKS.add(descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        # Said aloud: closing frees nothing while a child forked meanwhile has a copy of the descriptor.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        _FLOCKS.discard(descriptor)
        os.close(descriptor)


def _drop_inherited_flocks() -> None:
    """In a forked child: another thread's flock is not ours to keep, should the parent die before it unlocks."""
    while _FLOCKS:
        os.close(_FLOCKS.pop())


os.register_at_fork(after_in_child=_drop_inherited_flocks)


def _make_folders(folder: Path) -> None:
    if folder.is_dir():
        return
    _make_folders(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _stat(path: Path) -> os.stat_result | None:
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder, not an object", str(path))
    return found


def _version(stat: os.stat_result) -> Version:
    return Version("local", f"{stat.st_mtime_ns}-{stat.st_ino}-{stat.st_size}")


def _seen(stat: os.stat_result, data: bytes | None) -> Seen:
    return Seen(_version(stat), stat.st_size, stat.st_mtime_ns // 1_000_000, None, data)


def _walk(folder: str) -> Iterator[Entry]:
    try:
        children = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    for child in children:
        try:
            if child.is_dir(follow_symlinks=False):
                yield from _walk(child.path)
            elif not child.name.startswith(TEMPORARY):
                stat = child.stat()
                yield Entry(child.path, stat.st_size, stat.st_mtime_ns // 1_000_000)
        except FileNotFoundError:
            continue  # removed while we looked


@contextlib.contextmanager
def _as_store_error(path: str) -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        raise AccessDenied(f"no permission for {path!r}: {error.strerror}", path=path) from error
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(f"the file system failed for {path!r}: {error}", path=path) from error
