"""A process that updates a state until it is killed: what it is told was done, one line each.

Its arguments are JSON: url, options, name, and how often.
"""

from __future__ import annotations

import json
import sys

from lockprovider.state import State


def say(word: object) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def main() -> None:
    url, options, name, times = json.loads(sys.argv[1])
    state = State.open(url, storage_options=options, default=list, pace_s=0.0, keep=1000)
    say("ready")
    for n in range(times):
        tag = f"{name}.{n}"
        state.update(lambda value, tag=tag: [*value, tag])
        say(tag)


if __name__ == "__main__":
    main()
