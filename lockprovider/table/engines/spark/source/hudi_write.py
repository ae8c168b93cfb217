"""What a Spark job says of its write in Hudi's own options: the operation, and what the table is.

    hoodie.datasource.write.operation                   insert, bulk_insert, upsert, delete, insert_overwrite[_table]
    hoodie.datasource.write.recordkey.field, .partitionpath.field, .precombine.field (hoodie.table.ordering.fields)
    hoodie.datasource.write.table.type, .hive_style_partitioning, .partitionpath.urlencode, hoodie.table.name

Where there is no table they make it; of one that is there they may say nothing else. A write that names the record key
is an upsert unless it says otherwise, as in Hudi; without it is an insert, as elsewhere in Spark. Other options
`hoodie.datasource.write.*` are refused: they would be without effect.

Source: Hudi `DataSourceWriteOptions`, `HoodieTableConfig`, `HoodieSparkSqlWriter`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa

from fsspec_cas import InvalidInput
from lockprovider.table.format.properties import COPY_ON_WRITE, TableConfig
from lockprovider.table.spec import TableSpec

_WRITE = "hoodie.datasource.write."
_OPERATION = f"{_WRITE}operation"
KEY_OPTION = f"{_WRITE}recordkey.field"
_NAME = "hoodie.table.name"
_KEYS = (KEY_OPTION, "hoodie.table.recordkey.fields")
_PARTITIONS = (f"{_WRITE}partitionpath.field", "hoodie.table.partition.fields")
_ORDERING = ("hoodie.table.ordering.fields", f"{_WRITE}precombine.field", "hoodie.table.precombine.field")
_NAMES = (_NAME, f"{_WRITE}table.name")
_TYPE = (f"{_WRITE}table.type", "hoodie.table.type")
_HIVE = f"{_WRITE}hive_style_partitioning"
_ENCODE = f"{_WRITE}partitionpath.urlencode"
_HONOURED = frozenset({_OPERATION, *_KEYS, *_PARTITIONS, *_ORDERING, *_NAMES, *_TYPE, _HIVE, _ENCODE})
# About how a JVM writer works inside.
_WITHOUT_EFFECT = frozenset(
    {f"{_WRITE}row.writer.enable", f"{_WRITE}streaming.retry.count", f"{_WRITE}streaming.retry.interval.ms"}
)


class WriteOperation(str, Enum):
    """`hoodie.datasource.write.operation`, but for those that mean the same here."""

    INSERT = "insert"
    UPSERT = "upsert"
    DELETE = "delete"
    INSERT_OVERWRITE = "insert_overwrite"
    INSERT_OVERWRITE_TABLE = "insert_overwrite_table"


@dataclass(frozen=True, slots=True)
class HudiWrite:
    """What the options say; None and empty: nothing."""

    operation: WriteOperation
    record_keys: tuple[str, ...] = ()
    partition_by: tuple[str, ...] | None = None
    ordering: str | None = None
    name: str | None = None
    table_type: str | None = None
    hive_style: bool | None = None
    url_encode: bool | None = None

    @classmethod
    def of(cls, options: Mapping[str, str], *, overwrite: bool = False) -> HudiWrite:
        """Read them; `overwrite` is Spark's mode.

        Raises:
            InvalidInput: one is not known, or has a value that it cannot have.
        """
        strange = sorted(key for key in options if key.startswith(_WRITE) and key not in _HONOURED | _WITHOUT_EFFECT)
        if strange:
            raise InvalidInput(f"options {strange} would have no effect here: leave them out")
        keys, partitions, ordering = (_list(options, names) for names in (_KEYS, _PARTITIONS, _ORDERING))
        if ordering is not None and len(ordering) > 1:
            raise InvalidInput(f"{_ORDERING[0]}={','.join(ordering)} has several columns, only one can be written")
        if mixed := [name for name in (*(keys or ()), *(partitions or ())) if ":" in name]:
            raise InvalidInput(f"{mixed} are no names of columns: give them without a key generator's type")
        kind = _first(options, _TYPE)
        return cls(
            _operation(options.get(_OPERATION), overwrite=overwrite, keyed=bool(keys)),
            keys or (),
            partitions,
            ordering[0] if ordering else None,
            _first(options, _NAMES),
            None if kind is None else kind.upper(),
            _flag(options, _HIVE),
            _flag(options, _ENCODE),
        )

    @property
    def gathers(self) -> bool:
        """Whether all rows have to come together before any is written."""
        return self.operation not in {WriteOperation.INSERT, WriteOperation.INSERT_OVERWRITE_TABLE}

    def spec(self, schema: pa.Schema) -> TableSpec:
        """The table that they make.

        Raises:
            InvalidInput: its name is missing.
            InvalidRecords: they cannot be.
        """
        if not self.name:
            raise InvalidInput(f"{_NAME} is missing: a new table needs a name")
        return TableSpec(
            self.name,
            schema,
            self.record_keys,
            self.partition_by or (),
            ordering=self.ordering,
            hive_style=bool(self.hive_style),
            url_encode=bool(self.url_encode),
            table_type=self.table_type or COPY_ON_WRITE,
        )

    def check(self, config: TableConfig) -> None:
        """Refuse to write to a table that is another one than they say.

        Raises:
            InvalidInput: naming both.
        """
        said = {
            KEY_OPTION: (self.record_keys or None, config.record_keys),
            _PARTITIONS[0]: (self.partition_by, config.partition_fields),
            _ORDERING[0]: (None if self.ordering is None else (self.ordering,), config.ordering_fields),
            _NAME: (self.name, config.name),
            _TYPE[0]: (self.table_type, config.table_type),
            _HIVE: (self.hive_style, config.hive_style),
            _ENCODE: (self.url_encode, config.url_encode),
        }
        for key, (wanted, found) in said.items():
            if wanted is not None and wanted != found:
                raise InvalidInput(
                    f"{key}={_text(wanted)}, but the table that is there has {_text(found) or 'none'}: leave it out"
                )


def _operation(given: str | None, *, overwrite: bool, keyed: bool) -> WriteOperation:
    name = (given or "").strip().lower()
    if overwrite and name != WriteOperation.INSERT_OVERWRITE.value:
        if name == WriteOperation.DELETE.value:
            raise InvalidInput(f"{_OPERATION}=delete deletes keys, mode('overwrite') all rows: use mode('append')")
        return WriteOperation.INSERT_OVERWRITE_TABLE
    if given is None:
        return WriteOperation.UPSERT if keyed else WriteOperation.INSERT
    if name == "bulk_insert":
        return WriteOperation.INSERT
    try:
        return WriteOperation(name)
    except ValueError:
        known = ", ".join(sorted({one.value for one in WriteOperation} | {"bulk_insert"}))
        raise InvalidInput(f"{_OPERATION}={given} cannot be had here: use one of {known}") from None


def _list(options: Mapping[str, str], keys: tuple[str, ...]) -> tuple[str, ...] | None:
    text = _first(options, keys)
    return None if text is None else tuple(name.strip() for name in text.split(",") if name.strip())


def _first(options: Mapping[str, str], keys: tuple[str, ...]) -> str | None:
    """The value of the same option by several names.

    Raises:
        InvalidInput: two of them differ.
    """
    given = {key: options[key].strip() for key in keys if key in options}
    if len({*given.values()}) > 1:
        raise InvalidInput(f"{given} contradict each other: give one of them")
    return next(iter(given.values()), None)


def _flag(options: Mapping[str, str], key: str) -> bool | None:
    text = options.get(key)
    if text is not None and text.strip().lower() not in {"true", "false"}:
        raise InvalidInput(f"{key}={text} is neither true nor false")
    return None if text is None else text.strip().lower() == "true"


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
