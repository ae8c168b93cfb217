"""A table that many use at once, and what must be in it at the end.

Each partition is for one promise:

    list-*    a commit appends its own id to what it read: a lost update, or one without a commit, shows (see `History`)
    founded-* the same, of lists that are made by whoever is the first, as only a table with a bucket index can tell
    rated     values of the ordering field come in any order: the highest that was committed stays
    log       rows are only ever added: each is there once
    gone      rows come and are deleted
    scratch   is overwritten as a whole: all its rows are of one generation

What each does is in `trades` and `readers`; what of it was committed is noted here.
"""

from __future__ import annotations

import itertools
import json
import random
import threading
import traceback
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from patience import last_for
from table.test_histories import History

from fsspec_cas import Machine
from lockprovider import LockSettings
from lockprovider.table import Aborted, HeartbeatSettings, Table, TableSettings, TableSpec
from lockprovider.table.engines.spark import data_source

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Trade = Callable[["Market", Table, random.Random], None]

    from servers.base import Server

    from soak.metrics import Metrics

SCHEMA = pa.schema([("id", pa.string()), ("part", pa.string()), ("seq", pa.int64()), ("value", pa.string())])
DDL = "id string, part string, seq long, value string"
SPEC = TableSpec("market", SCHEMA, record_keys=("id",), partition_by=("part",), ordering="seq")
BUCKETS = replace(SPEC, buckets=4)
BEAT_S, MISSES, PATIENCE_S = 5, 4, 300
SETTINGS = TableSettings(
    lock=LockSettings(timeout=PATIENCE_S),
    heartbeat=HeartbeatSettings(interval_s=BEAT_S, misses=MISSES),
)
HUDI = {
    "hoodie.client.heartbeat.interval_in_ms": str(BEAT_S * 1000),
    "hoodie.client.heartbeat.tolerable.misses": str(MISSES),
    "hoodie.write.lock.wait_time_ms": str(PATIENCE_S * 1000),
}
LISTS = tuple(f"list-{n}" for n in range(3))
FOUNDED = "founded-"
RATED = tuple(f"rated-{n}" for n in range(40))

Row = tuple[str, str, int, str]


def rows(*found: Row) -> pa.Table:
    """Rows of (id, part, seq, value)."""
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in found], schema=SCHEMA)


def lists(found: pa.Table) -> dict[str, list[str]]:
    """The lists' entries by name."""
    there = (row for row in found.to_pylist() if row["part"] in LISTS or row["part"].startswith(FOUNDED))
    return {row["id"]: row["value"].split() for row in there}


class Market:
    """The table, and what those who use it say that they did."""

    def __init__(self, server: Server, spark: Any, metrics: Metrics, seed: int, spec: TableSpec = SPEC) -> None:
        self.spec = spec
        self.url, self.options, self.spark, self.metrics = server.new_prefix(), server.storage_options, spark, metrics
        self.seed = seed
        self.history = History()
        self.rated: dict[str, tuple[int, str]] = {}
        self.log: set[str] = set()
        self.gone: set[str] = set()
        self.scratch: list[tuple[str, str]] = []  # completion, generation
        self.happened: Counter[str] = Counter()
        self.failures: list[str] = []
        self.followers_ms: Callable[[], int | None] = Machine().now_ms  # up to when streams have seen everything
        self.over = threading.Event()
        self._names = itertools.count(1)
        self._guard = threading.Lock()
        self.table = Table.create(self.url, spec, storage_options=self.options, settings=SETTINGS, watcher=metrics)
        data_source.register(spark)
        first = [(name, name, 0, "") for name in LISTS] + [(name, "rated", 0, "") for name in RATED]
        self.table.upsert(rows(*first))

    def live(self, seconds: float, trades: Sequence[Trade], is_complete: Callable[[], object] = lambda: True) -> None:
        """Let all of them trade for so long, and on until `is_complete()`."""
        self.over.clear()
        threads = [
            threading.Thread(
                target=self._trade, args=(trade, random.Random(f"{self.seed}{number}")), name=trade.__name__
            )
            for number, trade in enumerate(trades)
        ]
        for thread in threads:
            thread.start()
        last_for(self.over, seconds, is_complete)
        for thread in threads:
            thread.join()

    def open(self) -> Table:
        """The table, for one user."""
        return Table.open(self.url, storage_options=self.options, settings=SETTINGS, watcher=self.metrics)

    def name(self) -> int:
        """A number that nobody else gets."""
        with self._guard:
            return next(self._names)

    def note(self, what: str, update: Callable[[], object] | None = None) -> None:
        """Count it, and write down what is true from now on."""
        with self._guard:
            self.happened[what] += 1
            if update is not None:
                update()

    def rate(self, found: Sequence[Row]) -> None:
        """These were committed: of each key the highest stays."""
        for key, _, seq, value in found:
            self.rated[key] = max(self.rated.get(key, (0, "")), (seq, value))

    def source_options(self, **more: str) -> dict[str, str]:
        """Of the data source."""
        return {"storage_options": json.dumps(self.options), **more}

    def _trade(self, trade: Trade, dice: random.Random) -> None:
        table = self.open()
        try:
            while not self.over.is_set():
                try:
                    trade(self, table, dice)
                except Exception as error:
                    if not _is_abort(error):
                        raise
                    self.note(f"{trade.__name__}: aborted")  # the machine held it up for longer than its heartbeat
        except Exception:  # noqa: BLE001 - the end of the soak
            self.failures.append(f"{trade.__name__}: {traceback.format_exc()}"[-6000:])
            self.over.set()


def _is_abort(error: Exception) -> bool:
    return isinstance(error, Aborted) or f"{Aborted.__module__}.{Aborted.__name__}: " in str(error)
