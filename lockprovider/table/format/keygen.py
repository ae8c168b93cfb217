"""Partition paths and composite record keys, as Hudi's key generators make them of values.

Source: Hudi `KeyGenUtils`, `PartitionPathEncodeUtils`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from lockprovider.table.errors import InvalidRecords
from lockprovider.table.format.layout import META, PARTITION_METAFILE

DEFAULT_PARTITION = "__HIVE_DEFAULT_PARTITION__"
NULL_KEY = "__null__"
EMPTY_KEY = "__empty__"

_OWN_NAMES = frozenset({META, PARTITION_METAFILE})
_PLACEHOLDERS: dict[str | None, str | None] = {NULL_KEY: None, EMPTY_KEY: ""}
_UNSAFE = re.compile(r"[\x00-\x1f\"#%'*/:=?\\\x7f{\[\]^]")
# hudi-rs and Hadoop's `Path` misread these, and the JVM always decodes escapes.
_MISREAD = re.compile(r"[\x00-\x1f\x7f:]|%[0-9a-fA-F]{2}")
# A bare value with `=` reads as column and value.
_MISREAD_ALONE = re.compile(f"{_MISREAD.pattern}|=")
_CURE = "give the table URL encoding when it is made (TableSpec.url_encode), or "
_ESCAPED = re.compile(r"%([0-9a-fA-F]{2})")


def escape(value: str) -> str:
    return _UNSAFE.sub(lambda match: f"%{ord(match[0]):02X}", value)


def unescape(value: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), value)


def outer_of(partition: str) -> list[str]:
    levels = partition.split("/")
    return ["/".join(levels[:count]) for count in range(1, len(levels))]


def nested(partition: str, other: str) -> InvalidRecords:
    inner, outer = sorted((partition, other), key=len, reverse=True)
    return InvalidRecords(
        f"partition {inner!r} would be inside partition {outer!r}: JVM readers would find the outer one's rows only, "
        f"hudi-rs the inner one's; {_CURE}change the value"
    )


@dataclass(frozen=True, slots=True)
class PartitionStyle:
    """Mapping of partition values to folders and back, equal to the JVM's with the same settings.

    Different values have different paths.
    """

    fields: tuple[str, ...] = ()
    hive_style: bool = True
    url_encode: bool = False

    def folder_for(self, field: str, text: str | None) -> str:
        if fault := self.fault_of(field, text):
            cured = not self.url_encode and replace(self, url_encode=True).fault_of(field, text) is None
            raise InvalidRecords(
                f"value {text!r} of partition column {field!r} {fault}; {_CURE if cured else ''}change the value"
            )
        return self._folder(field, text)

    def _folder(self, field: str, text: str | None) -> str:
        folder = text or DEFAULT_PARTITION
        folder = escape(folder) if self.url_encode else folder
        return f"{field}={folder}" if self.hive_style else folder

    def fault_of(self, field: str, text: str | None) -> str | None:
        return None if text is None else next((why for bad, why in self._faults(field, text) if bad), None)

    def _faults(self, field: str, text: str) -> Iterator[tuple[object, str]]:
        """Yield a pair for each check: truthy if the value cannot be a folder, and why, to follow the value."""
        yield text in {"", DEFAULT_PARTITION}, "is null to Hudi's readers: give null if that is what it means"
        folder = self._folder(field, text)
        levels = folder.split("/")
        normal = {"", ".", "..", f"{field}="}.isdisjoint(levels)
        yield not normal, f"makes the path {folder!r}, which stores change to another one"
        blank = field == self.fields[0] and folder[:1].isspace()
        yield blank, f"makes the path {folder!r}, whose first blank some stores cut off"
        yield not _OWN_NAMES.isdisjoint(levels), "makes a folder that is Hudi's own"
        yield (
            len(levels) > 1 and len(self.fields) > 1,
            "has a '/', so that its path could be that of other values",
        )
        found = None if self.url_encode else (_MISREAD if self.hive_style else _MISREAD_ALONE).search(text)
        yield found, f"has {found and found[0]!r}, which readers fail at or take for something else"

    @property
    def can_nest(self) -> bool:
        return len(self.fields) == 1 and not self.url_encode

    def check_apart(self, paths: Iterable[str]) -> None:
        partitions = set(paths) if self.can_nest else set[str]()
        for path in partitions:
            if outer := partitions.intersection(outer_of(path)):
                raise nested(path, min(outer))

    def values_of(self, path: str) -> tuple[str | None, ...]:
        """Values in a partition path, None for the default partition; may raise `InvalidRecords`."""
        if not self.fields:
            return ()
        folders = [path] if len(self.fields) == 1 else path.split("/")
        if len(folders) != len(self.fields):
            raise InvalidRecords(f"partition path {path!r} does not have the levels {list(self.fields)}")
        return tuple(map(self._value, self.fields, folders))

    def _value(self, field: str, folder: str) -> str | None:
        text = folder.removeprefix(f"{field}=") if self.hive_style else folder
        if text == DEFAULT_PARTITION:
            return None
        return unescape(text) if self.url_encode else text


def key_of_texts(texts: Sequence[str | None], fields: Sequence[str]) -> str:
    """Record key `a:1,b:2` of several fields; null and empty text get placeholders.

    Raises `InvalidRecords` for a text that is a placeholder or has the next separator (`,b:`).

    Source: `KeyGenerator.constructRecordKey`, `KeyGenUtils.getRecordKey`.
    """
    key = ",".join(f"{field}:{_placeholder(text)}" for field, text in zip(fields, texts, strict=True))
    if ambiguous := _also_told(texts, fields):
        raise InvalidRecords(
            f"record key {key!r} is that of {dict(zip(fields, texts, strict=True))} and of "
            f"{dict(zip(fields, ambiguous, strict=True))}, which would be one row; change the value"
        )
    return key


def separators(fields: Sequence[str]) -> list[str]:
    return [*(f",{field}:" for field in fields[1:]), ""]


def _also_told(texts: Sequence[str | None], fields: Sequence[str]) -> list[str | None]:
    """Other texts with the same composite key, if a text is a placeholder or has the next field's separator.

    Else empty, though a list that has one may share its key.
    """
    for at, (text, end) in enumerate(zip(texts, separators(fields), strict=True)):
        if text in _PLACEHOLDERS:
            return [*texts[:at], _PLACEHOLDERS[text], *texts[at + 1 :]]
        if text and end and end in text:
            head, _, tail = text.partition(end)
            return [*texts[:at], head, f"{tail}{end}{_placeholder(texts[at + 1])}", *texts[at + 2 :]]
    return []


def _placeholder(text: str | None) -> str:
    return NULL_KEY if text is None else text or EMPTY_KEY
