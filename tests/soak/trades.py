"""What is done on the market: one turn each, again and again, each in a thread of its own."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from lockprovider.demo import proof
from lockprovider.table import HistoryGone, Table, Transaction
from lockprovider.table import rollback as rollbacks
from lockprovider.table.engines import arrow, hudi_cas
from lockprovider.table.engines import spark as engine
from soak.market import DDL, HUDI, LISTS, RATED, Market, Row, lists, rows

if TYPE_CHECKING:
    import random

TRIES = 1000
LATE = 200  # how far values of the ordering field come out of order
THINKS_S = 0.1
SPARK_RESTS_S, READS_EVERY_S = 6.0, 3.0  # else readers and Spark leave no core for commits


# -- writers -----------------------------------------------------------------------------------------------------------


def append_to_lists(market: Market, table: Table, dice: random.Random) -> None:
    """Read, think, and write what was read with one entry more."""
    chosen, entry = dice.sample(LISTS, dice.choice((1, 1, 2))), f"e{market.name()}"

    def work(txn: Transaction) -> None:
        before = lists(arrow.read(txn, partitions=chosen))
        market.history.read[entry] = before
        time.sleep(dice.random() * THINKS_S)
        arrow.write(txn, upserts=rows(*(_list(name, [*before[name], entry]) for name in chosen)))

    done = table.transact(work, retries=TRIES)
    market.note("list appends", lambda: market.history.done.update({entry: done}))


def append_to_lists_by_spark(market: Market, table: Table, dice: random.Random) -> None:
    """The same, with the rows on executors."""
    name, entry = dice.choice(LISTS), f"s{market.name()}"

    def work(txn: Transaction) -> None:
        seen = engine.read(market.spark, txn, partitions=[name]).collect()
        before = {row["id"]: row["value"].split() for row in seen}
        market.history.read[entry] = before
        changed = market.spark.createDataFrame([_list(name, [*before[name], entry])], DDL)
        engine.write(txn, changed)

    done = table.transact(work, retries=TRIES)
    market.note("list appends by Spark", lambda: market.history.done.update({entry: done}))
    market.over.wait(dice.uniform(0, SPARK_RESTS_S))


def _list(name: str, entries: list[str]) -> Row:
    return (name, name, len(entries), " ".join(entries))


def _ratings(market: Market, dice: random.Random) -> list[Row]:
    """Values of the ordering field that are unique, and late as often as not."""
    found = []
    for key in dice.sample(RATED, dice.randrange(1, 8)):
        unique = market.name()
        seq = max(1, unique + dice.randrange(-LATE, LATE)) * 10**6 + unique
        found.append((key, "rated", seq, f"v{unique}"))
    return found


def rate(market: Market, table: Table, dice: random.Random) -> None:
    """By pandas."""
    found = _ratings(market, dice)
    table.upsert(rows(*found).to_pandas(), retries=TRIES)
    market.note("ratings by pandas", lambda: market.rate(found))


def rate_by_spark(market: Market, table: Table, dice: random.Random) -> None:
    """By the function for DataFrames."""
    found = _ratings(market, dice)
    engine.upsert(table, market.spark.createDataFrame(found, DDL), retries=TRIES)
    market.note("ratings by Spark", lambda: market.rate(found))
    market.over.wait(dice.uniform(0, SPARK_RESTS_S))


def log(market: Market, table: Table, dice: random.Random) -> None:
    """Rows that are only ever added, by every way that there is."""
    names = [f"log-{market.name()}" for _ in range(dice.randrange(1, 20))]
    found: list[Row] = [(name, "log", 1, "") for name in names]
    how = dice.choice(("arrow", "function", "data source", "SQL"))
    if how == "arrow":
        table.append(rows(*found))
    elif how == "function":
        engine.append(table, market.spark.createDataFrame(found, DDL))
    elif how == "data source":
        hudi_cas.activate(market.spark)
        options = market.source_options(**HUDI)
        frame = market.spark.createDataFrame(found, DDL)
        frame.write.format(hudi_cas.NAME).options(**options).mode("append").save(market.url)
    else:
        _insert_into(market, found)
    market.note(f"log by {how}", lambda: market.log.update(names))
    market.over.wait(dice.uniform(0, SPARK_RESTS_S))


def _insert_into(market: Market, found: list[Row]) -> None:
    hudi_cas.activate(market.spark)
    options = market.source_options(path=market.url, **HUDI)
    said = ", ".join(f"{key} {_quoted(value)}" for key, value in _dotted(options).items())
    market.spark.sql(f"create or replace temporary view market using {hudi_cas.NAME} options ({said})")
    values = ", ".join(str(row) for row in found)
    market.spark.sql(f"insert into market values {values}")  # noqa: S608 - nothing of it comes from outside


def _dotted(options: dict[str, str]) -> dict[str, str]:
    return {f"`{key}`": value for key, value in options.items()}


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "\\'") + "'"


def come_and_go(market: Market, table: Table, dice: random.Random) -> None:
    """Add some rows, and delete some of them, by key or by condition."""
    came = [f"gone-{market.name()}" for _ in range(4)]
    table.append(rows(*((name, "gone", 1, "") for name in came)))
    market.note("came", lambda: market.gone.update(came))
    went = came[:3]
    if dice.random() < 0.8:
        table.delete(pa.table({"id": went, "part": ["gone"] * len(went)}), retries=TRIES)
    else:
        engine.delete(market.spark, table, f"id in {tuple(went)}", partitions=["gone"], retries=TRIES)
    market.note("went", lambda: market.gone.difference_update(went))


def overwrite(market: Market, table: Table, dice: random.Random) -> None:
    """Replace all of a partition by another generation."""
    generation, count = f"g{market.name()}", dice.randrange(2, 6)
    found = [(f"scratch-{n}", "scratch", 1, f"{generation} of {count}") for n in range(count)]
    frame = market.spark.createDataFrame(found, DDL)
    done = engine.insert_overwrite(table, frame, ["scratch"], retries=TRIES)
    market.note("overwrites", lambda: market.scratch.append((done.completion, found[0][3])))
    market.over.wait(dice.uniform(0, SPARK_RESTS_S))


def vanish(market: Market, table: Table, dice: random.Random) -> None:
    """Write, and be gone before the commit."""
    txn = table.transaction()
    arrow.write(txn, upserts=rows(*_ratings(market, dice), (f"ghost-{txn.begin}", "log", 9, "")))
    txn.leave()
    market.note("writers vanished")
    market.over.wait(dice.uniform(2, 8))


# -- services ----------------------------------------------------------------------------------------------------------


def serve(market: Market, table: Table, dice: random.Random) -> None:
    """Clean, keep and free a savepoint, sweep."""
    for done in table.clean():
        market.note("cleans")
        market.happened.update(files_cleaned=sum(map(len, done.files.values())))
    if dice.random() < 0.3:
        try:
            kept = table.savepoint()
        except HistoryGone:
            return
        market.note("savepoints")
        market.over.wait(dice.uniform(0, 5))
        table.delete_savepoint(kept)
    if dice.random() < 0.2:
        market.happened.update(swept=len(rollbacks.sweep(table)))
    market.over.wait(dice.uniform(0.2, 2))


# -- readers -----------------------------------------------------------------------------------------------------------


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
    market.spark.read.format(hudi_cas.NAME).options(**options).load(market.url).createOrReplaceTempView(view)
    query = f"select part, count(*) n, count(distinct id) d from {view} group by part"  # noqa: S608 - the view is ours
    counted = market.spark.sql(query).collect()
    market.spark.catalog.dropTempView(view)
    assert all(row["n"] == row["d"] for row in counted), f"rows are there twice: {counted}"
    assert {*LISTS, "rated"} <= {row["part"] for row in counted}
    market.note("read by SQL")


def read_by_hudi_rs(market: Market, table: Table, dice: random.Random) -> None:
    """By the independent reader."""
    del table
    check_moment(by_hudi_rs(market))
    market.note("read by hudi-rs")
    market.over.wait(dice.uniform(0, 2 * READS_EVERY_S))


def by_hudi_rs(market: Market) -> pa.Table:
    """All rows."""
    found: Any = proof.read(market.url, market.options)
    return found
