"""What is done on the market: one turn each, again and again, each in a thread of its own."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pyarrow as pa

from lockprovider.table import HistoryGone, KeepHours, Scan, Table
from lockprovider.table.engines import arrow
from lockprovider.table.engines import spark as engine
from lockprovider.table.engines.spark import data_source
from lockprovider.table.services import rollback as rollbacks
from lockprovider.table.transaction.transaction import Transaction, transact
from soak.market import DDL, FOUNDED, HUDI, LISTS, RATED, Market, Row, lists, rows

if TYPE_CHECKING:
    import random

TRIES = 1000
LATE = 200  # how far values of the ordering field come out of order
THINKS_S = 0.1
FOUNDERS, FOUNDATIONS = 20, 8  # numbers that all mean one list, and lists that go into one partition
KEPT_MS, HOUR_MS = 40_000, 3_600_000
SPARK_RESTS_S = 6.0  # else Spark leaves no core for commits


# -- writers -----------------------------------------------------------------------------------------------------------


def append_to_lists(market: Market, table: Table, dice: random.Random) -> None:
    """Read, think, and write what was read with one entry more."""
    chosen, entry = dice.sample(LISTS, dice.choice((1, 1, 2))), f"e{market.name()}"

    def work(txn: Transaction) -> None:
        before = lists(Scan(txn, partitions=chosen).to_arrow())
        market.history.read[entry] = before
        time.sleep(dice.random() * THINKS_S)
        arrow.write(txn, upserts=rows(*(_list(name, [*before[name], entry]) for name in chosen)))

    done = transact(table, work, retries=TRIES)
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

    done = transact(table, work, retries=TRIES)
    market.note("list appends by Spark", lambda: market.history.done.update({entry: done}))
    market.over.wait(dice.uniform(0, SPARK_RESTS_S))


def found_lists(market: Market, table: Table, dice: random.Random) -> None:
    """Append to a list that is new, as one of those who make it or after them; it may be the first in its bucket."""
    number = market.name()
    name, part, entry = f"found-{number // FOUNDERS}", f"{FOUNDED}{number // FOUNDERS // FOUNDATIONS}", f"f{number}"

    def work(txn: Transaction) -> None:
        before = lists(Scan(txn, partitions=[part]).to_arrow()).get(name, [])
        market.history.read[entry] = {name: before}
        time.sleep(dice.random() * THINKS_S)
        arrow.write(txn, upserts=rows(_list(name, [*before, entry], part)))

    done = transact(table, work, retries=TRIES)
    what = "lists founded" if done.inserted else "founded lists appended to"
    market.note(what, lambda: market.history.done.update({entry: done}))


def _list(name: str, entries: list[str], part: str = "") -> Row:
    return (name, part or name, len(entries), " ".join(entries))


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
    ways = ("arrow", "function", "data source", "SQL")
    how = dice.choice(ways[:2] if market.spec.buckets else ways)
    if how == "arrow":
        table.append(rows(*found), retries=TRIES)
    elif how == "function":
        engine.append(table, market.spark.createDataFrame(found, DDL), retries=TRIES)
    elif how == "data source":
        data_source.activate(market.spark)
        options = market.source_options(**HUDI)
        frame = market.spark.createDataFrame(found, DDL)
        frame.write.format(data_source.NAME).options(**options).mode("append").save(market.url)
    else:
        _insert_into(market, found)
    market.note(f"log by {how}", lambda: market.log.update(names))
    market.over.wait(dice.uniform(0, SPARK_RESTS_S))


def _insert_into(market: Market, found: list[Row]) -> None:
    data_source.activate(market.spark)
    options = market.source_options(path=market.url, **HUDI)
    said = ", ".join(f"{key} {_quoted(value)}" for key, value in _dotted(options).items())
    market.spark.sql(f"create or replace temporary view market using {data_source.NAME} options ({said})")
    values = ", ".join(str(row) for row in found)
    market.spark.sql(f"insert into market values {values}")  # noqa: S608 - nothing of it comes from outside


def _dotted(options: dict[str, str]) -> dict[str, str]:
    return {f"`{key}`": value for key, value in options.items()}


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "\\'") + "'"


def come_and_go(market: Market, table: Table, dice: random.Random) -> None:
    """Add some rows, and delete some of them, by key or by condition."""
    came = [f"gone-{market.name()}" for _ in range(4)]
    table.append(rows(*((name, "gone", 1, "") for name in came)), retries=TRIES)
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
    txn = Transaction(table)
    arrow.write(txn, upserts=rows(*_ratings(market, dice), (f"ghost-{txn.begin}", "log", 9, "")))
    txn.leave()
    market.note("writers vanished")
    market.over.wait(dice.uniform(2, 8))


# -- services ----------------------------------------------------------------------------------------------------------


def cluster(market: Market, table: Table, dice: random.Random) -> None:
    """Join small files; now and then only plan it, and writers wait until the next turn runs that."""
    if dice.random() < 0.2:
        table.schedule_clustering(["seq"])
    else:
        for done in table.cluster(["seq"]):
            market.note("clusterings")
            market.happened.update(files_joined=len(done.file_groups))
    market.over.wait(dice.uniform(0.5, 4))


def serve(market: Market, table: Table, dice: random.Random) -> None:
    """Clean, keep and free a savepoint, sweep. What a stream has not seen yet, however slow it is, is kept."""
    seen_ms = market.followers_ms()
    kept_ms = KEPT_MS + (0 if seen_ms is None else table.world.now_ms() - seen_ms)
    for done in table.clean(KeepHours(kept_ms / HOUR_MS)) if seen_ms is not None else ():
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
