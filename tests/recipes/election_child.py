"""A process that stands for election until it is killed, and does what it is told while it leads, one line each.

Its arguments are JSON: url, options, name, validity_s, and whether it writes by itself, or for each line on stdin. It
writes its epoch at the end of a list (once for what it writes in a row), under the fence of its term, and never asks
whether it still leads.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from lockprovider.election import Deposed, Election, Term
from lockprovider.state import Fenced, State
from recipes.state_child import say


def main() -> None:
    url, options, name, validity_s, by_itself = json.loads(sys.argv[1])
    election = Election.open(url, storage_options=options, name=name, validity=validity_s, poll=validity_s / 20)
    effects: State[Any] = State.open(f"{url}.effects", storage_options=options, default=dict, pace_s=0.0, keep=1000)

    def lead(term: Term) -> None:
        say(f"leads {term.epoch}")
        while True:
            if not by_itself and not sys.stdin.readline():
                return
            try:
                write(term)
            except Fenced:
                say(f"refused {term.lost.is_set()}")
                raise

    def write(term: Term) -> None:
        def one_more(done: Any) -> Any:
            epochs = done.get("epochs", [])
            return {
                "epochs": epochs if epochs[-1:] == [term.epoch] else [*epochs, term.epoch],
                "writes": done.get("writes", 0) + 1,
            }

        say(f"wrote {effects.update(one_more, fence=term.epoch).serial}")

    try:
        election.run(lead, on_deposed="interrupt" if by_itself else "event")
    except Deposed:
        say("deposed")


if __name__ == "__main__":
    main()
