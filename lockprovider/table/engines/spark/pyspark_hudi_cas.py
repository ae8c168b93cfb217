"""Entry point by which Spark finds the data source: the wheel has this file at its top, under exactly this name.

Spark searches every top-level module `pyspark_*` for a `DefaultSource`. If this import fails, Spark finds no Python
data source at all.

Source: pyspark.sql.worker.lookup_data_sources.
"""

from contextlib import suppress

with suppress(ImportError):  # without the extra `spark` there is nothing to find
    from lockprovider.table.engines.spark.data_source import HudiCas as DefaultSource

    __all__ = ["DefaultSource"]
