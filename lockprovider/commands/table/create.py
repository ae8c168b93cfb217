"""`lockprovider table create URL`: make a new table."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fsspec_cas import InvalidInput
from fsspec_cas.command import storage_options
from lockprovider.commands.place import Commands
from lockprovider.commands.table.options import add_table_command, say_answer, settings
from lockprovider.commands.table.output import CommandAnswer
from lockprovider.table.format.properties import READABLE_VERSIONS
from lockprovider.table.spec import TableSpec
from lockprovider.table.table import Table


def add(commands: Commands) -> None:
    """Register it."""
    parser = add_table_command(commands, "create", _create, "Make a new table.")
    schema = parser.add_mutually_exclusive_group(required=True)
    schema.add_argument("--column", action="append", metavar="NAME:TYPE", help="e.g. id:int64, at:timestamp")
    schema.add_argument("--like", type=Path, metavar="FILE.parquet", help="the columns of this file")
    parser.add_argument("--key", action="append", required=True, metavar="COLUMN", help="names a row; repeatable")
    parser.add_argument("--partition-by", action="append", default=[], metavar="COLUMN", help="repeatable")
    parser.add_argument("--ordering", metavar="COLUMN", help="of two rows with one key the higher wins")
    parser.add_argument(
        "--buckets", type=int, metavar="N", help="Hudi's bucket index: N file groups a partition, by key"
    )
    parser.add_argument("--bucket-by", action="append", default=[], metavar="COLUMN", help="of the key (default: all)")
    parser.add_argument("--merge-on-read", action="store_true", help="changes go into log files, which readers merge")
    parser.add_argument(
        "--table-version",
        type=int,
        choices=READABLE_VERSIONS,
        default=READABLE_VERSIONS[0],
        help="default: 8; Hudi 1.0 cannot open tables of version 9",
    )
    parser.add_argument("--name", help="default: the folder's")
    parser.add_argument("--hive-style", action="store_true", help="folders like city=rome")
    parser.add_argument("--url-encode", action="store_true", help="folders like a%%2Fb: any text can be a partition")


def _create(arguments: Any) -> int:
    if arguments.bucket_by and arguments.buckets is None:
        raise InvalidInput("--bucket-by needs --buckets: how many file groups a partition has")
    schema = (
        pq.read_schema(arguments.like) if arguments.like else pa.schema([_column(text) for text in arguments.column])
    )
    spec = TableSpec(
        arguments.name or arguments.url.rstrip("/").rpartition("/")[2],
        schema,
        record_keys=tuple(arguments.key),
        partition_by=tuple(arguments.partition_by),
        ordering=arguments.ordering,
        hive_style=arguments.hive_style,
        url_encode=arguments.url_encode,
        buckets=arguments.buckets,
        bucket_by=tuple(arguments.bucket_by),
        version=arguments.table_version,
        table_type="merge_on_read" if arguments.merge_on_read else "copy_on_write",
    )
    behaviour = settings(arguments)
    table = Table.create(arguments.url, spec, storage_options=storage_options(arguments), settings=behaviour)
    return say_answer(
        arguments, CommandAnswer({"url": table.url, "name": spec.name}, f"created {spec.name} at {table.url}")
    )


def _column(text: str) -> pa.Field:
    name, colon, kind = text.rpartition(":")
    if not colon or not name:
        raise InvalidInput(f"--column {text!r} is not NAME:TYPE")
    return pa.field(name, _type(kind))


def _type(text: str) -> pa.DataType:
    if text == "timestamp":
        return pa.timestamp("us", "UTC")
    if found := re.fullmatch(r"decimal\((\d+),(\d+)\)", text):
        return pa.decimal128(int(found[1]), int(found[2]))
    try:
        return pa.type_for_alias(text)
    except ValueError:
        known = "bool, int32, int64, float32, float64, string, binary, date32, timestamp, decimal(10,2)"
        raise InvalidInput(f"{text!r} is not a type; use e.g. {known}") from None
