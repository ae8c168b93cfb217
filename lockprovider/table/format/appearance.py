"""In which order the commits of a table appear in the store: a property of the table, of ours alone.

    in order          one after the other, in the order of their decision: exact for all who only list the store
    for our readers   those of one decision at once: exact for readers of ours, who look at the lock record. JVM Hudi's
                      incremental queries and hudi-rs, whose checkpoint is a completion time, MAY MISS COMMITS

JVM Hudi keeps properties that it does not know. Where it has lost this one, or it says neither, they appear in order.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from fsspec_cas import InvalidInput
from lockprovider.table.format.properties import TableConfig

APPEARS_KEY = "fsspec_cas.appears"
APPEARANCES = IN_ORDER, FOR_OUR_READERS = ("in order", "for our readers")


def appears(config: TableConfig) -> str:
    """What the table says, whatever it is."""
    return config.raw.get(APPEARS_KEY, IN_ORDER)


def appears_at_once(config: TableConfig) -> bool:
    """Whether those of one decision are put there at once."""
    return appears(config) == FOR_OUR_READERS


def with_appearance(config: TableConfig, wanted: str) -> TableConfig:
    """The properties that say so.

    Raises:
        InvalidInput: it is none of the two.
    """
    if wanted not in APPEARANCES:
        raise InvalidInput(f"appears={wanted!r} is none: use {' or '.join(map(repr, APPEARANCES))}")
    others = {key: value for key, value in config.raw.items() if key != APPEARS_KEY}
    said = {} if wanted == IN_ORDER else {APPEARS_KEY: wanted}
    return replace(config, raw=MappingProxyType(others | said))
