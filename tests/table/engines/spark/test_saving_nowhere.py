"""A DataFrame is saved where there is a table, and nowhere else; seen without a session, as Spark calls the source."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark", minversion="4.2")

from pyspark.sql.types import StructType

from lockprovider.table import TableNotFound
from lockprovider.table.engines.spark.data_source import HudiCas


@pytest.mark.parametrize("stream", [False, True])
def test_saving_to_a_place_without_a_table_says_what_to_do_and_makes_nothing(tmp_path: Path, stream: bool) -> None:
    source = HudiCas({"path": str(tmp_path / "nothing")})
    with pytest.raises(TableNotFound, match="makes none: create it first, with Table.create") as refused:
        source.streamWriter(StructType(), False) if stream else source.writer(StructType(), False)
    assert refused.value.__suppress_context__
    assert list(tmp_path.iterdir()) == []
