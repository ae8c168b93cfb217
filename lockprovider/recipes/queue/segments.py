"""The objects in which messages wait that the queue's own has no room for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from fsspec_cas import Store, StoreError, Unavailable, Unknown
from lockprovider.recipes.queue.contents import Message, Segment, decode_segment


class Segments:
    """Those of one queue, in the folder `<queue>.d/segments`."""

    def __init__(self, store: Store, path: str, timeout_s: float) -> None:
        self._store = store
        self._folder = f"{path}.d/segments/"
        self._timeout_s = timeout_s

    def read(self, name: str, queue_id: str) -> tuple[Message, ...] | None:
        """Its messages; None if it is not there (any more).

        Raises:
            MalformedObject: the object is no segment of this queue.
            StoreError: the store did not answer.
        """
        path = f"{self._folder}{name}"
        content = self._store.read_or_none(path, timeout=self._timeout_s)
        return None if content is None else decode_segment(content.data, queue_id, path)

    def write(self, segment: Segment, queue_id: str) -> None:
        """Make it; that it is there already is a copy of this very write.

        Raises:
            StoreError: nobody knows whether it is there, and nothing names it.
        """
        path = f"{self._folder}{segment.name}"
        outcome = self._store.put_if_absent(path, segment.encode(queue_id), timeout=self._timeout_s)
        if isinstance(outcome, Unknown):
            raise Unavailable(f"the store did not say whether it has {path!r}: try again", path=path)

    def remove(self, names: Iterable[str]) -> None:
        """Those that nothing names any more; what cannot be removed now, `Queue.clean` removes."""
        paths = [f"{self._folder}{name}" for name in names]
        if paths:
            with contextlib.suppress(StoreError):
                self._store.delete_all(paths, timeout=self._timeout_s)

    def names(self) -> set[str]:
        """All that are there, named or not.

        Raises:
            StoreError: the store did not answer.
        """
        return {one.path.rpartition("/")[2] for one in self._store.list(self._folder, timeout=self._timeout_s)}
