"""Compaction and clustering as Dask tasks: the same files as by a run in one process, with hudi-rs as the judge."""

from __future__ import annotations

from pathlib import Path

import dask
import pytest
from table.engines.rewriting import SORT, check_goes_on, check_same, with_plan

from fsspec_cas import InvalidInput
from lockprovider.table import Table
from lockprovider.table.engines import dask as engine
from lockprovider.table.rewrite.executor import run_in_threads


@pytest.mark.parametrize(("compaction", "scheduler"), [(True, "processes"), (True, "threads"), (False, "threads")])
def test_plan_run_by_dask_writes_the_same_files_as_a_local_run(
    tmp_path: Path, compaction: bool, scheduler: str
) -> None:
    table, copy, begin = with_plan(tmp_path, compaction=compaction)
    with dask.config.set(scheduler=scheduler, num_workers=2):
        if compaction:
            assert engine.compact(table, begin)[0].log_files == copy.run_compaction(begin).log_files > 3
            assert engine.compact(table) == ()
        else:
            (done,) = engine.cluster(table, instant=begin)
            assert done.new_file_groups == copy.run_clustering(begin).new_file_groups
            assert engine.cluster(table, SORT) == ()
    check_same(table, copy, begin)


def test_scheduled_clustering_takes_no_other_arguments(tmp_path: Path) -> None:
    table, _, begin = with_plan(tmp_path, compaction=False)
    for arguments in ({"sort_by": SORT}, {"target_file_bytes": 5}, {"small_file_bytes": 5}):
        with pytest.raises(InvalidInput, match=f"clustering {begin} runs by its plan: leave out sort_by"):
            engine.cluster(table, **arguments, instant=begin)  # type: ignore[arg-type]


@pytest.mark.parametrize("compaction", [True, False])
def test_work_of_a_dead_executor_is_continued(tmp_path: Path, compaction: bool) -> None:
    def finish(table: Table) -> None:
        engine.compact(table) if compaction else engine.cluster(table, SORT)

    check_goes_on(tmp_path, run_in_threads, finish, compaction=compaction)
