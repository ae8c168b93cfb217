"""A stream of a client of Spark Connect, whose batches a process of the server writes; prints what it saw."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from table.engines.spark.connect_child import session
from table.engines.spark.spark_tables import to_its_end
from table.own_process import tell
from table.tables import SETTINGS, SPEC, content, upsert

from lockprovider.table import Table
from lockprovider.table.engines.spark import functions
from lockprovider.table.engines.spark.stream import batches, upserts


def main(folder: Path) -> None:
    spark = session()
    source, sink = (Table.create(str(folder / name), SPEC, settings=SETTINGS) for name in ("source", "sink"))

    def run(checkpoint: str, each: Any) -> str:
        stream = spark.readStream.format("hudi_cas").load(source.url).writeStream.foreachBatch(each)
        stream = stream.trigger(availableNow=True).option("checkpointLocation", str(folder / checkpoint))
        while True:
            try:
                to_its_end(stream.start)
            except Exception as error:  # noqa: BLE001 - told
                if "failed to connect back" not in str(error):  # of a busy machine
                    return str(error)
            else:
                return ""

    small, large = batches(sink, functions.insert, stream_id="orders"), upserts(sink, stream_id="orders")

    def twice(rows: Any, batch: int) -> None:
        small(rows.where("id < 10"), batch)
        large(rows.where("id >= 10"), batch)

    upsert(source, (1, "a", 1), (10, "a", 1))
    seen: dict[str, Any] = {"unnamed": run("unnamed", upserts(sink)), "first": run("one", twice)}
    upsert(source, (2, "a", 2), (20, "a", 2))
    seen |= {"second": run("one", twice), "anew": run("two", twice)}
    seen["rows"] = sorted(content(sink))
    tell(seen)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
