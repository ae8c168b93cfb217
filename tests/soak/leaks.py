"""What a process has open, and how much of it."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

SLACK = {
    "threads": 2,
    "heartbeats": 0,
    "files": 4,
    "sockets": 12,
    "blocks": 30_000,
    "resident_mb": 256,  # live blocks tell of a leak; this one also grows with how they lie, by twice of what is live
}


@dataclass(frozen=True)
class Footprint:
    threads: int
    heartbeats: int
    files: int
    sockets: int
    blocks: int  # of memory, that Python has given out
    resident_mb: float

    @classmethod
    def now(cls) -> Footprint:
        gc.collect()
        names = [thread.name for thread in threading.enumerate()]
        links = [_link(entry) for entry in Path("/proc/self/fd").iterdir()]
        sockets = sum(link.startswith("socket:") for link in links)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return cls(
            len(names),
            names.count("lease-heartbeat"),
            len(links) - sockets,
            sockets,
            sys.getallocatedblocks(),
            pages * os.sysconf("SC_PAGE_SIZE") / 1e6,
        )

    @classmethod
    def settled(cls) -> Footprint:
        """When no more sockets are being closed."""
        now = cls.now()
        while True:
            time.sleep(2)
            before, now = now, cls.now()
            if now.sockets >= before.sockets:
                return now

    @classmethod
    def at_rest(cls, than: Footprint, patience_s: float = 60.0) -> Footprint:
        """When it is not above `than` any more; else what it is after that time: garbage may take a moment to close."""
        until_s = time.monotonic() + patience_s
        while (now := cls.now()).above(than) and time.monotonic() < until_s:
            time.sleep(0.2)
        return now

    def above(self, than: Footprint) -> list[str]:
        """What has grown, by more than chance."""
        grown = []
        for name, slack in SLACK.items():
            was, is_now = getattr(than, name), getattr(self, name)
            if is_now > was + slack:
                grown.append(f"{name}: {was:g} -> {is_now:g}")
        return grown


def _link(entry: Path) -> str:
    try:
        return str(entry.readlink())
    except OSError:
        return ""  # it was the descriptor of the listing itself
