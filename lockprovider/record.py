"""The lock record: one small JSON object, the layout of Hudi's storage-based lock provider.

`owner`, `validUntil` and `expired` are Hudi's. `epoch`, `nonce`, `pending`, `holder`, and while several wait `line`,
`turnMs` and `freedMs`, are ours: JVM Hudi ignores them when it reads and drops them when it writes.

Source: Hudi RFC-91 and `StorageLockFile` (Hudi 1.0.2 and later).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from lockprovider.errors import MalformedRecord

HUDI_LOCK_PATH = ".hoodie/.locks/table_lock.json"


@dataclass(frozen=True, slots=True)
class Pending:
    """A publish that has been decided and may not have been applied yet: create `path` from `staged`.

    Or, where `staged` is empty, from `enclosed`: the bytes themselves, deflated, in base64.
    """

    path: str
    staged: str
    digest: str
    enclosed: str = ""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who to ask: for people, never for decisions."""

    host: str
    pid: int
    since_ms: int


@dataclass(frozen=True, slots=True)
class LockRecord:
    """One state of the lock.

    Attributes:
        owner: UUID of the lock client that wrote it.
        valid_until_ms: when the lease lapses, epoch ms UTC.
        expired: the holder released it.
        epoch: the fencing token, strictly rising over all acquisitions; 0 where a JVM writer dropped it.
        nonce: makes the bytes of every write unique, and names the write.
        pending: a decided publish that the next holder must finish.
        holder: for people.
        line: who may take the lock next, in this order. Politeness, not safety: a take never depends on it.
        turn_ms: how long a turn took of late, from take to take; 0 if not known.
        freed_ms: when it was released to those in the line, epoch ms by the releaser's clock; else 0.
    """

    owner: str
    valid_until_ms: int
    expired: bool
    epoch: int = 0
    nonce: str = ""
    pending: Pending | None = None
    holder: Holder | None = None
    line: tuple[str, ...] = ()
    turn_ms: int = 0
    freed_ms: int = 0

    def encode(self) -> bytes:
        """The record as UTF-8 JSON, Hudi's fields first."""
        fields: dict[str, Any] = {
            "expired": self.expired,
            "validUntil": self.valid_until_ms,
            "owner": self.owner,
            "epoch": self.epoch,
            "nonce": self.nonce,
            "pending": None if self.pending is None else _fields(self.pending),
            "holder": None if self.holder is None else _fields(self.holder),
        }
        if self.line:
            fields["line"] = list(self.line)
        if self.turn_ms:
            fields["turnMs"] = self.turn_ms
        if self.freed_ms:
            fields["freedMs"] = self.freed_ms
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> LockRecord:
        """Read a record, ours or JVM Hudi's; unknown fields are ignored.

        Raises:
            MalformedRecord: it is not one.
        """
        try:
            fields = json.loads(data)
            return cls(
                owner=_of(fields["owner"], str),
                valid_until_ms=_of(fields["validUntil"], int),
                expired=_of(fields["expired"], bool),
                epoch=_of(fields.get("epoch") or 0, int),
                nonce=_of(fields.get("nonce") or "", str),
                pending=_pending(fields.get("pending")),
                holder=_holder(fields.get("holder")),
                line=tuple(_of(party, str) for party in fields.get("line") or ()),
                turn_ms=_of(fields.get("turnMs") or 0, int),
                freed_ms=_of(fields.get("freedMs") or 0, int),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise MalformedRecord(
                f"not a lock record ({error!r}): {data[:80]!r}; if no writer is alive, remove the object by hand"
            ) from error


def _fields(noun: Pending | Holder) -> dict[str, Any]:
    return {name: value for name in noun.__slots__ if (value := getattr(noun, name)) or name != "enclosed"}


def _of(value: Any, kind: type) -> Any:
    # bool is an int in Python; a lock record is no place for such surprises
    if type(value) is not kind:
        raise TypeError(f"expected {kind.__name__}, got {value!r}")
    return value


def _pending(value: Any) -> Pending | None:
    if value is None:
        return None
    enclosed = _of(value.get("enclosed") or "", str)
    return Pending(_of(value["path"], str), _of(value["staged"], str), _of(value["digest"], str), enclosed)


def _holder(value: Any) -> Holder | None:
    if value is None:
        return None
    return Holder(_of(value["host"], str), _of(value["pid"], int), _of(value["since_ms"], int))
