"""JVM Hudi's SQL procedures over a table of ours: what shows something works, what does something leaves right rows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from table.tables import SPEC, content, upsert

from jvm.shared_table import new_table
from jvm.test_spark_without_settings import PLAIN, same
from lockprovider.table import Table, TableReplaced

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers.seaweedfs import SeaweedFS

    from jvm.spark import HudiSpark

pytestmark = pytest.mark.jvm
ROWS = {(1, "a", 10), (2, "b", 2)}

# Of each: whether it has something to show. `{begin}` is the instant of our last commit.
SHOWS = {
    "archive_commits(table => 't', min_commits => 20, max_commits => 30)": True,
    "commits_compare(table => 't', path => '{url}')": True,
    "copy_to_temp_view(table => 't', view_name => 'seen')": True,
    "repair_add_partition_meta(table => 't')": False,
    "repair_corrupted_clean_files(table => 't')": True,
    "repair_migrate_partition_meta(table => 't')": True,
    "show_archived_commits(table => 't')": False,
    "show_clean_plans(table => 't')": False,
    "show_cleans(table => 't')": False,
    "show_cleans_metadata(table => 't')": False,
    "show_clustering(table => 't')": False,
    "show_commit_extra_metadata(table => 't', instant_time => '{begin}')": True,
    "show_commit_files(table => 't', instant_time => '{begin}')": True,
    "show_commit_partitions(table => 't', instant_time => '{begin}')": True,
    "show_commit_write_stats(table => 't', instant_time => '{begin}')": True,
    "show_commits(table => 't')": True,
    "show_commits_metadata(table => 't')": True,
    "show_fs_path_detail(path => '{url}')": True,
    "show_fsview_all(table => 't', path_regex => '*')": True,
    "show_fsview_latest(table => 't', partition_path => 'a')": True,
    "show_invalid_parquet(path => '{url}')": False,
    "show_rollbacks(table => 't')": False,
    "show_savepoints(table => 't')": False,
    "show_table_properties(table => 't')": True,
    "show_timeline(table => 't')": True,
    "stats_file_sizes(table => 't')": True,
    "stats_wa(table => 't')": True,
}


@pytest.fixture
def table(hudi: HudiSpark, seaweedfs: SeaweedFS) -> Iterator[Table]:
    made = new_table(seaweedfs, settings=PLAIN)
    upsert(made, (1, "a", 10))
    hudi.sql(f"create table t using hudi location '{made.url}'")
    yield made
    hudi.sql("drop table t")


def last(table: Table) -> str:
    return table.history()[-1].instant


def test_procedure_that_only_shows_works_and_changes_nothing(hudi: HudiSpark, table: Table) -> None:
    wrong = {}
    for call, shows in SHOWS.items():
        found = hudi.sql("call " + call.format(url=table.url, begin=last(table)))
        if bool(found) is not shows:
            wrong[call] = found
    assert wrong == {}
    assert same(hudi, table) == ROWS


def test_rollback_to_python_instant_undoes_later_commits(hudi: HudiSpark, table: Table) -> None:
    upsert(table, (3, "c", 3))
    hudi.sql(f"call rollback_to_instant(table => 't', instant_time => '{last(table)}')")
    assert same(hudi, table) == ROWS
    upsert(table, (3, "c", 33))
    assert same(hudi, table) == ROWS | {(3, "c", 33)}


def test_restore_to_savepoint_returns_its_rows_and_python_writes_go_on(hudi: HudiSpark, table: Table) -> None:
    hudi.sql(f"call create_savepoint(table => 't', commit_time => '{last(table)}')")
    (kept,) = table.savepoints()
    upsert(table, (1, "a", 11), (4, "d", 4))
    hudi.sql(f"call rollback_to_savepoint(table => 't', instant_time => '{last_savepoint(hudi)}')")
    assert kept
    assert same(hudi, table) == ROWS
    upsert(table, (4, "d", 44))
    hudi.sql(f"call delete_savepoint(table => 't', instant_time => '{last_savepoint(hudi)}')")
    assert table.savepoints() == {}
    assert same(hudi, table) == ROWS | {(4, "d", 44)}


def last_savepoint(hudi: HudiSpark) -> str:
    return str(hudi.sql("call show_savepoints(table => 't')")[0][0])


def test_services_of_the_jvm_keep_all_rows(hudi: HudiSpark, table: Table) -> None:
    upsert(table, (1, "a", 12))
    hudi.sql("call run_clustering(table => 't')")
    assert content(table) == {(1, "a", 12), (2, "b", 2)}
    upsert(table, (2, "b", 22))
    hudi.sql("call run_clean(table => 't', clean_policy => 'KEEP_LATEST_FILE_VERSIONS', file_versions_retained => 1)")
    assert hudi.sql("call show_clustering(table => 't')")
    assert same(hudi, table) == {(1, "a", 12), (2, "b", 22)}


def test_dropped_partition_is_gone_and_can_be_written_again(hudi: HudiSpark, table: Table) -> None:
    hudi.sql("call drop_partition(table => 't', partition => 'b')")
    assert same(hudi, table) == {(1, "a", 10)}
    upsert(table, (2, "b", 23))
    assert same(hudi, table) == {(1, "a", 10), (2, "b", 23)}


def test_log_files_of_ours_are_shown_and_compacted(hudi: HudiSpark, seaweedfs: SeaweedFS) -> None:
    spec = replace(SPEC, table_type="merge_on_read", ordering="value")
    table = new_table(seaweedfs, spec, settings=PLAIN)
    upsert(table, (1, "a", 10))
    hudi.sql(f"create table logged using hudi location '{table.url}'")
    try:
        pattern = f"log_file_path_pattern => '{table.url}/*/.*.log.*'"
        assert hudi.sql(f"call show_logfile_metadata(table => 'logged', {pattern})")
        records = hudi.sql(f"call show_logfile_records(table => 'logged', {pattern})")
        assert any("10" in str(record) for record in records)
        soon = "options => 'hoodie.compact.inline.max.delta.commits=1'"
        hudi.sql(f"call run_compaction(op => 'scheduleAndExecute', table => 'logged', {soon})")
        assert table.timeline().writes[-1].action.value == "commit"
        assert content(table) == ROWS
        upsert(table, (2, "b", 20))
        assert content(table) == {(1, "a", 10), (2, "b", 20)}
    finally:
        hudi.sql("drop table logged")


def test_truncated_table_is_another_table_to_an_open_handle(hudi: HudiSpark, table: Table) -> None:
    hudi.sql("call truncate_table(table => 't')")
    with pytest.raises(TableReplaced):
        upsert(table, (5, "e", 5))
    anew = Table.open(table.url, storage_options=table.storage_options, settings=PLAIN)
    assert anew.to_arrow().num_rows == 0
    upsert(anew, (5, "e", 5))
    assert same(hudi, anew) == {(5, "e", 5)}
