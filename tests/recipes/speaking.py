"""A process of these tests that says on its standard output what it has done."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent


class Speaking:
    """One process, and the lines that it has said so far."""

    def __init__(self, module: str, *arguments: Any) -> None:
        command = [sys.executable, "-m", module, json.dumps(arguments)]
        self.process = subprocess.Popen(
            command, cwd=TESTS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.lines: list[str] = []
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines += (line.strip() for line in self.process.stdout if line.endswith("\n"))

    def go(self) -> None:
        """Let it pass the next place where it waits to be told; one that is dead passes none."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write("\n")

    def is_over(self) -> bool:
        return self.process.poll() is not None

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reading.join()
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # of what it was told when it was dead
            self.process.stdin.close()
