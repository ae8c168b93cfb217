"""Who reads on the market: what is seen is of one moment, and no moment is older than one seen before."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException

from lockprovider.demo import proof
from lockprovider.table import HistoryGone, Table
from lockprovider.table.engines.spark import data_source
from lockprovider.table.state.as_of import misses_file
from soak.market import LISTS, Market, lists

if TYPE_CHECKING:
    import random

READS_EVERY_S = 3.0  # else readers leave no core for commits


class Reader:
    """Sees one moment after the other; nothing of a later one may be older than in an earlier one."""

    __name__ = "reader"

    def __init__(self) -> None:
        self.lists: dict[str, list[str]] = {}
        self.rated: dict[str, int] = {}
        self.log: set[str] = set()

    def __call__(self, market: Market, table: Table, dice: random.Random) -> None:
        market.over.wait(dice.uniform(0, READS_EVERY_S))
        if dice.random() < 0.3:
            self.look_back(market, table, dice)
            return
        found = table.to_arrow()
        check_moment(found)
        seen = lists(found)
        assert all(seen[name][: len(entries)] == entries for name, entries in self.lists.items()), "entries are gone"
        rated = {row["id"]: row["seq"] for row in found.to_pylist() if row["part"] == "rated"}
        assert all(rated[key] >= seq for key, seq in self.rated.items()), "an older row is back"
        log_ = {row["id"] for row in found.to_pylist() if row["part"] == "log"}
        assert self.log <= log_, f"rows are gone: {sorted(self.log - log_)}"
        self.lists, self.rated, self.log = seen, rated, log_
        market.note("read")

    def look_back(self, market: Market, table: Table, dice: random.Random) -> None:
        """The past is of one moment too, as long as it can be read."""
        commit = dice.choice(table.timeline().writes)
        try:
            check_moment(table.to_arrow(as_of=commit.completion))
        except HistoryGone:
            market.note("read of a past that is gone")
        else:
            market.note("read of the past")


def check_moment(found: pa.Table) -> None:
    """What is true of the table at every moment."""
    ids = Counter(zip(found["part"].to_pylist(), found["id"].to_pylist(), strict=True))
    assert max(ids.values(), default=1) == 1, f"twice: {[key for key, times in ids.items() if times > 1]}"
    generations = Counter(found.filter(pc.equal(found["part"], "scratch"))["value"].to_pylist())
    assert len(generations) <= 1, f"half an overwrite: {generations}"
    for generation, count in generations.items():
        assert generation.endswith(f" of {count}"), f"{count} rows of {generation}"
    assert not any(name.startswith("ghost") for name in found["id"].to_pylist()), "a row that nobody committed"


def read_by_sql(market: Market, table: Table, dice: random.Random) -> None:
    """Through a temporary view."""
    del table
    market.over.wait(dice.uniform(0, 2 * READS_EVERY_S))
    view = f"market_{market.name()}"
    options = market.source_options()
    market.spark.read.format(data_source.NAME).options(**options).load(market.url).createOrReplaceTempView(view)
    query = f"select part, count(*) n, count(distinct id) d from {view} group by part"  # noqa: S608 - the view is ours
    try:
        counted = market.spark.sql(query).collect()
    except PySparkException as error:
        if not misses_file(error):
            raise
        market.note("read by SQL of what is gone")  # a view is of the moment of its making
        return
    finally:
        market.spark.catalog.dropTempView(view)
    assert all(row["n"] == row["d"] for row in counted), f"rows are there twice: {counted}"
    assert {*LISTS, "rated"} <= {row["part"] for row in counted}
    market.note("read by SQL")


def read_by_hudi_rs(market: Market, table: Table, dice: random.Random) -> None:
    """By the independent reader."""
    del table
    try:
        found = by_hudi_rs(market)
    except Exception as error:
        if "not found" not in str(error).lower():
            raise
        market.note("read by hudi-rs of what is gone")
        return
    check_moment(found)
    market.note("read by hudi-rs")
    market.over.wait(dice.uniform(0, 2 * READS_EVERY_S))


def by_hudi_rs(market: Market) -> pa.Table:
    """All rows."""
    found: Any = proof.read(market.url, market.options)
    return found
