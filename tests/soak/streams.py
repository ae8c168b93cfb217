"""Streams that follow the market in a process of their own, which is killed again and again."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from lockprovider.table import Table
from lockprovider.table.format.layout import to_ms
from soak.market import SETTINGS, SPEC

if TYPE_CHECKING:
    from servers.base import Server

    from soak.market import Market

SCRIPT = Path(__file__).with_name("stream_child.py")
GOES_ON_S = 10.0  # at most, from the first batch after a start to the kill -9
FINISH_S = 600.0
STREAMS = ("mirror", "copy")


class Streams:
    """The streams' process, and the tables that they write."""

    def __init__(self, server: Server, market: Market, folder: Path) -> None:
        self.kills = 0
        self.died: list[str] = []
        self.log = folder / "streams.log"
        # A data source, which writes the copy, cannot bring the rows of a bucket together.
        self.copy, self.mirror = (
            Table.create(server.new_prefix(), spec, storage_options=server.storage_options, settings=SETTINGS)
            for spec in (SPEC, market.spec)
        )
        config = {
            "url": market.url,
            "copy": self.copy.url,
            "mirror": self.mirror.url,
            "options": server.storage_options,
            "checkpoints": str(folder / "checkpoints"),
        }
        self._command = [sys.executable, str(SCRIPT), json.dumps(config)]
        self._checkpoints = folder / "checkpoints"
        self._dice = random.Random(market.seed)

    def live_until(self, over: threading.Event) -> None:
        """Run and kill them until then; each time they get on by a batch at least, else they would never catch up."""
        while not over.is_set():
            with self._started() as child:
                before = self._last_batch()
                while not over.wait(0.2) and child.poll() is None and self._last_batch() == before:
                    pass
                over.wait(self._dice.uniform(0, GOES_ON_S))
                if child.poll() is not None:
                    self.died.append(self._last_words(child.returncode))
                    over.set()
                self._kill(child)
                self.kills += 1

    def finish(self) -> None:
        """Let them catch up, and end by themselves."""
        with self._started("finish") as child:
            try:
                code = child.wait(FINISH_S)
            except subprocess.TimeoutExpired:
                code = -signal.SIGKILL
            finally:
                self._kill(child)
        if code != 0:
            self.died.append(self._last_words(code))

    def seen_until_ms(self) -> int | None:
        """The completion time up to which both have seen everything; None if one has not begun."""
        reached = [self._reached(name) for name in STREAMS]
        known = [at_ms for at_ms in reached if at_ms is not None]
        return min(known) if len(known) == len(reached) else None

    def _reached(self, name: str) -> int | None:
        last = self._last_batch(name)
        if last < 0:
            return None
        offset = (self._checkpoints / name / "offsets" / str(last)).read_text().splitlines()[-1]
        return to_ms(json.loads(offset)["completion"])

    def _last_batch(self, name: str = "mirror") -> int:
        """The last one that Spark knows to be done; below zero if there is none."""
        commits = (self._checkpoints / name / "commits").glob("*")
        return max((int(path.name) for path in commits if path.name.isdigit()), default=-1)

    def _started(self, *more: str) -> subprocess.Popen[bytes]:
        path = os.pathsep.join([str(SCRIPT.parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [*self._command, *more],
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=os.environ | {"PYTHONPATH": path},
            )

    def _kill(self, child: subprocess.Popen[bytes]) -> None:
        """With its JVM and its workers, as a power cut would."""
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()

    def _last_words(self, code: int) -> str:
        return f"the streams ended with {code}:\n{self.log.read_text(errors='replace')[-6000:]}"
