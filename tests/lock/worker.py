"""A process with one lock client that does what it is told, line by line: run by a test that stops and kills it.

The first line of its standard input is JSON: url, options, settings. Every later line is a command (the methods of
`Worker`) with its arguments, as a JSON list; every answer is one line of JSON.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import fsspec
from simulate.town import Hooked, commits

from fsspec_cas import CasError, Machine, Store, Won
from lockprovider import Lease, Lock, LockError, LockSettings


class SteppedClock:
    """The machine, but its wall clock can be wrong."""

    def __init__(self) -> None:
        self._machine = Machine()
        self.wrong_by_s = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._machine, name)

    def now_ms(self) -> int:
        return self._machine.now_ms() + round(self.wrong_by_s * 1000)


class Worker:
    def __init__(self, url: str, options: dict[str, Any], settings: dict[str, float]) -> None:
        plain = Store.from_url(url, options)
        self.way = Hooked(plain.backend)
        self.clock = SteppedClock()
        self.store = Store(self.way, plain.root, world=self.clock)
        self.settings = LockSettings(**settings)
        self.lock = Lock(self.store, settings=self.settings, world=self.clock)
        self.place = fsspec.url_to_fs(url, **options)
        self.lease: Lease | None = None

    def acquire(self, timeout_s: float) -> dict[str, Any]:
        self.lease = self.lock.acquire(timeout_s)
        return {"epoch": self.lease.epoch, "owner": self.lease.owner}

    def publish(self, path: str, data: str) -> str:
        self._lease.publish(path, data.encode())
        return "published"

    def acquire_and_publish(self, path: str, data: str) -> str:
        """With a lease so short that it may lapse on a busy machine before there is anything to see: then again."""
        while True:
            self.acquire(60)
            try:
                return self.publish(path, data)
            except LockError:
                self.release()

    def check(self) -> str:
        self._lease.check()
        return "held"

    def renew(self) -> bool:
        return self._lease.renew()

    def release(self) -> str:
        self._lease.release()
        return "released"

    def step_clock(self, wrong_by_s: float) -> str:
        self.clock.wrong_by_s = wrong_by_s
        return "stepped"

    def signal_before(self, path_ends: str, name: str, only_commits: bool) -> str:
        """Send the signal to this very process right before its next such write leaves."""

        def before(operation: str, path: str, data: bytes) -> None:
            if operation == "put" and path.endswith(path_ends) and (commits(data) or not only_commits):
                self.way.before = lambda *_: None
                # To this very thread: sent to the process, another one may take it, and the write leaves meanwhile.
                signal.pthread_kill(threading.get_ident(), signal.Signals[name])

        self.way.before = before
        return "armed"

    def count(self, rounds: int, clients: int, threads: int) -> dict[str, Any]:
        """Increment a counter in small steps, under the lock, `rounds` times in every thread of every client."""
        locks = [self.lock, *(Lock(self.store, settings=self.settings) for _ in range(clients - 1))]
        return count(self.store, self.place, [lock.acquire for lock in locks for _ in range(threads)], rounds)

    @property
    def _lease(self) -> Lease:
        assert self.lease is not None
        return self.lease


def count(store: Store, place: tuple[Any, str], ways_in: list[Callable[[float], Any]], rounds: int) -> dict[str, Any]:
    """What happened in all threads: epochs, and overlaps of sections that exclude each other.

    The store itself says whether two were inside: one put-if-absent of the same object wins at a time.
    """
    fs, folder = place
    epochs: list[int] = []
    overlaps: list[str] = []
    failures: list[str] = []

    def section(epoch: int) -> None:
        epochs.append(epoch)
        if not isinstance(store.put_if_absent("inside", str(epoch).encode()), Won):
            overlaps.append(f"{epoch} came in while {store.read('inside').data!r} was inside")
        now = int(fs.cat_file(f"{folder}/counter"))
        fs.pipe_file(f"{folder}/counter", str(now + 1).encode())
        store.delete("inside")

    def work(acquire: Callable[[float], Any]) -> None:
        try:
            for _ in range(rounds):
                with acquire(600) as lease:
                    section(lease.epoch)
                    lease.check()
        except Exception as error:  # noqa: BLE001 - told to the test
            failures.append(repr(error))

    threads = [threading.Thread(target=work, args=(acquire,)) for acquire in ways_in]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"epochs": epochs, "overlaps": overlaps, "failures": failures}


def answer(worker: Worker, command: list[Any]) -> dict[str, Any]:
    try:
        return {"answer": getattr(worker, command[0])(*command[1:])}
    except (CasError, LockError) as error:
        return {"error": type(error).__name__, "why": str(error)}


def main() -> None:
    worker = Worker(**json.loads(sys.stdin.readline()))
    for line in sys.stdin:
        print(json.dumps(answer(worker, json.loads(line))), flush=True)  # noqa: T201 - how it answers


if __name__ == "__main__":
    main()
