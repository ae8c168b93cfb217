"""Time, randomness and ids: the only file that may ask the machine for them.

Everything else takes a `World` as an argument, so that the same code runs in production, in a simulation and
in a search through all interleavings.
"""

from __future__ import annotations

import random
import time
import uuid
from dataclasses import dataclass
from typing import Protocol


class World(Protocol):
    """What code may ask of its surroundings."""

    def now_ms(self) -> int:
        """Wall clock, epoch ms, UTC. May jump; only for what others read."""

    def monotonic_s(self) -> float:
        """A clock that never steps, in seconds; only for differences within this process."""

    def new_id(self) -> str:
        """A fresh UUID, as text."""

    def random(self) -> float:
        """A number in [0, 1)."""

    def sleep(self, seconds: float) -> None:
        """Block the calling thread."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The real machine."""

    def now_ms(self) -> int:
        """Wall clock, epoch ms."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """CLOCK_MONOTONIC."""
        return time.monotonic()

    def new_id(self) -> str:
        """A random UUID4."""
        return str(uuid.uuid4())

    def random(self) -> float:
        """The process's own generator."""
        return random.random()

    def sleep(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(seconds)


def time_ns() -> int:
    """Wall clock in ns, for file stamps."""
    return time.time_ns()
