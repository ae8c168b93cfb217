"""Freezing a process: on a local disk not in the middle of a write, where it holds the folder's lock against all."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from patience import until


def freeze(process: subprocess.Popen[Any], url: str) -> None:
    """Stop it; `url` is of the object that it writes."""
    if not url.startswith("file://"):
        stop(process)
        return
    descriptor = os.open(Path(url.removeprefix("file://")).parent, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        stop(process)
    finally:
        os.close(descriptor)


def stop(process: subprocess.Popen[Any]) -> None:
    """Return once all its threads stand still."""
    process.send_signal(signal.SIGSTOP)
    stat = Path(f"/proc/{process.pid}/stat")
    until(lambda: stat.read_text().rpartition(")")[2].split()[0] in "TtZ")
