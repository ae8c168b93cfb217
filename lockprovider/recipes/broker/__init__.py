"""One process writes for the others: the broker of a queue or a log.

`handing.py` says whom to ask, and what an answer is worth (pure); `frames.py` is what goes over a socket, `service.py`
answers and asks, `broker.py` is both for one client. It is for speed alone: nothing here is needed for what queues and
logs promise.
"""

from lockprovider.recipes.broker.broker import Broker, WireCodec, check_broker
from lockprovider.recipes.broker.handing import (
    Bundle,
    Foreign,
    Handed,
    NotHere,
    flat,
    left_in_doubt,
    own,
    regrouped,
)

__all__ = [
    "Broker",
    "Bundle",
    "Foreign",
    "Handed",
    "NotHere",
    "WireCodec",
    "check_broker",
    "flat",
    "left_in_doubt",
    "own",
    "regrouped",
]
