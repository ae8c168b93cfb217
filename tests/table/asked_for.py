"""What a table asks of its store, by name: a backend that keeps a list."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from patience import until

from fsspec_cas import Store
from fsspec_cas.outcome import Write
from lockprovider import HUDI_LOCK_PATH, LockRecord
from lockprovider.table import Table, TableSettings

_REQUESTS = ("put", "get", "head", "delete", "list_page")
_NAMES = {
    r".*/hoodie\.properties": "properties",
    r".*/timeline/": "timeline",
    r".*/timeline/\d+_\d+\.\w+": "completed",
    r".*/timeline/\d+\.\w+\.requested": "requested",
    r".*/timeline/\d+\.(\w+\.)?inflight": "inflight",
    r".*/\.heartbeat/.*": "heartbeat",
    r".*\.marker\.\w+": "marker",
    r".*/\.temp/\d+/MARKERS.*": "marker",
    r".*/\.hoodie_partition_metadata": "metafile",
    r".*\.parquet": "data",
    r".*/table_lock\.json": "lock",
    r".*/staged/.*": "staged",
    r".*/\.locks/footers/.*": "notes",
    r".*/\.temp/.*/": "markers",
    r".*/\.locks/intents/.*": "intents",
}


class Asked:
    """Any backend; `names` is what was asked of it. Objects that go together are removed in one request, as on S3."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.name, self.capabilities, self.blocking = inner.name, inner.capabilities, inner.blocking
        self.names: list[str] = []

    def __getattr__(self, name: str) -> Any:
        request = getattr(self.inner, name)
        if name not in _REQUESTS:
            return request

        def send(path: str | Write, *args: Any, **kwargs: Any) -> Any:
            asked = path.path if isinstance(path, Write) else path
            self.names.append(f"{name} {self._of(asked)}")
            return request(path, *args, **kwargs)

        return send

    async def delete_batch(self, paths: Sequence[str], *, timeout_s: float) -> Any:
        self.names.append("delete " + ", ".join(sorted(map(self._of, paths))))
        if hasattr(self.inner, "delete_batch"):
            return await self.inner.delete_batch(paths, timeout_s=timeout_s)
        return [await self.inner.delete(path, None, timeout_s=timeout_s) for path in paths][-1]

    @staticmethod
    def _of(path: str) -> str:
        return next((name for pattern, name in _NAMES.items() if re.fullmatch(pattern, path)), "files")


def counted(table: Table, settings: TableSettings) -> tuple[Table, Asked]:
    """The same table, and what is asked through it."""
    asked = Asked(table.store.backend)
    store = Store(asked, table.store.root)  # type: ignore[arg-type] # by name
    return Table(store, table.url, storage_options=table.storage_options, settings=settings), asked


def at_rest(table: Table) -> None:
    """What goes on behind the last commit is done: the lock is freed, and what was left over is removed."""
    store = Store(getattr(table.store.backend, "inner", table.store.backend), table.store.root)
    until(lambda: LockRecord.decode(store.read(HUDI_LOCK_PATH).data).expired and not store.list(".hoodie/.heartbeat/"))
