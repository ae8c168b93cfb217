"""The way of one client to a store in memory, in simulated time: requests are slow, lost, late, doubled.

What a request does, it does when it arrives: also when its sender was stopped or killed meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from fsspec_cas.answer import NoAnswer, NotApplied
from fsspec_cas.outcome import Write
from fsspec_cas.testing import DeliverLate, DeliverTwice, LoseAnswer, LoseRequest, Pass, Refuse
from simulate.scheduler import Scheduler

FAULTS = (LoseAnswer(), LoseRequest(), DeliverTwice(), DeliverLate(), Refuse())


@dataclass
class Weather:
    """How bad the network is: the chance of a fault, and of a delay up to `slow_s`."""

    fault: float = 0.0
    slow: float = 0.0
    slow_s: float = 8.0
    late_s: float = 25.0


class Network:
    """A backend; `told(what)` hears of each request that arrives or suffers."""

    blocking = True

    def __init__(
        self, inner: Any, scheduler: Scheduler, weather: Weather, told: Callable[[str, str, str], None]
    ) -> None:
        self._inner, self._scheduler, self._weather, self._told = inner, scheduler, weather, told
        self.name, self.capabilities, self.part_rules = inner.name, inner.capabilities, inner.part_rules
        self.fired: Counter[str] = Counter()

    async def put(self, write: Write, data: bytes, *, timeout_s: float) -> Any:
        return self._ask(
            "put",
            write.path,
            lambda: self._inner.put(write, data, timeout_s=timeout_s),
            timeout_s,
        )

    async def head(self, path: str, *, timeout_s: float) -> Any:
        return self._ask("head", path, lambda: self._inner.head(path, timeout_s=timeout_s), timeout_s)

    async def get(self, path: str, unless: Any, *, timeout_s: float) -> Any:
        return self._ask("get", path, lambda: self._inner.get(path, unless, timeout_s=timeout_s), timeout_s)

    async def delete(self, path: str, condition: Any, *, timeout_s: float) -> Any:
        return self._ask("delete", path, lambda: self._inner.delete(path, condition, timeout_s=timeout_s), timeout_s)

    async def list_page(self, prefix: str, start_after: Any, token: Any, *, timeout_s: float) -> Any:
        return self._ask(
            "list", prefix, lambda: self._inner.list_page(prefix, start_after, token, timeout_s=timeout_s), timeout_s
        )

    def adapt(self, refused: str = "") -> bool:
        return False

    async def close(self) -> None:
        """Nothing is open."""

    def _ask(self, operation: str, path: str, ask: Callable[[], Coroutine[Any, Any, Any]], timeout_s: float) -> Any:
        scheduler, rng = self._scheduler, self._scheduler.random
        fault = rng.choice(FAULTS) if rng.random() < self._weather.fault else Pass()
        if not isinstance(fault, Pass):
            self.fired[type(fault).__name__] += 1
            self._told(operation, path, f"will suffer {fault}")
        if isinstance(fault, Refuse):
            scheduler.sleep(self._leg_s())
            return NotApplied("refused by the weather")
        answer: list[Any] = []
        heard = scheduler.event()
        sent_s = scheduler.now_s
        unheard = isinstance(fault, (LoseAnswer, DeliverLate))

        def arrive() -> None:
            got = _finish(ask())
            self._told(operation, path, type(got).__name__)
            if not unheard:  # of a request that arrives twice either answer may come first
                scheduler.at(scheduler.now_s + self._leg_s(), lambda: (answer.append(got), heard.set()))

        for arrives_s in self._arrivals(fault):
            scheduler.at(arrives_s, arrive)
        gives_up_s = timeout_s if rng.random() < 0.5 else rng.random() * 2  # a hang, or a reset
        lost = unheard or isinstance(fault, LoseRequest)
        heard.wait(min(timeout_s, gives_up_s) if lost else timeout_s)
        return answer[0] if answer and heard.is_set() else NoAnswer(f"nothing after {scheduler.now_s - sent_s:.1f} s")

    def _arrivals(self, fault: object) -> list[float]:
        now_s = self._scheduler.now_s
        first_s = now_s + self._leg_s()
        if isinstance(fault, LoseRequest):
            return []
        if isinstance(fault, DeliverLate):
            return [first_s + self._scheduler.random.random() * self._weather.late_s]
        if isinstance(fault, DeliverTwice):
            return [first_s, first_s + self._scheduler.random.random() * self._weather.late_s]
        return [first_s]

    def _leg_s(self) -> float:
        rng = self._scheduler.random
        return rng.random() * (self._weather.slow_s if rng.random() < self._weather.slow else 0.02)


def _finish(coroutine: Coroutine[Any, Any, Any]) -> Any:
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("memory never waits")
