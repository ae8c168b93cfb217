"""The metadata table that JVM Hudi's writer keeps by default, read here: whatever it has done to it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from table.tables import SCHEMA, content

from jvm.shared_table import DDL, theirs
from jvm.spark import HudiSpark
from jvm.test_spark_without_settings import MADE, PLAIN
from lockprovider.table import Table
from lockprovider.table.doctor.rules import diagnose
from lockprovider.table.format.layout import METADATA_TABLE
from lockprovider.table.state.current import CurrentState

if TYPE_CHECKING:
    from servers.seaweedfs import SeaweedFS

pytestmark = pytest.mark.jvm

# So that a few commits have all of it: compactions of the metadata table, cleans of the table.
SOON = {
    "hoodie.metadata.compact.max.delta.commits": "3",
    "hoodie.clean.commits.retained": "2",
    "hoodie.metadata.enable": "true",
}


def test_metadata_table_lists_all_files_and_serves_reads_after_each_write(
    hudi: HudiSpark, seaweedfs: SeaweedFS, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = seaweedfs.new_prefix()
    for turn in range(9):
        hudi.write(url, DDL, [(turn % 3, "ab"[turn % 3 % 2], turn), (10 + turn, "c", turn)], MADE | SOON)
        table = Table.open(url, storage_options=seaweedfs.storage_options, settings=PLAIN)
        findings = {rule: found for rule, _, found in diagnose(table)}
        assert findings["metadata"] == (), (turn, findings["metadata"])
    assert [e for e in table.store.list(f"{METADATA_TABLE}/files/") if e.path.endswith(".hfile")][1:], "none compacted"
    rows = content(table)
    assert rows == theirs(hudi, table)
    assert set(hudi.read(url, SCHEMA.names, **{"hoodie.metadata.enable": "true"})) == rows
    by_metadata = Table.open(
        url, storage_options=seaweedfs.storage_options, settings=replace(PLAIN, read_from_metadata=True)
    )
    with monkeypatch.context() as patched:
        patched.setattr(CurrentState, "data_files", lambda _: pytest.fail("the folders were listed"))
        assert content(by_metadata) == rows
    hudi.write(url, DDL, [(1, "b", -1)], MADE)
    assert (1, "b", -1) in content(by_metadata)
