"""Test tools: a clock that stands still, and a backend that loses, delays and repeats requests by a plan.

    clock = ManualClock()
    backend = Faulty(MemoryBackend(fs), {"put": [LoseAnswer()]}, world=clock)
    store = Store(backend, "/tests", world=clock)
    assert isinstance(store.put_if_absent("a", b"1"), Won)  # the answer was lost, the head found the write
    assert backend.fired == [("put", LoseAnswer())]

A fault answers as the network would; the inner backend performs the request or does not. Assert on `fired`: a fault
that did not fire has tested nothing.

`WRONG_ANSWERS` are replies of gateways, captive portals and other services. A `Gateway` sends them:

    with Gateway(host, port) as gateway:                     # in front of a real server
        gateway.rules.append(Rule(WRONG_ANSWERS["404 text"]))
        store = Store.from_url("s3://bucket/tests", {"endpoint_url": gateway.endpoint})
        assert store.read("a").data == b"1"                   # "404 page not found" is not the store's answer

    faulty   `ManualClock`, `Faulty` and its faults
    gateway  `Gateway`, `Rule`, `WRONG_ANSWERS`
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
