"""What the demonstration's processes have in common: a table, and their line to the conductor and back.

The job comes as one line of JSON on standard input (so that no credential is seen in a process list); then one word a
line. Standard input at its end means that the conductor is gone: the process stops.
"""

from __future__ import annotations

import _thread
import io
import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fsspec_cas import Machine
from lockprovider.demo.lines import Job, Line, encode
from lockprovider.demo.settings import table_settings
from lockprovider.table import Table

if TYPE_CHECKING:
    from lockprovider.table.state.events import TableEvent

POLL_S = 0.3


@dataclass(slots=True)
class Worker:
    """One running process of the demonstration."""

    role: str
    job: Job
    events_fd: int
    table: Table = field(init=False)
    go: threading.Event = field(default_factory=threading.Event)
    upstream_gone: threading.Event = field(default_factory=threading.Event)
    alone: threading.Event = field(default_factory=threading.Event)
    world: Machine = field(default_factory=Machine)

    def open(self) -> None:
        """Open the table, say so, and wait until all others have."""
        options, settings = self.job.storage_options, table_settings()
        self.table = Table.open(self.job.url, storage_options=options, settings=settings, watcher=self.watch)
        self.say("started", pid=os.getpid())
        self.go.wait()

    def say(self, kind: str, **detail: object) -> None:
        """Tell the conductor, at once."""
        self._send(Line(kind, self.role, self.world.now_ms(), detail=detail))

    def watch(self, event: TableEvent) -> None:
        """Hand on what the table tells."""
        self._send(Line(event.kind, self.role, event.at_ms, event.instant, event.detail))

    def _send(self, line: Line) -> None:
        # One write of one line: nothing stays in a buffer when this process is killed.
        os.write(self.events_fd, encode(line))

    def listen(self, orders: io.FileIO) -> None:
        """Follow standard input in a thread: `go`, `alone` (all pipelines have ended), or the name of one that died."""
        threading.Thread(target=self._follow, args=(orders,), daemon=True).start()

    def _follow(self, orders: io.FileIO) -> None:
        for line in orders:
            match line.strip():
                case b"go":
                    self.go.set()
                case b"ingest":
                    self.upstream_gone.set()
                case b"alone":
                    self.alone.set()
        self.go.set()
        _thread.interrupt_main()


def told() -> tuple[Job, io.FileIO]:
    """The job, and where the words after it come from."""
    # Unbuffered: a thread that waits in a buffered reader would hold its lock when the interpreter ends.
    orders = io.FileIO(0, closefd=False)
    return Job.from_json(orders.readline().decode()), orders
