"""A random history: clients take the real lock, read, publish; the network, the clocks and the machines misbehave.

What a client publishes says which publishes it has seen. So what is in the store at the end tells by itself whether
any of them missed an earlier one; the lock's own records are not asked.

Promises, with no assumption on clocks:
    fence   the publishes form one order, in which each has seen all before it
    truth   one reported as done is there, from then on; one reported as lost, or not tried, never is
    epoch   every acquisition gets a higher epoch than all before it
    free    at the end, in good weather, the lock can be taken in the time that a lease may last; soon if released
and while clocks differ by less than the allowance:
    one     at most one client believes, at any moment, that it holds the lock
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import fsspec

from fsspec_cas import CasError, Store
from fsspec_cas.backends.memory import MemoryBackend
from lockprovider import (
    HUDI_LOCK_PATH,
    Decided,
    Intent,
    Lease,
    LeaseLost,
    Lock,
    LockError,
    LockRecord,
    LockSettings,
    Log,
    LogEntry,
    NotAcquired,
    Pending,
    PublishUnknown,
)
from lockprovider.settings import GRACE_MS
from lockprovider.storage_lock.client import command
from simulate.network import Network, Weather
from simulate.scheduler import Crew, Process, Scheduler

SETTINGS = LockSettings(validity=10, renew=1, timeout=40, poll=0.5)
ALLOWANCE_S = SETTINGS.margin_s + GRACE_MS / 1000
EPOCH_S = 1_700_000_000.0
START_S = 10_000.0  # of the monotonic clocks
HOUR_S = 3600.0
SOON_S = 5.0  # for a lock that is free; others may have to be let go first


class BrokenPromise(AssertionError):
    """What happened, and how it came to that."""


class AllSeen:
    """What is decided has seen what its writer had seen, and all that was decided since."""

    unordered = False
    sample = b""

    def refresh(self, seen_s: float) -> None:
        """There is nothing to read."""

    def refuse(self, intent: Intent, since: Sequence[LogEntry]) -> None:
        """None is in its way."""

    def pending(self, intent: Intent, log: Log, now_ms: int) -> Pending | None:
        """With what it has seen."""
        del now_ms
        since = log.since(intent.position)
        assert since is not None, "else it is void"
        seen = sorted({*json.loads(intent.body), *(entry.path for entry in since)})
        return Pending.of_bytes(intent.stem, json.dumps(seen).encode())


@dataclass
class Clock:
    """One process's `World`."""

    scheduler: Scheduler
    name: str
    wrong_by_s: float = 0.0
    jump_s: float = 0.0
    _ids: int = 0

    def now_ms(self) -> int:
        return round((EPOCH_S + self.scheduler.now_s + self.wrong_by_s + self.jump_s) * 1000)

    def monotonic_s(self) -> float:
        return START_S + self.scheduler.now_s

    def new_id(self) -> str:
        self._ids += 1
        return f"{self.name}{self._ids}"

    def random(self) -> float:
        return self.scheduler.random.random()

    def sleep(self, seconds: float) -> None:
        self.scheduler.sleep(seconds)


@dataclass
class Client:
    """One process with one lock client, and the leases that its threads are in just now."""

    process: Process
    clock: Clock
    network: Network
    store: Store
    lock: Lock
    keeps_log: bool = False
    memory: tuple[Log, list[str]] | None = None
    inside: list[Lease] = field(default_factory=list)

    def believes(self) -> bool:
        now_s = self.clock.monotonic_s()
        return any(not lease.lost.is_set() and now_s < lease.deadline_s for lease in self.inside)


class History:
    """The world of one seed."""

    def __init__(self, seed: int, crew: Crew) -> None:
        self.scheduler = Scheduler(seed, crew)
        self.rng = self.scheduler.random
        self.story: list[str] = []
        self.broken = ""
        self.done: dict[str, bool | None] = {}  # path: it is there, it never will be, nobody knows
        self.epochs: list[int] = []  # of the leases, as their holders hear of them
        self.written: list[tuple[int, str]] = [(0, "")]  # epoch and owner of the records, as the store got them
        self._files = fsspec.filesystem("memory")
        self._memory = MemoryBackend(self._files)
        self._root = f"/history/{id(self)}"  # the memory filesystem is one for the process
        self.skewed = self.rng.random() < 0.3
        self.jumps = not self.skewed and self.rng.random() < 0.25
        self.weather = self._draw_weather()
        self.clients: list[Client] = []

    def run(self) -> History:
        """Live it, and check all promises.

        Raises:
            BrokenPromise: with the whole story.
        """
        scheduler = self.scheduler
        scheduler.after_each = self._at_most_one
        try:
            with scheduler.in_place_of_threads():
                self.clients = [self._client(name) for name in "abcd"[: self.rng.choice((2, 2, 3, 4))]]
                for client in self.clients:
                    self._let_live(client)
                scheduler.run()
                if not self.broken:
                    self._end_well()
                    scheduler.run()
                self._check_all(scheduler.end())
        finally:
            for path in [path for path in self._files.store if path.startswith(self._root)]:
                del self._files.store[path]
        return self

    # -- what happens ----------------------------------------------------------------------------------------------

    def _draw_weather(self) -> Weather:
        rng = self.rng
        return Weather(fault=rng.choice((0.0, 0.02, 0.1, 0.25)), slow=rng.choice((0.0, 0.0, 0.02, 0.1)))

    def _client(self, name: str) -> Client:
        process, clock = Process(name), Clock(self.scheduler, name, self._draw_skew_s())
        network = Network(self._memory, self.scheduler, self.weather, lambda *what: self._happens(name, *what))
        store = Store(network, self._root, world=clock)
        keeps_log = self.rng.random() < 0.7
        return Client(process, clock, network, store, Lock(store, settings=SETTINGS, world=clock), keeps_log)

    def _draw_skew_s(self) -> float:
        within_s = (self.rng.random() - 0.5) * ALLOWANCE_S * 0.98
        return self.rng.choice((within_s, -HOUR_S, HOUR_S)) if self.skewed else within_s

    def _let_live(self, client: Client) -> None:
        rng, scheduler = self.rng, self.scheduler
        for i in range(rng.choice((1, 1, 1, 2))):
            scheduler.spawn(client.process, lambda i=i: self._live(client, i), f"{client.process.name}{i}")
        if rng.random() < 0.4:
            scheduler.at(rng.random() * 15, lambda: self._freeze(client, rng.choice((0.5, 5.0, 9.5, 12.0, 30.0))))
        if rng.random() < 0.25:
            scheduler.at(rng.random() * 15, lambda: self._step_clock(client))
        if rng.random() < 0.15:
            scheduler.at(rng.random() * 15, lambda: self._kill(client))

    def _freeze(self, client: Client, seconds: float) -> None:
        self._tell(client.process.name, f"is stopped for {seconds:g} s")
        client.process.frozen_until_s = self.scheduler.now_s + seconds

    def _step_clock(self, client: Client) -> None:
        client.clock.wrong_by_s = self._draw_skew_s()
        self._tell(client.process.name, f"has its clock stepped; it is wrong by {client.clock.wrong_by_s:.3f} s now")

    def _kill(self, client: Client) -> None:
        self._tell(client.process.name, "is killed")
        self.scheduler.kill(client.process)
        client.inside.clear()

    def _live(self, client: Client, thread: int) -> None:
        for n in range(self.rng.choice((1, 2, 3))):
            client.clock.sleep(self.rng.random() * 3)
            try:
                self._transact(client, f"tx/{client.process.name}{thread}{n}")
            except (CasError, LockError) as error:
                self._tell(client.process.name, f"goes without: {type(error).__name__}: {error}")

    def _transact(self, client: Client, path: str) -> None:
        if client.keeps_log and self.rng.random() < 0.6:
            self._publish_together(client, path)
        else:
            self._publish_under_lock(client, path)

    def _publish_together(self, client: Client, path: str) -> None:
        """Decided by whoever writes the record; what was decided since it looked is part of what it says."""
        name, record = client.process.name, client.lock.look()
        if record is None or record.log is None:
            return self._publish_under_lock(client, path)
        seen, log = self._seen(client, record), record.log
        self._tell(name, f"asks for {path} from place {log.next} on")
        client.clock.sleep(self.rng.choice((0.0, 0.1, 4.0)) * self.rng.random())
        intent = Intent(log.name, log.next, path, json.dumps(seen).encode())
        self.done[path] = None
        try:
            came = client.lock.commit(intent, AllSeen())
        except PublishUnknown as error:
            self._tell(name, f"does not know what became of {path}: {error}")
        except (CasError, LockError) as error:
            self.done[path] = False
            self._tell(name, f"did not publish {path}: {error}")
        else:
            self._tell(name, f"has asked for {path}: {came}")
            if isinstance(came, Decided):
                self.done[path] = True
                self._must_be_there(path)
        return None

    def _seen(self, client: Client, record: LockRecord) -> list[str]:
        """What is published, or decided."""
        unapplied = (pending.path for pending in record.all_pending)
        listed = {*(entry.path for entry in client.store.list("tx/")), *unapplied}
        seen = self._by_log(client, record.log) or sorted(listed)
        client.memory = None if record.log is None else (record.log, seen)
        return seen

    def _publish_under_lock(self, client: Client, path: str) -> None:
        with client.lock.acquire(keeps_log=client.keeps_log) as lease:
            self._under(client, lease, path)
        self._tell(client.process.name, "has released it")

    def _under(self, client: Client, lease: Lease, path: str) -> None:
        client.inside.append(lease)
        try:
            self._tell(client.process.name, f"holds it, epoch {lease.epoch}")
            self.epochs.append(lease.epoch)
            with self._jumping(client):
                self._read_and_publish(client, lease, path)
        finally:
            self._leave(client, lease)

    def _leave(self, client: Client, lease: Lease) -> None:
        if lease in client.inside:
            client.inside.remove(lease)

    @contextlib.contextmanager
    def _jumping(self, client: Client) -> Iterator[None]:
        """The holder's own wall clock is an hour wrong as long as it holds the lock."""
        client.clock.jump_s = self.rng.choice((-HOUR_S, HOUR_S)) if self.jumps else 0.0
        try:
            yield
        finally:
            client.clock.jump_s = 0.0

    def _by_log(self, client: Client, log: Log | None) -> list[str] | None:
        """What has been published, by what this client has seen before and the log."""
        if client.memory is None or log is None or client.memory[0].name != log.name:
            return None
        since = log.since(client.memory[0].next)
        if since is None:
            return None
        self._tell(client.process.name, f"goes by the log, {len(since)} further")
        return sorted({*client.memory[1], *(entry.path for entry in since)})

    def _publish(self, client: Client, lease: Lease, path: str, data: bytes) -> None:
        if self.rng.random() < 0.4:
            lease.publish(path, data)
            return
        pending = client.lock.stage(path, data, unshared=True)
        lease.publish(pending, data, new=True)

    def _read_and_publish(self, client: Client, lease: Lease, path: str) -> None:
        known = {path for path, there in self.done.items() if there}
        seen = self._seen(client, replace(lease.record, pending=None, pending_before=()))
        if not known <= set(seen) and self._is_newest(lease):
            self.broken = self.broken or f"fence: {client.process.name} holds the lock and does not see {known}"
        client.clock.sleep(self.rng.choice((0.0, 0.5, 4.0, 12.0)) * self.rng.random())
        self._decide(client, path, seen, lambda data: self._publish(client, lease, path, data))

    def _decide(self, client: Client, path: str, seen: list[str], publish: Callable[[bytes], None]) -> None:
        try:
            self.done[path] = None
            publish(json.dumps(seen).encode())
        except PublishUnknown as error:
            self._tell(client.process.name, f"does not know what became of {path}: {error}")
        except (CasError, LeaseLost, LockError) as error:
            self.done[path] = False
            self._tell(client.process.name, f"did not publish {path}: {error}")
        else:
            self.done[path] = True
            self._tell(client.process.name, f"has published {path}, having seen {seen}")
            self._must_be_there(path)

    def _must_be_there(self, path: str) -> None:
        if f"{self._root}/{path}" not in self._files.store:
            self.broken = self.broken or f"truth: {path} was reported as published and is not there"

    def _is_newest(self, lease: Lease) -> bool:
        return self.written[-1] == (lease.epoch, lease.owner)

    def _happens(self, name: str, operation: str, path: str, result: str) -> None:
        self._tell(name, operation, path, result)
        if operation == "put" and result == "Applied" and path.endswith(HUDI_LOCK_PATH):
            record = self._record()
            now = (record.epoch, record.owner) if record else (0, "")
            if now != self.written[-1] and now[0] <= self.written[-1][0]:
                self.broken = self.broken or f"epoch: {now} came after {self.written[-1]}"
            self.written.append(now)

    def _end_well(self) -> None:
        """In good weather an auditor takes the lock; what was late arrives meanwhile, and after that."""
        self.weather.fault = self.weather.slow = 0.0
        last, before = self._record(), len(self.written)
        auditor = self._client("z")
        auditor.clock.wrong_by_s = HOUR_S if self.skewed or self.jumps else 0.0
        began_s = self.scheduler.now_s
        within_s = SETTINGS.validity + 2 * ALLOWANCE_S + (HOUR_S if self.skewed else 0.0)

        def audit() -> None:
            try:
                auditor.lock.acquire(within_s).release()
            except NotAcquired as refusal:
                self.broken = f"free: after {within_s:g} s {refusal}"
            took_s = self.scheduler.now_s - began_s
            nobody_else = all(owner.startswith("z") for _, owner in self.written[before:])  # a late take, say
            if last is not None and last.is_free and nobody_else and took_s > SOON_S:
                self.broken = f"free: the lock was released, and it took {took_s:.1f} s to get it"

        self.scheduler.spawn(auditor.process, audit, "z")
        self.scheduler.run()

    # -- what must be true -----------------------------------------------------------------------------------------

    def _at_most_one(self) -> None:
        if self.broken:
            self.scheduler.stopped = True
        elif not self.skewed and sum(map(Client.believes, self.clients)) > 1:
            names = [client.process.name for client in self.clients if client.believes()]
            self.broken = f"one: {' and '.join(names)} believe at the same time that they hold the lock"
            self.scheduler.stopped = True

    def _check_all(self, stuck: list[str]) -> None:
        checks: list[Callable[[], str]] = [
            lambda: self.broken,
            lambda: f"{stuck} never ended" if stuck else "",
            lambda: "".join(f"{name} failed: {error!r}; " for name, error in self.scheduler.errors),
            self._one_order,
            self._told_the_truth,
            lambda: "" if len(set(self.epochs)) == len(self.epochs) else f"epoch: two have the same: {self.epochs}",
        ]
        broken = next(filter(None, (check() for check in checks)), "")
        if broken:
            raise BrokenPromise("\n".join([*self.story, broken]))

    def _published(self) -> dict[str, list[str]]:
        files = {path.removeprefix(f"{self._root}/"): file for path, file in self._files.store.items()}
        return {path: json.loads(file.getvalue()) for path, file in files.items() if path.startswith("tx/")}

    def _one_order(self) -> str:
        published = self._published()
        order = sorted(published, key=lambda path: len(published[path]))
        for i, path in enumerate(order):
            if set(published[path]) != set(order[:i]):
                missed = set(order[:i]) ^ set(published[path])
                return f"fence: {path} was published after {order[:i]} and has seen {published[path]}: {missed}"
        return ""

    def _told_the_truth(self) -> str:
        published = self._published()
        wrong = [path for path, there in self.done.items() if there is not None and there != (path in published)]
        return f"truth: what was said of {wrong} is not so" if wrong else ""

    def _record(self) -> LockRecord | None:
        file: Any = self._files.store.get(f"{self._root}/{HUDI_LOCK_PATH}")
        return None if file is None else LockRecord.decode(file.getvalue())

    def _tell(self, who: str, *what: str) -> None:
        line = f"{self.scheduler.now_s:9.3f} {who} {' '.join(what)}"
        line = line.replace(self._root, "").replace(f"pid {os.getpid()}", "pid")
        self.story.append(line.replace(f", {command()}, since", ", since"))
