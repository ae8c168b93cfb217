"""Tables of version 9 that are made here, beside JVM Hudi's writer, which is told nothing but where the table is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from table.tables import SPEC, upsert

from jvm.shared_table import DDL, new_table
from jvm.spark import HudiSpark
from jvm.test_spark_races import race
from jvm.test_spark_without_settings import NOTHING, PLAIN, same
from lockprovider.table import Table
from lockprovider.table.format.layout import METADATA_TABLE, PROPERTIES

if TYPE_CHECKING:
    from servers.seaweedfs import SeaweedFS

pytestmark = pytest.mark.jvm


@pytest.fixture
def nine(seaweedfs: SeaweedFS) -> Table:
    return new_table(seaweedfs, replace(SPEC, version=9), PLAIN)


def test_jvm_writes_without_settings_keep_table_version_9(hudi: HudiSpark, nine: Table) -> None:
    before, looks = nine.store.read(PROPERTIES).data, hudi.looks_at_lock(nine.url)
    hudi.write(nine.url, DDL, [(1, "a", 10), (3, "c", 3)], NOTHING)
    assert hudi.looks_at_lock(nine.url) > looks
    upsert(nine, (3, "c", 30))
    hudi.sql(f"create table nine using hudi location '{nine.url}'")
    hudi.sql("update nine set value = 20 where id = 2")
    hudi.sql("drop table nine")
    assert same(hudi, nine) == {(1, "a", 10), (2, "b", 20), (3, "c", 30)}
    assert nine.store.read(PROPERTIES).data == before
    assert nine.store.list(f"{METADATA_TABLE}/") == []


def test_no_update_is_lost_in_a_table_of_version_9(hudi: HudiSpark, nine: Table) -> None:
    race(hudi, nine, turns=2, options=NOTHING)
    same(hudi, nine)
