"""The one who writes a queue for all callers of this process: operations in, a result or an error for each out."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from fsspec_cas import (
    Cached,
    OutcomeUnknown,
    Store,
    StoreError,
    Unavailable,
    Unknown,
    Version,
    Won,
    World,
    require_safe_for_locks,
)
from fsspec_cas.send.retry import delay_s
from lockprovider.recipes.errors import Fenced, NoQueue
from lockprovider.recipes.queue.contents import Contents, decode_queue
from lockprovider.recipes.queue.operations import QueueOperation, Repeated, carry_out_all, results_of, sent_of
from lockprovider.recipes.queue.watch import Watch

_EVER = float("inf")


class QueueWriter:
    """Writes batches of operations, one at a time; knows the queue as it last wrote or read it.

    A batch is one PUT, and no GET while nobody else writes. Where the answer is lost, or another was faster, it looks
    whether one of its writes was done; else each operation is sent again, and answers for itself.
    """

    def __init__(self, store: Store, path: str, timeout_s: float, world: World) -> None:
        self.store = store
        self.path = path
        self.world = world
        self.id = ""  # of the queue, once it was read
        self.news = threading.Condition()  # told when messages become ready
        self._timeout_s = timeout_s
        self._object = Cached(store, path, timeout=timeout_s, world=world)
        self._known: tuple[Version, Contents] | None = None
        self._watch = Watch()
        self._store_is_safe = False

    def create(self, contents: Contents) -> bool:
        """Whether the queue was made; else there is one.

        Raises:
            OutcomeUnknown, StoreError: see `Store.put_if_absent`.
        """
        self._require_safe_store()
        outcome = self._object.put_if_absent(contents.encode())
        if isinstance(outcome, Unknown):
            outcome.unwrap()
        return isinstance(outcome, Won)

    def read(self, *, max_age_s: float = 0.0) -> tuple[Contents, Version]:
        """The queue as it is; not to be changed.

        Raises:
            NoQueue: there is none.
            Fenced: it is another than this one was: it was removed and made anew.
            MalformedObject: the object is no queue.
            StoreError: the store did not answer.
        """
        content = self._object.get(max_age_s=max_age_s)
        if content is None and max_age_s:  # it may have been made since
            content = self._object.get()
        if content is None:
            raise NoQueue(f"there is no queue at {self.path!r}: make it: `lockprovider queue create URL`, or create()")
        known = self._known
        if known is not None and known[0] == content.version:
            return known[1], known[0]
        contents = decode_queue(content.data, self.path)
        self.id = self.id or contents.id
        if contents.id != self.id:
            raise Fenced(f"the queue at {self.path!r} was removed and made anew: open it again")
        self._known = (content.version, contents)
        return contents, content.version

    def commit(self, operations: Sequence[QueueOperation]) -> list[Any]:
        """What each operation came to, in their order.

        Raises:
            OutcomeUnknown: nobody can tell whether they were done. Each may be repeated, and answers for itself.
            NoQueue, Fenced, MalformedObject, StoreError: for all of them; nothing was done.
        """
        deadline_s = self.world.monotonic_s() + self._timeout_s
        tries: dict[str, list[Any]] = {}
        max_age_s = _EVER
        while True:
            contents, version = self._look(tries, deadline_s, max_age_s)
            if (settled := results_of(contents, tries)) is not None:
                return self._told(settled)
            draft, results, batch = self._drafted(contents, operations, sent_of(tries, len(operations)))
            if not draft.changed and not max_age_s:
                return self._told(results)
            if draft.changed:
                self._require_safe_store()
                try:
                    outcome = self._object.put_if_match(draft.encode(), version)
                except StoreError as error:
                    if not tries:
                        raise
                    raise self._unknown(str(error)) from error
                tries[batch] = results
                if isinstance(outcome, Won):
                    self._known = (outcome.version, draft)
                    self._note(draft, len(draft.ready) - len(contents.ready))
                    return self._told(results)
                if self.world.monotonic_s() > deadline_s:
                    raise self._unknown(f"others were faster at each of {len(tries)} tries, or the store was silent")
                if len(tries) > 1:
                    self.world.sleep(delay_s(len(tries) - 1, self.world.random()))
            max_age_s = 0.0

    def idle_s(self) -> float:
        """Seconds until a claim of another may lapse; infinite if there is none."""
        return self._watch.next_s(self.world.monotonic_s())

    def _drafted(
        self, contents: Contents, operations: Sequence[QueueOperation], sent: tuple[bool, ...]
    ) -> tuple[Contents, list[Any], str]:
        self._note(contents, 0)
        lapsed = self._watch.lapsed(self.world.monotonic_s())
        draft, batch = contents.copy(), self.world.new_id()
        sent = (*(False for _ in lapsed), *sent)
        results = carry_out_all(draft, [*lapsed, *operations], self.world.now_ms(), batch, sent=sent)
        return draft, results[len(lapsed) :], batch

    def _look(self, tries: dict[str, list[Any]], deadline_s: float, max_age_s: float) -> tuple[Contents, Version]:
        failures = 0
        while True:
            try:
                return self.read(max_age_s=max_age_s)
            except StoreError as error:
                if not tries:
                    raise
                if not isinstance(error, Unavailable) or self.world.monotonic_s() > deadline_s:
                    raise self._unknown(str(error)) from error
            failures += 1
            self.world.sleep(delay_s(failures, self.world.random()))

    def _note(self, contents: Contents, more: int) -> None:
        now_ms = self.world.now_ms()
        if self._watch.seen is None and contents.claims:  # of others, who may be dead: by the store's clock
            said_ms = self.store.head(self.path, timeout=self._timeout_s).answered_ms
            now_ms = now_ms if said_ms is None else said_ms
        self._watch.look(contents, self.world.monotonic_s(), now_ms)
        if more > 0:
            with self.news:
                self.news.notify(more)

    def _told(self, results: list[Any]) -> list[Any]:
        return [self._unknown(str(one)) if isinstance(one, Repeated) else one for one in results]

    def _unknown(self, why: str) -> OutcomeUnknown:
        said = f"it is not known whether this was done to the queue {self.path!r}: {why}"
        return OutcomeUnknown(said, path=self.path)

    def _require_safe_store(self) -> None:
        if not self._store_is_safe:
            folder = self.path.rpartition("/")[0]
            require_safe_for_locks(self.store.below(folder) if folder else self.store)
            self._store_is_safe = True
