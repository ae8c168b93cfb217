"""Small tables of many types of key and partition, by every way to write; and the texts that are in their files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
from table.key_values import EMPTY, KINDS, NULL, TEXTS

from jvm.spark import HudiError

if TYPE_CHECKING:
    from jvm.spark import HudiSpark
    from lockprovider.table import Table

CONSISTENT = {"hoodie.datasource.write.keygenerator.consistent.logical.timestamp.enabled": "true"}
ENCODE = {"hoodie.datasource.write.partitionpath.urlencode": "true"}
VERSION_8 = {"hoodie.write.table.version": "8", "hoodie.write.complex.keygen.validation.enable": "false"}
ROW_WRITER = "hoodie.datasource.write.row.writer.enable"
BY_FRAME: Mapping[str, Mapping[str, str]] = {
    "upsert": {},
    "insert": {},
    "bulk_insert": {ROW_WRITER: "true"},
    "bulk_insert without row writer": {ROW_WRITER: "false"},
}
WAYS = (*BY_FRAME, "SQL INSERT", "MERGE", "CTAS")
QUICK = {
    "hoodie.metadata.enable": "false",
    "hoodie.embed.timeline.server": "false",
    "hoodie.write.markers.type": "DIRECT",
    "hoodie.clean.automatic": "false",
    "hoodie.archive.automatic": "false",
    "hoodie.datasource.write.hive_style_partitioning": "true",
    **{f"hoodie.{verb}.shuffle.parallelism": "1" for verb in ("insert", "upsert", "bulkinsert", "delete")},
}
DRIVER = {
    "spark.driver.extraJavaOptions": "-Duser.timezone=UTC -XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.default.parallelism": "1",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
ZONES = {"Kolkata": "Asia/Kolkata", "New York": "America/New_York"}
# By shape, role and type: the value's label to its text.
Found = dict[str, dict[str, str]]


def alone(table: Table) -> Table:
    """Let JVM Hudi write this table without a lock, which it cannot have in a local folder."""
    table.unshare()
    return table


def found_by(hudi: HudiSpark, folder: Path, version: str) -> Iterator[tuple[str, Found]]:
    """What one release makes of all values, one way to write after the other."""
    makes_8 = version.startswith(("1.1", "1.2"))
    for way in WAYS:
        writer = Writer(hudi, folder / way.replace(" ", "_"), way)
        found = wide(writer)
        if way in {"upsert", "bulk_insert", "SQL INSERT"}:
            found |= one_key(writer, "one key of two partitions", {})
            found |= one_key(writer, "one key of two partitions, version 8", VERSION_8) if makes_8 else {}
        if way in {"upsert", "bulk_insert"}:
            found |= encoded(writer)
            for name in ("string", "long", "boolean", "timestamp", "date", "decimal of many places", "bytes"):
                found |= simple(writer, name)
        yield way, found
        if way in {"upsert", "bulk_insert", "SQL INSERT"}:
            yield f"{way}, consistent.logical.timestamp", wide(writer, CONSISTENT)


def found_in(hudi: HudiSpark, folder: Path, place: str) -> Iterator[tuple[str, Found]]:
    """What a driver in another time zone makes of them."""
    yield f"bulk_insert in {place}", wide(Writer(hudi, folder / place, "bulk_insert"))


class Writer:
    """One way to write, in one driver: a table each time."""

    def __init__(self, hudi: HudiSpark, folder: Path, way: str) -> None:
        self.hudi, self.folder, self.way, self.count = hudi, folder, way, 0

    def texts(
        self,
        columns: Sequence[str],
        keys: Sequence[str],
        partitions: Sequence[str],
        rows: Sequence[Sequence[str]],
        options: Mapping[str, str],
    ) -> list[tuple[str, str]]:
        """Each row's record key and partition path.

        Raises:
            HudiError: it cannot be written so.
        """
        self.count += 1
        url = str(self.folder / str(self.count))
        each = (f"({', '.join(row)}, {n})" for n, row in enumerate(rows))
        source = f"select * from values {', '.join(each)} as t({', '.join(columns)}, n)"  # noqa: S608 (ours)
        given = QUICK | options
        named = {
            "hoodie.table.name": "t",
            "hoodie.datasource.write.recordkey.field": ",".join(keys),
            "hoodie.datasource.write.partitionpath.field": ",".join(partitions),
            "hoodie.datasource.write.precombine.field": "n",
        }
        if self.way in BY_FRAME:
            operation = {"hoodie.datasource.write.operation": self.way.partition(" ")[0]}
            self.hudi.save(source, url, {**given, **named, **operation, **BY_FRAME[self.way]})
        else:
            self._by_sql(url, keys, partitions, source, given)
        found = dict(_rows(url))
        return [found[n] for n in range(len(rows))]

    def _by_sql(
        self, url: str, keys: Sequence[str], partitions: Sequence[str], source: str, options: Mapping[str, str]
    ) -> None:
        told = {"type": "cow", "primaryKey": ",".join(keys), "preCombineField": "n", **options}
        properties = ", ".join(f"'{name}' = '{value}'" for name, value in told.items())
        made = f"using hudi tblproperties ({properties}) partitioned by ({', '.join(partitions)}) location '{url}'"
        try:
            if self.way == "CTAS":
                self.hudi.sql(f"create table t {made} as {source}")
                return
            self.hudi.sql(f"create or replace temp view s as {source}")
            kinds = {str(row[0]): str(row[1]) for row in self.hudi.sql("describe s")}
            self.hudi.sql(f"create table t ({', '.join(f'{name} {kind}' for name, kind in kinds.items())}) {made}")
            if self.way == "MERGE":
                on = " and ".join(f"t.{key} = s.{key}" for key in keys)
                self.hudi.sql(f"merge into t using s on {on} when not matched then insert *")
            else:
                ordered = [*(name for name in kinds if name not in partitions), *partitions]
                self.hudi.sql(f"insert into t select {', '.join(ordered)} from s")  # noqa: S608 (ours)
        finally:
            self.hudi.sql("drop table if exists t")


def _rows(url: str) -> Iterator[tuple[int, tuple[str, str]]]:
    for path in Path(url).rglob("*.parquet"):
        if ".hoodie" not in path.relative_to(url).parts:
            rows = pq.ParquetFile(path).read(["n", "_hoodie_record_key", "_hoodie_partition_path"])
            for row in rows.to_pylist():
                # Java's name for bytes has a number in it, another one each time.
                key, partition = (
                    re.sub(r"\[B@[0-9a-f]+", "[B@...", row[f"_hoodie_{name}"])
                    for name in ("record_key", "partition_path")
                )
                yield row["n"], (key, partition)


def wide(writer: Writer, options: Mapping[str, str] | None = None) -> Found:
    """A key of all types but bytes, and a partition of all of them; nulls, and empty texts.

    Where they cannot be written, times are left out: of the partition, then of both.
    """
    names = [name for name in KINDS if name != "bytes"]
    timeless = [name for name in names if not name.startswith("timestamp")]
    found: Found = {}
    for keys, parts in ((names, names), (names, timeless), (names[:-1], names[:-1]), (names[:-1], timeless)):
        try:
            return found | _wide(writer, keys, parts, options or {})
        except HudiError as error:
            found[f"{keys[-1]} in a composite key, {parts[-1]} in the partition"] = {"error": first_line(error)}
    return found


def _wide(writer: Writer, in_key: list[str], in_partition: list[str], options: Mapping[str, str]) -> Found:
    rows = []
    for at in range(max(len(KINDS[name].values) for name in in_key)):
        labels = {name: list(KINDS[name].values) for name in in_key}
        values = {name: cast(labels[name][at % len(labels[name])], name) for name in in_key}
        rows.append([f"'{at}'", *values.values(), *(values[name] for name in in_partition)])
    for fill, text in (("'null'", "cast(null as string)"), ("'empty'", "''")):
        values = {name: text if name == "string" else cast("null", name) for name in in_key}
        rows.append([fill, *values.values(), *(values[name] for name in in_partition)])
    keys = [f"k{at}" for at in range(len(in_key))]
    parts = [f"p{at}" for at in range(len(in_partition))]
    texts = writer.texts(["id", *keys, *parts], ["id", *keys], parts, rows, options)
    found: Found = {}
    for at, name in enumerate(in_key):
        for n, label in _labels(name, len(rows)):
            key = texts[n][0].partition(f",k{at}:")[2]
            key = key.partition(f",k{at + 1}:")[0] if at + 1 < len(in_key) else key
            found.setdefault(f"composite key: {name}", {})[label] = key
    for at, name in enumerate(in_partition):
        for n, label in _labels(name, len(rows)):
            level = texts[n][1].split("/")[at]
            found.setdefault(f"composite partition: {name}", {})[label] = folder(level, f"p{at}")
    return found


def _labels(name: str, rows: int) -> Iterator[tuple[int, str]]:
    """The rows in which a value of a type is first seen; the last two are null and empty."""
    yield from enumerate(KINDS[name].values)
    yield rows - 2, NULL
    if name == "string":
        yield rows - 1, EMPTY


def simple(writer: Writer, name: str) -> Found:
    """One key, one partition; of one type."""
    labels = list(KINDS[name].values)
    try:
        texts = writer.texts(["k", "p"], ["k"], ["p"], [[cast(label, name)] * 2 for label in labels], {})
    except HudiError as error:
        return {f"simple: {name}": {"error": first_line(error)}}
    return {
        f"simple key: {name}": {label: texts[n][0] for n, label in enumerate(labels)},
        f"simple partition: {name}": {label: folder(texts[n][1], "p") for n, label in enumerate(labels)},
    }


def one_key(writer: Writer, name: str, options: Mapping[str, str]) -> Found:
    """A key of one column and a partition of two, which Hudi gives to its complex key generator."""
    try:
        texts = writer.texts(["k", "p", "q"], ["k"], ["p", "q"], [["'a'", "'b'", "'c'"]], options)
    except HudiError as error:
        return {name: {"error": first_line(error)}}
    return {name: {"'a'": texts[0][0]}}


def encoded(writer: Writer) -> Found:
    """A partition each of many characters, with URL encoding."""
    quoted = ("'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'" for text in TEXTS.values())
    try:
        texts = writer.texts(["k", "p"], ["k"], ["p"], [[f"'{n}'", text] for n, text in enumerate(quoted)], ENCODE)
    except HudiError as error:
        return {"encoded partition": {"error": first_line(error)}}
    return {"encoded partition": {label: folder(texts[n][1], "p") for n, label in enumerate(TEXTS)}}


def cast(label: str, name: str) -> str:
    return f"cast({label} as {KINDS[name].sql})"


def folder(path: str, column: str) -> str:
    """A level of the path without the name of its column."""
    assert path.startswith(f"{column}="), path
    return path.removeprefix(f"{column}=")


def first_line(error: HudiError) -> str:
    """What the last cause says, cut."""
    return str(error).rpartition("caused by ")[2].splitlines()[0][:160]


def grouped(found: Mapping[str, Mapping[str, Found]]) -> dict[str, list[dict[str, Any]]]:
    """By shape and type: each set of texts, and which ways of which version make it. `found` is by version, by way."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for version, by_way in found.items():
        for way, shapes in by_way.items():
            for shape, texts in shapes.items():
                alike = groups.setdefault(shape, [])
                same = next((one for one in alike if one["texts"] == texts), None)
                if same is None:
                    alike.append(same := {"texts": texts, "by": {}})
                same["by"].setdefault(version, []).append(way)
    return dict(sorted(groups.items()))


def ungrouped(groups: Mapping[str, list[dict[str, Any]]]) -> dict[str, dict[str, Found]]:
    """What `grouped` was given."""
    found: dict[str, dict[str, Found]] = {}
    for shape, alike in groups.items():
        for group in alike:
            for version, ways in group["by"].items():
                for way in ways:
                    found.setdefault(version, {}).setdefault(way, {})[shape] = group["texts"]
    return found
