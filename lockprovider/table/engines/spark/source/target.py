"""The table that a write is for: opened, made where there is none, or with more columns."""

from __future__ import annotations

import pyarrow as pa

from fsspec_cas import InvalidInput
from lockprovider.table.convert.columns import new_fields
from lockprovider.table.engines.spark.options import SparkOptions
from lockprovider.table.engines.spark.source.hudi_write import KEY_OPTION, HudiWrite
from lockprovider.table.errors import TableExists, TableNotFound
from lockprovider.table.state.context import TableContext
from lockprovider.table.transaction.define import add_columns, create_table

_RETRIES = 5


def open_target(options: SparkOptions, asked: HudiWrite, rows: pa.Schema) -> TableContext | None:
    """The table for these rows; None if there is one, and `if_exists` says to leave it alone.

    Raises:
        TableNotFound: there is none, and the options do not say what it is to be.
        TableExists: there is one, and `if_exists` says that it is an error.
        InvalidInput: the one that is there is another than the options say.
        InvalidRecords, UnsupportedSchema: it cannot be made, or have these columns.
    """
    try:
        table = options.open()
    except TableNotFound:
        return _make(options, asked, rows)
    if options.if_exists == "ignore":
        return None
    if options.if_exists == "error":
        raise TableExists(f"there is a table at {options.url!r} already, which if_exists=error refuses to write to")
    asked.check(table.config())
    there = table.schema()
    more = new_fields(there, rows)
    if more.names and options.merge_schema:
        add_columns(table, more, retries=_RETRIES)
    elif more.names:
        raise InvalidInput(
            f"columns {more.names} are not in the table, which has {there.names}: drop them, or add them by the option "
            "mergeSchema=true"
        )
    return table


def _make(options: SparkOptions, asked: HudiWrite, rows: pa.Schema) -> TableContext | None:
    if not asked.record_keys:
        raise TableNotFound(
            f"there is no table at {options.url!r}: name the columns of its record key by {KEY_OPTION}, and this write "
            "makes it, or create it with Table.create"
        ) from None
    exist_ok = options.if_exists == "append"
    try:
        return create_table(
            TableContext,
            options.url,
            asked.spec(rows),
            storage_options=options.storage_options,
            settings=options.settings,
            exist_ok=exist_ok,
        )
    except TableExists:  # another was faster
        if options.if_exists == "ignore":
            return None
        raise
