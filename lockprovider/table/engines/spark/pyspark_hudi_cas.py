"""Entry point by which Spark finds the data source, at the wheel's top under exactly this name.

A failing import here would hide all Python data sources.
"""

from contextlib import suppress

with suppress(ImportError):  # without the extra `spark` there is nothing to find
    from lockprovider.table.engines.spark.data_source import HudiCas as DefaultSource

    __all__ = ["DefaultSource"]
