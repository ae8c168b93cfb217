"""Clients that work under the lock on a real server while the network between misbehaves at random.

Each publish names the publish before it, as its author saw it under the lock. So the objects at the end form one chain,
or somebody worked without the lock.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING

from faults import actions as do
from faults.actions import Action, Ending

from fsspec_cas import CasError, Store
from lockprovider import Lease, Lock, LockError, LockSettings, PublishUnknown

if TYPE_CHECKING:
    from faults.proxy import FaultProxy, Rule
    from faults.wire import Request
    from servers.base import Server

SETTINGS = LockSettings(validity=4.0, renew=0.4, timeout=60.0, poll=0.3)
CLIENTS = 6
LONGEST_PAUSE_S = 0.4  # between two faults

ACTIONS: dict[str, Callable[[], Action]] = {
    "answer lost": do.lose_answer,
    "answer lost, reset": lambda: do.lose_answer(Ending.RESET),
    "500 after the deed": lambda: do.replace_answer(500),
    "503 after the deed": lambda: do.replace_answer(503, "SlowDown"),
    "never delivered": do.never_deliver,
    "delivered twice": do.deliver_twice,
    "delivered late": do.deliver_late,
    "429": do.too_many,
    "503": do.slow_down,
    "500": do.server_error,
}


class Town:
    """A server, a faulty way to it, and what happened."""

    def __init__(self, server: Server, proxy: FaultProxy, seed: int) -> None:
        self.dice = random.Random(seed)
        self.proxy = proxy
        self.prefix = server.new_prefix()
        self.options = server.options_for(proxy.endpoint)
        self.server = server
        self.fired: Counter[str] = Counter()
        self.happened: Counter[str] = Counter()
        self.told: dict[str, bool | None] = {}
        self.held: list[tuple[float, float, int]] = []  # from, until (monotonic s, still believed), epoch
        self.failures: list[str] = []
        self.longest_wait_s = 0.0
        self.over = threading.Event()
        self._guard = threading.Lock()
        self._names = iter(range(10**9))

    def live(self, seconds: float) -> None:
        workers = [threading.Thread(target=self._work, args=(seed,)) for seed in range(CLIENTS)]
        chaos = threading.Thread(target=self._misbehave)
        for thread in (*workers, chaos):
            thread.start()
        self.over.wait(seconds)
        self.over.set()
        for thread in (*workers, chaos):
            thread.join()

    # -- the network -----------------------------------------------------------------------------------------------

    def _misbehave(self) -> None:
        while not self.over.wait(self.dice.random() * LONGEST_PAUSE_S):
            name = self.dice.choice(list(ACTIONS))
            method = self.dice.choice(["PUT", "POST", "GET", "HEAD"])
            rule = self.proxy.rule(
                match=_only(method),
                action=ACTIONS[name](),
                times=self.dice.choice((1, 1, 2, 5)),
                until=lambda _request: self.dice.random() < 0.2,
            )
            self._forget_old(keep=12)
            self.fired[name] += rule.fired
            rule.action = _counted(name, rule, self.fired)
        self._forget_old(keep=0)

    def _forget_old(self, keep: int) -> None:
        rules = self.proxy.rules
        for rule in rules[: len(rules) - keep]:
            rule.times = 0
            rule.release()
            rules.remove(rule)
        self.proxy.log.clear()
        self.proxy.delivered.clear()

    # -- the clients -----------------------------------------------------------------------------------------------

    def _work(self, seed: int) -> None:
        dice = random.Random(seed)
        while not self.over.is_set():
            lock = Lock(Store.from_url(self.prefix, self.options), settings=SETTINGS)
            for _ in range(dice.randrange(1, 20)):
                if self.over.is_set():
                    return
                self._once(lock, dice)

    def _once(self, lock: Lock, dice: random.Random) -> None:
        began_s = time.monotonic()
        try:
            lease = lock.acquire()
            self.longest_wait_s = max(self.longest_wait_s, time.monotonic() - began_s)
            self._count("acquired")
            if dice.random() < 0.02:
                self._die_holding(lock, lease)
            else:
                self._inside(lock, lease, dice)
        except (CasError, LockError) as error:
            self._count(type(error).__name__)
        except Exception as error:  # noqa: BLE001 - the end of the soak
            self.failures.append(repr(error))
            self.over.set()

    def _inside(self, lock: Lock, lease: Lease, dice: random.Random) -> None:
        since_s = time.monotonic()
        with lease:
            path = f"tx/{lease.epoch:015d}-{next(self._names)}"
            before = [entry.path for entry in lock._store.list("tx/", timeout=20)]
            time.sleep(dice.choice((0, 0, 0, 0.1, 1.0)))
            self._publish(lease, path, max(before, default=""))
            until_s = time.monotonic()
            lease.check()
            with self._guard:
                self.held.append((since_s, until_s, lease.epoch))

    def _publish(self, lease: Lease, path: str, before: str) -> None:
        self.told[path] = None
        try:
            lease.publish(path, json.dumps({"before": before}).encode())
        except PublishUnknown:
            raise
        except (CasError, LockError):
            self.told[path] = False
            raise
        self.told[path] = True
        self._count("published")

    def _die_holding(self, lock: Lock, lease: Lease) -> None:
        """The thread that took the lock ends without a release."""
        lease.release()

        def take() -> None:
            try:
                lock.acquire(5)
            except (CasError, LockError) as error:
                self._count(type(error).__name__)
            else:
                self._count("died holding it")

        dying = threading.Thread(target=take)
        dying.start()
        dying.join()

    def _count(self, what: str) -> None:
        with self._guard:
            self.happened[what] += 1

    # -- the end ---------------------------------------------------------------------------------------------------

    def audit(self) -> dict[str, list[str]]:
        """What is wrong, by promise; asked past the proxy, when a last client has rolled forward what was decided."""
        straight = Store.from_url(self.prefix, self.server.storage_options)  # let go after: its client is not small
        Lock(straight, settings=SETTINGS).acquire(SETTINGS.validity + 60).release()
        there = {entry.path: entry for entry in straight.list("tx/")}
        chain = sorted(there)
        broken = []
        for before, path in zip(["", *chain], chain, strict=False):
            said = json.loads(straight.read(path).data)["before"]
            if said != before:
                broken.append(f"{path} was published after {before}, and its author saw {said or 'nothing'}")
        lies = [f"{path}: {told}" for path, told in self.told.items() if told is not None and told != (path in there)]
        return {"chain": broken, "truth": lies, "one": self._overlaps(), "defects": self.failures}

    def _overlaps(self) -> list[str]:
        held = sorted(self.held)
        return [f"epochs {a[2]} and {b[2]}: {a[:2]} {b[:2]}" for a, b in pairwise(held) if b[0] < a[1]]


def _only(method: str) -> Callable[[Request], bool]:
    return lambda request: request.method == method


def _counted(name: str, rule: Rule, fired: Counter[str]) -> Action:
    action = rule.action

    async def act(hop: do.Hop) -> do.Outcome:
        fired[name] += 1
        return await action(hop)

    return act
