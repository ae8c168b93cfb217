"""A handle whose table is replaced, or gets another version, says so in each verb; it never reads an empty table."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from table.state.test_downgrade import set_version
from table.tables import SETTINGS, removed

from lockprovider.table import KeepActive, KeepVersions, Table, TableReplaced, TableSpec, UnsupportedTable

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = pa.table({"id": [1, 2], "city": ["ulm", "bonn"]})
SPEC = TableSpec("t", ROWS, "id", "city", table_type="merge_on_read")
MORE = pa.schema([("more", pa.int64())])

# Each public verb that looks at rows or commits, or changes something; the text is a begin time that the handle knows.
VERBS: dict[str, Callable[[Table, str], Any]] = {
    "version": lambda table, _: table.version,
    "count": lambda table, _: table.count(),
    "history": lambda table, _: table.history(),
    "snapshot": lambda table, _: table.snapshot(),
    "to_arrow": lambda table, _: table.to_arrow(),
    "scan": lambda table, _: table.scan().to_reader().read_all(),
    "to_pandas": lambda table, _: table.to_pandas(),
    "to_polars": lambda table, _: table.to_polars(),
    "to_duckdb": lambda table, _: table.to_duckdb().fetchall(),
    "changes": lambda table, begin: table.changes(begin).to_arrow(),
    "append": lambda table, _: table.append(ROWS),
    "upsert": lambda table, _: table.upsert(ROWS),
    "delete": lambda table, _: table.delete(ROWS),
    "overwrite": lambda table, _: table.overwrite(ROWS),
    "add_columns": lambda table, _: table.add_columns(MORE),
    "transaction": lambda table, _: _transacted(table),
    "transact": lambda table, _: table.transact(lambda txn: txn.upsert(ROWS)),
    "clean": lambda table, _: table.clean(KeepVersions(1)),
    "compact": lambda table, _: table.compact(),
    "schedule_compaction": lambda table, _: table.schedule_compaction(),
    "run_compaction": lambda table, begin: table.run_compaction(begin),
    "unschedule_compaction": lambda table, begin: table.unschedule_compaction(begin),
    "cluster": lambda table, _: table.cluster(),
    "schedule_clustering": lambda table, _: table.schedule_clustering(),
    "run_clustering": lambda table, begin: table.run_clustering(begin),
    "unschedule_clustering": lambda table, begin: table.unschedule_clustering(begin),
    "archive": lambda table, _: table.archive(KeepActive(1, 2)),
    "sweep": lambda table, _: table.sweep(),
    "roll_back": lambda table, begin: table.roll_back(begin, force=True),
    "savepoint": lambda table, _: table.savepoint(),
    "savepoints": lambda table, _: table.savepoints(),
    "delete_savepoint": lambda table, begin: table.delete_savepoint(begin),
    "restore": lambda table, begin: table.restore(begin),
    "adopt_bucket_index": lambda table, _: table.adopt_bucket_index(2, ["id"]),
    "share": lambda table, _: table.share(),
    "unshare": lambda table, _: table.unshare(),
    "set_visibility": lambda table, _: table.set_visibility("unordered"),
    "retire_metadata_table": lambda table, _: table.retire_metadata_table(),
    "timeline": lambda table, _: table.timeline(),
    "listed_timeline": lambda table, _: table.listed_timeline(),
}
# `doctor` and `config` look at what is there now; the others ask nothing of the table, or are called by the verbs.
OTHERS = {
    *("create", "exists", "open", "doctor", "config", "schema", "run_inline_services", "metadata_of", "data_files"),
    *("snapshot_of", "lock", "under", "locked", "now", "begin_dead_check_if_due", "report", "report_each"),
}


def _transacted(table: Table) -> None:
    with table.transaction() as txn:
        txn.upsert(ROWS)


def opened(folder: Path, writes: int = 3) -> tuple[Table, str]:
    """A handle that has read and written, and a begin time that it knows."""
    table = Table.create(str(folder / "t"), SPEC, settings=SETTINGS)
    done = [table.upsert(ROWS) for _ in range(writes)]
    assert table.count() == 2
    return table, done[0].instant


def test_verbs_of_the_list_are_all_that_a_table_has() -> None:
    public = {name for name, _ in inspect.getmembers(Table) if not name.startswith("_")}
    assert public == {*VERBS, *OTHERS}


@pytest.fixture(scope="module")
def replaced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Table, str]:
    folder = tmp_path_factory.mktemp("replaced")
    table, begin = opened(folder)
    removed(table)
    other, _ = opened(folder, writes=1)
    assert other.url == table.url
    return table, begin


@pytest.fixture(scope="module")
def downgraded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Table, str]:
    folder = tmp_path_factory.mktemp("downgraded")
    table, begin = opened(folder)
    set_version(folder / "t", 8, 6)
    return table, begin


@pytest.mark.parametrize("verb", VERBS)
def test_handle_refuses_another_table_at_its_url(replaced: tuple[Table, str], verb: str) -> None:
    table, begin = replaced
    with pytest.raises(TableReplaced, match="removed and created anew"):
        VERBS[verb](table, begin)
    assert Table.open(table.url, settings=SETTINGS).to_arrow().sort_by("id") == ROWS


@pytest.mark.parametrize("verb", VERBS)
def test_handle_refuses_a_version_that_cannot_be_read(downgraded: tuple[Table, str], verb: str) -> None:
    with pytest.raises(UnsupportedTable, match=r"hoodie.table.version=6"):
        VERBS[verb](*downgraded)
