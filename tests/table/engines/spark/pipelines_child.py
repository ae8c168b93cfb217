"""A driver of its own that writes, or runs a query, and ends itself and its JVM by SIGKILL at the moment it is told.

python -m table.engines.spark.pipelines_child FOLDER main|tally EVENT    # as soon as so many events came
python -m table.engines.spark.pipelines_child FOLDER tally between       # two writes of a batch
python -m table.engines.spark.pipelines_child FOLDER versions task|before|after    # the commit of a batch
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from table.conftest import QUICK
from table.engines.spark.pipelines import WRITERS, Streams
from table.engines.spark.spark_tables import to_its_end

from lockprovider import LockSettings
from lockprovider.table import Table, TableEvent, TableSettings
from lockprovider.table.engines.java import spark_session
from lockprovider.table.engines.spark.data_source import HudiCas, register
from lockprovider.table.engines.spark.writer import StreamWriter

GROUP = os.getpgrp()  # this process and its JVM
LEASE_S = 20  # of who dies with it
SETTINGS = TableSettings(lock=LockSettings(validity=LEASE_S))
OPTIONS = {
    "hoodie.write.lock.storage.validity.timeout.secs": str(LEASE_S),
    "hoodie.write.lock.storage.renew.interval.secs": str(LEASE_S // 10),
}


def die() -> None:
    os.killpg(GROUP, signal.SIGKILL)


class Killing(StreamWriter):
    moment = ""

    def write(self, iterator: Iterator[Any]) -> Any:
        written = super().write(iterator)
        if self.moment == "task":
            die()
        return written

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803 - Spark's name
        if self.moment == "before":
            die()
        super().commit(messages, batchId)
        if messages and self.moment == "after":
            die()


class Source(HudiCas):
    """The data source, whose stream writer dies."""

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
        return Killing(super().streamWriter(schema, overwrite).job)


def main(folder: Path, what: str, moment: str) -> None:
    spark = spark_session("pipelines", cores=2)
    for key, value in QUICK.items():
        spark.conf.set(key, value)
    left = int(moment) if moment.isdecimal() else -1

    def heard(_: TableEvent) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            die()

    streams = Streams(spark, folder, settings=SETTINGS, watcher=heard, options=OPTIONS)
    if what == "main":
        engine, some = pickle.loads((folder / "change").read_bytes())
        WRITERS[engine][some.verb](spark, Table.open(str(folder / "main"), settings=SETTINGS, watcher=heard), some)
    elif what == "tally":
        register(spark)
        streams.between = die if moment == "between" else streams.between
        name = (folder / "stream_id").read_text() or None
        to_its_end(streams.tally(Path((folder / "checkpoint").read_text()), name))
    else:
        Killing.moment = moment
        spark.dataSource.register(Source)
        to_its_end(streams.versions(folder / "versions-checkpoint"))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
