"""Column types: choose the types of new columns, and add fields to a schema.

hudi-rs and the JVM read these types alike, but hudi-rs 0.5 cannot open tables with timestamps without a time zone.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyarrow import types

from fsspec_cas import InvalidInput
from lockprovider.table.convert.rules import LOSSLESS, WRITE, advice, family, is_list, new_column
from lockprovider.table.errors import UnsupportedSchema
from lockprovider.table.format.schema import META_COLUMNS

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def new_table_schema(schema: pa.Schema) -> pa.Schema:
    """Return a new table's schema: nullable fields of supported types, without Hudi's meta columns.

    May raise UnsupportedSchema with the column, its type and what to cast to.
    """
    return pa.schema(_stored_fields(without_meta_columns(schema), ""))


def without_meta_columns(schema: pa.Schema) -> list[pa.Field]:
    """Return a schema's columns without Hudi's meta columns; warn if there are any."""
    own = [name for name in schema.names if name in META_COLUMNS]
    if own:
        warnings.warn(f"columns {own} are Hudi's meta columns and are left out: the table writes its own", stacklevel=3)
    return [column for column in schema if column.name not in own]


def _stored_fields(fields: Sequence[pa.Field], path: str) -> list[pa.Field]:
    """Return nullable fields of stored types; UnsupportedSchema for a bad name or type, which it places in `path`."""
    _check_names([column.name for column in fields], path)
    return [
        pa.field(column.name, stored_type(column.type, f"{path}.{column.name}" if path else column.name))
        for column in fields
    ]


def _check_names(names: Sequence[str], path: str) -> None:
    """Raise UnsupportedSchema for meta columns, names that `_NAME` does not match, and names equal but for case.

    `path`: the column that has these fields; empty for the columns themselves.
    """
    spellings: dict[str, str] = {}
    owner = f" in {path!r}" if path else ""
    for name in names:
        if not _NAME.fullmatch(name):
            raise UnsupportedSchema(
                f"column name {name!r}{owner} cannot be used: rename it, with letters, digits and _ only, "
                "and no digit first"
            )
        if name in META_COLUMNS:
            raise UnsupportedSchema(f"column name {name!r}{owner} is one of Hudi's meta columns: rename it")
        if name.lower() in spellings:
            raise UnsupportedSchema(
                f"columns {spellings[name.lower()]!r} and {name!r}{owner} are one to SQL engines: rename one"
            )
        spellings[name.lower()] = name


def stored_type(kind: pa.DataType, path: str) -> pa.DataType:
    """Return the type of a new column for values of type `kind`; may raise UnsupportedSchema."""
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return stored_type(kind.value_type, path)
    if (plain := new_column(kind)) is not None:
        return plain
    if types.is_map(kind) and family(kind.key_type) == "string":
        return pa.map_(pa.string(), stored_type(kind.item_type, f"{path}.value"))
    if is_list(kind):
        return pa.list_(pa.field("element", stored_type(kind.value_type, f"{path}.element")))
    if types.is_struct(kind) and kind.num_fields:
        return pa.struct(_stored_fields(_inside(kind), path))
    raise UnsupportedSchema(f"column {path!r} has type {kind}, which cannot be stored; {advice(kind)}")


def _inside(kind: pa.DataType) -> list[pa.Field]:
    return [kind.field(number) for number in range(kind.num_fields)]


# -- added fields --------------------------------------------------------------------------------------------------


def with_columns(table: pa.Schema, added: pa.Schema) -> pa.Schema:
    """Return the table's schema with the columns of `added`; existing columns stay unchanged.

    An added column may have a wider struct, or be a path: `st.y`, `l.element.y`, `m.value.y`. New fields are nullable,
    and come last. Raises UnsupportedSchema for a field of another type, or that cannot be stored; InvalidInput for an
    unknown path.
    """
    evolved = list(table)
    for column in without_meta_columns(added):
        addition = _placed(column, evolved) if "." in column.name else column
        evolved = _merged(evolved, _stored_fields([addition], ""), "")
    return pa.schema(evolved)


def _placed(column: pa.Field, fields: Sequence[pa.Field]) -> pa.Field:
    """Return a field like its owner in `fields`, but with only the new field at the path `column.name`.

    Unknown paths raise InvalidInput.
    """
    name, _, rest = column.name.partition(".")
    owner = next((field for field in fields if field.name == name), None)
    if owner is None:
        raise InvalidInput(f"there is no {name!r} to add {rest!r} to: use one of {[field.name for field in fields]}")
    return pa.field(name, _around(owner.type, rest, column.type, name))


def _around(owner: pa.DataType, rest: str, kind: pa.DataType, path: str) -> pa.DataType:
    """Return a type like `owner`, but with only a field of type `kind` at the path `rest` in it.

    Raises InvalidInput if none can be there; `path` is `owner`'s.
    """
    name, _, deeper = rest.partition(".")
    if types.is_struct(owner):
        inner = pa.field(name, kind) if not deeper else _placed(pa.field(rest, kind), _inside(owner))
        return pa.struct([inner])
    if deeper and types.is_list(owner) and name == "element":
        return pa.list_(_around(owner.value_type, deeper, kind, f"{path}.element"))
    if deeper and types.is_map(owner) and name == "value":
        return pa.map_(pa.string(), _around(owner.item_type, deeper, kind, f"{path}.value"))
    raise InvalidInput(
        f"{path} is {owner} and has no {name!r} to add to: name a struct, `.element` of a list or `.value` of a map"
    )


def _merged(old: Sequence[pa.Field], new: Sequence[pa.Field], path: str) -> list[pa.Field]:
    """Return the old fields, widened by new inner fields, then the new fields.

    Raises UnsupportedSchema as `_merged_type`, and for names that `_check_names` refuses.
    """
    fields, by_name = list(old), {field.name: number for number, field in enumerate(old)}
    for field in new:
        number = by_name.get(field.name)
        if number is None:
            fields.append(field)
            continue
        inner = _merged_type(fields[number].type, field.type, f"{path}.{field.name}" if path else field.name)
        fields[number] = fields[number].with_type(inner)
    _check_names([field.name for field in fields], path)
    return fields


def _merged_type(old: pa.DataType, new: pa.DataType, path: str) -> pa.DataType:
    """Return the old type with the new one's inner fields added; plain types stay.

    Raises UnsupportedSchema for a new type of another kind, and for another plain type unless its rule in `WRITE` is
    `LOSSLESS`.
    """
    if types.is_struct(old) and types.is_struct(new):
        return pa.struct(_merged(_inside(old), _inside(new), path))
    if types.is_map(old) and types.is_map(new):
        return pa.map_(
            pa.string(), old.item_field.with_type(_merged_type(old.item_type, new.item_type, f"{path}.value"))
        )
    if types.is_list(old) and types.is_list(new):
        inner = _merged_type(old.value_type, new.value_type, f"{path}.element")
        return pa.list_(old.value_field.with_type(inner))
    if new != old and WRITE.rule(new, old) != LOSSLESS:
        raise UnsupportedSchema(f"column {path!r} is {old} in the table, not {new}: cast it")
    return old


def new_fields(table: pa.Schema, source: pa.Schema) -> pa.Schema:
    """Return the fields that rows have and the table lacks, named by their paths, for `with_columns`."""
    columns = [field for field in source if field.name not in META_COLUMNS]
    return pa.schema(list(_new(pa.struct(list(table)), pa.struct(columns), "")))


def _new(table: pa.DataType, source: pa.DataType, path: str) -> Iterator[pa.Field]:
    """Yield the fields inside `source` that `table` lacks, named by their paths; nothing if the kinds differ."""
    (kind, known), (source_kind, fields) = _parts(table), _parts(source)
    for name, inner in fields.items() if kind == source_kind else ():
        inner_path = f"{path}.{name}" if path else name
        if name in known:
            yield from _new(known[name], inner, inner_path)
        else:
            yield pa.field(inner_path, inner)


def _parts(kind: pa.DataType) -> tuple[str, dict[str, pa.DataType]]:
    """Return `struct`, `map`, `list` or an empty text, and the inner types by the last part of their paths.

    Map keys are left out.
    """
    if types.is_struct(kind):
        return "struct", {field.name: field.type for field in _inside(kind)}
    if types.is_map(kind):
        return "map", {"value": kind.item_type}
    return ("list", {"element": kind.value_type}) if is_list(kind) else ("", {})


# -- leaf fields ---------------------------------------------------------------------------------------------------


def leaf_types(schema: pa.Schema) -> tuple[tuple[str, pa.DataType], ...]:
    """Return each leaf field's path and type, without map keys, and without nullability, in which engines differ."""
    return tuple(leaf for column in schema for leaf in _leaves(column.name, column.type))


def _leaves(path: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """Yield each leaf's path and type in structs, list elements and map values; map keys are left out."""
    nested, parts = _parts(kind)
    if not nested:
        yield path, kind
    for name, inner in parts.items():
        yield from _leaves(f"{path}.{name}", inner)
