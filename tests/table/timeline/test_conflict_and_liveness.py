from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockprovider import InvalidSettings
from lockprovider.table import FailedWrites, Mode, TableSettings, WriteConflict
from lockprovider.table.format.layout import Action, Instant, InstantState, format_ms
from lockprovider.table.format.metadata import CommitMetadata, WriteStat
from lockprovider.table.settings import HeartbeatSettings
from lockprovider.table.state.heartbeat import dead
from lockprovider.table.timeline.conflict import (
    ConcurrentOperation,
    archived_since,
    by_file_group,
    by_partition,
    completed_since,
    prefer_writer,
    undone_since,
)
from lockprovider.table.timeline.retention import KeepCommits, KeepHours, KeepVersions
from lockprovider.table.timeline.timeline import Timeline

A, B, C, D = (format_ms(1_000 * number) for number in range(1, 5))
Groups = frozenset[tuple[str, str]]


def wrote(*groups: tuple[str, str], retired: dict[str, tuple[str, ...]] | None = None) -> CommitMetadata:
    stats = {p: tuple(WriteStat(f, f"{p}/{f}", p) for q, f in groups if q == p) for p, _ in groups}
    return CommitMetadata(stats, "UPSERT", replaced=retired or {})


def mine(*groups: tuple[str, str], name: str = "UPSERT") -> ConcurrentOperation:
    return ConcurrentOperation(Instant(D, Action.COMMIT, InstantState.INFLIGHT), name, frozenset(groups))


def pending(*groups: tuple[str, str], name: str = "UNKNOWN") -> ConcurrentOperation:
    return ConcurrentOperation(Instant(A, Action.CLUSTERING, InstantState.REQUESTED), name, frozenset(groups))


def completed(
    *groups: tuple[str, str], begin: str = A, retired: dict[str, tuple[str, ...]] | None = None
) -> ConcurrentOperation:
    return ConcurrentOperation.of(
        Instant(begin, Action.COMMIT, InstantState.COMPLETED, D), wrote(*groups, retired=retired)
    )


def test_commits_since_a_snapshot_are_a_difference_of_sets() -> None:
    snapshot = Timeline.of([f"{B}_{C}.commit"])
    now = Timeline.of([f"{B}_{C}.commit", f"{A}_{D}.commit", f"{C}_{D}.clean"])
    assert [instant.begin for instant in completed_since(snapshot, now)] == [A]


def test_restored_away_commits_are_known_apart_from_archived_ones() -> None:
    snapshot = Timeline.of([f"{A}_{A}.commit", f"{B}_{B}.commit", f"{C}_{C}.commit"])
    assert [i.begin for i in undone_since(snapshot, Timeline.of([f"{B}_{B}.commit", f"{D}_{D}.restore"]))] == [C]
    assert undone_since(snapshot, snapshot) == ()


def test_write_archived_before_it_was_compared_is_noticed() -> None:
    def at(*begins: str) -> list[str]:
        return [f"{begin}_{begin}.commit" for begin in begins]

    snapshot = Timeline.of(at(A, B))
    assert not archived_since(snapshot, snapshot)
    assert not archived_since(snapshot, Timeline.of(at(B, C))), "what the snapshot has seen"
    assert archived_since(snapshot, Timeline.of(at(D))), "C may have been there"
    pending_too = Timeline.of([*at(B), f"{A}.commit.requested", f"{A}.inflight"])
    assert archived_since(pending_too, Timeline.of(at(B))), "A may have completed"
    assert not archived_since(pending_too, Timeline.of(at(A, B, C)))
    savepoint = [*at(A), f"{A}_{B}.savepoint"]
    mine_pending = [*savepoint, f"{C}.commit.requested", f"{C}.inflight"]
    assert not archived_since(Timeline.of(savepoint), Timeline.of(mine_pending)), "archival leaves savepoints behind"


def test_first_commit_that_touched_a_group_of_mine_is_named() -> None:
    others = [completed(("p", "x")), completed(("p", "f"), ("q", "g"), begin=B), completed(("p", "f"), begin=C)]
    overlap = by_file_group(mine(("q", "g"), ("p", "f")), others)
    assert overlap is not None
    assert overlap.lost_to.begin == B
    assert overlap.file_groups == (("p", "f"), ("q", "g"))


def test_group_that_was_retired_conflicts_too() -> None:
    assert by_file_group(mine(("p", "f")), [completed(retired={"p": ("f",)})]) is not None


def test_the_same_file_id_in_another_partition_is_another_group() -> None:
    assert by_file_group(mine(("q", "f")), [completed(("p", "f"))]) is None


def test_two_new_groups_of_one_partition_conflict_by_partition() -> None:
    assert by_file_group(mine(("p", "f")), [completed(("p", "g"))]) is None
    overlap = by_partition(mine(("p", "f")), [completed(("p", "g"), ("q", "h"))])
    assert overlap is not None
    assert overlap.file_groups == (("p", "g"),)
    assert by_partition(mine(("p", "f")), [completed(("q", "f"))]) is None


@pytest.mark.parametrize(
    ("resolution", "me", "other", "conflicts"),
    [
        # A planned clustering wins over rows that come in, unless those are preferred.
        (by_file_group, mine(("p", "f")), pending(("p", "f"), name="CLUSTER"), True),
        (by_partition, mine(("p", "f")), pending(("p", "g"), name="CLUSTER"), True),
        (prefer_writer, mine(("p", "f")), pending(("p", "f"), name="CLUSTER"), False),
        # A table service gives way to a pending write, if writers are preferred.
        (prefer_writer, mine(("p", "f"), name="CLUSTER"), pending(("p", "f")), True),
        (prefer_writer, mine(("p", "f"), name="CLUSTER"), pending(("p", "g")), False),
        (by_file_group, mine(("p", "f"), name="CLUSTER"), pending(("p", "f")), False),
        # What is completed counts for everybody.
        (prefer_writer, mine(("p", "f")), completed(("p", "f")), True),
        (prefer_writer, mine(("p", "f"), name="CLUSTER"), completed(("p", "f")), True),
    ],
)
def test_resolution_decides_whether_a_write_gives_way_to_pending_ones(
    resolution: object, me: ConcurrentOperation, other: ConcurrentOperation, conflicts: bool
) -> None:
    assert (resolution(me, [other]) is not None) is conflicts


GROUPS = st.frozensets(st.tuples(st.sampled_from("pq"), st.sampled_from("fgh")), min_size=1)


@given(GROUPS, st.lists(GROUPS, max_size=4))
def test_overlap_exists_exactly_when_a_file_group_is_shared(my_groups: Groups, others: list[Groups]) -> None:
    found = by_file_group(mine(*my_groups), [completed(*groups) for groups in others])
    assert (found is not None) == any(my_groups & groups for groups in others)


def test_conflict_with_a_restore_says_so_and_can_be_pickled() -> None:
    error = WriteConflict(A, f"{B}_{C}.restore", ())
    assert "undid commits that it had read" in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_writer_is_dead_when_its_heartbeat_is_old_or_missing() -> None:
    settings = HeartbeatSettings(interval_s=60, misses=2)
    beats = {A: 1_000_000, B: 1_000_000 - 119_000, C: 1_000_000 - 121_000}
    assert dead([A, B, C, D], beats, 1_000_000, settings) == (C, D)


def test_settings_of_a_jvm_writer_are_understood() -> None:
    settings = TableSettings.from_hudi(
        {
            "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
            "hoodie.cleaner.policy.failed.writes": "LAZY",
            "hoodie.write.lock.conflict.resolution.strategy": "org.apache.hudi.PreferWriterConflictResolutionStrategy",
            "hoodie.client.heartbeat.interval_in_ms": "30000",
            "hoodie.client.heartbeat.tolerable.misses": "3",
            "hoodie.write.lock.storage.validity.timeout.secs": "120",
            "hoodie.write.lock.storage.renew.interval.secs": "12",
            "hoodie.write.lock.wait_time_ms": "5000",
            "hoodie.table.name": "passed over",
        }
    )
    assert settings.mode is Mode.OPTIMISTIC
    assert settings.resolution is prefer_writer
    assert settings.heartbeat == HeartbeatSettings(interval_s=30.0, misses=3)
    assert (settings.lock.validity, settings.lock.renew, settings.lock.timeout) == (120, 12, 5)
    assert not settings.is_eager


def test_hudis_own_default_is_one_writer_that_cleans_eagerly() -> None:
    settings = TableSettings.from_hudi({})
    assert settings.mode is Mode.SINGLE_WRITER
    assert settings.is_eager
    assert not TableSettings.from_hudi({"hoodie.clean.failed.writes.policy": "lazy"}).is_eager
    assert not TableSettings().is_eager


@pytest.mark.parametrize(
    ("options", "policy"),
    [
        ({}, KeepCommits(10)),
        ({"hoodie.cleaner.commits.retained": "3"}, KeepCommits(3)),
        ({"hoodie.clean.hours.retained": "48"}, KeepHours(48)),
        ({"hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS"}, KeepVersions()),
        (
            {"hoodie.cleaner.policy": "keep_latest_file_versions", "hoodie.clean.fileversions.retained": "2"},
            KeepVersions(2),
        ),
        ({"hoodie.clean.policy": "KEEP_LATEST_COMMITS", "hoodie.clean.hours.retained": "2"}, KeepCommits()),
    ],
)
def test_retention_is_described_in_the_terms_of_hudi(options: dict[str, str], policy: object) -> None:
    assert TableSettings.from_hudi(options).retention == policy


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"hoodie.write.concurrency.mode": "NO_CONTROL"}, "NO_CONTROL is unknown: use .*non_blocking"),
        ({"hoodie.clean.failed.writes.policy": "NEVER"}, "NEVER"),
        ({"hoodie.write.lock.conflict.resolution.strategy": "a.b.Mine"}, "a.b.Mine"),
        ({"hoodie.client.heartbeat.interval_in_ms": "soon"}, "soon"),
        ({"hoodie.clean.policy": "KEEP_ALL"}, "KEEP_ALL"),
        ({"hoodie.clean.commits.retained": "many"}, "many"),
        (
            {
                "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
                "hoodie.clean.failed.writes.policy": "EAGER",
            },
            "EAGER would roll back live writers of hoodie.write.concurrency.mode",
        ),
    ],
)
def test_unsupported_settings_are_refused_by_name(options: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidSettings, match=named):
        TableSettings.from_hudi(options)


def test_many_writers_and_eager_cleaning_exclude_each_other() -> None:
    with pytest.raises(InvalidSettings, match="EAGER"):
        TableSettings(failed_writes=FailedWrites.EAGER)
