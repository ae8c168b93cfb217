"""What a local file has besides its bytes: the names that lead to it, its owner, its permissions, its attributes."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from stat import S_IMODE, S_ISDIR, S_ISREG

from fsspec_cas.errors import NotSupported

TEMPORARY = ".cas-"


def resolved(path: str | Path) -> Path:
    """The path itself or, if it is a symbolic link, what that leads to: the file has one lock, whatever names it."""
    named = Path(path)
    return Path(os.path.realpath(named)) if named.is_symlink() else named


def object_stat(path: Path) -> os.stat_result | None:
    """Of the file; None if there is none.

    Raises:
        OSError: it is a folder, a pipe or a device.
    """
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    must_be_a_file(found, str(path))
    return found


def must_be_a_file(stat: os.stat_result, path: str) -> None:
    """Refuse what is no object.

    Raises:
        OSError: it is a folder, a pipe or a device.
    """
    if S_ISDIR(stat.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder, not an object", path)
    if not S_ISREG(stat.st_mode):
        raise OSError(errno.EINVAL, "it is a pipe, socket or device, not an object", path)


def must_have_one_name(target: Path, stat: os.stat_result) -> None:
    """Refuse a file with hard links: who writes it by another name, in another folder, has another lock.

    A create gives its temporary file a second name for a moment, and for ever if it is killed then; those do not count.

    Raises:
        NotSupported: there are others.
    """
    while stat.st_nlink > 1:
        ours = sum(one.name.startswith(TEMPORARY) and one.inode() == stat.st_ino for one in os.scandir(target.parent))
        if stat.st_nlink - ours <= 1:
            return
        now = target.stat()
        if (now.st_ino, now.st_nlink) == (stat.st_ino, stat.st_nlink):
            raise NotSupported(
                f"{str(target)!r} has {stat.st_nlink} hard links, and others may write it by another name at the same "
                "version: copy it to a file of its own"
            )
        stat = now


def keep_attributes(old: Path, stat: os.stat_result, new: Path) -> None:
    """Give `new` owner, group and extended attributes of `old`, as far as this process may."""
    with contextlib.suppress(PermissionError):
        os.chown(new, -1, stat.st_gid)
    with contextlib.suppress(PermissionError):
        os.chown(new, stat.st_uid, -1)
    for name in _extended(old):
        with contextlib.suppress(OSError):  # security.* and trusted.* are not for everybody; others may be gone by now
            os.setxattr(new, name, os.getxattr(old, name))


def keep_mode(stat: os.stat_result, new: Path) -> None:
    """Give it the permissions; last, as they may forbid to write."""
    new.chmod(S_IMODE(stat.st_mode))


def _extended(path: Path) -> list[str]:
    try:
        return os.listxattr(path)
    except (OSError, AttributeError):  # AttributeError: not Linux
        return []
