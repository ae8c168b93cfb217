"""Test tools: a manual clock, a backend that loses, delays and repeats requests by a plan, and a gateway.

    clock = ManualClock()
    backend = Faulty(MemoryBackend(fs), {"put": [LoseAnswer()]}, world=clock)
    store = Store(backend, "/tests", world=clock)
    assert isinstance(store.put_if_absent("a", b"1"), Won)  # the answer was lost, the head found the write
    assert backend.fired == [("put", LoseAnswer())]

Assert on `fired`: a fault that did not fire has tested nothing.
"""

from fsspec_cas.testing.faulty import (
    Delay,
    DeliverLate,
    DeliverTwice,
    Fault,
    Faulty,
    Interrupt,
    LoseAnswer,
    LoseRequest,
    ManualClock,
    Operation,
    Pass,
    Refuse,
)
from fsspec_cas.testing.gateway import WRONG_ANSWERS, Gateway, Rule

__all__ = [
    "WRONG_ANSWERS",
    "Delay",
    "DeliverLate",
    "DeliverTwice",
    "Fault",
    "Faulty",
    "Gateway",
    "Interrupt",
    "LoseAnswer",
    "LoseRequest",
    "ManualClock",
    "Operation",
    "Pass",
    "Refuse",
    "Rule",
]
