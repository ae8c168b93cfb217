"""JVM Hudi's history of schemas, in which column ids outlive names, and a check for columns that would be misread.

Source: Hudi `SerDeHelper`, `InternalSchemaUtils.searchSchema`, `FileBasedInternalSchemaStorageManager`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockprovider.table.errors import undamaged
from lockprovider.table.format.layout import after
from lockprovider.table.format.schema import parsed

LATEST_SCHEMA = "latest_schema"
SCHEMAS = ".hoodie/.schema"
_SUFFIX = ".schemacommit"


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """Column ids by path, nested ones included, of files that began at `version`, a number, or later."""

    version: int
    ids: Mapping[str, int]


def schema_file(begin: str) -> str:
    return f"{SCHEMAS}/{begin}_{after(begin)}{_SUFFIX}"


def begin_of_schema_file(path: str) -> str:
    name = path.removeprefix(f"{SCHEMAS}/")
    begin = name.removesuffix(_SUFFIX).partition("_")[0]
    return begin if name.endswith(_SUFFIX) and begin.isdigit() else ""


def parse_version(text: str, name: str) -> SchemaVersion:
    with undamaged(f"the schema in {name} cannot be understood"):
        return _version(parsed(text.encode()))


def parse_history(data: bytes, name: str) -> tuple[SchemaVersion, ...]:
    with undamaged(f"the history of schemas {name} cannot be understood"):
        versions = map(_version, parsed(data)["schemas"])
        return tuple(sorted(versions, key=lambda version: version.version))


def misread(history: Sequence[SchemaVersion], latest: SchemaVersion, oldest_begin: str) -> str:
    """Return why `latest` would misread files that began at `oldest_begin` or later, or empty text.

    In one of their schemas a path has another id, or an id another path. Or `latest` began after `oldest_begin`, and
    `history` has no older one.
    """
    begin = int(oldest_begin) if oldest_begin.isdigit() else 0
    older = [version for version in history if version.version < latest.version]
    if not older and begin < latest.version:
        return "the history of its columns is missing"
    first = max((version.version for version in older if version.version <= begin), default=0)
    for version in older if begin < latest.version else ():
        if version.version >= first and (said := _difference(version.ids, latest.ids)):
            return said
    return ""


def _difference(then: Mapping[str, int], now: Mapping[str, int]) -> str:
    """Describe the first path of `now` with another id in `then`, or another path for its id; empty if none."""
    names = {number: path for path, number in then.items()}
    for path, number in now.items():
        if path in then and then[path] != number:
            return f"{path!r} is another column there, which was dropped"
        if path not in then and number in names:
            return f"{path!r} is called {names[number]!r} there"
    return ""


def _version(record: Any) -> SchemaVersion:
    return SchemaVersion(int(record["version_id"]), dict(_ids(record["fields"], "")))


def _ids(fields: Sequence[Any], above: str) -> Iterator[tuple[str, int]]:
    for field in fields:
        path = f"{above}{field['name']}"
        yield path, int(field["id"])
        yield from _inner(field["type"], path)


def _inner(kind: Any, path: str) -> Iterator[tuple[str, int]]:
    """Yield path and id of all record fields, at any depth, in column `path`.

    `kind`: its type, a schema history's JSON.
    """
    if not isinstance(kind, dict):
        return
    match kind["type"]:
        case "record":
            yield from _ids(kind["fields"], f"{path}.")
        case "array":
            yield from _inner(kind["element"], f"{path}.element")
        case "map":
            yield from _inner(kind["value"], f"{path}.value")
