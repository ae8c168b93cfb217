"""What a log's `log.json` holds: what is the same for all who use it, where it begins, and who reads it. Pure.

{"format": 1, "id": uuid, "slots": R, "retain": "readers", "floor": slot, "hint": slot, "readers": {name: slot},
 "rev": n}

`floor` is the first slot that is kept, and only rises. `hint` is a slot that was written, -1 for none: where the search
for the end begins. `readers` have their positions in objects of their own; here is where each began. `rev` rises with
each write, so that no bytes come back. Fields that are not known are kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lockprovider.bounded import LARGEST_OBJECT, Undecodable, as_whole, parse_object, text_in, undecodable_as, whole_in
from lockprovider.recipes.errors import MalformedObject
from lockprovider.recipes.wal.slot import NOT_YET

_FORMAT = 1
READER = re.compile(r"[\w-][\w.-]{0,199}")
SLOTS = 65536
RETAIN = ("readers", "slots")
_KNOWN = {"format", "id", "slots", "retain", "floor", "hint", "readers", "rev"}


@dataclass(frozen=True, slots=True)
class LogManifest:
    """What is known of a log besides its slots."""

    id: str
    slots: int | None = SLOTS
    retain: str = "readers"
    floor: int = 0
    hint: int = NOT_YET
    readers: Mapping[str, int] = field(default_factory=dict)
    rev: int = 0
    more: Mapping[str, Any] = field(default_factory=dict)

    def place(self, slot: int) -> int:
        """Where the slot is: the places of a ring are used again."""
        return slot if self.slots is None else slot % self.slots

    def has_room(self, slot: int) -> bool:
        """Whether the slot may be written, as far as those go that it would replace."""
        return self.slots is None or slot < self.slots or slot - self.slots < self.floor

    def trimmed(self, floor: int) -> LogManifest:
        """With that floor, or a higher one that it has."""
        return replace(self, floor=max(self.floor, floor))

    def encode(self) -> bytes:
        """As JSON."""
        said = {"format": _FORMAT, "id": self.id, "slots": self.slots, "retain": self.retain, "floor": self.floor}
        said |= {"hint": self.hint, "readers": dict(self.readers), "rev": self.rev}
        return json.dumps({**self.more, **said}).encode()


def decode_log_manifest(data: bytes, path: str) -> LogManifest:
    """The manifest in these bytes.

    Raises:
        MalformedObject: they are none, or of a format that is not known.
    """
    with undecodable_as(
        MalformedObject, f"{path!r} is not of a log, and is left as it is", "give the log another path"
    ):
        found = parse_object(data, most=LARGEST_OBJECT)
        if found["format"] != _FORMAT:
            known = f"this version knows {_FORMAT}: use a newer one"
            raise MalformedObject(f"{path!r} has format {found['format']!r}, {known}")
        if found["retain"] not in RETAIN:
            raise Undecodable(f"retain must be one of {', '.join(RETAIN)}")
        return LogManifest(
            id=text_in(found, "id"),
            slots=None if found["slots"] is None else whole_in(found, "slots", least=1),
            retain=found["retain"],
            floor=whole_in(found, "floor"),
            hint=whole_in(found, "hint", least=NOT_YET),
            readers={_reader(name): as_whole(slot, name) for name, slot in found["readers"].items()},
            rev=whole_in(found, "rev"),
            more={name: value for name, value in found.items() if name not in _KNOWN},
        )


def _reader(name: str) -> str:
    if not READER.fullmatch(name):
        raise Undecodable(f"a reader has the name {name[:200]!r}")
    return name
