"""Who holds a lock: for people, never for decisions."""

from __future__ import annotations

from dataclasses import dataclass

from lockprovider.words import iso, until


@dataclass(frozen=True, slots=True)
class Holder:
    """Who to ask. `command` is a program's name without its arguments, which may be secrets.

    >>> with lockprovider.lock("memory://docs/lock") as lease:
    ...     holder = lease.record.holder
    >>> import os
    >>> holder.pid == os.getpid()
    True
    """

    host: str
    pid: int
    since_ms: int
    user: str = ""
    command: str = ""

    def __str__(self) -> str:
        """`ship, pid 42, user ann, nightly.py`."""
        parts = [self.host, f"pid {self.pid}"]
        parts += [f"user {self.user}"] if self.user else []
        return ", ".join([*parts, self.command] if self.command else parts)


def held_by(owner: str, holder: Holder | None, valid_until_ms: int, now_ms: int) -> str:
    """`held by O (ship, pid 42, since …) until … (in 42.0 s)`."""
    who = f"{owner} ({holder}, since {iso(holder.since_ms)})" if holder else owner
    return f"held by {who} until {until(valid_until_ms, now_ms)}"
