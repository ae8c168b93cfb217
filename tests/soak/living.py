"""A thread of a soak, whose failure ends the soak and is told by it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol, TypeVar


class Soak(Protocol):
    """What all threads of one soak share."""

    @property
    def over(self) -> threading.Event: ...
    @property
    def failures(self) -> list[str]: ...


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
