"""Dask under an epoch that another has followed commits nothing; workers are sent tables that keep theirs."""

from __future__ import annotations

import pickle
from pathlib import Path

import dask.dataframe as dd
import pytest
from table.tables import SETTINGS, SPEC, by_hudi_rs, content, rows

from lockprovider.recipes.errors import Fenced
from lockprovider.table import Table
from lockprovider.table.engines import dask as engine


def test_dask_writes_and_services_are_fenced_as_their_table_is(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)
    for number in (1, 2):
        table.under(7).append(rows((number, "a", 1)))
    more = dd.from_pandas(rows((3, "b", 3)).to_pandas(), npartitions=1)
    for refused in (
        lambda: engine.append(table.under(6), more),
        lambda: engine.upsert(table.under(6), more),
        lambda: engine.delete(table.under(6), more),
        lambda: engine.cluster(table.under(6)),
    ):
        with pytest.raises(Fenced, match="epoch 6 is over, because epoch 7"):
            refused()
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 1), (2, "a", 1)}
    engine.upsert(table.under(7), more)
    assert engine.cluster(table.under(8))
    with pytest.raises(Fenced, match="epoch 7 is over, because epoch 8"):
        table.under(7).append(rows((4, "d", 4)))


def test_table_that_is_sent_elsewhere_keeps_its_fence(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), SPEC).under(("loader", 7))
    assert pickle.loads(pickle.dumps(table)).fence == table.fence
