"""A process that puts, claims and appends with a broker, until it is killed; what it is told is there, one line each.

Its arguments are JSON: folder, options, its name, and how many. A line is JSON: what was put and appended so far, which
message was acked, and where this process listens. It waits for a line on stdin after its first, and before its last.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress

from patience import until

from fsspec_cas import OutcomeUnknown, Unavailable
from lockprovider.queue import ClaimLost, Queue
from lockprovider.wal import LogFull, Wal
from recipes.state_child import say

AT_ONCE = 5


def main() -> None:
    url, options, name, many = json.loads(sys.argv[1])
    queue = Queue.open(f"{url}/backfill.json", storage_options=options, pace_s=0.0, broker=True)
    log = Wal.open(f"{url}/orders", storage_options=options, broker=True)
    bodies = [f"{name}.{n}" for n in range(1, many + 1)]
    with queue, log, log.appender(name) as out:
        for end in range(AT_ONCE, many + 1, AT_ONCE):
            if end in (2 * AT_ONCE, many):
                sys.stdin.readline()
            records = [body.encode() for body in bodies[end - AT_ONCE : end]]
            until(lambda end=end: is_done(queue.put_many, bodies[:end], producer=name))
            until(lambda end=end, some=records: is_done(out.append_many, some, first=end - AT_ONCE + 1))
            acked = [worked(queue) for _ in range(AT_ONCE)]
            listening = [one._broker._own_offer for one in (queue._writer, log._writer)]
            say(json.dumps({"done": end, "acked": [one for one in acked if one], "offers": listening}))


def is_done(call, *given, **more) -> bool:
    """Whether it is, once more; it is safe to repeat."""
    try:
        call(*given, **more)
    except (LogFull, OutcomeUnknown, Unavailable):
        return False
    return True


def worked(queue: Queue) -> str | None:
    """The message whose ack was told to be done."""
    with suppress(ClaimLost, OutcomeUnknown, Unavailable):
        job = queue.claim()
        if job is not None:
            job.ack()
            return job.body
    return None


if __name__ == "__main__":
    main()
