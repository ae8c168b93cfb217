"""A rollback that a JVM writer executes: planned under the lock, carried out without it, and without a heartbeat."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

from table.tables import SETTINGS, SPEC, by_hudi_rs, content, data_files, rows, upsert

from lockprovider.table import Aborted, HeartbeatSettings, Table
from lockprovider.table.engines import arrow as engine
from lockprovider.table.layout import TIMELINE, heartbeat_path
from lockprovider.table.metadata import RollbackPlan, encode_rollback_plan


def test_a_rollback_that_another_has_just_planned_is_left_to_it_and_finished_only_when_it_is_dead(
    tmp_path: Path,
) -> None:
    table = Table.create(str(tmp_path), SPEC, settings=SETTINGS)
    victim = table.transaction()
    engine.write(victim, upserts=rows((1, "a", -1)))
    victim.leave()
    table.store.delete(heartbeat_path(victim.begin))  # as a JVM writer does when it has lost a conflict
    planned = table.timeline().next_time(table.world.now_ms())
    plan = encode_rollback_plan(RollbackPlan(victim.begin, "commit"))
    table.store.put_if_absent(f"{TIMELINE}/{planned}.rollback.requested", plan).unwrap()
    table.store.put_if_absent(f"{TIMELINE}/{planned}.rollback.inflight", b"").unwrap()

    upsert(table, (2, "b", 2))
    assert victim.begin in table.timeline().pending_writes
    assert table.timeline().pending_rollbacks == (planned,)

    beating = replace(SETTINGS, heartbeat=HeartbeatSettings(interval_s=0.2, misses=1))
    impatient = Table.open(str(tmp_path), settings=beating)
    written = 2
    for turn in range(500):
        if victim.begin not in table.timeline().pending_writes:
            break
        with contextlib.suppress(Aborted):  # of a writer that the machine held up for longer than its own interval
            upsert(impatient, (2, "b", turn))
            written = turn
    assert table.timeline().pending_rollbacks == ()
    assert not [path for path in data_files(tmp_path) if victim.begin in path]
    assert content(table) == by_hudi_rs(str(tmp_path)) == {(2, "b", written)}
