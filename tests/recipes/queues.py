"""A queue in memory, behind a network with faults, for the tests of its front and of its segments."""

from __future__ import annotations

import uuid

from fsspec_cas import Store
from fsspec_cas.testing import Faulty, ManualClock
from lockprovider.queue import Queue, QueueSettings
from lockprovider.recipes.queue.contents import Contents

PATH = "backfill.json"


def made(store: Store, **settings) -> Queue:
    queue = Queue(store, PATH)
    queue._writer.create(Contents(uuid.uuid4().hex, QueueSettings(**settings)))
    return queue


def again(store: Store, plan: dict[str, list[object]] | None = None) -> tuple[Queue, Faulty]:
    """The same queue behind a faulty network, in a world of its own."""
    clock = ManualClock()
    faulty = Faulty(store.backend, plan or {}, world=clock)
    return Queue(Store(faulty, store.root, world=clock), PATH, world=clock), faulty


def drained(queue: Queue) -> list[object]:
    bodies = []
    for job in queue.jobs(until_empty=True):
        with job:
            bodies.append(job.body)
    return bodies
