"""What a state's object holds. Pure.

{"format": 1, "lineage": uuid, "serial": n, "write": uuid, "epoch": n, "by": "host, pid 7", "at": epoch ms,
 "reason": text | absent, "edit": {"epoch", "by", "since", "open", "reason"} | absent, "value": ...}

`serial` rises by one with each write. `lineage` is of the first write: a state that was removed and made anew has
another one, so no (lineage, serial) ever has two contents. `write` is the identity of the write, and makes the bytes of
each differ. Fields that are not known are kept. A format that is not known is refused, and never written over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lockprovider.recipes.errors import MalformedObject

_FORMAT = 1


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
        """As JSON."""
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
        return json.dumps({**self.more, **fields, "value": self.value}, ensure_ascii=False, allow_nan=False).encode()


_KNOWN = {"format", "lineage", "serial", "write", "epoch", "by", "at", "reason", "edit", "value"}


def decode(data: bytes, path: str) -> Document:
    """The document in these bytes.

    Raises:
        MalformedObject: they are none, or of a format that is not known.
    """
    try:
        found = json.loads(data)
        if not isinstance(found, dict) or "lineage" not in found or "value" not in found:
            raise MalformedObject(f"{path!r} is no state file, and is left as it is: give the state another path")
        if found["format"] != _FORMAT:
            raise MalformedObject(
                f"{path!r} has format {found['format']!r}, this version knows {_FORMAT}: use a newer one"
            )
        mark = found.get("edit")
        return Document(
            str(found["lineage"]),
            _number(found["serial"]),
            str(found["write"]),
            str(found["by"]),
            _number(found["at"]),
            found["value"],
            _number(found["epoch"]),
            str(found.get("reason", "")),
            None if mark is None else _mark(mark),
            {name: value for name, value in found.items() if name not in _KNOWN},
        )
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, MalformedObject):
            raise
        raise MalformedObject(f"{path!r} is no state file: {error!r}") from error


def _mark(mark: Mapping[str, Any]) -> EditMark:
    reason = str(mark.get("reason", ""))
    return EditMark(_number(mark["epoch"]), str(mark["by"]), _number(mark["since"]), reason, mark["open"] is True)


def _number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is no whole number")
    return value
