"""For tests, yours too: a world that stands still, and a backend that loses, delays and repeats what it is told.

    clock = ManualClock()
    backend = Faulty(MemoryBackend(fs), {"put": [LoseAnswer()]}, world=clock)
    store = Store(backend, "/tests", world=clock)
    assert isinstance(store.put_if_absent("a", b"1"), Won)  # the answer was lost, the look found my write
    assert backend.fired == [("put", LoseAnswer())]

A fault answers as the network would: the backend below really does, or does not do, what was asked. Assert on `fired`:
a fault that did not happen has tested nothing.

`WRONG_ANSWERS` are what gateways, captive portals and other services say in a store's place, and a `Gateway` says them:

    with Gateway(host, port) as gateway:                     # in front of a real server
        gateway.rules.append(Rule(WRONG_ANSWERS["404 text"]))
        store = Store.from_url("s3://bucket/tests", {"endpoint_url": gateway.endpoint})
        assert store.read("a").data == b"1"                   # "404 page not found" is not the store's word

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
