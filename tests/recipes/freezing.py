"""Freezing a process: on a local disk not in the middle of a write, where it holds the folder's lock against all."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from patience import until


def freeze(process: subprocess.Popen[Any], *urls: str) -> None:
    """Stop it; `urls` are of the objects that it writes."""
    with ExitStack() as held:
        for folder in sorted({Path(url.removeprefix("file://")).parent for url in urls if url.startswith("file://")}):
            descriptor = os.open(folder, os.O_RDONLY)
            held.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        stop(process)


def stop(process: subprocess.Popen[Any]) -> None:
    """Return once all its threads stand still."""
    process.send_signal(signal.SIGSTOP)
    stat = Path(f"/proc/{process.pid}/stat")
    until(lambda: stat.read_text().rpartition(")")[2].split()[0] in "TtZ")
