"""What a soak of one table shares among its threads, and a thread of it, whose failure ends the soak."""

from __future__ import annotations

import threading
from collections import Counter
from itertools import count
from random import Random
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from table.mor_tables import Row


class Soak:
    """Writers of `keys` keys, `at_once` at a time, and what they were told."""

    def __init__(self, seed: int, keys: int, at_once: int) -> None:
        self.seed, self.keys, self.at_once = seed, keys, at_once
        self.over = threading.Event()
        self.values = count(1)
        self.known = threading.Lock()
        self.acknowledged: dict[int, Row] = {}
        self.happened: Counter[str] = Counter()
        self.failures: list[str] = []

    def first(self) -> list[Row]:
        """A row of each key."""
        return [(key, "ab"[key % 2], "first", next(self.values)) for key in range(self.keys)]

    def drawn(self, random: Random, who: str) -> list[Row]:
        """New versions of some rows; a key stays in its partition."""
        return [(key, "ab"[key % 2], who, next(self.values)) for key in random.sample(range(self.keys), self.at_once)]

    def acknowledge(self, given: list[Row]) -> None:
        with self.known:
            for one in given:
                if one[0] not in self.acknowledged or self.acknowledged[one[0]][3] < one[3]:
                    self.acknowledged[one[0]] = one

    def expected(self) -> list[Row]:
        with self.known:
            return sorted(self.acknowledged.values())


S = TypeVar("S", bound=Soak)


def living(soak: S, work: Callable[[S, int], None], number: int) -> threading.Thread:
    """It, begun: `work(soak, number)`."""

    def run() -> None:
        try:
            work(soak, number)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test says so
            soak.failures.append(f"{work.__name__} {number}: {type(error).__name__}: {error}")
            soak.over.set()

    thread = threading.Thread(target=run)
    thread.start()
    return thread
