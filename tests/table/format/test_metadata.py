from __future__ import annotations

import json
import time
from io import BytesIO
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st
from table.jvm_written import TABLES, contents, timeline

from lockprovider.table.errors import Corrupt
from lockprovider.table.format import metadata, service_metadata
from lockprovider.table.format.layout import Action, parse_instant
from lockprovider.table.format.metadata import CommitMetadata, WriteStat
from lockprovider.table.format.service_metadata import Victim

COMMITS = [
    (table, name)
    for table in TABLES
    for name in timeline(table)
    if (found := parse_instant(name)) and found.is_completed and found.changes_rows
]
words = st.text(min_size=1, max_size=10)
counts = st.integers(0, 2**63 - 1)
stats = st.builds(
    WriteStat, words, words, words, words.filter(lambda text: text != "null") | st.none(), words | st.none(),
    counts, counts, counts, counts, counts,
)  # fmt: skip


def raw_record(data: bytes) -> dict[str, object]:
    (record,) = list(fastavro.reader(BytesIO(data)))
    return record


@pytest.mark.parametrize(("table", "name"), COMMITS)
def test_every_commit_of_the_jvm_is_read_and_written_back(table: str, name: str) -> None:
    theirs = timeline(table)[name]
    ours = metadata.encode_commit(metadata.decode_commit(theirs, name))
    left, right = raw_record(theirs), raw_record(ours)
    for record in (left, right):
        record.pop("version")  # the JVM leaves its own default out
        for written in record["partitionToWriteStats"].values():
            for stat in written:
                stat.pop("runtimeStats")
                for log_only in ("logVersion", "logOffset", "baseFile", "logFiles", "totalLogFiles", "cdcStats"):
                    stat.pop(log_only)
                stat.pop("totalWriteBytes")
                if "totalLogRecords" in stat and table.startswith("mor"):
                    stat.pop("totalLogRecords")
    assert right == left


@pytest.mark.parametrize(("table", "name"), COMMITS)
def test_stats_name_files_that_are_there(table: str, name: str) -> None:
    found = metadata.decode_commit(timeline(table)[name], name)
    for partition, written in found.stats.items():
        for stat in written:
            assert stat.partition == partition
            assert stat.file_name in stat.path
            assert len(contents(table)[stat.path]) == stat.file_size


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (metadata.encode_commit(CommitMetadata({}, "UPSERT")), "HoodieCommitMetadata"),
        (metadata.encode_commit(CommitMetadata({}, "INSERT_OVERWRITE")), "HoodieReplaceCommitMetadata"),
        (metadata.encode_commit(CommitMetadata({}, "X", replaced={"p": ("f",)})), "HoodieReplaceCommitMetadata"),
        (service_metadata.encode_rollback_plan(Victim("1", "commit")), "HoodieRollbackPlan"),
        (service_metadata.encode_rollback("1", Victim("0", "commit"), ()), "HoodieRollbackMetadata"),
    ],
)
def test_record_is_of_hudis_own_kind_and_uncompressed(data: bytes, kind: str) -> None:
    reader = fastavro.reader(BytesIO(data))
    assert reader.writer_schema["name"] == f"org.apache.hudi.avro.model.{kind}"
    assert reader.codec == "null"


def test_schema_in_a_commit_is_the_one_the_jvm_puts_there() -> None:
    name = next(name for table, name in COMMITS if table == "cow_v8_nonpartitioned")
    theirs = fastavro.reader(BytesIO(timeline("cow_v8_nonpartitioned")[name])).writer_schema
    ours = fastavro.reader(BytesIO(metadata.encode_commit(CommitMetadata({}, "UPSERT")))).writer_schema
    assert fastavro.schema.to_parsing_canonical_form(ours) == fastavro.schema.to_parsing_canonical_form(theirs)


@given(
    st.dictionaries(words, st.lists(stats, max_size=3).map(tuple), max_size=3),
    st.none() | words,
    st.dictionaries(words.filter(lambda text: text != "schema"), words, max_size=2),
    st.dictionaries(words, st.lists(words, max_size=2).map(tuple), max_size=2),
)
def test_commits_survive_a_round_trip_with_equal_bytes(
    written: dict[str, tuple[WriteStat, ...]],
    schema: str | None,
    extra: dict[str, str],
    replaced: dict[str, tuple[str, ...]],
) -> None:
    commit = CommitMetadata(written, "UPSERT", schema, extra, replaced)
    data = metadata.encode_commit(commit)
    assert metadata.decode_commit(data, "x") == commit
    assert metadata.encode_commit(commit) == data


def test_commits_that_are_kept_in_memory_share_their_schema() -> None:
    commits = [CommitMetadata({}, "INSERT", '{"type": "record"}', {"n": str(n)}, {}) for n in range(2)]
    first, second = (metadata.decode_commit(metadata.encode_commit(one), "n") for one in commits)
    assert first.schema_json is second.schema_json
    assert first.schema_json == '{"type": "record"}'


def test_different_commits_have_different_sync_markers() -> None:
    one = metadata.encode_commit(CommitMetadata({}, "UPSERT"))
    other = metadata.encode_commit(CommitMetadata({}, "DELETE"))
    assert one[-16:] != other[-16:]


def test_rollbacks_are_written_as_the_jvm_writes_them() -> None:
    seen, victim = 0, Victim("20260403184242950", "deltacommit")
    for name, theirs in timeline("mor_avro_v9_nonpartitioned_rollback").items():
        found = parse_instant(name)
        if found is None or found.action is not Action.ROLLBACK or not theirs:
            continue
        seen += 1
        said: Any = raw_record(theirs)
        if found.is_completed:
            assert service_metadata.decode_rollback(theirs, name) == (victim,)
            deleted = said["partitionMetadata"][""]
            deleted["successDeleteFiles"] = [path.rpartition("/")[2] for path in deleted["successDeleteFiles"]]
            ours = service_metadata.encode_rollback(found.begin, victim, deleted["successDeleteFiles"])
            assert raw_record(ours) == {**said, "timeTakenInMillis": 0}
        else:
            assert service_metadata.decode_rollback_plan(theirs, name) == victim
            (request,) = said["RollbackRequests"]
            (path,) = request["filesToBeDeleted"]
            root, _, file_name = path.rpartition("/")
            assert raw_record(service_metadata.encode_rollback_plan(victim, [file_name], root)) == said
    assert seen == 2


def test_rollbacks_count_their_files() -> None:
    data = service_metadata.encode_rollback("1", Victim("2", "commit"), ["p/a", "p/b", "q/c"])
    assert service_metadata.decode_rollback(data, "x") == (Victim("2", "commit"),)
    said: Any = raw_record(data)
    assert said["totalFilesDeleted"] == 3
    assert said["partitionMetadata"]["p"]["successDeleteFiles"] == ["p/a", "p/b"]


def test_rollback_plans_name_files_below_the_root_of_the_table() -> None:
    data = service_metadata.encode_rollback_plan(Victim("2", "commit"), ["p/a", "p/b", "c"], "s3://b/t")
    assert service_metadata.decode_rollback_plan(data, "x") == Victim("2", "commit")
    said: Any = raw_record(data)
    assert [one["partitionPath"] for one in said["RollbackRequests"]] == ["p", ""]
    assert [one["filesToBeDeleted"] for one in said["RollbackRequests"]] == [
        ["s3://b/t/p/a", "s3://b/t/p/b"],
        ["s3://b/t/c"],
    ]


def test_touched_groups_of_a_commit_are_those_written_or_replaced() -> None:
    commit = CommitMetadata({"p": (WriteStat("f-0", "p/x"),)}, "CLUSTER", replaced={"q": ("g-0",)})
    assert commit.file_groups == {("p", "f-0"), ("q", "g-0")}


@pytest.mark.parametrize("cut", [0, 1, 100, -1])
def test_torn_or_foreign_file_is_corrupt_and_named(cut: int) -> None:
    whole = metadata.encode_commit(CommitMetadata({}, "UPSERT"))
    with pytest.raises(Corrupt, match=r"20250713010535797_1\.commit"):
        metadata.decode_commit(whole[:cut], "20250713010535797_1.commit")


@pytest.mark.parametrize("replaced", [{}, {"p": ("f",)}])
def test_commit_reads_as_by_fastavro_and_whole_or_not_at_all(
    replaced: dict[str, tuple[str, ...]],
) -> None:
    whole, out = metadata.encode_commit(CommitMetadata({}, "UPSERT", replaced=replaced)), BytesIO()
    reader = fastavro.reader(BytesIO(whole))
    fastavro.writer(out, reader.writer_schema, [*reader], codec="null", sync_marker=whole[-16:])
    assert len(out.getvalue()) == len(whole)
    assert raw_record(out.getvalue()) == metadata.decoded(whole, "x", "a record", dict)
    wrong = [whole[:cut] for cut in range(len(whole))] + [whole + b"x", whole[:-1] + bytes([whole[-1] ^ 1])]
    for data in wrong:
        with pytest.raises(Corrupt):
            metadata.decode_commit(data, "x")
    start = whole.index(whole[-16:]) + 16
    with pytest.raises(Corrupt, match="it holds 2 records"):
        metadata.decode_commit(whole + whole[start:], "x")


def test_json_and_records_of_another_kind_are_corrupt() -> None:
    with pytest.raises(Corrupt, match="x cannot be read"):
        metadata.decode_commit(b'{"partitionToWriteStats": {}}', "x")
    with pytest.raises(Corrupt, match="x cannot be read as rollback metadata"):
        service_metadata.decode_rollback(metadata.encode_commit(CommitMetadata({}, "UPSERT")), "x")


@pytest.mark.parametrize("null", ["null", {"type": "null"}, {"type": {"type": "null"}}])
def test_schema_of_values_without_bytes_is_refused(null: Any) -> None:
    record = {"type": "record", "name": "r", "fields": [{"name": "a", "type": null}]}
    for schema in ({"type": "array", "items": null}, record, {"type": "array", "items": record}):
        with pytest.raises(ValueError, match="no bytes|no value"):
            metadata.checked_schema(json.dumps(schema))


def test_schema_whose_type_holds_a_type_is_accepted() -> None:
    fields = [{"name": "a", "type": {"type": {"type": "string"}}}]
    schema = json.dumps({"type": "record", "name": "r", "fields": fields})
    assert metadata.checked_schema(schema) == json.loads(schema)


def test_statistics_are_grouped_in_time_that_grows_with_their_number() -> None:
    many, begun = [WriteStat("f", "p/f", "p")] * 20_000, time.perf_counter()
    assert metadata.stats_by_partition(many) == {"p": tuple(many)}
    assert time.perf_counter() - begun < 2  # s; one copy a statistic took 12
