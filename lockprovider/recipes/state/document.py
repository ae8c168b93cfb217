"""What a state's object holds, and what is different between two values. Pure.

{"format": 1, "lineage": uuid, "serial": n, "write": uuid, "epoch": n, "by": "host, pid 7", "at": epoch ms,
 "reason": text | absent, "edit": {"epoch", "by", "since", "open", "reason"} | absent, "value": ...}

`serial` rises by one with each write. `lineage` is of the first write: a state that was removed and made anew has
another one, so no (lineage, serial) ever has two contents. `write` is the identity of the write, and makes the bytes of
each differ. Fields that are not known are kept. A format that is not known is refused, and never written over.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lockprovider.bounded import (
    LATEST_MS,
    as_flag,
    as_whole,
    check_fits,
    parse_object,
    text_in,
    undecodable_as,
    whole_in,
)
from lockprovider.recipes.errors import MalformedObject, TooLarge

_FORMAT = 1
_LARGEST = 192 << 20  # bytes


@dataclass(frozen=True, slots=True)
class EditMark:
    """The last held edit that began: its lease's epoch, who, since when (epoch ms), why; and whether it goes on."""

    epoch: int
    by: str
    since_ms: int
    reason: str = ""
    open: bool = True


@dataclass(frozen=True, slots=True)
class Document:
    """One revision as it is stored; `value` is what JSON can say."""

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
        """The epoch of the edit that is being made, else 0."""
        return self.edit.epoch if self.edit is not None and self.edit.open else 0

    def encode(self) -> bytes:
        """As JSON.

        Raises:
            TooLarge: nobody could read it again.
        """
        fields: dict[str, Any] = {
            "format": _FORMAT,
            "lineage": self.lineage,
            "serial": self.serial,
            "write": self.write,
            "epoch": self.epoch,
            "by": self.by,
            "at": self.at_ms,
        }
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
    """The document in these bytes.

    Raises:
        MalformedObject: they are none, or of a format that is not known.
    """
    with undecodable_as(
        MalformedObject, f"{path!r} is no state file, and is left as it is", "give the state another path"
    ):
        found = parse_object(data, most=_LARGEST)
        if found.get("format", _FORMAT) != _FORMAT:
            raise MalformedObject(
                f"{path!r} has format {found['format']!r}, this version knows {_FORMAT}: use a newer one"
            )
        mark = found.get("edit")
        return Document(
            text_in(found, "lineage"),
            whole_in(found, "serial", least=1),
            text_in(found, "write"),
            text_in(found, "by"),
            whole_in(found, "at", most=LATEST_MS),
            found["value"],
            whole_in(found, "epoch"),
            text_in(found, "reason", ""),
            None if mark is None else _mark(mark),
            {name: value for name, value in found.items() if name not in _KNOWN},
        )


def _mark(mark: Mapping[str, Any]) -> EditMark:
    open_ = as_flag(mark["open"], "open")
    since_ms = as_whole(mark["since"], "since", most=LATEST_MS)
    return EditMark(whole_in(mark, "epoch"), text_in(mark, "by"), since_ms, text_in(mark, "reason", ""), open_)


class _Absent:
    def __repr__(self) -> str:
        return "absent"


NOT_THERE = _Absent()
"""What stands for one side of a difference where there is nothing."""


@dataclass(frozen=True, slots=True)
class Difference:
    """At `where` (`/a/0/b`; "" is all of it) there was `before`, and is `after`.

    >>> state = lockprovider.state.open("memory://docs/orders.json")
    >>> first, second = state.put({"a": [1]}), state.put({"a": [2]})
    >>> state.diff(1, 2)
    [Difference(where='/a/0', before=1, after=2)]
    """

    where: str
    before: Any
    after: Any


def difference(before: Any, after: Any, where: str = "") -> Iterator[Difference]:
    """The innermost places at which two JSON values differ, in order."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            yield from difference(before.get(key, NOT_THERE), after.get(key, NOT_THERE), f"{where}/{key}")
    elif isinstance(before, list) and isinstance(after, list):
        for place in range(max(len(before), len(after))):
            old = before[place] if place < len(before) else NOT_THERE
            new = after[place] if place < len(after) else NOT_THERE
            yield from difference(old, new, f"{where}/{place}")
    elif before != after or isinstance(before, bool) is not isinstance(after, bool):
        yield Difference(where, before, after)
