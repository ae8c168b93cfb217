"""JVM Hudi 1.2 reads the tables that we write, and sees what we and hudi-rs see."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import TYPE_CHECKING, Any

import pytest
from hudi import HudiTableBuilder

from jvm.shapes import SHAPES, local, stored, upserts
from lockprovider.demo.proof import reader_options
from lockprovider.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from servers.seaweedfs import SeaweedFS

    from jvm.spark import HudiSpark

pytestmark = pytest.mark.jvm
Rows = list[tuple[Any, ...]]


@pytest.mark.parametrize("shape", SHAPES)
def test_jvm_hudi_and_hudi_rs_and_python_read_the_same_rows(hudi: HudiSpark, tmp_path: Path, shape: str) -> None:
    table = SHAPES[shape](local(str(tmp_path / "table")))
    seen = ours(table)
    assert theirs(hudi, table) == seen
    assert by_hudi_rs(table, {}) == seen
    assert seen or shape in ("no_rows_at_all", "all_deleted")


@pytest.mark.parametrize("shape", ["deletes", "partitions_overwritten_and_emptied", "rolled_back"])
def test_jvm_reads_the_same_rows_on_an_object_store(hudi: HudiSpark, seaweedfs: SeaweedFS, shape: str) -> None:
    options = seaweedfs.storage_options
    table = SHAPES[shape](stored(seaweedfs.new_prefix(), options))
    seen = ours(table)
    assert theirs(hudi, table) == seen
    assert by_hudi_rs(table, reader_options(table.url, options, {})) == seen
    assert seen


def test_jvm_hudi_sees_every_commit_as_of_its_own_time(hudi: HudiSpark, tmp_path: Path) -> None:
    table = upserts(local(str(tmp_path / "table")))
    sizes = []
    for commit in table.history()[1:]:
        seen = plain_rows(table.to_arrow(as_of=commit.completion).to_pylist())
        options = {"as.of.instant": commit.instant}
        assert in_order(hudi.read(table.url, table.schema().names, **options)) == seen
        sizes.append(len(seen))
    assert sizes == [3, 5, 6]


def test_jvm_incremental_read_sees_changes_between_two_commits(hudi: HudiSpark, tmp_path: Path) -> None:
    table = upserts(local(str(tmp_path / "table")))
    _, first, second, third = [commit.completion for commit in table.history()]
    for after, until, expected in (
        (first, third, [(2, "a", 20), (3, "b", 30), (4, "b", 4), (5, "a", 5), (6, "c", 6)]),
        (first, second, [(2, "a", 20), (4, "b", 4), (5, "a", 5)]),
        (second, third, [(3, "b", 30), (6, "c", 6)]),
    ):
        options = {
            "hoodie.datasource.query.type": "incremental",
            "hoodie.datasource.read.begin.instanttime": after,
            "hoodie.datasource.read.end.instanttime": until,
        }
        assert in_order(hudi.read(table.url, table.schema().names, **options)) == expected


def test_difference_between_readers_is_noticed(hudi: HudiSpark, tmp_path: Path) -> None:
    table = upserts(local(str(tmp_path / "table")))
    latest = max((tmp_path / "table" / ".hoodie" / "timeline").glob("*.commit"))
    seen = ours(table)
    latest.unlink()
    assert theirs(hudi, table) != seen


def theirs(hudi: HudiSpark, table: Table) -> Rows:
    return in_order(hudi.read(table.url.replace("s3://", "s3a://"), table.schema().names))


def ours(table: Table) -> Rows:
    return plain_rows(table.to_arrow().to_pylist())


def by_hudi_rs(table: Table, options: dict[str, str]) -> Rows:
    batches = HudiTableBuilder.from_base_uri(table.url).with_storage_options(options).build().read()
    names = table.schema().names
    found = [{name: row[name] for name in names} for batch in batches for row in batch.to_pylist()]
    return plain_rows(found)


def plain_rows(found: Iterable[dict[str, Any]]) -> Rows:
    return in_order(tuple(plain(value) for value in row.values()) for row in found)


def in_order(found: Iterable[tuple[Any, ...]]) -> Rows:
    return sorted(found, key=repr)


def plain(value: Any) -> Any:  # noqa: PLR0911 (a table)
    """As the driver says it; see `spark_main.plain`."""
    match value:
        case dict():
            return [plain(each) for each in value.values()]
        case [(_, _), *_]:
            return sorted([plain(key), plain(each)] for key, each in value)
        case list():
            return [plain(each) for each in value]
        case bytes():
            return value.hex()
        case decimal.Decimal():
            return str(value)
        case dt.datetime():
            return value.replace(tzinfo=None).isoformat()
        case dt.date():
            return value.isoformat()
    return value
