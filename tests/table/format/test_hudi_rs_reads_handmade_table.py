"""A table laid out by hand from the pure functions alone, and read by another implementation of Hudi."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from table.key_texts import path_for

from lockprovider.table.convert.columns import new_table_schema
from lockprovider.table.files import base_file, encoding, merge
from lockprovider.table.format import keygen, layout, metadata, properties, schema
from lockprovider.table.format.layout import Action, BaseFile, Instant, InstantState
from lockprovider.table.format.metadata import CommitMetadata, WriteStat
from lockprovider.table.format.properties import TableConfig

hudi = pytest.importorskip("hudi")

FIRST, FIRST_DONE = "20250713010535797", "20250713010536200"
SECOND, SECOND_DONE = "20250713010536861", "20250713010537206"
COLUMNS = new_table_schema(
    pa.schema(
        [
            ("id", pa.int64()), ("city", pa.large_string()), ("ts", pa.int64()), ("fare", pa.decimal128(10, 2)),
            ("day", pa.date32()), ("at", pa.timestamp("ns", "UTC")), ("tags", pa.list_(pa.string())),
            ("raw", pa.binary()), ("ok", pa.bool_()), ("ratio", pa.float64()), ("small", pa.int8()),
            ("attrs", pa.map_(pa.string(), pa.int32())), ("place", pa.struct([("x", pa.float32())])),
        ]
    )
)  # fmt: skip
NO_KEYS = pa.array([], pa.string())


def row(key: int, city: str | None, ts: int) -> dict[str, object]:
    return {
        "id": key, "city": city, "ts": ts, "fare": Decimal(key) + Decimal("0.25"), "day": date(2013, 1, key),
        "at": datetime(2013, 1, 1, 10, key, tzinfo=timezone.utc), "tags": ["a", None], "raw": bytes([key]), "ok": None,
        "ratio": key / 4, "small": key, "attrs": [("k", ts)], "place": {"x": 0.5},
    }  # fmt: skip


class Handmade:
    """A folder, and one way to put a commit into it."""

    def __init__(self, folder: Path, config: TableConfig) -> None:
        self.folder, self.config = folder, config
        self.put(layout.PROPERTIES, properties.encode_properties(config))

    def put(self, path: str, data: bytes) -> None:
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)

    def slice(self, partition: str, base: BaseFile, parts: Iterable[pa.Table], plan: merge.MergePlan) -> WriteStat:
        data = encoding.encode_base_file(
            parts, COLUMNS, keys=plan.keys, partition=partition, base_file=base, table_name=self.config.name
        ).data
        self.put(layout.join(partition, base.name), data)
        self.put(*layout.partition_metafile(partition, base.begin))
        return WriteStat(
            base.file_id, layout.join(partition, base.name), partition, num_writes=len(plan.keys),
            num_inserts=plan.inserts, num_updates=plan.updates, num_deletes=plan.deletes, file_size=len(data),
        )  # fmt: skip

    def insert(self, partition: str, base: BaseFile, rows: list[dict[str, object]]) -> WriteStat:
        table, keys = inserted(rows)
        nothing, new = np.zeros(0, np.int64), np.arange(len(keys))
        return self.slice(
            partition, base, encoding.all_fresh(table, base), merge.MergePlan(keys, nothing, nothing, new)
        )

    def commit(self, begin: str, done: str, stats: list[WriteStat]) -> None:
        text = schema.to_avro(COLUMNS, self.config.name)
        record = CommitMetadata({stat.partition: (stat,) for stat in stats}, "UPSERT", text)
        requested = Instant(begin, Action.COMMIT, InstantState.REQUESTED)
        self.put(f"{layout.TIMELINE}/{requested.file_name}", b"")
        self.put(f"{layout.TIMELINE}/{replace(requested, state=InstantState.INFLIGHT).file_name}", b"")
        completed = replace(requested, state=InstantState.COMPLETED, completion=done)
        self.put(f"{layout.TIMELINE}/{completed.file_name}", metadata.encode_commit(record))

    def read(self, **options: str) -> list[dict[str, object]]:
        batches = (
            hudi.HudiTableBuilder.from_base_uri(str(self.folder))
            .build()
            .read(hudi.HudiReadOptions(hudi_options=options) if options else None)
        )
        rows = [found for batch in batches for found in pa.table(batch).to_pylist()]
        return sorted(rows, key=lambda found: found["id"])


def inserted(rows: list[dict[str, object]]) -> tuple[pa.Table, pa.Array]:
    table = pa.Table.from_pylist(rows, COLUMNS)
    return table, base_file.record_keys(table, ["id"])


def data_of(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return [{name: found[name] for name in COLUMNS.names} for found in rows]


@pytest.mark.parametrize("version", [8, 9])
@pytest.mark.parametrize("fields", [("city",), ()])
def test_hudi_rs_reads_an_insert_then_an_upsert_with_a_delete(
    tmp_path: Path, version: int, fields: tuple[str, ...]
) -> None:
    config = TableConfig(
        "handmade", ("id",), fields, ("ts",), version=version, schema_json=schema.to_avro(COLUMNS, "t")
    )
    table = Handmade(tmp_path, config)
    oslo, rome = (path_for(keygen.PartitionStyle(fields), [city][: len(fields)]) for city in ("oslo", None))
    before = [row(1, "oslo", 5), row(2, "oslo", 5), row(3, "oslo", 5)]
    elsewhere = [row(4, None, 5)]
    first, other = BaseFile("aa-0", "0-0-0", FIRST), BaseFile("bb-0", "1-0-0", FIRST)
    stats = [table.insert(oslo, first, before), table.insert(rome, other, elsewhere)]
    if not fields:  # one partition, two file groups
        text = schema.to_avro(COLUMNS, config.name)
        record = CommitMetadata({"": tuple(stats)}, "UPSERT", text)
        table.put(f"{layout.TIMELINE}/{FIRST}_{FIRST_DONE}.commit", metadata.encode_commit(record))
    else:
        table.commit(FIRST, FIRST_DONE, stats)
    assert data_of(table.read()) == [*before, *elsewhere]

    changed, keys = inserted([row(1, "oslo", 9), row(2, "oslo", 1), row(5, "oslo", 1)])
    file, gone = base_file.open_base_file(str(tmp_path / layout.join(oslo, first.name))), pa.array(["3"])
    base = BaseFile("aa-0", "0-0-0", SECOND)
    plan = merge.merge_plan(file, changed, keys, gone, "ts")
    assert plan is not None
    plan = plan.with_new(keys, gone)
    assert (plan.inserts, plan.updates, plan.deletes) == (1, 1, 1)
    stat = table.slice(oslo, base, merge.merged(file, plan, changed, base), plan)
    assert data_of(table.read()) == [*before, *elsewhere]  # written, but not committed
    table.commit(SECOND, SECOND_DONE, [replace(stat, prev_commit=FIRST, prev_base_file=first.name)])
    after = table.read()
    assert data_of(after) == [row(1, "oslo", 9), row(2, "oslo", 5), *elsewhere, row(5, "oslo", 1)]
    assert [found["_hoodie_commit_time"] for found in after] == [SECOND, FIRST, FIRST, SECOND]
