"""What makes Spark find the data source by itself: the wheel has this file at its top, under this very name.

Spark looks into every top-level module `pyspark_*` for a `DefaultSource`. It must never fail to import, or no Python
data source at all is found.

Source: pyspark.sql.worker.lookup_data_sources.
"""

from contextlib import suppress

with suppress(ImportError):  # without the extra `spark` there is nothing to find
    from lockprovider.table.engines.spark.data_source import HudiCas as DefaultSource

    __all__ = ["DefaultSource"]
