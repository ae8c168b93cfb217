"""A DataFrame is saved where there is a table, or is said what it is to be; seen without a session, as by Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark", minversion="4.2")

from pyspark.sql.types import StructType

from fsspec_cas import InvalidInput
from lockprovider.table import TableNotFound
from lockprovider.table.engines.spark.data_source import HudiCas


def test_batch_of_a_stream_does_not_replace_those_before_it(tmp_path: Path) -> None:
    for more in ({"hoodie.datasource.write.operation": "insert_overwrite"}, {"if_exists": "error"}):
        with pytest.raises(InvalidInput, match="replace those before|cannot be used with a streaming write"):
            HudiCas({"path": str(tmp_path / "nothing"), **more}).streamWriter(StructType(), False)


@pytest.mark.parametrize("stream", [False, True])
def test_save_without_a_table_says_what_to_do_and_makes_nothing(tmp_path: Path, stream: bool) -> None:
    source = HudiCas({"path": str(tmp_path / "nothing")})
    with pytest.raises(TableNotFound, match="set hoodie") as refused:
        source.streamWriter(StructType(), False) if stream else source.writer(StructType(), False)
    assert refused.value.__suppress_context__
    assert list(tmp_path.iterdir()) == []
