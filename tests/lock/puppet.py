"""The test's side of a worker: start it, tell it what to do, stop it, kill it."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from patience import until

TESTS = Path(__file__).resolve().parent.parent
LONG_S = 240.0  # the longest that an answer is waited for; reached only by a failure


class Puppet:
    """One worker process."""

    def __init__(self, url: str, options: dict[str, Any], **settings: float) -> None:
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lock.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
            bufsize=1,
        )
        self._said: queue.Queue[str] = queue.Queue()
        self._listener = threading.Thread(target=lambda: [self._said.put(line) for line in self.process.stdout])
        self._listener.start()
        self._say({"url": url, "options": options, "settings": settings})

    def tell(self, *command: Any) -> None:
        """Have it do something, without waiting for the answer."""
        self._say(command)

    def hear(self) -> dict[str, Any]:
        """The answer to the oldest command that is not answered yet."""
        try:
            return json.loads(self._said.get(timeout=LONG_S))
        except queue.Empty:
            raise AssertionError(f"the worker says nothing; it ended with {self.process.poll()}") from None

    def ask(self, *command: Any) -> Any:
        """What it answers; an error is a failure of the test."""
        self.tell(*command)
        heard = self.hear()
        assert "answer" in heard, heard
        return heard["answer"]

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        self.wait_until_stopped()

    def wait_until_stopped(self) -> None:
        _wait_for(lambda: self._state() in "Tt", self.process)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill9(self) -> None:
        self.process.kill()
        assert self.wait_until_dead() == -signal.SIGKILL

    def wait_until_dead(self) -> int:
        return self.process.wait(LONG_S)

    def close(self) -> None:
        """It ends by itself when it has nothing more to read; a stopped one is killed."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._listener.join()
        self.process.stdin.close()
        self.process.stdout.close()

    def _say(self, what: Any) -> None:
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()

    def _state(self) -> str:
        return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def _wait_for(condition: Any, process: subprocess.Popen[str]) -> None:
    until(lambda: condition() or process.poll() is not None)
    assert process.poll() is None, f"it ended with {process.returncode}"
