"""A process that appends to a log as a producer, until it is killed; what it is told is there, one line each.

Its arguments are JSON: url, options, its name, and how many. It goes on behind the last number that the log has of it.
"""

from __future__ import annotations

import json
import sys

from lockprovider.wal import Wal
from recipes.state_child import say


def main() -> None:
    url, options, name, many = json.loads(sys.argv[1])
    with Wal.open(url, storage_options=options) as log, log.appender(name) as out:
        say("ready")
        first = out.last_seq + 1
        for at in range(first, many + 1, 3):
            numbers = range(at, min(at + 3, many + 1))
            waiting = [out.append_later(f"{name}.{n}".encode(), seq=n) for n in numbers]
            for number, answer in zip(numbers, waiting, strict=True):
                answer.result()
                say(f"{name}.{number}")


if __name__ == "__main__":
    main()
