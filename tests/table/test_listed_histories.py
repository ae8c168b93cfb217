"""Random histories as in `test_service_histories`, of tables whose metadata table is kept, and compacted in between.

After each step readers by the metadata table, hudi-rs among them, have the rows that a listing of the folders has.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from table.listed_tables import check_listed, with_listing
from table.mor_tables import COLUMNS, SETTINGS, content
from table.test_non_blocking import BLIND, SPEC, another
from table.test_service_histories import KINDS, SERVICES, WRITES, History, Ordinary, play

from lockprovider.table import Table, TableSpec
from lockprovider.table.services import metadata_table
from lockprovider.table.state.metadata_table import own_timeline

READS = replace(SETTINGS, read_from_metadata=True)


class _Listed(History):
    """A restore retires the metadata table: there is none here."""

    settings = replace(BLIND, write_metadata=True)
    steps = [*WRITES, *(one for one in SERVICES if one != "restore"), "compact_listing"]

    def compact_listing(self) -> None:
        table = self.fresh()
        with table.lock.acquire() as lease:
            metadata_table.compact(table, lease, own_timeline(table.store))

    def look(self) -> None:
        super().look()
        check_listed(Path(self.table.url))
        assert content(another(self.table, READS)) == content(self.fresh())


class _ListedOrdinary(_Listed, Ordinary):
    settings = replace(SETTINGS, write_metadata=True)
    steps = [*(one for one in Ordinary.steps if one != "restore"), "compact_listing"]


def history(folder: Path, kind: str, seed: int) -> None:
    random = Random(seed)
    how, spec = _Listed, SPEC
    if kind in KINDS:
        how, spec = _ListedOrdinary, TableSpec("t", COLUMNS, ("id",), ("part",), **KINDS[kind])
    table = Table.create(str(folder), spec, settings=replace(how.settings, write_metadata=None))
    with_listing(folder)
    play(how(table, random, deletes=how is _Listed and bool(seed % 2)), random.randint(8, 16), seed)


@pytest.mark.parametrize("kind", ["non-blocking", "by event"])
def test_all_readers_have_the_same_rows_after_each_step(tmp_path: Path, seed: int, kind: str) -> None:
    history(tmp_path / "t", kind, seed)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["non-blocking", *KINDS])
@pytest.mark.parametrize("number", range(30))
def test_all_readers_have_the_same_rows_after_each_step_often(
    tmp_path: Path, seed: int, number: int, kind: str
) -> None:
    history(tmp_path / "t", kind, seed + number)
