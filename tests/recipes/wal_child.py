"""A process that appends to a log as a producer, until it is killed; what it is told is there, one line each.

Its arguments are JSON: url, options, its name, and how many. It goes on behind the last number that the log has of it.
"""

from __future__ import annotations

import json
import sys

from patience import until

from fsspec_cas import OutcomeUnknown, Unavailable
from lockprovider.wal import Appender, Fenced, LogFull, Wal
from recipes.state_child import say

AT_ONCE = 3


def main() -> None:
    url, options, name, many = json.loads(sys.argv[1])
    log = Wal.open(url, storage_options=options)
    with log, log.appender(name) as out:
        say("ready")
        for first in range(out.last_seq + 1, many + 1, AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, many + 1))
            records = [f"{name}.{n}".encode() for n in numbers]
            try:
                until(lambda records=records, first=first: is_there(out, records, first))
            except Fenced:
                say("fenced")
                return
            for record in records:
                say(record.decode())


def is_there(out: Appender, records: list[bytes], first: int) -> bool:
    """Whether they are, once more; the reader may be behind, or this process was stopped for long."""
    try:
        out.append_many(records, first=first)
    except (LogFull, OutcomeUnknown, Unavailable):
        return False
    return True


if __name__ == "__main__":
    main()
