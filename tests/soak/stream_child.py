"""A process with two streams out of one table: `stream_child.py CONFIG [finish]`, CONFIG is JSON.

One copies the log partition into a table through the data source's sink; one mirrors all changes, deletes too, in
another. With `finish` they end when they have caught up.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from lockprovider.table import Table
from lockprovider.table.engines import spark as engine
from lockprovider.table.engines.java import spark_session
from lockprovider.table.engines.spark import data_source
from lockprovider.table.engines.spark.stream import batches
from soak.market import HUDI, SETTINGS

PAUSE = "2 seconds"


def change(txn: Any, changes: Any) -> None:
    """One batch of changes."""
    kind, names = changes["_operation"], [name for name in changes.columns if name != "_operation"]
    engine.write(txn, changes.where(kind != "delete").select(names), changes.where(kind == "delete").select(names))


def main() -> None:
    config, finish = json.loads(sys.argv[1]), sys.argv[2:] == ["finish"]
    trigger: dict[str, Any] = {"availableNow": True} if finish else {"processingTime": PAUSE}
    spark = spark_session("streams", cores=2)
    data_source.register(spark)
    options = {"storage_options": json.dumps(config["options"])}
    source = spark.readStream.format(data_source.NAME).options(**options)
    mirror = Table.open(config["mirror"], storage_options=config["options"], settings=SETTINGS)

    def start(rows: Any, name: str) -> Any:
        return rows.writeStream.trigger(**trigger).option("checkpointLocation", f"{config['checkpoints']}/{name}")

    mirrored = start(source.option("changes", "true").load(config["url"]), "mirror")
    copied = start(
        spark.readStream.format(data_source.NAME).options(**options, partitions="log").load(config["url"]), "copy"
    )
    queries = [
        mirrored.foreachBatch(batches(mirror, change)).start(),
        copied.format(data_source.NAME).options(**options, **HUDI).outputMode("append").start(config["copy"]),
    ]
    for query in queries:
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
