"""POSIX files with exact conditional writes, within one machine: "Local files" in SPECIFICATION.md."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from stat import S_IMODE, S_ISDIR, S_ISREG
from typing import Any

from fsspec_cas.answer import (
    Applied,
    Capabilities,
    ConditionFailed,
    Entry,
    FinishAnswer,
    ListAnswer,
    Missing,
    NoAnswer,
    NotApplied,
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
from fsspec_cas.errors import AccessDenied, NotSupported, StoreError
from fsspec_cas.machine import Machine, time_ns
from fsspec_cas.outcome import Absent, Version, Write

_SHORTEST_S, _LONGEST_S = 0.0005, 0.01


class LocalBackend(Backend):
    name = "local"
    # A file system call loses no answer, so no identity is kept.
    capabilities = Capabilities(
        create=True, match=True, delete_match=True, read_changed=True, unique_versions=True, keeps_write_id=False
    )
    attribute_rules = AttributeRules(keeps=False)
    part_rules = PartRules()
    blocking = True

    _makes_folders = True

    def __init__(self, fs: Any = None) -> None:
        if fs is not None:
            options = {**dict(zip(("auto_mkdir",), fs.storage_args, strict=False)), **fs.storage_options}
            self._makes_folders = bool(options.get("auto_mkdir", True))

    async def put(self, write: Write, data: bytes, *, timeout_s: float) -> WriteAnswer:
        with _as_store_error(write.path):
            if isinstance(write.condition, Absent):
                return _create(resolved(write.path), data, write.write_id, makes_folders=self._makes_folders)
            condition = write.condition
            return _changed(write.path, lambda: _replace(write.path, data, condition, write.write_id, timeout_s))

    async def head(self, path: str, *, timeout_s: float) -> ReadAnswer:
        with _as_store_error(path):
            try:
                stat = None if path.endswith("/") else object_stat(Path(path))  # `Path` drops the slash
            except IsADirectoryError:
                return Missing()
            return Missing() if stat is None else replace(_object_state(stat, None), answered_ms=time_ns() // 1_000_000)

    async def get(self, path: str, unless: Version | None, *, timeout_s: float) -> ReadAnswer:
        """Read and stat one open file, so that both match; `Unchanged` if at `unless`.

        Returns `Missing` for none or a folder; a pipe or device raises StoreError.
        """
        with _as_store_error(path):
            try:
                # Without O_NONBLOCK, opening a pipe without a writer would block.
                with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
                    stat = os.fstat(file.fileno())
                    refuse_non_file(stat, path)
                    return Unchanged() if _version(stat) == unless else _object_state(stat, file.read())
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return Missing()

    async def delete(self, path: str, condition: Version | None, *, timeout_s: float) -> WriteAnswer:
        """Delete the file as `_delete`; without `condition` unlink it, `Applied` even if missing."""
        with _as_store_error(path):
            if condition is None:
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    os.unlink(path)  # noqa: PTH108 - `Path` drops a final slash, and would remove another object
                return Applied(None)
            if path.endswith("/"):
                return ConditionFailed()
            return _changed(path, lambda: _delete(Path(path), condition, timeout_s))

    async def list_page(
        self, prefix: str, start_after: str | None, token: str | None, *, timeout_s: float
    ) -> ListAnswer:
        after = start_after or ""
        with _as_store_error(prefix):
            entries = [e for e in _walk(prefix.rpartition("/")[0] or "/") if e.path.startswith(prefix)]
        return Page(tuple(sorted((e for e in entries if e.path > after), key=lambda entry: entry.path)))

    async def begin(self, write: Write, *, timeout_s: float) -> UploadAnswer:
        with _as_store_error(write.path):
            target = resolved(write.path)
            _ensure_folder(target.parent, makes=self._makes_folders)
            temporary = _temporary_name(target, write.write_id)
            temporary.touch(exist_ok=False)
        return Upload(write, str(temporary))

    async def add(self, upload: Upload, data: bytes, *, timeout_s: float) -> UploadAnswer:
        with _as_store_error(upload.write.path), Path(upload.token).open("r+b") as file:
            file.truncate(upload.sent)
            file.seek(upload.sent)
            file.write(data)
        return replace(upload, tags=(*upload.tags, ""), sent=upload.sent + len(data))

    async def finish(self, upload: Upload, tail: bytes, *, timeout_s: float) -> FinishAnswer:
        """Append the tail, sync the temporary file, link it into place; `ConditionFailed` if the path is taken.

        `UploadGone` if the file is missing, `NoAnswer` if only the folder's sync fails. Removes the file even on error.
        Raises StoreError on system errors, NotSupported without hard links.
        """
        with _as_store_error(upload.write.path):
            if not Path(upload.token).exists():
                return UploadGone("its temporary file was removed")
            try:
                await self.add(upload, tail, timeout_s=timeout_s)
                with Path(upload.token).open("r+b") as file:
                    _sync_file(file.fileno(), time_ns())
                return _publish(Path(upload.token), resolved(upload.write.path))
            finally:
                _remove_temporary(Path(upload.token))

    async def abort(self, upload: Upload, *, timeout_s: float) -> None:
        with _as_store_error(upload.write.path):
            Path(upload.token).unlink(missing_ok=True)


def _create(target: Path, data: bytes, write_id: str, *, makes_folders: bool) -> WriteAnswer:
    if object_stat(target) is not None:
        return ConditionFailed()  # saves the write; the link decides
    _ensure_folder(target.parent, makes=makes_folders)
    with _temporary(target, data, write_id, time_ns()) as temporary:
        return _publish(temporary, target)


_NO_LINK = (errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)  # EPERM too: we may link our own file


def _publish(temporary: Path, target: Path) -> WriteAnswer:
    """Link the file to `target` and sync the folder; `ConditionFailed` if `target` exists.

    `NoAnswer` if only the sync fails. Raises NotSupported without hard links. `temporary` stays.
    """
    if object_stat(target) is not None:
        return ConditionFailed()
    version = _version(temporary.stat())
    try:
        os.link(temporary, target)
    except FileExistsError:
        return ConditionFailed()
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        problem = f"the file system of {str(target)!r} has no hard links ({error.strerror}), which creates need"
        raise NotSupported(f"{problem}: use a local file system") from error
    return _synced(target, version)


def _synced(target: Path, version: Version | None, folder: int | None = None) -> WriteAnswer:
    """Sync the folder of a file changed to `version` (None: deleted); `NoAnswer` if that fails.

    `folder`: its open descriptor, which stays good if the emptied folder was removed.
    """
    try:
        _sync_folder(target.parent if folder is None else folder)
    except OSError as error:
        done = "deleted" if version is None else "in place"
        return NoAnswer(f"the file is {done}, but its folder could not be synced: {error}")
    return Applied(version)


def _changed(path: str, change: Callable[[], WriteAnswer]) -> WriteAnswer:
    """Replace or delete the file by `change`; `ConditionFailed` if it vanishes meanwhile, perhaps with its folder."""
    try:
        return change()
    except (FileNotFoundError, NotADirectoryError):
        if object_stat(Path(path)) is not None:
            raise
        return ConditionFailed()


_TAKEN = "another program holds its folder's lock"


def _replace(path: str, data: bytes, condition: Version, write_id: str, timeout_s: float) -> WriteAnswer:
    """Lock the folder and replace the file; `ConditionFailed` at another version or none.

    `NotApplied` if the lock stays taken or a link changes, `NoAnswer` if only the folder's sync fails. Hard links,
    coarse times or no flock raise NotSupported.
    """
    target = resolved(path)
    if object_stat(target) is None:
        return ConditionFailed()
    with _locked(target.parent, timeout_s) as folder:
        if folder is None:
            return NotApplied(_TAKEN)
        if resolved(path) != target:
            return NotApplied("its link has just changed")
        stat = object_stat(target)
        if stat is None or _version(stat) != condition:
            return ConditionFailed()
        refuse_hard_links(target, stat)
        stamp = max(time_ns(), stat.st_mtime_ns + 1)
        with _temporary(target, data, write_id, stamp, stat) as temporary:
            version = _version(temporary.stat())
            if version == condition:
                raise NotSupported(
                    f"the file system of {str(target)!r} keeps no times in nanoseconds: use another file system"
                )
            temporary.rename(target)
        return _synced(target, version, folder)


def _delete(target: Path, condition: Version, timeout_s: float) -> WriteAnswer:
    """Lock the folder and delete the file; `ConditionFailed` at another version or none.

    `NotApplied` if the lock stays taken, `NoAnswer` if only the folder's sync fails. Links, or no flock, raise
    NotSupported.
    """
    if object_stat(target) is None:
        return ConditionFailed()
    with _locked(target.parent, timeout_s) as folder:
        if folder is None:
            return NotApplied(_TAKEN)
        stat = object_stat(target)
        if stat is None or _version(stat) != condition:
            return ConditionFailed()
        if target.is_symlink():
            raise NotSupported(f"{str(target)!r} is a symbolic link: delete {os.path.realpath(target)!r}, or the link")
        refuse_hard_links(target, stat)
        target.unlink()
        return _synced(target, None, folder)


@contextlib.contextmanager
def _temporary(
    target: Path, data: bytes, write_id: str, mtime_ns: int, replaces: os.stat_result | None = None
) -> Iterator[Path]:
    """Write a synced temporary file beside `target`, with `mtime_ns`, yield its path, and remove it.

    With `replaces`, the stat of `target`, it gets attributes and mode of `target`.
    """
    path = _temporary_name(target, write_id)
    try:
        # The replaced file may be private: the new one is until it has its mode.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600 if replaces else 0o666)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if replaces is not None:
                copy_attributes(target, replaces, path)
            _sync_file(file.fileno(), mtime_ns)
        if replaces is not None:
            path.chmod(S_IMODE(replaces.st_mode))  # last, as it may forbid writing
        yield path
    finally:
        _remove_temporary(path)


def _remove_temporary(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def _temporary_name(target: Path, write_id: str) -> Path:
    return target.with_name(f"{TEMPORARY_PREFIX}{write_id}-{Machine().new_id()[:8]}")


def _sync_file(descriptor: int, mtime_ns: int) -> None:
    os.utime(descriptor, ns=(mtime_ns, mtime_ns))
    if os.fstat(descriptor).st_size:  # an empty file needs only its name
        os.fsync(descriptor)


_FLOCKS: set[int] = set()
_NO_FLOCK = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


@contextlib.contextmanager
def _locked(folder: Path, timeout_s: float) -> Iterator[int | None]:
    """Wait up to `timeout_s` for the folder's lock, yield the folder's descriptor (None: not acquired), then unlock.

    NotSupported: the file system has no flock.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    _FLOCKS.add(descriptor)
    try:
        try:
            locked = _poll_flock(descriptor, timeout_s)
        except OSError as error:
            if error.errno not in _NO_FLOCK:
                raise
            problem = f"the file system of {str(folder)!r} has no flock ({error.strerror})"
            raise NotSupported(f"{problem}, which conditional writes need: use a local file system") from error
        yield descriptor if locked else None
    finally:
        # Closing does not unlock while a forked child has the descriptor.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        _FLOCKS.discard(descriptor)
        os.close(descriptor)


def _poll_flock(descriptor: int, timeout_s: float) -> bool:
    """Try at least once to lock the open folder, with sleeps between; return False after `timeout_s`.

    OSError: no flock.
    """
    world = Machine()
    deadline = world.monotonic_s() + timeout_s
    pause = _SHORTEST_S
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        left_s = deadline - world.monotonic_s()
        if left_s <= 0:
            return False
        world.sleep(min(left_s, pause * (0.5 + world.random())))
        pause = min(_LONGEST_S, 1.5 * pause)


def _drop_inherited_flocks() -> None:
    """Close a forked child's lock descriptors, which outlive the parent."""
    while _FLOCKS:
        os.close(_FLOCKS.pop())


os.register_at_fork(after_in_child=_drop_inherited_flocks)


def _ensure_folder(folder: Path, *, makes: bool) -> None:
    """Create a missing folder and its parents, and sync each one's parent; unless `makes`, raise StoreError instead."""
    if folder.is_dir():
        return
    if not makes:
        raise StoreError(f"the folder {str(folder)!r} does not exist: create it first, or leave auto_mkdir=False out")
    _ensure_folder(folder.parent, makes=True)
    folder.mkdir(exist_ok=True)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path | int) -> None:
    """Sync a folder by its path or open descriptor; raise OSError if that fails."""
    if isinstance(folder, int):
        os.fsync(folder)
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _version(stat: os.stat_result) -> Version:
    return Version("local", f"{stat.st_mtime_ns}-{stat.st_ino}-{stat.st_size}")


def _object_state(stat: os.stat_result, data: bytes | None) -> ObjectState:
    return ObjectState(_version(stat), stat.st_size, stat.st_mtime_ns // 1_000_000, None, data)


def _walk(folder: str) -> Iterator[Entry]:
    """Yield an entry for each file below a folder, unordered; none if it is missing.

    Paths begin with `folder`. Leaves out temporary files, linked folders and dangling links, not linked files.
    """
    try:
        children = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    for child in children:
        try:
            if child.is_dir(follow_symlinks=False):
                yield from _walk(child.path)
            elif child.is_file() and not child.name.startswith(TEMPORARY_PREFIX):
                stat = child.stat()
                yield Entry(child.path, stat.st_size, stat.st_mtime_ns // 1_000_000, _version(stat))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENAMETOOLONG):
                raise


@contextlib.contextmanager
def _as_store_error(path: str) -> Iterator[None]:
    """Raise the block's OSError as StoreError, or AccessDenied without permission."""
    try:
        yield
    except StoreError:
        raise
    except PermissionError as error:
        raise AccessDenied(f"no permission for {path!r}: {error.strerror}", path=path) from error
    except OSError as error:
        raise StoreError(f"the file system failed for {path!r}: {error}", path=path) from error


TEMPORARY_PREFIX = ".cas-"


def resolved(path: str | Path) -> Path:
    """Follow a final symbolic link, so that a file has one lock."""
    named = Path(path)
    return Path(os.path.realpath(named)) if named.is_symlink() else named


def object_stat(path: Path) -> os.stat_result | None:
    try:
        stat = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    refuse_non_file(stat, str(path))
    return stat


def refuse_non_file(stat: os.stat_result, path: str) -> None:
    if S_ISDIR(stat.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder, not an object", path)
    if not S_ISREG(stat.st_mode):
        raise OSError(errno.EINVAL, "it is a pipe, socket or device, not an object", path)


def refuse_hard_links(target: Path, stat: os.stat_result) -> None:
    """Raise NotSupported for a file with hard links, except a create's temporary name in its folder."""
    while stat.st_nlink > 1:
        ours = sum(
            entry.name.startswith(TEMPORARY_PREFIX) and entry.inode() == stat.st_ino
            for entry in os.scandir(target.parent)
        )
        if stat.st_nlink - ours <= 1:
            return
        now = target.stat()
        if (now.st_ino, now.st_nlink) == (stat.st_ino, stat.st_nlink):
            raise NotSupported(
                f"{str(target)!r} has {stat.st_nlink} hard links, and others may write it by another name at the same "
                "version: copy it to a file of its own"
            )
        stat = now


def copy_attributes(source: Path, stat: os.stat_result, target: Path) -> None:
    """Copy owner and group if permitted, extended attributes if possible; `stat` is the source's."""
    with contextlib.suppress(PermissionError):
        os.chown(target, -1, stat.st_gid)
    with contextlib.suppress(PermissionError):
        os.chown(target, stat.st_uid, -1)
    with contextlib.suppress(OSError, AttributeError):
        for name in os.listxattr(source):
            with contextlib.suppress(OSError):  # security.* and trusted.* need privileges
                os.setxattr(target, name, os.getxattr(source, name))
