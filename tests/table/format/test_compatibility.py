"""Which tables can be read and written here: each property of Hudi's is on the list, and each refusal leads on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lockprovider import table as table_package
from lockprovider.table.errors import UnsupportedTable
from lockprovider.table.format import compatibility, properties
from lockprovider.table.format.compatibility import shared, without_metadata_table
from lockprovider.table.format.properties import VISIBILITY_KEY, TableConfig, encode_properties, parse_properties

STATS = ("column_stats", "files", "partition_stats")
GOOD = TableConfig("t", ("id",), ("city",), ("ts",))
RELEASED = json.loads((Path(__file__).parents[1] / "data" / "table_config_keys.json").read_text())


def with_property(text: str) -> TableConfig:
    """A good table whose properties file has this line, too."""
    return parse_properties(encode_properties(GOOD) + text.encode() + b"\n")


@pytest.mark.parametrize("release", RELEASED)
def test_every_property_of_released_hudi_is_on_the_list(release: str) -> None:
    assert [key for key in RELEASED[release] if compatibility.property_of(key) is None] == []


def test_every_property_on_the_list_is_one_of_hudi_or_a_family() -> None:
    named = {one.key for one in compatibility.KNOWN_PROPERTIES if not one.key.endswith(".")}
    own = {key for key in named if key.startswith("fsspec_cas.")}
    index = {key for key in named if "index." in key and not key.startswith(("hoodie.table", "hoodie.bootstrap"))}
    assert named - own - index - {"hoodie.schema.on.read.enable"} <= {key for keys in RELEASED.values() for key in keys}


@pytest.mark.parametrize(
    "text",
    [
        "hoodie.bootstrap.base.path=s3://bucket/old",
        "hoodie.datasource.write.slash.separated.date.partitioning=true",
        "hoodie.table.multiple.base.file.formats.enable=true",
        "hoodie.table.base.file.format=LANCE",
        "hoodie.timeline.path=elsewhere",
        "hoodie.table.storage.layout=lsm_tree",
        "hoodie.meta.fields.mode=SELECTIVE",
        f"{VISIBILITY_KEY}.later=1",
    ],
)
def test_table_whose_rows_could_be_wrong_is_refused_by_name_and_value(text: str) -> None:
    for check in (compatibility.check_readable, compatibility.check_writable):
        with pytest.raises(UnsupportedTable) as refused:
            check(with_property(text))
        assert text in str(refused.value)
        assert "use the engine that made it" in str(refused.value) or "rewrite the table" in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "hoodie.table.cdc.enabled=true",
        "hoodie.table.format=iceberg",
        "hoodie.datasource.write.keygenerator.consistent.logical.timestamp.enabled=true",
        "hoodie.index.type=GLOBAL_SIMPLE",
        "hoodie.write.lock.provider=org.apache.hudi.client.transaction.lock.ZookeeperBasedLockProvider",
        "hoodie.write.concurrency.early.conflict.detection.enable=true",
        "hoodie.write.commit.callback.on=true",
        "hoodie.clean.failed.writes.policy=NEVER",
        "hoodie.write.of.a.later.release=1",
        "hoodie.table.keygenerator.class=com.example.Mine",
        "hoodie.table.keygenerator.class=org.apache.hudi.keygen.ComplexKeyGenerator",
        "hoodie.table.keygenerator.type=NON_PARTITION",
        "hoodie.compaction.payload.class=org.apache.hudi.common.model.OverwriteWithLatestAvroPayload",
        "hoodie.record.merge.strategy.id=00000000-0000-0000-0000-000000000000",
        "hoodie.record.merge.strategy.id=\nhoodie.compaction.record.merger.strategy=ce9acb64-bde0-424c-9b91-f6ebba25356d",
    ],
)
def test_table_that_a_write_would_damage_is_read_and_refused_by_name(text: str) -> None:
    config = with_property(text)
    compatibility.check_readable(config)
    with pytest.raises(UnsupportedTable) as refused:
        compatibility.check_writable(config)
    assert text.splitlines()[-1] in str(refused.value)


@pytest.mark.parametrize("table_type", properties.TABLE_TYPES)
def test_strategy_that_an_upgrade_left_under_its_older_name_is_ignored(table_type: str) -> None:
    """0.14 wrote that of the event time into each table; an upgrade adds the newer name, which JVM Hudi prefers."""
    config = replace(GOOD, ordering_fields=(), table_type=table_type)
    left = "hoodie.compaction.record.merger.strategy=eeb8d96f-b1e4-49fd-bbf8-28ac514178e5\n"
    upgraded = parse_properties(encode_properties(config) + left.encode())
    compatibility.check_writable(upgraded)
    assert properties.unknown_merge(upgraded) == ""


@pytest.mark.parametrize(
    "text",
    [
        "hoodie.table.partial.update.mode=NONE",
        "hoodie.table.legacy.payload.class=org.apache.hudi.common.model.DefaultHoodieRecordPayload",
        "hoodie.table.keygenerator.class=org.apache.hudi.keygen.SimpleAvroKeyGenerator",
        "hoodie.compaction.payload.class=org.apache.hudi.common.model.EventTimeAvroPayload",
        "hoodie.parquet.compression.codec=zstd",
        "hoodie.datasource.hive_sync.table=trips",
        "hoodie.write.lock.wait_time_ms=1000",
        "hoodie.keep.min.commits=20",
        "comment=of the owner",
    ],
)
def test_property_that_changes_no_row_is_accepted(text: str) -> None:
    compatibility.check_writable(with_property(text))


def test_settings_for_all_writers_are_judged_together() -> None:
    text = "hoodie.write.lock.storage.validity.timeout.secs=60\nhoodie.write.lock.storage.renew.interval.secs=5"
    compatibility.check_writable(with_property(text))


def test_refusal_names_all_reasons_and_advises_only_working_steps() -> None:
    """I4: `retire` was advised, removed 64 files, and the write after it was refused for the key generator."""
    config = replace(
        GOOD, metadata_partitions=("files", "record_index"), keygenerator="TIMESTAMP", ordering_fields=("a", "b")
    )
    with pytest.raises(UnsupportedTable) as refused:
        compatibility.check_writable(config)
    said = str(refused.value)
    assert "for 3 reasons" in said
    assert all(word in said for word in ("record_index", "TIMESTAMP", "several fields"))
    assert "retire" not in said
    assert "share" not in said
    assert said.endswith("use the engine that made it")


@pytest.mark.parametrize(
    ("config", "ways"),
    [
        (replace(GOOD, timezone="LOCAL"), ["Table.share() makes it UTC"]),
        (
            replace(GOOD, metadata_partitions=("files",)),
            ["TableSettings(write_metadata=True) keeps its listing", "Table.retire_metadata_table()"],
        ),
        (
            replace(GOOD, metadata_partitions=("files", "column_stats", "partition_stats"), timezone="LOCAL"),
            ["drops column_stats and partition_stats, and makes its zone UTC", "then Table.share() makes it UTC"],
        ),
        (
            replace(GOOD, metadata_partitions=("files", "record_index")),
            ["`DROP INDEX record_index ON ...`, then Table.share()", "Table.retire_metadata_table()"],
        ),
        (replace(GOOD, version=6, timezone="LOCAL"), ["CALL upgrade_table", ", then Table.share() makes it UTC"]),
        (replace(GOOD, keygenerator="CUSTOM", timezone="LOCAL"), []),
    ],
)
def test_refusal_names_the_way_to_a_writable_table_if_any(config: TableConfig, ways: list[str]) -> None:
    with pytest.raises(UnsupportedTable) as refused:
        compatibility.check_writable(config)
    said = str(refused.value)
    assert [way for way in ways if way not in said] == []
    assert said.count("makes it UTC") <= 1
    assert config.named_metadata or "retire" not in said
    assert ways or said.endswith("use the engine that made it")


@pytest.mark.parametrize(
    ("named", "inflight", "keeps", "said"),
    [
        ((), (), False, ""),
        ((), (), True, ""),
        (("files",), (), True, ""),
        (("files",), (), False, r"would hide .*write_metadata=True.*retire_metadata_table"),
        (("files",), ("column_stats",), True, "is being built; wait"),
        ((), ("files",), True, "is being built"),
        (STATS, (), True, "drops column_stats and partition_stats"),
        (("files", "record_index"), (), True, "DROP INDEX record_index"),
        (("files", "secondary_index_x"), (), True, "DROP INDEX secondary_index_x"),
        ((*STATS, "record_index"), (), True, r"DROP INDEX record_index.*then Table.share\(\).*drops column_stats"),
    ],
)
def test_metadata_table_that_is_not_kept_is_named_with_the_next_step(
    named: tuple[str, ...], inflight: tuple[str, ...], keeps: bool, said: str
) -> None:
    config = replace(GOOD, metadata_partitions=named, metadata_inflight=inflight)
    found = "; ".join(one.text for one in compatibility.reasons(config, keeps_listing=keeps))
    assert bool(found) == bool(said)
    if said:
        assert ",".join((*named, *inflight)) in found
        with pytest.raises(UnsupportedTable, match=said):
            compatibility.check_writable(config, keeps_listing=keeps)


@pytest.mark.parametrize("write", [str, str.upper])
def test_settings_of_the_listing_compare_as_hudi_compares(write: Callable[[str], str]) -> None:
    kept = shared(replace(GOOD, metadata_partitions=("files",)), keeps_listing=True)
    written = {key: write(value) if value in {"true", "false"} else value for key, value in kept.raw.items()}
    assert compatibility.keeps_file_listing(replace(kept, raw=written))
    assert compatibility.share_changes(replace(kept, raw=written), keeps_listing=True) == ()


def test_advised_steps_lead_to_writable_tables() -> None:
    config = replace(GOOD, metadata_partitions=("files", "column_stats"), timezone="LOCAL")
    compatibility.check_writable(shared(config, keeps_listing=True), keeps_listing=True)
    compatibility.check_writable(shared(without_metadata_table(config)))


def as_markdown() -> str:
    """The list as the table of the specification."""
    lines = ["| property | what it means here | else refused |", "|---|---|---|"]
    alike: dict[str, list[str]] = {}
    for one in compatibility.KNOWN_PROPERTIES:
        key, refused = f"`{one.key}{'*' if one.key.endswith('.') else ''}`", ""
        if one.key.endswith(".") and one.meaning.startswith("setting"):
            alike.setdefault(one.meaning, []).append(key)
            continue
        if one.reads is not None or one.writes is not None:
            refused = "writes" if one.reads is None else "reads, writes"
        lines.append(f"| {key} | {one.meaning} | {refused} |")
    lines += [f"| {', '.join(keys)} | {meaning} | |" for meaning, keys in alike.items()]
    lines.append("| any other `hoodie.*` or `fsspec_cas.*` | not known | reads, writes |")
    return "\n".join(lines) + "\n"


def test_specification_has_the_list_of_properties() -> None:
    specification = (Path(table_package.__file__).parent / "SPECIFICATION.md").read_text()
    assert as_markdown() in specification, f"print it anew:\n{as_markdown()}"
