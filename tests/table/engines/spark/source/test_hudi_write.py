"""What Hudi's own options ask of a write, and which are refused. No Spark is needed."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", minversion="4.2")

from fsspec_cas import InvalidInput
from lockprovider import InvalidSettings
from lockprovider.table import InvalidRecords, Table, TableExists, UnsupportedTable, WriteConflict, errors
from lockprovider.table.engines.spark.errors import translated
from lockprovider.table.engines.spark.options import HudiWrite, SparkOptions, WriteOperation
from lockprovider.table.engines.spark.writer import TaskResult, WriteJob
from lockprovider.table.format.layout import MARKERS, STAGED
from lockprovider.table.spec import TableSpec
from lockprovider.table.state.context import TableContext
from lockprovider.table.timeline.conflict import BatchId

SCHEMA = pa.schema([("id", pa.int64()), ("part", pa.string()), ("ts", pa.int64())])
W = "hoodie.datasource.write."
WHOLE = {
    f"{W}recordkey.field": "id",
    f"{W}partitionpath.field": "part",
    f"{W}precombine.field": "ts",
    "hoodie.table.name": "trips",
}


def test_options_define_a_new_table() -> None:
    found = HudiWrite.of({**WHOLE, f"{W}table.type": "merge_on_read", f"{W}hive_style_partitioning": "true"})
    assert found.spec(SCHEMA) == TableSpec(
        "trips", SCHEMA, "id", "part", ordering="ts", hive_style=True, table_type="MERGE_ON_READ"
    )
    found = HudiWrite.of({"hoodie.table.recordkey.fields": "id, part", "hoodie.table.name": "t"})
    assert found.spec(SCHEMA) == TableSpec("t", SCHEMA, ("id", "part"))
    found = HudiWrite.of({**WHOLE, f"{W}precombine.field": "", "hoodie.table.ordering.fields": " "})
    assert found.spec(SCHEMA) == TableSpec("trips", SCHEMA, "id", "part"), "no ordering, as for Hudi"
    with pytest.raises(InvalidInput, match=r"hoodie\.table\.name is missing"):
        HudiWrite.of({f"{W}recordkey.field": "id"}).spec(SCHEMA)
    with pytest.raises(InvalidRecords, match="name columns of"):
        HudiWrite.of({**WHOLE, f"{W}recordkey.field": "nothing"}).spec(SCHEMA).config()


@pytest.mark.parametrize(
    ("options", "overwrite", "operation"),
    [
        ({}, False, WriteOperation.INSERT),
        (WHOLE, False, WriteOperation.UPSERT),
        ({**WHOLE, f"{W}operation": "bulk_insert"}, False, WriteOperation.INSERT),
        ({f"{W}operation": "UPSERT"}, False, WriteOperation.UPSERT),
        ({f"{W}operation": "delete"}, False, WriteOperation.DELETE),
        (WHOLE, True, WriteOperation.INSERT_OVERWRITE_TABLE),
        ({f"{W}operation": "insert_overwrite"}, True, WriteOperation.INSERT_OVERWRITE),
        ({f"{W}operation": "insert_overwrite_table"}, False, WriteOperation.INSERT_OVERWRITE_TABLE),
    ],
)
def test_option_chooses_the_write_operation(
    options: dict[str, str], overwrite: bool, operation: WriteOperation
) -> None:
    assert HudiWrite.of(options, overwrite=overwrite).operation is operation


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({f"{W}operation": "compact"}, "use one of bulk_insert, delete, insert, insert_overwrite,"),
        (
            {f"{W}recordkey.feild": "id"},
            f"feild'] would have no effect here: did you mean {W}recordkey.field?",
        ),
        ({f"{W}keygenerator.class": "x.Mine"}, "would have no effect here: leave them out"),
        ({f"{W}insert.drop.duplicates": "true"}, "would have no effect here: leave them out"),
        ({f"{W}record.merge.mode": "COMMIT_TIME_ORDERING"}, "would have no effect here: leave them out"),
        ({f"{W}qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqq": "1"}, "would have no effect here: leave them out"),
        ({"hoodie.datasource.wirte.operation": "insert_overwrite"}, f"did you mean {W}operation?"),
        ({"hoodie.datasourcewrite.operation": "insert_overwrite"}, f"did you mean {W}operation?"),
        ({"hoodie.operation": "insert_overwrite"}, "would have no effect here: leave them out"),
        ({"hoodie.tabel.name": "trips"}, "did you mean hoodie.table.name?"),
        ({"hoodie.table.recordkey.field": "id"}, "did you mean hoodie.table.recordkey.fields?"),
        ({"hoodie.table.keygenerator.type": "TIMESTAMP"}, "would have no effect here: leave them out"),
        ({"hoodie.keygen.timebased.output.dateformat": "yyyy"}, "would have no effect here: leave them out"),
        ({"hoodie.datasource.overwrite.mode": "dynamic"}, f"set {W}operation=insert_overwrite to replace partitions"),
        ({"hoodie.datasource.insert.dup.policy": "drop"}, "would have no effect here: leave them out"),
        ({"hoodie.compaction.payload.class": "x.Mine"}, "would have no effect here: leave them out"),
        ({f"{W}partitionpath.field": "part:SIMPLE"}, "['part:SIMPLE'] are not column names"),
        ({"hoodie.table.ordering.fields": "ts,id"}, "has several columns"),
        ({f"{W}precombine.field": "ts", "hoodie.table.ordering.fields": "id"}, "contradict each other"),
        ({f"{W}hive_style_partitioning": "yes"}, "is neither true nor false"),
        ({f"{W}recordkey.field": ""}, f"{W}recordkey.field= names nothing"),
        ({"hoodie.table.recordkey.fields": " ,"}, "hoodie.table.recordkey.fields=, names nothing"),
    ],
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_option_without_effect_is_refused(options: dict[str, str], words: str, overwrite: bool) -> None:
    with pytest.raises(InvalidInput, match=re.escape(words)):
        HudiWrite.of(options, overwrite=overwrite)


@pytest.mark.parametrize(
    "option",
    [
        f"{W}row.writer.enable",
        "hoodie.datasource.hive_sync.enable",
        "hoodie.table.services.enabled",
        "hoodie.upsert.shuffle.parallelism",
        "hoodie.parquet.max.file.size",
    ],
)
def test_option_that_decides_no_row_is_accepted(option: str) -> None:
    assert HudiWrite.of({**WHOLE, option: "1"}) == HudiWrite.of(WHOLE)


def test_delete_is_refused_with_mode_overwrite() -> None:
    with pytest.raises(InvalidInput, match="deletes rows by key"):
        HudiWrite.of({f"{W}operation": "delete"}, overwrite=True)


@pytest.mark.parametrize(
    ("key", "value", "found"),
    [
        (f"{W}recordkey.field", "id,part", "id"),
        (f"{W}partitionpath.field", "", "part"),
        ("hoodie.table.ordering.fields", "id", "ts"),
        ("hoodie.table.ordering.fields", "", "ts"),
        ("hoodie.table.name", "others", "trips"),
        (f"{W}table.type", "MERGE_ON_READ", "COPY_ON_WRITE"),
        (f"{W}hive_style_partitioning", "true", "false"),
    ],
)
def test_options_that_contradict_an_existing_table_are_refused(key: str, value: str, found: str) -> None:
    said = {name: text for name, text in WHOLE.items() if name != f"{W}precombine.field"}
    config = HudiWrite.of(WHOLE).spec(SCHEMA).config()
    HudiWrite.of(WHOLE).check(config)
    HudiWrite.of({}).check(replace(config, name="any"))
    HudiWrite.of({f"{W}precombine.field": ""}).check(replace(config, ordering_fields=()))
    with pytest.raises(InvalidInput, match=re.escape(f"{key}={value}, but the existing table has {found}:")):
        HudiWrite.of({**said, key: value}).check(config)


def test_error_of_a_worker_is_restored_with_its_type() -> None:
    lost = WriteConflict("20260101000000000", "20260102000000000.commit", (("a", "1-0"),))
    assert isinstance(translated(f"[X] failed:\n{WriteConflict.__module__}.WriteConflict: {lost}"), WriteConflict)
    assert isinstance(translated(f"[X] failed: {TableExists.__module__}.TableExists: there is one"), TableExists)
    for words in (
        "ModuleNotFoundError: No module named 'lockprovider'",
        "ModuleNotFoundError: No module named 'pyarrow.parquet'",
        "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than that in driver: 3.11",
    ):
        found = translated(f"File x, line 7\n{words}\n")
        assert isinstance(found, InvalidSettings)
        assert "set PYSPARK_PYTHON" in str(found)
    assert translated("No module named 'their_own'") is None


KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.TableError)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_of_a_table_keeps_its_type_when_a_worker_raises_it(kind: type[errors.TableError]) -> None:
    words = "instant 20260101000000000 lost to x.commit" if kind is WriteConflict else "fare: a sentence"
    found = translated(f"[X] failed:\n{kind.__module__}.{kind.__name__}: {words}")
    assert type(found) is kind
    assert words in str(found)


def test_write_opens_its_table_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table.create(str(tmp_path / "t"), TableSpec("t", SCHEMA, "id", "part"))
    opened: list[str] = []
    open_table = SparkOptions.open

    def counted(options: SparkOptions) -> TableContext:
        opened.append(options.url)
        return open_table(options)

    monkeypatch.setattr(SparkOptions, "open", counted)
    job = WriteJob(SparkOptions.of({"path": table.url}), HudiWrite.of({}), SCHEMA)
    txn = job.begin()
    assert txn is not None
    assert opened == [table.url]
    job.commit([TaskResult(txn.begin, [], None)], BatchId.of("orders", 0))
    assert opened == [table.url] * 2, "an empty batch is committed in another process, and reported by its table"
    txn.leave()


def test_write_refused_at_its_begin_leaves_no_instant(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), TableSpec("t", SCHEMA, "id", "part", buckets=2))
    table.append(pa.table({"id": [1], "part": ["a"], "ts": [2]}))
    path = tmp_path / "t" / ".hoodie" / "hoodie.properties"
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if "index" not in line))
    job = WriteJob(SparkOptions.of({"path": table.url}), HudiWrite.of({}), SCHEMA)
    with pytest.raises(UnsupportedTable, match="adopt-buckets"):
        job.begin()
    assert table.listed_timeline().pending_writes == ()


def test_abort_by_another_process_removes_the_staged_files_of_its_tasks(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), TableSpec("t", SCHEMA, "id", "part"))
    options, hudi_write = SparkOptions.of({"path": table.url}), HudiWrite.of({f"{W}operation": "upsert"})
    planning, aborting = (WriteJob(options, hudi_write, SCHEMA) for _ in range(2))
    rows = pa.record_batch([pa.array([1]), pa.array(["a"]), pa.array([2])], schema=SCHEMA)
    for job in (planning, aborting):
        assert job.check() is not None
    assert planning.stage is not None
    (staged,) = planning.stage.write(iter([rows]))
    assert (tmp_path / "t" / staged.path).exists()
    aborting.abort([TaskResult("", [], None, [staged])])
    assert not (tmp_path / "t" / staged.path).exists()


def test_commit_removes_the_staged_files_of_failed_attempts(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), TableSpec("t", SCHEMA, "id", "part"))
    job = WriteJob(SparkOptions.of({"path": table.url}), HudiWrite.of({f"{W}operation": "upsert"}), SCHEMA)
    rows = pa.record_batch([pa.array([1]), pa.array(["a"]), pa.array([2])], schema=SCHEMA)
    assert job.check() is not None
    assert job.stage is not None
    _, second = (job.stage.write(iter([rows])) for _ in range(2))
    job.commit([TaskResult("", [], None, second)])
    assert table.to_arrow().num_rows == 1
    assert table.store.list(f"{MARKERS}/{STAGED}") == []
