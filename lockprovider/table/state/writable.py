"""Whether a table can be written here, by its properties and by the settings of its writer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockprovider.table.format.properties import TableConfig
from lockprovider.table.format.shapes import check_writable
from lockprovider.table.format.writer_settings import says_listing_is_kept

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext


def writable_config(table: TableContext, config: TableConfig | None = None) -> TableConfig:
    """The properties now, or these, of a table that can be written.

    Raises:
        UnsupportedTable: it cannot; naming the property, its value and the next step.
    """
    config = table.config() if config is None else config
    check_writable(config, keeps_listing=keeps_listing(table, config))
    return config


def keeps_listing(table: TableContext, config: TableConfig) -> bool:
    """Whether a write keeps the metadata table's listing of files, if the table has one."""
    said = table.settings.write_metadata
    return says_listing_is_kept(config) if said is None else said
