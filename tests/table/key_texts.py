"""Keys and partition paths of one row, made value by value: what those that are made by columns have to equal."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal

from lockprovider.table.errors import InvalidRecords
from lockprovider.table.format.keygen import PartitionStyle, key_of_texts

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - compared with naive values only


def text_of(value: object) -> str | None:
    """A key or partition value as Hudi writes it."""
    match value:
        case None | str():
            return value
        case bool():
            return "true" if value else "false"
        case int() | Decimal():
            return str(value)
        case datetime():
            plain = value.astimezone(timezone.utc).replace(tzinfo=None) if value.tzinfo else value
            return str((plain - _EPOCH) // timedelta(microseconds=1))
        case date():
            return value.isoformat()
    raise TypeError(f"{value!r} has no text")


def record_key(values: Sequence[object], fields: Sequence[str]) -> str:
    texts = [text_of(value) for value in values]
    if not any(texts):
        raise InvalidRecords(f"record key {list(fields)} is null or empty")
    return str(texts[0]) if len(texts) == 1 else key_of_texts(texts, fields)


def path_for(style: PartitionStyle, values: Sequence[object]) -> str:
    return "/".join(style.folder_for(field, text_of(value)) for field, value in zip(style.fields, values, strict=True))
