"""What an election's object holds. Pure.

{"format": 1, "epoch": n, "owner": uuid, "name": text, "validity_ms": n, "resigned": bool, "heir": text,
 "since_ms": n, "value": JSON, "write": uuid}

`epoch` rises with each term, also over resignations: the object is never deleted. `owner` is the candidate, `name`
what people call it. `validity_ms` is the leader's: so long the others leave it alone after each write. `heir`: who
shall lead next. `since_ms` is the leader's wall clock when its term began, for people. `write` is of this write alone:
it tells mine from another's where an answer was lost, and makes the bytes of each write differ. Fields that are not
known are kept. A format that is not known is refused, and never written over.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

from lockprovider.bounded import LATEST_MS, as_flag, as_whole, parse_object, text_in, undecodable_as, whole_in
from lockprovider.recipes.errors import MalformedObject

_FORMAT = 1
_LARGEST = 4 << 20  # bytes
_HEIRS_SHARE = 3  # of the validity: for so long the place is kept for an heir


@dataclass(frozen=True, slots=True)
class ElectionRecord:
    """Who leads, or led last."""

    epoch: int
    owner: str
    name: str
    validity_ms: int
    write: str
    resigned: bool = False
    heir: str = ""
    since_ms: int = 0
    value: Any = field(default=None, hash=False)
    more: tuple[tuple[str, Any], ...] = field(default=(), hash=False)

    @property
    def stands_s(self) -> float:
        """For how long after it was written nobody else may lead, but the heir of one who resigned; seconds."""
        if not self.resigned:
            return self.validity_ms / 1000
        return self.validity_ms / 1000 / _HEIRS_SHARE if self.heir else 0.0

    def is_of(self, owner: str, epoch: int) -> bool:
        """Whether this term, by this candidate, still goes on."""
        return (self.owner, self.epoch, self.resigned) == (owner, epoch, False)

    def resign(self, write: str, heir: str) -> ElectionRecord:
        """The term is over, the epoch stays."""
        return replace(self, resigned=True, heir=heir, write=write)

    def encode(self) -> bytes:
        """As JSON."""
        fields = {"format": _FORMAT, "epoch": self.epoch, "owner": self.owner, "name": self.name}
        fields |= {"validity_ms": self.validity_ms, "resigned": self.resigned, "heir": self.heir}
        fields |= {"since_ms": self.since_ms, "value": self.value, "write": self.write}
        return json.dumps({**dict(self.more), **fields}, ensure_ascii=False, allow_nan=False).encode()


_KNOWN = {"format", "epoch", "owner", "name", "validity_ms", "write", "resigned", "heir", "since_ms", "value"}


def decode_election(data: bytes, path: str) -> ElectionRecord:
    """Read it.

    Raises:
        MalformedObject: it is none, or of a newer format.
    """
    said = f"the object {path!r} is no election, and was not written over"
    step = "give the election another path, or, if nothing needs it, remove the object"
    with undecodable_as(MalformedObject, said, step):
        found = parse_object(data, most=_LARGEST)
        if as_whole(found["format"], "format") != _FORMAT:
            raise MalformedObject(
                f"the election {path!r} has format {found['format']}, and {_FORMAT} is known here: use a newer version"
            )
        return ElectionRecord(
            epoch=whole_in(found, "epoch"),
            owner=text_in(found, "owner"),
            name=text_in(found, "name"),
            validity_ms=whole_in(found, "validity_ms", most=LATEST_MS),
            write=text_in(found, "write"),
            resigned=as_flag(found["resigned"], "resigned"),
            heir=text_in(found, "heir"),
            since_ms=whole_in(found, "since_ms", most=LATEST_MS),
            value=found["value"],
            more=tuple((name, value) for name, value in found.items() if name not in _KNOWN),
        )
