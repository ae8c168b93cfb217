"""A service of an epoch that another has followed changes nothing; compaction and clustering say theirs themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from table.tables import SETTINGS, SPEC, by_hudi_rs, content, rows

from lockprovider.recipes.errors import Fenced
from lockprovider.table import ClusterEvery, KeepActive, KeepCommits, KeepVersions, Table, TableEvent, TableSettings
from lockprovider.table.format.layout import Action
from lockprovider.table.format.metadata import WriteStat
from lockprovider.table.rewrite import clustering, compaction, executor
from lockprovider.table.timeline.rewrite_plan import ClusteringRule

FEW = replace(SETTINGS, retention=KeepCommits(1), archival=KeepActive(3, 4))
LOGS = replace(SPEC, ordering="value", table_type="merge_on_read", buckets=1)

RULE = ClusteringRule()


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Two files in a partition, the older versions of one of them, and a commit of epoch 7 before others."""
    made = Table.create(str(tmp_path / "t"), SPEC, settings=TableSettings(lock=SETTINGS.lock))
    made.under(7).append(rows((1, "a", 1)))
    made.append(rows((2, "a", 2)))
    for value in range(4):
        made.upsert(rows((1, "a", value)))
    return Table.open(made.url, settings=FEW)


@pytest.fixture
def logs(tmp_path: Path) -> Table:
    """A file group with a log."""
    made = Table.create(str(tmp_path / "l"), LOGS, settings=SETTINGS)
    made.under(7).append(rows((1, "a", 1)))
    made.upsert(rows((1, "a", 2)))
    return made


SERVICES = {
    "clean": lambda table, fence: table.under(fence).clean(KeepVersions(1)),
    "archive": lambda table, fence: table.under(fence).archive(),
    "cluster": lambda table, fence: table.under(fence).cluster(),
    "schedule_clustering": lambda table, fence: table.under(fence).schedule_clustering(),
    "run_clustering": lambda table, fence: table.under(fence).run_clustering(table.schedule_clustering()),
    "unschedule_clustering": lambda table, fence: table.under(fence).unschedule_clustering(table.schedule_clustering()),
    "restore": lambda table, fence: table.under(fence).restore(table.history()[2].instant),
    "add_columns": lambda table, fence: table.under(fence).add_columns(pa.schema([("tip", pa.float64())])),
    "compact": lambda table, fence: table.under(fence).compact(),
    "schedule_compaction": lambda table, fence: table.under(fence).schedule_compaction(),
    "run_compaction": lambda table, fence: table.under(fence).run_compaction(table.schedule_compaction()),
    "unschedule_compaction": lambda table, fence: table.under(fence).unschedule_compaction(table.schedule_compaction()),
}


def done(table: Table) -> tuple[set[str], set[Any]]:
    """What was completed, but for a refused write's own rollback, and the rows."""
    instants = table.listed_timeline().instants
    return {i.file_name for i in instants if i.completion and i.action is not Action.ROLLBACK}, content(table)


@pytest.mark.parametrize("name", SERVICES)
def test_service_of_an_older_epoch_is_refused_and_changes_nothing(request, name: str) -> None:
    table: Table = request.getfixturevalue("logs" if "compact" in name else "table")
    before = done(table)
    with pytest.raises(Fenced, match="epoch 6 is over, because epoch 7 has written since") as caught:
        SERVICES[name](table, 6)
    assert caught.value.epoch == 7
    assert done(table) == before


@pytest.mark.parametrize("name", SERVICES)
def test_service_of_the_newest_epoch_completes(request, name: str) -> None:
    table: Table = request.getfixturevalue("logs" if "compact" in name else "table")
    rows_before = content(table)
    SERVICES[name](table, 7)
    if name not in ("restore", "add_columns"):
        assert content(table) == by_hudi_rs(table.url) == rows_before


@pytest.mark.parametrize("name", ["compact", "cluster", "add_columns"])
def test_service_that_commits_records_its_epoch(request, name: str) -> None:
    table: Table = request.getfixturevalue("logs" if "compact" in name else "table")
    SERVICES[name](table, 8)
    with pytest.raises(Fenced, match="epoch 7 is over, because epoch 8"):
        Table.open(table.url).under(7).append(rows((9, "a", 9)))


@pytest.mark.parametrize("kind", ["compact", "cluster"])
def test_leader_deposed_while_it_writes_files_completes_nothing(request, kind: str) -> None:
    table: Table = request.getfixturevalue("logs" if kind == "compact" else "table")

    def overtaken(tasks: Sequence[executor.RewriteTask]) -> Iterator[WriteStat]:
        written = [*executor.run_in_threads(tasks)]
        Table.open(table.url).under(8).append(rows((5, "b", 5)))
        yield from written

    before = content(table) | {(5, "b", 5)}
    rewrite = compaction.compact_table if kind == "compact" else partial(clustering.cluster_table, rule=RULE)
    with pytest.raises(Fenced, match="epoch 7 is over, because epoch 8"):
        rewrite(table.under(7), run=overtaken)
    assert content(table) == before
    (result, *_) = SERVICES[kind](Table.open(table.url), 8)
    assert result.completion
    assert content(table) == by_hudi_rs(table.url) == before


@pytest.mark.parametrize(
    "settings",
    [replace(FEW, archive_automatically=True), replace(SETTINGS, clustering=ClusterEvery(1))],
    ids=["archival", "clustering"],
)
def test_commit_succeeds_when_its_follow_up_service_is_fenced(tmp_path: Path, settings: TableSettings) -> None:
    table = Table.create(str(tmp_path / "t"), SPEC, settings=TableSettings(lock=SETTINGS.lock))
    for number in range(8):
        table.under(7).append(rows((number, "a", 1)))

    def follow(event: TableEvent) -> None:
        if event.kind == "committed":
            Table.open(table.url).under(8).append(rows((9, "a", 9)))

    late = Table.open(table.url, settings=settings, watcher=follow)
    assert late.under(7).append(rows((8, "a", 8))).inserted == 1
    assert len(content(table)) == 10
