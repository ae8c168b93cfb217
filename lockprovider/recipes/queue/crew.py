"""Threads that work on a queue's messages."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from fsspec_cas.given import function, whole
from fsspec_cas.waiting import Worker
from lockprovider.recipes.queue.job import Job
from lockprovider.recipes.queue.reports import Worked

if TYPE_CHECKING:
    from lockprovider.recipes.queue.queue import Queue

OnError = Callable[[Job, Exception], None]


class Crew:
    """Those who call a function with each message; see `Queue.work`."""

    def __init__(
        self,
        queue: Queue,
        fn: Callable[[Job], object],
        visible_s: float | None,
        *,
        until_empty: bool,
        on_error: OnError | None,
    ) -> None:
        self._queue = queue
        self._fn = function(fn, "fn", "of a job")
        self._visible_s = visible_s
        self._until_empty = until_empty
        self._on_error = None if on_error is None else function(on_error, "on_error", "of a job and its error")
        self._worked = Worked()
        self._guard = threading.Lock()
        self._error: BaseException | None = None

    def work(self, threads: int) -> Worked:
        """On so many threads, until all are done; what ends one of them ends all."""
        crew = [Worker(self._live, "queue-crew") for _ in range(whole(threads, "threads", least=1))]
        for one in crew:
            one.start()
        try:
            for one in crew:
                while one.is_alive():
                    one.join(1.0)  # so that a Ctrl-C is seen
        except BaseException:
            self._queue.stop()
            for one in crew:
                one.join()
            raise
        if self._error is not None:
            raise self._error
        return self._worked

    def _live(self) -> None:
        try:
            for job in self._queue.jobs(visible_s=self._visible_s, until_empty=self._until_empty):
                acked = self._acked(job)
                with self._guard:
                    self._worked.acked += acked
                    self._worked.failed += not acked
                if self._error is not None:
                    return
        except BaseException as error:  # noqa: BLE001 - raised where the work was asked for
            self._error = error

    def _acked(self, job: Job) -> bool:
        try:
            with job:
                self._fn(job)
        except Exception as error:  # noqa: BLE001 - it is in the message, and told
            if self._on_error is not None:
                self._on_error(job, error)
            return False
        return job.ended == "ack"
