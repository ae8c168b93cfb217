"""Schema-on-read: Hudi's own schema beside the Avro schema, in which each column has an id that outlives its name.

A JVM reader finds a renamed column in an older file by its id. Readers here go by names, so `misread` says which
columns of older files would come out wrong. Pure.

Source: Hudi `SerDeHelper`, `InternalSchemaUtils.searchSchema`, `FileBasedInternalSchemaStorageManager`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockprovider.bounded import LARGEST_OBJECT, parse_object
from lockprovider.table.errors import Corrupt
from lockprovider.table.format.instant import after

LATEST_SCHEMA = "latest_schema"
SCHEMAS = ".hoodie/.schema"
_SUFFIX = ".schemacommit"


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """The ids of the columns, nested ones by their paths, of all files that begin at `version` or later.

    >>> SchemaVersion(20260101000000000, {"id": 0, "fare": 1}).ids["fare"]
    1
    """

    version: int
    ids: Mapping[str, int]


def schema_file(begin: str) -> str:
    """The path of the history of schemas that the commit `begin` leaves to JVM readers.

    >>> schema_file("20260101000000000")
    '.hoodie/.schema/20260101000000000_20260101000000001.schemacommit'
    """
    return f"{SCHEMAS}/{begin}_{after(begin)}{_SUFFIX}"


def begin_of_schema_file(path: str) -> str:
    """The begin time in the name of a `schema_file`; empty if it is none."""
    name = path.removeprefix(f"{SCHEMAS}/")
    begin = name.removesuffix(_SUFFIX).partition("_")[0]
    return begin if name.endswith(_SUFFIX) and begin.isdigit() else ""


def parse_version(text: str, name: str) -> SchemaVersion:
    """The schema that a commit states.

    Raises:
        Corrupt: it cannot be understood; `name` says where it stands.
    """
    return _version(_parsed(text.encode(), name), name)


def parse_history(data: bytes, name: str) -> tuple[SchemaVersion, ...]:
    """The schemas of a `schema_file`, oldest first.

    Raises:
        Corrupt: it cannot be understood.
    """
    try:
        found = [_version(one, name) for one in _parsed(data, name)["schemas"]]
    except (KeyError, TypeError) as error:
        raise Corrupt(f"the history of schemas {name} cannot be understood ({error!r})") from error
    return tuple(sorted(found, key=lambda one: one.version))


def misread(history: Sequence[SchemaVersion], latest: SchemaVersion, oldest_begin: str) -> str:
    """How names of `latest` mislead in the files from `oldest_begin` on; empty if they do not.

    >>> before, after = SchemaVersion(1, {"fare": 7}), SchemaVersion(5, {"price": 7})
    >>> misread([before, after], after, "3")
    "'price' is called 'fare' there"
    >>> misread([before, after], after, "6")
    ''
    """
    begin = int(oldest_begin) if oldest_begin.isdigit() else 0
    older = [one for one in history if one.version < latest.version]
    if not older and begin < latest.version:
        return "the history of its columns is missing"
    first = max((one.version for one in older if one.version <= begin), default=0)
    for one in older if begin < latest.version else ():
        if one.version >= first and (said := _difference(one.ids, latest.ids)):
            return said
    return ""


def _difference(then: Mapping[str, int], now: Mapping[str, int]) -> str:
    names = {number: path for path, number in then.items()}
    for path, number in now.items():
        if path in then and then[path] != number:
            return f"{path!r} is another column there, which was dropped"
        if path not in then and number in names:
            return f"{path!r} is called {names[number]!r} there"
    return ""


def _parsed(data: bytes, name: str) -> dict[str, Any]:
    try:
        return parse_object(data, most=LARGEST_OBJECT)
    except ValueError as error:
        raise Corrupt(f"the schema in {name} cannot be understood: {error}") from error


def _version(said: Any, name: str) -> SchemaVersion:
    try:
        return SchemaVersion(int(said["version_id"]), dict(_ids(said["fields"], "")))
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"the schema in {name} cannot be understood ({error!r})") from error


def _ids(fields: Sequence[Any], above: str) -> Iterator[tuple[str, int]]:
    for one in fields:
        path = f"{above}{one['name']}"
        yield path, int(one["id"])
        yield from _inner(one["type"], path)


def _inner(kind: Any, path: str) -> Iterator[tuple[str, int]]:
    """The ids inside a nested type; simple types are texts."""
    if not isinstance(kind, dict):
        return
    match kind["type"]:
        case "record":
            yield from _ids(kind["fields"], f"{path}.")
        case "array":
            yield from _inner(kind["element"], f"{path}.element")
        case "map":
            yield from _inner(kind["value"], f"{path}.value")
