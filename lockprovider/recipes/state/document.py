"""Contents of a state's object. Pure.

{"format": 1, "lineage": uuid, "serial": n, "write": uuid, "epoch": n, "by": "host, pid 7", "at": epoch ms, "reason":
text | absent, "edit": {"epoch", "by", "since", "open", "reason"} | absent, "value": ...}

`serial` rises by one with each write. The first makes the `lineage`, so no (lineage, serial) has two contents. `write`
is the write's id, and makes its bytes unique.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from fsspec_cas import InvalidInput
from lockprovider.bounded import (
    LATEST_MS,
    as_flag,
    check_fits,
    parse_object,
    text_in,
    unbase64,
    undecodable_as,
    whole_in,
)
from lockprovider.recipes.errors import MalformedObject, TooLarge
from lockprovider.recipes.values import check_format, copied, json_copy

_FORMAT = 1
_LARGEST = 192 << 20  # bytes


@dataclass(frozen=True, slots=True)
class EditMark:
    epoch: int
    by: str
    since_ms: int
    reason: str = ""
    open: bool = True


@dataclass(frozen=True, slots=True)
class Document:
    """One revision as stored."""

    lineage: str
    serial: int
    write: str
    by: str
    at_ms: int
    value: Any = field(hash=False)
    epoch: int = 0
    reason: str = ""
    edit: EditMark | None = None
    more: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def editing(self) -> int:
        return self.edit.epoch if self.edit is not None and self.edit.open else 0

    def encode(self) -> bytes:
        """Encode as JSON; raise TooLarge above 192 MiB, 72 levels or 2,000,000 items."""
        fields: dict[str, Any] = {"format": _FORMAT, "lineage": self.lineage, "serial": self.serial}
        fields |= {"write": self.write, "epoch": self.epoch, "by": self.by, "at": self.at_ms}
        if self.reason:
            fields["reason"] = self.reason
        if self.edit is not None:
            mark = self.edit
            fields["edit"] = {"epoch": mark.epoch, "by": mark.by, "since": mark.since_ms, "open": mark.open}
            fields["edit"] |= {"reason": mark.reason} if mark.reason else {}
        data = json.dumps({**self.more, **fields, "value": self.value}, ensure_ascii=False, allow_nan=False).encode()
        with undecodable_as(TooLarge, "the state cannot be stored"):
            check_fits(data, most=_LARGEST)
        return data


_KNOWN = {"format", "lineage", "serial", "write", "epoch", "by", "at", "reason", "edit", "value"}


def decode(data: bytes, path: str) -> Document:
    """Decode a state's object; other bytes and newer formats raise MalformedObject.

    `more` keeps unknown fields.
    """
    with undecodable_as(
        MalformedObject, f"{path!r} is not a state file and was not changed", "give the state another path"
    ):
        fields = parse_object(data, most=_LARGEST)
        check_format({"format": _FORMAT, **fields}, path, _FORMAT)
        edit = fields.get("edit")
        if edit is not None:
            begun = (whole_in(edit, "epoch"), text_in(edit, "by"), whole_in(edit, "since", most=LATEST_MS))
            edit = EditMark(*begun, text_in(edit, "reason", ""), as_flag(edit["open"], "open"))
        return Document(
            text_in(fields, "lineage"),
            whole_in(fields, "serial", least=1),
            text_in(fields, "write"),
            text_in(fields, "by"),
            whole_in(fields, "at", most=LATEST_MS),
            fields["value"],
            whole_in(fields, "epoch"),
            text_in(fields, "reason", ""),
            edit,
            {name: value for name, value in fields.items() if name not in _KNOWN},
        )


class _Absent:
    def __repr__(self) -> str:
        return "absent"


NOT_THERE = _Absent()
"""A side of a `Difference` that has no value."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Two values differ at `where` (`/a/0/b`; "": the whole).

    >>> state = lockprovider.state.open("memory://docs/orders.json")
    >>> first, second = state.put({"a": [1]}), state.put({"a": [2]})
    >>> state.diff(1, 2)
    [Difference(where='/a/0', before=1, after=2)]
    """

    where: str
    before: Any
    after: Any


def difference(before: Any, after: Any, where: str = "") -> Iterator[Difference]:
    """Yield the innermost differences of two JSON values, keys sorted, with `/key/index` paths below `where`.

    Lists compare by index; a missing value is `NOT_THERE`. True differs from 1.
    """
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            yield from difference(before.get(key, NOT_THERE), after.get(key, NOT_THERE), f"{where}/{key}")
    elif isinstance(before, list) and isinstance(after, list):
        for index in range(max(len(before), len(after))):
            old = before[index] if index < len(before) else NOT_THERE
            new = after[index] if index < len(after) else NOT_THERE
            yield from difference(old, new, f"{where}/{index}")
    elif before != after or isinstance(before, bool) is not isinstance(after, bool):
        yield Difference(where, before, after)


V = TypeVar("V")

LARGEST_STATE = 176 << 20
"""Largest size of a value as it is stored, in bytes."""


class Codec(Protocol[V]):
    """Converts values to JSON, and back. Results share nothing with the argument.

    >>> class Words:
    ...     def encode(self, value):
    ...         return value.split()
    ...
    ...     def decode(self, stored):
    ...         return " ".join(stored)
    >>> codec: lockprovider.state.Codec = Words()
    >>> state = lockprovider.state.open("memory://docs/words.json", codec=codec)
    >>> state.put("two words").value
    'two words'
    """

    def encode(self, value: V) -> Any:
        """Convert a value to JSON.

        Raises:
            InvalidInput: this value cannot be stored.

        >>> codec.encode("two words")
        ['two', 'words']
        """

    def decode(self, stored: Any) -> V:
        """Convert JSON to a value.

        Raises:
            MalformedObject: the stored JSON is something else.

        >>> codec.decode(["two", "words"])
        'two words'
        """


class Json:
    """Codec of JSON values; refuses None."""

    def encode(self, value: Any) -> Any:
        if value is None:
            raise InvalidInput("None is not a state: return the new value, or UNCHANGED to write nothing")
        return json_copy(value, "a state", LARGEST_STATE)

    def decode(self, stored: Any) -> Any:
        return copied(stored)


class Raw:
    def encode(self, value: bytes) -> dict[str, str]:
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise InvalidInput(f"{type(value).__name__} is not bytes, which the state's codec needs")
        if (size := memoryview(value).nbytes) > LARGEST_STATE // 4 * 3:
            raise InvalidInput(f"{size} bytes are more than the limit of a state, {LARGEST_STATE // 4 * 3} bytes")
        return {"base64": base64.b64encode(value).decode()}

    def decode(self, stored: Any) -> bytes:
        with undecodable_as(MalformedObject, 'the stored value is not bytes ({"base64": ...})'):
            return unbase64(stored["base64"], "base64")


class Model(Generic[V]):
    def __init__(self, model: type[V]) -> None:
        self._model: Any = model

    def encode(self, value: V) -> Any:
        if not isinstance(value, self._model):
            raise InvalidInput(f"{type(value).__name__} is not an instance of the state's model {self._model.__name__}")
        instance: Any = value
        return json_copy(instance.model_dump(mode="json"), "a state", LARGEST_STATE)

    def decode(self, stored: Any) -> V:
        with undecodable_as(MalformedObject, f"the stored value is not an instance of {self._model.__name__}"):
            value: V = self._model.model_validate(stored)
        return value


class Checked(Generic[V]):
    def __init__(self, codec: Codec[V]) -> None:
        self.codec = codec

    def encode(self, value: V) -> Any:
        return json_copy(self.codec.encode(value), "the value that the codec returned", LARGEST_STATE)

    def decode(self, stored: Any) -> V:
        return self.codec.decode(stored)


def codec_of(codec: Any) -> Codec[Any]:
    """Return the codec of a `codec=` argument, or raise InvalidInput.

    None: JSON. Or `bytes`, a pydantic model's class, or an object with `encode` and `decode`.
    """
    if codec is None:
        return Json()
    if codec is bytes:
        return Raw()
    if isinstance(codec, type) and hasattr(codec, "model_validate") and hasattr(codec, "model_dump"):
        return Model(codec)
    if not isinstance(codec, type) and hasattr(codec, "encode") and hasattr(codec, "decode"):
        return Checked(codec)
    raise InvalidInput(f"codec={codec!r} must be bytes, a pydantic model's class, or an object with encode and decode")
