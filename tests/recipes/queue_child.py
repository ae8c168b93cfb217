"""A process that puts messages, or works on them, until it is killed; what it is told, one line each.

Its arguments are JSON: url, options, what it does (put, work), its name, and how many.
"""

from __future__ import annotations

import json
import sys

from lockprovider.queue import Job, Queue
from lockprovider.state import UNCHANGED, State
from recipes.state_child import say


def main() -> None:
    url, options, verb, name, many = json.loads(sys.argv[1])
    queue = Queue.open(url, storage_options=options, pace_s=0.0)
    if verb == "put":
        say("ready")
        for first in range(0, many, 10):
            queue.put_many([f"{name}.{n}" for n in range(first + 10)], producer=name)
            say(first + 10)
        return
    effects = State.open(f"{url}.effects", storage_options=options, default=list, pace_s=0.0, keep=1000)

    def work(job: Job) -> None:
        """The effect is made once: a job's number is in it."""
        effects.update(lambda done: UNCHANGED if job.id in done else [*done, job.id])
        say(job.body)

    queue.work(work, threads=4, until_empty=name != "endless")


if __name__ == "__main__":
    main()
