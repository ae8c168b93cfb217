"""The machine's time, randomness and ids; elsewhere only waits (`waiting`, event loops) read its clock."""

from __future__ import annotations

import platform
import random
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fsspec_cas.waiting import pause


class World(Protocol):
    """Clock, sleep, randomness and ids for this library's code.

    >>> from fsspec_cas.testing import ManualClock
    >>> clock: World = ManualClock(now_s=0.0)
    """

    def now_ms(self) -> int:
        """Wall clock, epoch ms, UTC. It may jump; use it only for values that other processes read.

        >>> clock.now_ms()
        0
        """

    def monotonic_s(self) -> float:
        """Monotonic clock, in seconds; use it only for differences within this process.

        >>> clock.monotonic_s()
        0.0
        """

    def new_id(self) -> str:
        """A fresh UUID, as text.

        >>> clock.new_id()
        '00000000-0000-0000-0000-000000000001'
        """

    def random(self) -> float:
        """A random number in [0, 1).

        >>> clock.random()
        0.5
        """

    def sleep(self, seconds: float) -> None:
        """Block the calling thread.

        >>> clock.sleep(60)
        >>> clock.monotonic_s()
        60.0
        """


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine's real clocks, randomness and ids.

    >>> machine = Machine()
    """

    def now_ms(self) -> int:
        """Wall clock, epoch ms.

        >>> machine.now_ms() > 1_700_000_000_000
        True
        """
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """CLOCK_MONOTONIC.

        >>> began_s = machine.monotonic_s()
        >>> machine.monotonic_s() >= began_s
        True
        """
        return time.monotonic()

    def boot(self) -> tuple[str, str]:
        """The id of the current boot (empty if unknown), and the host's name.

        >>> boot_id, host = machine.boot()
        """
        try:
            boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            boot_id = ""
        return boot_id, platform.node()

    def uptime_s(self) -> float:
        """Monotonic clock in seconds, which all processes since this boot share.

        >>> machine.uptime_s() > 0
        True
        """
        return time.monotonic()

    def new_id(self) -> str:
        """A random UUID4.

        >>> len(machine.new_id())
        36
        """
        return str(uuid.uuid4())

    def random(self) -> float:
        """A random number in [0, 1).

        >>> 0 <= machine.random() < 1
        True
        """
        return random.random()

    def sleep(self, seconds: float) -> None:
        """Block the calling thread; under `waiting.ends_with` it may raise WaitStopped.

        >>> machine.sleep(0.001)
        """
        pause(seconds)


def time_ns() -> int:
    """Wall clock in ns, for files' time stamps."""
    return time.time_ns()
