"""Bad calls of tables: one typed error that names the value and the next step, before anything is sent or made."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fsspec_cas import InvalidInput, InvalidUrl
from lockprovider import InvalidSettings, LockSettings
from lockprovider.table import (
    ClusterEvery,
    CompactEvery,
    FailedWrites,
    HeartbeatSettings,
    HistoryGone,
    InvalidRecords,
    KeepActive,
    KeepCommits,
    KeepHours,
    KeepVersions,
    Mode,
    Table,
    TableSettings,
    TableSpec,
    UnsupportedTable,
)
from lockprovider.table.settings import IndexSettings

ROWS = pa.table({"id": [1, 2], "city": ["ulm", "bonn"]})
SPEC = TableSpec("t", ROWS.schema, ("id",), ("city",))
Case = tuple[str, Callable[..., object], type[Exception], list[str]]


def spec(**wrong: Any) -> TableSpec:
    return TableSpec(**({"name": "t", "schema": ROWS.schema, "record_keys": ("id",)} | wrong))


MISSES = "hoodie.client.heartbeat.tolerable.misses"
MADE: list[Case] = [
    ("keys: none", lambda: spec(record_keys=None), InvalidRecords, ["record_keys=None", "('id',)"]),
    ("keys: number", lambda: spec(record_keys=(1,)), InvalidRecords, ["record_keys=(1,)"]),
    ("keys: twice", lambda: spec(record_keys=("id", "id")), InvalidRecords, ["record_keys=('id', 'id')", "once"]),
    ("partition: number", lambda: spec(partition_by=5), InvalidRecords, ["partition_by=5"]),
    ("ordering: several", lambda: spec(ordering=("id",)), InvalidRecords, ["ordering=('id',)", "one column"]),
    ("ordering: empty", lambda: spec(ordering=""), InvalidRecords, ["ordering=''", "one column"]),
    ("schema: rows", lambda: spec(schema=[ROWS]), InvalidRecords, ["not list", "rows.schema"]),
    ("version: 6", lambda: spec(version=6), InvalidRecords, ["version=6", "use 8, or 9"]),
    ("version: 10", lambda: spec(version=10), InvalidRecords, ["version=10", "use 8, or 9"]),
    ("version: text", lambda: spec(version="9"), InvalidRecords, ["version='9'", "use 8, or 9"]),
    ("name: empty", lambda: spec(name=" "), InvalidRecords, ["name=' '"]),
    ("name: none", lambda: spec(name=None), InvalidRecords, ["name=None"]),
    ("buckets: text", lambda: spec(buckets="4"), InvalidRecords, ["buckets='4'", "whole number"]),
    ("name: surrogate", lambda: spec(name="\ud800"), InvalidRecords, ["name=", "UTF-8"]),
    ("buckets: huge", lambda: spec(buckets=10**5000).config(), InvalidRecords, ["this int", "use 1 to"]),
    ("buckets: true", lambda: spec(buckets=True), InvalidRecords, ["buckets=True"]),
    ("buckets: zero", lambda: spec(buckets=0).config(), InvalidRecords, ["0 buckets"]),
    ("bucket_by: alone", lambda: spec(bucket_by="id"), InvalidRecords, ["bucket_by=('id',)", "buckets"]),
    ("keys: absent", lambda: spec(record_keys="di").config(), InvalidRecords, ["['di']", "'id'"]),
    ("mode", lambda: TableSettings(mode="x"), InvalidSettings, ["=x", "single_writer"]),
    ("mode: none", lambda: TableSettings(mode=None), InvalidSettings, ["=None", "single_writer"]),
    ("failed", lambda: TableSettings(failed_writes="NEVER"), InvalidSettings, ["NEVER", "LAZY"]),
    ("failed: number", lambda: TableSettings(failed_writes=1), InvalidSettings, ["=1", "LAZY"]),
    ("eager", lambda: TableSettings(failed_writes="EAGER"), InvalidSettings, ["EAGER", "LAZY"]),
    ("lock", lambda: TableSettings(lock=60), InvalidSettings, ["lock=60", "LockSettings"]),
    ("heartbeat", lambda: TableSettings(heartbeat=60), InvalidSettings, ["heartbeat=60", "HeartbeatSettings"]),
    ("interval", lambda: TableSettings(heartbeat=HeartbeatSettings(-1)), InvalidSettings, ["interval_s=-1", "above"]),
    ("interval: text", lambda: TableSettings(heartbeat=HeartbeatSettings("5")), InvalidSettings, ["interval_s='5'"]),
    ("interval: flag", lambda: TableSettings(heartbeat=HeartbeatSettings(True)), InvalidSettings, ["interval_s=True"]),
    ("misses", lambda: TableSettings(heartbeat=HeartbeatSettings(5, 0)), InvalidSettings, ["misses=0", "1 or more"]),
    ("misses: flag", lambda: TableSettings(heartbeat=HeartbeatSettings(5, True)), InvalidSettings, ["misses=True"]),
    ("interval: huge", lambda: TableSettings(heartbeat=HeartbeatSettings(10**400)), InvalidSettings, ["at most"]),
    ("misses: huge", lambda: TableSettings(heartbeat=HeartbeatSettings(5, 10**400)), InvalidSettings, ["at most"]),
    ("resolution", lambda: TableSettings(resolution="first"), InvalidSettings, ["resolution='first'", "function"]),
    ("retention", lambda: TableSettings(retention=10), InvalidSettings, ["10", "KeepCommits(10)"]),
    ("retention: zero", lambda: TableSettings(retention=KeepCommits(0)), InvalidSettings, ["commits=0", "nothing"]),
    ("retention: text", lambda: TableSettings(retention=KeepVersions("3")), InvalidSettings, ["versions='3'"]),
    ("retention: flag", lambda: TableSettings(retention=KeepCommits(True)), InvalidSettings, ["commits=True"]),
    ("retention: flags", lambda: TableSettings(retention=KeepVersions(True)), InvalidSettings, ["versions=True"]),
    ("retention: hour", lambda: TableSettings(retention=KeepHours(True)), InvalidSettings, ["hours=True"]),
    ("retention: nan", lambda: TableSettings(retention=KeepHours(float("nan"))), InvalidSettings, ["hours=nan"]),
    ("archival", lambda: TableSettings(archival=5), InvalidSettings, ["archival=5", "KeepActive"]),
    ("archival: order", lambda: TableSettings(archival=KeepActive(5, 4)), InvalidSettings, ["=5", "=4"]),
    ("automatic", lambda: TableSettings(archive_automatically="no"), InvalidSettings, ["'no'", "True or False"]),
    ("by metadata", lambda: TableSettings(read_from_metadata=1), InvalidSettings, ["=1", "True or False"]),
    ("metadata kept", lambda: TableSettings(write_metadata="yes"), InvalidSettings, ["='yes'", "True or False"]),
    ("compaction", lambda: TableSettings(compaction=5), InvalidSettings, ["compaction=5", "CompactEvery"]),
    ("compaction: 0", lambda: TableSettings(compaction=CompactEvery(0)), InvalidSettings, ["commits=0", "1 or more"]),
    ("clustering", lambda: TableSettings(clustering=True), InvalidSettings, ["clustering=True", "ClusterEvery"]),
    ("clustering: 0", lambda: TableSettings(clustering=ClusterEvery(0)), InvalidSettings, ["commits=0"]),
    ("clustering: by", lambda: TableSettings(clustering=ClusterEvery(1, "ts")), InvalidSettings, ["sort_by='ts'"]),
    ("clustering: it", lambda: TableSettings(clustering=ClusterEvery(1, iter("t"))), InvalidSettings, ["sort_by="]),
    ("clustering: by 5", lambda: TableSettings(clustering=ClusterEvery(1, 5)), InvalidSettings, ["sort_by=5"]),
    ("archival: text", lambda: TableSettings(archival=KeepActive("x", 4)), InvalidSettings, ["='x'", "whole numbers"]),
    ("archival: 1.5", lambda: TableSettings(archival=KeepActive(1.5, 4)), InvalidSettings, ["=1.5", "whole numbers"]),
    ("hive_style", lambda: spec(hive_style="no"), InvalidRecords, ["hive_style='no'", "True or False"]),
    ("url_encode", lambda: spec(url_encode=1), InvalidRecords, ["url_encode=1", "True or False"]),
    ("table_type", lambda: spec(table_type="mor"), InvalidRecords, ["'mor'", "merge_on_read"]),
    ("check_keys", lambda: TableSettings(check_keys=1), InvalidSettings, ["check_keys=1"]),
    ("index: text", lambda: TableSettings(index="BUCKET"), InvalidSettings, ["index='BUCKET'", "IndexSettings"]),
    ("index: lower", lambda: TableSettings(index=IndexSettings("bucket")), InvalidSettings, ["'bucket'", "upper"]),
    ("index: zero", lambda: TableSettings(index=IndexSettings("BUCKET", 0)), InvalidSettings, ["buckets=0", "1 or"]),
    ("index: by", lambda: TableSettings(index=IndexSettings("BUCKET", 4, "id")), InvalidSettings, ["fields='id'"]),
    ("mode: huge", lambda: TableSettings(mode=10**5000), InvalidSettings, ["this int", "single_writer"]),
    ("retention: huge", lambda: TableSettings(retention=KeepCommits(-(10**5000))), InvalidSettings, ["nothing"]),
    ("version: huge", lambda: spec(version=10**5000), InvalidRecords, ["version=this int"]),
    ("hudi: huge", lambda: TableSettings.from_hudi({MISSES: 10**5000}), InvalidSettings, [MISSES, "larger than"]),
    ("hudi", lambda: TableSettings.from_hudi({"hoodie.archive.automatic": "yes"}), InvalidSettings, ["=yes", "true"]),
    ("misses: 1.5", lambda: TableSettings.from_hudi({MISSES: "1.5"}), InvalidSettings, [f"{MISSES}=1.5", "whole"]),
]


@pytest.mark.parametrize(("call", "kind", "parts"), [one[1:] for one in MADE], ids=[one[0] for one in MADE])
def test_invalid_spec_or_settings_are_refused_at_construction(
    call: Callable[[], object], kind: type[Exception], parts: list[str]
) -> None:
    with pytest.raises(kind) as refused:
        call()
    assert [part for part in parts if part not in str(refused.value)] == []


def to(_: Path) -> Table:
    return TABLE


def merged(_: Path) -> Table:
    return MERGED


def mode(_: Path, table: Table, settings: TableSettings) -> object:
    """A write in a mode that is not for such a table."""
    return Table.open(table.url, settings=settings).append(ROWS)


TABLE: Table
MERGED: Table
NON_BLOCKING = TableSettings(mode=Mode.NON_BLOCKING)


@pytest.fixture(scope="module", autouse=True)
def _table(tmp_path_factory: pytest.TempPathFactory) -> None:
    global TABLE, MERGED  # noqa: PLW0603 - one for all cases: none of them changes it
    TABLE = Table.create(str(tmp_path_factory.mktemp("bad") / "t"), SPEC)
    MERGED = Table.create(
        str(tmp_path_factory.mktemp("bad") / "m"), spec(table_type="merge_on_read", buckets=2, ordering="id")
    )


SURROGATE = ROWS.to_pandas().rename(columns={"id": "\ud800"})


def _noting(extra: Any) -> Callable[..., object]:
    def note_and_append(txn: Any) -> None:
        txn.extra["n"] = extra
        txn.append(ROWS)

    return note_and_append


CALLED: list[Case] = [
    ("create: url", lambda _: Table.create(None, SPEC), InvalidUrl, ["None"]),
    ("create: spec", lambda p: Table.create(str(p), ROWS.schema), InvalidInput, ["Schema", "TableSpec"]),
    ("create: settings", lambda p: Table.create(str(p), SPEC, settings=LockSettings()), InvalidSettings, ["TableSet"]),
    ("create: option", lambda p: Table.create(str(p), SPEC, storage_options={"x": 1}), InvalidInput, ["'x'"]),
    ("open: url", lambda _: Table.open(5), InvalidUrl, ["5"]),
    ("open: settings", lambda p: Table.open(str(p), settings=60), InvalidSettings, ["settings=60", "TableSettings"]),
    ("open: watcher", lambda p: Table.open(str(p), watcher="x"), InvalidSettings, ["watcher='x'", "function"]),
    ("append: retries", lambda p: to(p).append(ROWS, retries="x"), InvalidInput, ["retries='x'", "retries=5"]),
    ("append: below", lambda p: to(p).append(ROWS, retries=-1), InvalidInput, ["retries=-1", "0 or more"]),
    ("upsert: none", lambda p: to(p).upsert(ROWS, retries=None), InvalidInput, ["retries=None"]),
    ("append: column", lambda p: to(p).append(SURROGATE), InvalidRecords, ["columns", "UTF-8"]),
    ("append: surrogate", lambda p: to(p).append(ROWS, extra={"n": "\ud800"}), InvalidInput, ["extra=", "UTF-8"]),
    ("transact: extra", lambda p: to(p).transact(_noting("\ud800")), InvalidInput, ["extra=", "UTF-8"]),
    ("transact: number", lambda p: to(p).transact(_noting(5)), InvalidInput, ["extra=", "texts"]),
    ("append: extra", lambda p: to(p).append(ROWS, extra={"n": 1}), InvalidInput, ["{'n': 1}", "text"]),
    ("append: rows", lambda p: to(p).append([1, 2]), InvalidRecords, ["list", "DataFrame"]),
    ("upsert: retries", lambda p: to(p).upsert(ROWS, retries=1.5), InvalidInput, ["retries=1.5"]),
    ("upsert: rows", lambda p: to(p).upsert("rows"), InvalidRecords, ["str", "DataFrame"]),
    ("delete: retries", lambda p: to(p).delete(ROWS, retries="x"), InvalidInput, ["retries='x'"]),
    ("transact: fn", lambda p: to(p).transact("x"), InvalidInput, ["fn='x'", "function"]),
    ("transact: retries", lambda p: to(p).transact(lambda _: None, retries=True), InvalidInput, ["retries=True"]),
    (
        "changes: order",
        lambda p: to(p).changes(order="random"),
        InvalidInput,
        ["'random'", "fenced, begin"],
    ),
    ("changes: partitions", lambda p: to(p).changes(partitions="ulm"), InvalidInput, ["'ulm'", "['ulm']"]),
    ("changes: after", lambda p: to(p).changes(after="soon"), InvalidInput, ["soon"]),
    ("read: columns", lambda p: to(p).to_arrow(columns="id"), InvalidInput, ["id"]),
    ("read: partitions", lambda p: to(p).to_arrow(partitions="ulm"), InvalidInput, ["['ulm']"]),
    ("read: as_of", lambda p: to(p).to_arrow(as_of="yesterday"), InvalidInput, ["yesterday"]),
    ("read: filter", lambda p: to(p).to_arrow(filter="city = 1"), InvalidInput, ["city = 1"]),
    ("scan: column", lambda p: to(p).scan(columns=["no"]).plan(), InvalidInput, ["['no']", "city"]),
    ("scan: columns", lambda p: to(p).scan(columns=5), InvalidInput, ["columns=5", "names of columns"]),
    ("scan: filter", lambda p: to(p).scan(filter=5), InvalidInput, ["filter 5 is no filter", "SQL text"]),
    ("scan: partition", lambda p: to(p).scan(partitions="ulm"), InvalidInput, ["'ulm'", "['ulm']"]),
    ("scan: partitions", lambda p: to(p).scan(partitions=5), InvalidInput, ["partitions=5", "paths of partitions"]),
    ("scan: optimized", lambda p: to(p).scan(read_optimized="no"), InvalidInput, ["='no'", "True or False"]),
    ("scan: as_of", lambda p: to(p).scan(as_of="yesterday"), InvalidInput, ["yesterday"]),
    ("clean: policy", lambda p: to(p).clean(5), InvalidSettings, ["5", "KeepCommits(10)"]),
    ("clean: nothing", lambda p: to(p).clean(KeepCommits(-1)), InvalidSettings, ["commits=-1", "nothing"]),
    ("archive: order", lambda p: to(p).archive(KeepActive(5, 5)), InvalidSettings, ["=5"]),
    ("archive: number", lambda p: to(p).archive(5), InvalidSettings, ["keep=5", "KeepActive"]),
    ("read: columns 5", lambda p: to(p).to_pandas(columns=5), InvalidInput, ["columns=5", "names of columns"]),
    ("read: a name", lambda p: to(p).to_arrow(columns="id"), InvalidInput, ["columns='id'", "names of columns"]),
    ("count: as_of", lambda p: to(p).count(as_of=5), InvalidInput, ["5"]),
    ("snapshot: partitions", lambda p: to(p).snapshot().within("ulm"), InvalidInput, ["['ulm']"]),
    ("overwrite: partitions", lambda p: to(p).overwrite(ROWS, "ulm"), InvalidInput, ["['ulm']"]),
    ("delete: nothing", lambda p: to(p).delete(""), InvalidInput, ["''", "the end"]),
    ("delete: column", lambda p: to(p).delete("nope = 1"), InvalidInput, ["'nope'", "city"]),
    ("delete: none", lambda p: to(p).delete(None), InvalidRecords, ["NoneType", "DataFrame"]),
    ("restore: none", lambda p: to(p).restore(None), InvalidInput, ["None is no version"]),
    ("restore: number", lambda p: to(p).restore(5), InvalidInput, ["5 is not a time"]),
    ("restore: unknown", lambda p: to(p).restore("x"), InvalidInput, ["'x' is not a time", "yyyyMM"]),
    ("savepoint: number", lambda p: to(p).savepoint(5), InvalidInput, ["5 is not a time"]),
    ("savepoint: user", lambda p: to(p).savepoint(user=5), InvalidInput, ["user=5"]),
    ("savepoint: comment", lambda p: to(p).savepoint(comment="\ud800"), InvalidInput, ["comment=", "UTF-8"]),
    ("unschedule: huge", lambda p: to(p).unschedule_clustering(hours=-(10**5000)), InvalidInput, ["this int"]),
    ("savepoint: away", lambda p: to(p).delete_savepoint(None), InvalidInput, ["None is no version"]),
    ("roll_back: force", lambda p: to(p).roll_back("x", force="no"), InvalidInput, ["force='no'"]),
    ("share: utc", lambda p: to(p).share(all_in_utc="no"), InvalidInput, ["all_in_utc='no'"]),
    ("roll_back: unknown", lambda p: to(p).roll_back("x"), HistoryGone, ["x", "restore"]),
    ("buckets: text", lambda p: to(p).adopt_bucket_index("x"), InvalidRecords, ["'x'", "use 1 to"]),
    ("buckets: huge", lambda p: to(p).adopt_bucket_index(10**5000), InvalidRecords, ["this int", "use 1 to"]),
    ("buckets: flag", lambda p: to(p).adopt_bucket_index(True), InvalidRecords, ["True", "use 1 to"]),
    ("buckets: by", lambda p: to(p).adopt_bucket_index(4, "city"), InvalidRecords, ["columns ['city']", "['id']"]),
    ("cluster: by", lambda p: to(p).cluster(5), InvalidInput, ["sort_by=5", "('ts',)"]),
    ("cluster: column", lambda p: to(p).schedule_clustering(["no"]), InvalidInput, ["['no']", "city"]),
    ("cluster: bytes", lambda p: to(p).cluster((), "x"), InvalidInput, ["'x'"]),
    ("cluster: small", lambda p: to(p).cluster((), 1000, -1), InvalidInput, ["-1"]),
    ("clustering: none", lambda p: to(p).run_clustering("x"), HistoryGone, ["x", "scheduled"]),
    ("clustering: hours", lambda p: to(p).unschedule_clustering(hours=-1), InvalidInput, ["hours=-1", "above 0"]),
    ("clustering: neither", lambda p: to(p).unschedule_clustering(), InvalidInput, ["instant", "hours"]),
    ("compact: no logs", lambda p: to(p).compact(), UnsupportedTable, ["copy-on-write"]),
    ("compaction: none", lambda p: merged(p).run_compaction("x"), HistoryGone, ["x", "scheduled"]),
    ("compaction: hours", lambda p: merged(p).unschedule_compaction(hours="x"), InvalidInput, ["hours='x'"]),
    ("compaction: both", lambda p: merged(p).unschedule_compaction("x", hours=1), InvalidInput, ["instant", "hours"]),
    ("non-blocking", lambda p: mode(p, TABLE, NON_BLOCKING), InvalidSettings, ["non_blocking", "is not possible"]),
    ("add: schema", lambda p: to(p).add_columns(["n"]), InvalidInput, ["list", "pyarrow.schema"]),
]


@pytest.mark.parametrize(("call", "kind", "parts"), [one[1:] for one in CALLED], ids=[one[0] for one in CALLED])
def test_bad_call_of_a_table_is_one_typed_error_and_changes_nothing(
    tmp_path: Path, call: Callable[[Path], object], kind: type[Exception], parts: list[str]
) -> None:
    before = TABLE.timeline()
    with pytest.raises(kind) as refused:
        call(tmp_path)
    assert [part for part in parts if part not in str(refused.value)] == []
    assert list(tmp_path.iterdir()) == []
    assert TABLE.timeline().names == before.names


def test_unusual_but_valid_arguments_are_accepted(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", TableSpec("t", ROWS.schema, record_keys="id", partition_by=["city"]))
    assert Table.open(tmp_path / "t").config().record_keys == ("id",)
    assert table.url == str(tmp_path / "t")
    settings = TableSettings(mode="single_writer", failed_writes="eager")
    assert (settings.mode, settings.failed_writes) == (Mode.SINGLE_WRITER, FailedWrites.EAGER)


def test_pickled_table_is_another_client_of_the_same_table(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), SPEC, settings=TableSettings(lock=LockSettings(timeout=7)))
    other = pickle.loads(pickle.dumps(table))
    other.append(ROWS)
    assert table.to_arrow().num_rows == 2
    assert other.settings == table.settings
    assert other.lock.owner != table.lock.owner
