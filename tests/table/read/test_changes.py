"""Incremental reads: whoever consumes changes has the table, whatever the writers did and whenever it looked."""

from __future__ import annotations

import itertools
import json
import shutil
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hudi import HudiQueryType, HudiReadOptions, HudiTableBuilder
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from table.tables import SETTINGS, SPEC, by_hudi_rs, content, removed, rows, upsert

from fsspec_cas import InvalidInput, Store
from fsspec_cas.backends.local import LocalBackend
from lockprovider.table import Changes, DoesNotFit, HistoryGone, KeepCommits, KeepVersions, Order, Table, WriteConflict
from lockprovider.table.engines import arrow as engine
from lockprovider.table.transaction.transaction import Transaction, transact

_names = itertools.count()


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)


def told(found: Changes) -> set[tuple[Any, ...]]:
    return {tuple(row.values()) for row in found.to_arrow().to_pylist()}


def test_changes_are_inserts_updates_and_deletes_with_their_rows(table: Table) -> None:
    upsert(table, (1, "a", 1), (2, "a", 2), (3, "b", 3))
    first = table.changes()
    assert told(first) == {("insert", 1, "a", 1), ("insert", 2, "a", 2), ("insert", 3, "b", 3)}
    engine_delete = pa.table({"id": [1], "part": ["a"]})
    transact(table, lambda txn: engine.write(txn, upserts=rows((2, "a", 20), (4, "c", 4)), deletes=engine_delete))
    second = table.changes(first.checkpoint)
    assert told(second) == {("delete", 1, "a", 1), ("update", 2, "a", 20), ("insert", 4, "c", 4)}
    assert [i.begin for i in second.commits] == [table.history()[-1].instant]
    assert second.schema.names == ["_operation", "id", "part", "value"]


def test_changes_written_as_rows_are_refused_with_the_way_to_write_them(table: Table) -> None:
    upsert(table, (1, "a", 1))
    with pytest.raises(
        DoesNotFit, match=r"_operation is .* write the rows of each operation apart: upserts=\.\.\., deletes"
    ):
        table.upsert(table.changes().to_arrow())


def test_read_without_new_commits_keeps_the_checkpoint(table: Table) -> None:
    upsert(table, (1, "a", 1))
    seen = table.changes()
    again = table.changes(seen.checkpoint)
    assert (again.commits, again.checkpoint, again.to_arrow().num_rows) == ((), seen.checkpoint, 0)
    assert again.to_reader().read_all().schema == seen.schema


def test_changes_until_the_version_of_an_empty_table_are_none(table: Table) -> None:
    upsert(table, (1, "a", 1))
    found = table.changes(until="")
    assert (found.commits, found.checkpoint, told(found)) == ((), "", set())


def test_several_commits_are_read_as_one_change(table: Table) -> None:
    upsert(table, (1, "a", 1), (2, "a", 2))
    start = table.changes().checkpoint
    upsert(table, (1, "a", 10), (3, "a", 3))
    middle = upsert(table, (1, "a", 100), (4, "a", 4))
    table.delete(rows((3, "a", 0), (2, "a", 0)))
    upsert(table, (2, "a", 22))
    assert told(table.changes(start)) == {("update", 1, "a", 100), ("update", 2, "a", 22), ("insert", 4, "a", 4)}
    part = table.changes(start, middle.completion)
    assert part.checkpoint == middle.completion
    assert told(part) == {("update", 1, "a", 100), ("insert", 3, "a", 3), ("insert", 4, "a", 4)}


def test_incremental_rows_of_hudi_rs_are_the_inserts_and_updates(table: Table) -> None:
    upsert(table, (1, "a", 1), (2, "b", 2), (3, "b", 3))
    start = table.changes().checkpoint
    upsert(table, (2, "b", 20))
    upsert(table, (4, "a", 4))
    options = HudiReadOptions().with_query_type(HudiQueryType.Incremental).with_start_timestamp(start)
    found = HudiTableBuilder.from_base_uri(table.url).build().read(options)
    theirs = {(r["id"], r["part"], r["value"]) for batch in found for r in batch.to_pylist()}
    assert theirs == {row[1:] for row in told(table.changes(start))} == {(2, "b", 20), (4, "a", 4)}


def test_columns_partitions_and_meta_columns_of_changes_can_be_chosen(table: Table) -> None:
    upsert(table, (1, "a", 1), (2, "b", 2))
    done = upsert(table, (1, "a", 10), (2, "b", 20))
    found = table.changes(
        table.history()[-2].completion, columns=["value", "_hoodie_commit_time"], partitions=["b", "z"]
    )
    assert found.to_arrow().to_pylist() == [{"_operation": "update", "value": 20, "_hoodie_commit_time": done.instant}]
    with pytest.raises(InvalidInput, match="nothing"):
        table.changes(columns=["nothing"])


def test_changes_take_datetimes_and_named_orders(table: Table) -> None:
    upsert(table, (1, "a", 1))
    assert told(table.changes(datetime(2001, 1, 1, tzinfo=timezone.utc), order="fenced")) == {("insert", 1, "a", 1)}
    assert told(table.changes(until=datetime(2001, 1, 1, tzinfo=timezone.utc))) == set()
    with pytest.raises(ValueError, match="sideways"):
        table.changes(order="sideways")
    with pytest.raises(InvalidInput, match="is not a time"):
        table.changes("yesterday")


def test_overwritten_partition_is_reported_row_by_row(table: Table) -> None:
    upsert(table, (1, "a", 1), (2, "a", 2), (3, "b", 3))
    start = table.changes().checkpoint

    def overwrite(txn: Transaction) -> None:
        txn.end_partitions(["a"])
        engine.insert(txn, rows((2, "a", 20), (5, "a", 5)))

    transact(table, overwrite)
    assert told(table.changes(start)) == {("delete", 1, "a", 1), ("update", 2, "a", 20), ("insert", 5, "a", 5)}
    assert content(table) == by_hudi_rs(table.url) == {(2, "a", 20), (5, "a", 5), (3, "b", 3)}


def test_scan_of_changes_is_read_partition_by_partition(table: Table) -> None:
    upsert(table, (1, "a", 1), (2, "b", 2), (3, "c", 3))
    found = table.changes()
    assert [set(batch["part"].to_pylist()) for batch in found.to_reader()] == [{"a"}, {"b"}, {"c"}]
    assert found.to_reader().read_all().num_rows == found.to_arrow().num_rows == 3


class Late(LocalBackend):
    """A store whose listing of the timeline is torn: `between` happens after its beginning was listed."""

    def __init__(self, between: Any) -> None:
        self.between = between

    async def list_page(self, prefix: str, *args: Any, **kwargs: Any) -> Any:
        page = await super().list_page(prefix, *args, **kwargs)
        if prefix.rstrip("/").endswith("timeline") and self.between is not None:
            act, self.between = self.between, None
            act()
            later = await super().list_page(prefix, *args, **kwargs)
            old = {entry.path for entry in page.entries}
            last = max(old)
            seen = [entry for entry in later.entries if entry.path in old or entry.path > last]
            return type(page)(tuple(seen), later.token)
        return page


def test_commit_missed_by_a_listing_is_not_skipped(table: Table) -> None:
    """A listing in pages may show a commit and not another one that completed before it."""
    upsert(table, (1, "a", 1), (2, "b", 2))
    start = table.changes().checkpoint
    slow = Transaction(table)
    engine.write(slow, upserts=rows((1, "a", 10)))
    Transaction(table).start()  # so that the name of slow's commit is before one that was listed already

    def meanwhile() -> None:
        slow.commit()
        upsert(table, (2, "b", 20))

    torn = Table(Store(Late(meanwhile), table.url), table.url, settings=SETTINGS)
    first = torn.changes(start)
    assert told(first) | told(torn.changes(first.checkpoint)) == {("update", 1, "a", 10), ("update", 2, "b", 20)}


def test_checkpoint_is_refused_only_when_its_own_files_were_cleaned(table: Table) -> None:
    upsert(table, (1, "a", 1), (2, "b", 2))
    start = table.changes().checkpoint
    (old,) = Path(table.url).glob("a/*.parquet")
    upsert(table, (1, "a", 10))
    later = table.changes(start).checkpoint
    upsert(table, (2, "b", 20))
    old.unlink()
    with pytest.raises(HistoryGone, match="a clean removed .* such as .* in partition 'a'.*read the whole table again"):
        table.changes(start)
    assert told(table.changes(later)) == {("update", 2, "b", 20)}
    assert told(table.changes()) == {("insert", 1, "a", 10), ("insert", 2, "b", 20)}


def test_changes_kept_by_a_clean_can_be_read_and_others_are_refused(table: Table) -> None:
    done = [upsert(table, (1, "a", n), (n, "b", 0)) for n in range(1, 6)]
    assert table.clean(KeepCommits(2))[0].files
    for n, commit in enumerate(done, 1):
        try:
            seen = table.to_arrow(["value"], partitions=["a"], as_of=commit.completion)["value"].to_pylist()
            assert seen == [n]
            changed = {row[:4] for row in told(table.changes(commit.completion))}
            assert (("update", 1, "a", 5) in changed) == (n < 5)
        except HistoryGone:
            assert n < 4, "two commits are kept"
    with pytest.raises(HistoryGone, match="a clean removed"):
        table.changes(done[0].completion)
    with pytest.raises(HistoryGone, match="a clean removed"):
        table.to_arrow(as_of=done[0].completion)
    # From the beginning, too: what is gone as a whole is not taken for what never was.
    with pytest.raises(HistoryGone, match="a clean removed"):
        table.changes(until=done[0].completion)
    with pytest.raises(HistoryGone, match="a clean removed"):
        table.changes(until=done[0].completion, partitions=["a"])


class Cleaned(LocalBackend):
    """A store in which `between` happens just before the data files are listed."""

    def __init__(self, between: Any) -> None:
        self.between = between

    async def list_page(self, prefix: str, *args: Any, **kwargs: Any) -> Any:
        if ".hoodie" not in prefix and self.between is not None:
            act, self.between = self.between, None
            act()
        return await super().list_page(prefix, *args, **kwargs)


def test_files_cleaned_before_they_are_listed_are_not_skipped(table: Table) -> None:
    upsert(table, (1, "a", 1))
    start = table.changes().checkpoint
    upsert(table, (2, "b", 2))

    def meanwhile() -> None:
        upsert(table, (2, "b", 20))
        assert table.clean(KeepVersions(1))[0].files

    overtaken = Table(Store(Cleaned(meanwhile), table.url), table.url, settings=SETTINGS)
    found = overtaken.changes(start)
    assert told(found) == {("insert", 2, "b", 20)}
    assert told(table.changes(found.checkpoint)) == set()


def test_checkpoint_before_a_restore_is_refused(table: Table) -> None:
    upsert(table, (1, "a", 1))
    start = table.changes().checkpoint
    time = table.timeline().next_time(0)
    (Path(table.url) / ".hoodie" / "timeline" / f"{time}_{time}.restore").touch()
    with pytest.raises(HistoryGone, match="was restored"):
        table.changes(start)
    upsert(table, (1, "a", 2))
    assert told(table.changes()) == {("insert", 1, "a", 2)}
    assert told(table.changes(time)) == {("update", 1, "a", 2)}


def archive(table: Table, count: int) -> None:
    """Move the oldest commits from the timeline to the archive, as Hudi lays it out."""
    folder = Path(table.url) / ".hoodie" / "timeline"
    old = [i for i in table.timeline().writes if i.completion][:count]
    (folder / "history").mkdir()
    rows_ = [{"instantTime": i.begin, "completionTime": i.completion, "action": "commit"} for i in old]
    name = f"{old[0].begin}_{old[-1].begin}_0.parquet"
    pq.write_table(pa.Table.from_pylist(rows_), folder / "history" / name)
    manifest = {"files": [{"fileName": name, "fileLen": (folder / "history" / name).stat().st_size}]}
    (folder / "history" / "manifest_1").write_text(json.dumps(manifest))
    (folder / "history" / "_version_").write_text("1")
    for instant in old:
        for path in [*folder.glob(f"{instant.begin}.*"), *folder.glob(f"{instant.begin}_*")]:
            path.unlink()


def test_time_within_archived_commits_is_refused(table: Table) -> None:
    done = [upsert(table, (1, "a", n), (n, "b", n)) for n in range(1, 6)]
    archive(table, 4)  # the creation and the first three
    with pytest.raises(HistoryGone, match=f"commits up to {done[2].completion} were archived"):
        table.changes(done[1].completion)
    with pytest.raises(HistoryGone, match=f"commits up to {done[2].instant} were archived"):
        table.changes(done[1].instant, order="fenced")
    with pytest.raises(HistoryGone, match="were archived"):
        table.to_arrow(as_of=done[1].completion)
    with pytest.raises(HistoryGone, match="were archived"):
        table.changes(until=done[1].completion)
    archived = table.changes(until=done[2].completion)
    assert {row[1:] for row in told(archived)} == {(1, "a", 3), (1, "b", 1), (2, "b", 2), (3, "b", 3)}
    assert (archived.commits, archived.checkpoint) == ((), done[2].completion)
    assert told(table.changes(done[2].completion)) == {
        ("update", 1, "a", 5),
        ("insert", 4, "b", 4),
        ("insert", 5, "b", 5),
    }
    assert table.to_arrow(["value"], partitions=["a"], as_of=done[2].completion).to_pylist() == [{"value": 3}]
    assert {row[1:] for row in told(table.changes())} == content(table) == by_hudi_rs(table.url)


def test_columns_added_by_archived_commits_are_read_at_their_time(table: Table) -> None:
    table.add_columns(pa.schema([("note", pa.string())]))
    noted = [rows((1, "a", n)).append_column("note", pa.array([f"{n}"])) for n in range(3)]
    done = [table.upsert(some) for some in noted]
    archive(table, 4)  # the creation, the columns and two upserts
    assert table.to_arrow(as_of=done[1]).to_pylist() == noted[1].to_pylist()
    assert table.changes(until=done[1]).to_arrow().drop_columns("_operation").to_pylist() == noted[1].to_pylist()


# -- any history, consumed at any moments ------------------------------------------------------------------------------

Row = tuple[int, str, int]
KEYS = st.tuples(st.integers(0, 5), st.sampled_from("ab"))
ROWS = st.dictionaries(KEYS, st.integers(0, 99), min_size=1, max_size=4)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), ROWS, st.sets(KEYS, max_size=3)),
        st.tuples(st.just("overwrite"), ROWS, st.sampled_from("ab")),
        st.tuples(st.sampled_from(["commit", "abort"]), st.integers(0, 5)),
        st.just(("consume",)),
    ),
    min_size=3,
    max_size=14,
)


class Consumer:
    """Has what it was told, and nothing else; refuses to be told what cannot be."""

    def __init__(self, table: Table, order: Order) -> None:
        self.table, self.order = table, order
        self.rows: dict[tuple[int, str], int] = {}
        self.checkpoint: str | None = None

    def consume(self) -> None:
        found = self.table.changes(self.checkpoint, order=self.order)
        for change in found.to_arrow().to_pylist():
            key = change["id"], change["part"]
            assert (key in self.rows) == (change["_operation"] != "insert"), change
            if change["_operation"] == "delete":
                assert self.rows.pop(key) == change["value"], "a delete shows the row that was there"
            else:
                self.rows[key] = change["value"]
        self.checkpoint = found.checkpoint

    @property
    def content(self) -> set[Row]:
        return {(id_, part, value) for (id_, part), value in self.rows.items()}


def perform(table: Table, steps: list[tuple[Any, ...]], consumer: Consumer) -> bool:
    """Transactions that overlap as `steps` say, and a consumer that looks in between; at the end all are over.

    False if the table has a key twice, which is no set of rows any more.
    """
    open_: list[Transaction] = []
    for step in [*steps, *[("commit", 0)] * len(steps), ("consume",)]:
        match step:
            case ("begin", changed, deleted):
                open_.append(Transaction(table))
                changes = rows(*((id_, part, value) for (id_, part), value in changed.items()))
                gone = rows(*((id_, part, 0) for id_, part in deleted)).select(["id", "part"])
                engine.write(open_[-1], upserts=changes, deletes=gone)
            case ("overwrite", changed, part):
                open_.append(Transaction(table))
                open_[-1].end_partitions([part])
                fresh = {id_: value for (id_, _), value in changed.items()}
                engine.insert(open_[-1], rows(*((id_, part, value) for id_, value in fresh.items())))
            case ("commit", number) if open_:
                txn = open_.pop(number % len(open_))
                try:
                    txn.commit()
                except WriteConflict:
                    txn.rollback()
                if not has_unique_keys(table):
                    return False
            case ("abort", number) if open_:
                open_.pop(number % len(open_)).rollback()
            case ("consume",):
                consumer.consume()
    return True


def has_unique_keys(table: Table) -> bool:
    """Two writers that insert one new key at once both succeed, as promised: the table has it twice then."""
    seen = table.to_arrow(["id", "part"]).to_pylist()
    return len(seen) == len({(row["id"], row["part"]) for row in seen})


def table_in_memory() -> Table:
    table = Table.create(f"memory://changes/{next(_names)}", SPEC, settings=SETTINGS)
    table.append(rows(*((id_, part, 0) for id_ in range(6) for part in "ab")))  # no insert of a new key is a race
    return table


@pytest.mark.parametrize("order", [Order.COMPLETION, Order.FENCED])
@given(steps=STEPS)
@settings(max_examples=15, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
def test_consumer_of_changes_ends_with_the_table(order: Order, steps: list[tuple[Any, ...]]) -> None:
    table = table_in_memory()
    consumer = Consumer(table, order)
    assume(perform(table, steps, consumer))
    assert consumer.content == content(table)


@given(steps=STEPS)
@settings(max_examples=6, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
def test_consumer_of_changes_ends_with_the_rows_of_hudi_rs(steps: list[tuple[Any, ...]]) -> None:
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        table = Table.create(f"{folder}/t", SPEC, settings=SETTINGS)
        upsert(table, *((id_, part, 0) for id_ in range(6) for part in "ab"))
        consumer = Consumer(table, Order.COMPLETION)
        assume(perform(table, steps, consumer))
        assert consumer.content == by_hudi_rs(table.url)


def test_mutant_ordered_by_begin_times_misses_a_late_finisher() -> None:
    """The wrong twin: the property above would notice."""
    late = [("begin", {(1, "a"): 1}, set()), ("begin", {(1, "b"): 2}, set()), ("commit", 1), ("consume",)]
    missed = {}
    for order in Order:
        table = table_in_memory()
        consumer = Consumer(table, order)
        assert perform(table, late, consumer)
        missed[order] = content(table) - consumer.content
    assert missed == {Order.COMPLETION: set(), Order.FENCED: set(), Order.BEGIN: {(1, "a", 1)}}


@pytest.mark.parametrize("order", Order)
def test_change_feed_refuses_another_table_at_its_path(tmp_path: Path, order: Order) -> None:
    """K3: rows that were gone stayed in the mirror for ever."""
    table = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)
    upsert(table, (1, "a", 1))
    shutil.copytree(tmp_path / "t", tmp_path / "copy")
    upsert(table, (2, "a", 2))
    checkpoint = table.changes(order=order).checkpoint
    assert table.changes(after=checkpoint, order=order).commits == ()

    removed(table)
    anew = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)
    upsert(anew, (3, "a", 3))
    with pytest.raises(HistoryGone, match=f"{checkpoint} is not a commit time"):
        anew.changes(after=checkpoint, order=order)

    removed(anew)
    shutil.copytree(tmp_path / "copy", tmp_path / "t")
    back = Table.open(str(tmp_path / "t"), settings=SETTINGS)
    for _ in range(2):
        with pytest.raises(HistoryGone, match=f"{checkpoint} is not a commit time"):
            back.changes(after=checkpoint, order=order)
        upsert(back, (4, "a", 4))


def test_checkpoint_of_the_future_is_refused(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)
    upsert(table, (1, "a", 1))
    with pytest.raises(HistoryGone, match="20990101000000000 is not a commit time"):
        table.changes(after="20990101000000000")
