"""What JVM Hudi's readers make of a metadata table that breaks a rule: each twin loses rows, or fails them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from jvm.shared_table import SETTINGS
from jvm.spark import HudiError, HudiSpark
from jvm.test_spark_without_settings import MADE
from lockprovider.table import Table
from lockprovider.table.format import compatibility
from lockprovider.table.format.compatibility import ZONE_KEY
from lockprovider.table.format.metadata_table import written_files
from lockprovider.table.transaction import lifecycle

if TYPE_CHECKING:
    from collections.abc import Iterable

    from servers.seaweedfs import SeaweedFS

    from lockprovider.table.format.metadata import CommitMetadata
    from lockprovider.table.format.metadata_table import FilesRecord

pytestmark = pytest.mark.jvm

DDL = "id bigint, part string, name string"
SCHEMA = pa.schema([("id", pa.int64()), ("part", pa.string()), ("name", pa.string())])
FIRST = [(1, "a", "b"), (2, "b", "c")]


def made(hudi: HudiSpark, server: SeaweedFS, *rows: tuple[int, str, str]) -> Table:
    """Theirs, with all their defaults."""
    url = server.new_prefix()
    hudi.write(url, DDL, [*FIRST, *rows], MADE | {ZONE_KEY: "UTC"})
    settings = replace(SETTINGS, write_metadata=True)
    return Table.open(url, storage_options=server.storage_options, settings=settings)


def append(table: Table, *rows: tuple[int, str, str]) -> None:
    table.append(pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA))


def asked(hudi: HudiSpark, table: Table, where: str) -> set[int]:
    """The ids of these rows, by JVM Hudi with its metadata table and all that it skips by."""
    skips = {"hoodie.metadata.enable": "true", "hoodie.enable.data.skipping": "true"}
    return {row[0] for row in hudi.read(table.url, ["id"], where, **skips)}


@pytest.mark.parametrize("shares", [True, False], ids=["ours", "the wrong twin"])
def test_d2_stale_statistics_lose_rows_to_filters(
    hudi: HudiSpark, seaweedfs: SeaweedFS, monkeypatch: pytest.MonkeyPatch, shares: bool
) -> None:
    table = made(hudi, seaweedfs)
    if shares:
        table.share()
    else:
        monkeypatch.setattr(compatibility, "listing_fault", lambda *_, **__: ("", ""))
    append(table, (3, "a", "zz"), (4, "b", "zz"))
    assert asked(hudi, table, "true") == {1, 2, 3, 4}
    assert asked(hudi, table, "name = 'zz'") == ({3, 4} if shares else set())


def _without_sizes(metadata: CommitMetadata) -> Iterable[FilesRecord]:
    for record in written_files(metadata):
        yield replace(record, files={name: one._replace(size=0) for name, one in record.files.items()})


def test_d5_file_listed_with_size_zero_fails_jvm_readers(
    hudi: HudiSpark, seaweedfs: SeaweedFS, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = made(hudi, seaweedfs)
    table.share()
    append(table, (3, "a", "zz"))
    assert asked(hudi, table, "true") == {1, 2, 3}
    monkeypatch.setattr(lifecycle, "written_files", _without_sizes)
    append(table, (4, "a", "zz"))
    with pytest.raises(HudiError, match="size > 0"):
        asked(hudi, table, "true")


def test_d10_jvm_readers_lose_rows_of_prefix_filters_by_own_statistics(hudi: HudiSpark, seaweedfs: SeaweedFS) -> None:
    table = made(hudi, seaweedfs, (3, "c", "newpart"))  # the least value of its file, and greater than the prefix
    assert asked(hudi, table, "name like 'new%'") == set(), "mended there: share() may leave them their statistics"
    assert table.to_arrow(["id"], filter=pc.starts_with(pc.field("name"), "new"))["id"].to_pylist() == [3]
    table.share()
    append(table, (4, "b", "newer"))
    assert asked(hudi, table, "name like 'new%'") == {3, 4}
