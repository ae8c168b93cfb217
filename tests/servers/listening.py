"""Which addresses a process group listens on, by the kernel's own tables (Linux)."""

from __future__ import annotations

from pathlib import Path

LISTEN = "0A"


def listening(group: int) -> set[tuple[str, int]]:
    """(address in hex as in /proc/net/tcp, port) of every listening TCP socket of this process group."""
    owned = _sockets(group)
    found = set()
    for table in ("tcp", "tcp6"):
        path = Path("/proc/net") / table
        for line in path.read_text().splitlines()[1:] if path.exists() else []:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == LISTEN and inode in owned:
                address, port = local.split(":")
                found.add((address, int(port, 16)))
    return found


def members(group: int) -> list[int]:
    """Ids of the living processes of this group."""
    return [pid for pid in (int(entry.name) for entry in Path("/proc").glob("[0-9]*")) if _group(pid) == group]


def _group(pid: int) -> int | None:
    try:
        state, _parent, group = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[:3]
    except OSError:
        return None
    return None if state == "Z" else int(group)


def _sockets(group: int) -> set[str]:
    found = set()
    for pid in members(group):
        for handle in (Path("/proc") / str(pid) / "fd").iterdir():
            try:
                name = str(handle.readlink())
            except OSError:
                continue
            if name.startswith("socket:["):
                found.add(name[len("socket:[") : -1])
    return found
