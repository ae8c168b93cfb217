"""Starts the pipelines, and the service beside them, as processes, passes on what they say, and ends them by their ids.

Each child is the leader of a process group of its own, so that Ctrl-C reaches the conductor alone, and its JVM and
Python workers can be ended with it. What it prints goes to a log file; what it tells comes through a pipe.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockprovider.demo.lines import COMPACT, SPARK_IS_UP, Job, Line, decode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

GRACE_S = 10.0
TAIL_LINES = 12


@dataclass(frozen=True, slots=True)
class Ended:
    """A process is gone. `status` is its exit status, negative for a signal."""

    role: str
    status: int


News = Line | Ended


@dataclass(slots=True)
class Child:
    """One of the processes."""

    role: str
    process: subprocess.Popen[bytes]
    log: Path

    def tell(self, words: str) -> None:
        """One line on its standard input. No answer is expected; a dead child does not mind."""
        with contextlib.suppress(OSError, ValueError):
            if self.process.stdin is not None:
                self.process.stdin.write(words.encode() + b"\n")
                self.process.stdin.flush()

    def last_words(self) -> list[str]:
        """The last lines it printed; what Spark says while it starts is left out once it is up."""
        printed = self.log.read_text(errors="replace").strip()
        return printed.rpartition(SPARK_IS_UP)[2].strip().splitlines()[-TAIL_LINES:]


class Children:
    """`with Children(job, folder, environ) as children:` the running processes.

    Leaving the block ends those that still run, whatever the reason.
    """

    def __init__(self, job: Job, folder: Path, environ: Mapping[str, str]) -> None:
        self._job = job
        self._folder = folder
        self._environ = dict(environ)
        self._news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self.by_role: dict[str, Child] = {}

    def __enter__(self) -> Children:
        try:
            for role in self._job.roles:
                self.by_role[role] = self._start(role)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def news(self) -> Iterator[News]:
        """Everything they say, until the last one has ended.

        Lets all begin once each has started (or died), tells the others of a death, and the service that it is alone.
        """
        running, starting = set(self.by_role), set(self.by_role)
        while running:
            item = self._news.get()
            if isinstance(item, Ended):
                running.discard(item.role)
                if item.status != 0:
                    self._tell(running, item.role)
                if running == {COMPACT}:
                    self._tell(running, "alone")
            if item.role in starting and (isinstance(item, Ended) or item.kind == "started"):
                starting.discard(item.role)
                if not starting:
                    self._tell(running, "go")
            yield item

    def _tell(self, roles: set[str], word: str) -> None:
        for role in roles:
            self.by_role[role].tell(word)

    def stop(self) -> None:
        """End all that still run: politely, then not."""
        alive = [child.process for child in self.by_role.values() if child.process.poll() is None]
        for process in alive:
            process.terminate()
        for process in alive:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
            _end_group(process)

    def _start(self, role: str) -> Child:
        log = self._folder / f"{role}.log"
        reading, writing = os.pipe()
        try:
            with log.open("wb") as output:
                process = subprocess.Popen(  # noqa: S603 - our own module
                    [sys.executable, "-m", *_module(role), str(writing)],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    pass_fds=(writing,),
                    env=self._environ,
                    start_new_session=True,
                )
        finally:
            os.close(writing)
        child = Child(role, process, log)
        child.tell(self._job.to_json())
        threading.Thread(target=self._follow, args=(child, reading), daemon=True).start()
        return child

    def _follow(self, child: Child, reading: int) -> None:
        with open(reading, "rb") as stream:
            for text in stream:
                line = decode(text)
                if line is not None:
                    self._news.put(line)
        status = child.process.wait()
        # The JVM of a killed driver ends by itself within a moment; nothing of it shall be left.
        _end_group(child.process)
        self._news.put(Ended(child.role, status))


def _module(role: str) -> tuple[str, ...]:
    return ("lockprovider.demo.compactor",) if role == COMPACT else ("lockprovider.demo.pipelines", role)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    # The group's id is the id of its leader, a process that this one started.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
