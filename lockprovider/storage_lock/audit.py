"""Hudi's audit records of its storage lock, and which client held it when.

Source: `StorageLockProviderAuditService`, `AuditServiceFactory`, `StorageBasedLockProvider` of Hudi 1.2.0.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from lockprovider.bounded import LATEST_MS, Undecodable, as_flag, parse_object, text_in, undecodable_as, whole_in
from lockprovider.settings import GRACE_MS
from lockprovider.storage_lock.record import HUDI_LOCK_PATH, lapsed

AuditStep = Literal["START", "RENEW", "END"]
How = Literal["released", "lost", "lapsed", "held"]

_LARGEST = 1 << 16  # bytes
_ENABLED = "STORAGE_LOCK_AUDIT_SERVICE_ENABLED"
_STEPS: Mapping[str, AuditStep] = {"START": "START", "RENEW": "RENEW", "END": "END"}


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One line of an audit file. `at_ms`: just before the step's request. `held`: if not, an END is a loss."""

    owner: str
    began_ms: int
    at_ms: int
    step: AuditStep
    valid_until_ms: int
    held: bool

    def encode(self) -> bytes:
        """Encode as JSON and a newline, with JVM Hudi's names and order of fields."""
        audit_fields = {
            "transactionStartTime": self.began_ms,
            "lockHeld": self.held,
            "state": self.step,
            "lockExpiration": self.valid_until_ms,
            "ownerId": self.owner,
            "timestamp": self.at_ms,
        }
        return json.dumps(audit_fields, separators=(",", ":")).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> AuditRecord:
        """Decode one line of an audit file.

        Raises `Undecodable` if a field is missing or malformed; ignores other fields.
        """
        with undecodable_as(Undecodable, f"not an audit record: {line[:80]!r}"):
            fields = parse_object(line, most=_LARGEST)
            return cls(
                owner=text_in(fields, "ownerId"),
                began_ms=whole_in(fields, "transactionStartTime", most=LATEST_MS),
                at_ms=whole_in(fields, "timestamp", most=LATEST_MS),
                step=_STEPS[text_in(fields, "state")],
                valid_until_ms=whole_in(fields, "lockExpiration", most=LATEST_MS),
                held=as_flag(fields["lockHeld"], "lockHeld"),
            )


@dataclass(frozen=True, slots=True)
class Places:
    """Paths of a lock's audit."""

    switch: str
    folder: str

    def file(self, began_ms: int, owner: str) -> str:
        return f"{self.folder}/{began_ms}_{owner}.jsonl"


def places(lock_path: str) -> Places:
    folder, _, name = lock_path.rpartition("/")
    if name == HUDI_LOCK_PATH.rpartition("/")[2] and folder:
        return Places(f"{folder}/audit_enabled.json", f"{folder}/audit")
    return Places(f"{lock_path}.audit_enabled.json", f"{lock_path}.audit")


def encode_switch(*, enabled: bool) -> bytes:
    return json.dumps({_ENABLED: enabled}, separators=(",", ":")).encode()


def decode_switch(data: bytes) -> bool:
    try:
        value = parse_object(data, most=_LARGEST)[_ENABLED]
    except (KeyError, ValueError):
        return False
    return value is True or value == "true"


@dataclass(frozen=True, slots=True)
class Tenure:
    """One holding of the lock: `released`, `lost` before its end, `lapsed` without a recorded end, or still `held`."""

    owner: str
    file: str
    start_ms: int
    end_ms: int
    how: How
    renewals: int = 0


@dataclass(frozen=True, slots=True)
class Overlap:
    """Failure of the lock: taken over 500 ms before an earlier holder's recorded end."""

    owners: tuple[str, str]
    from_ms: int
    to_ms: int


@dataclass(frozen=True, slots=True)
class Audit:
    """Tenures in order of the takes, overlaps, and unreadable files."""

    tenures: tuple[Tenure, ...]
    overlaps: tuple[Overlap, ...]
    unreadable: tuple[str, ...]
    files: int
    now_ms: int


def analyse(files: Mapping[str, bytes], now_ms: int) -> Audit:
    """Compute from audit files (contents by name) who held the lock when, and whose holdings overlap.

    Skips unreadable lines, and names their files.
    """
    tenures: list[Tenure] = []
    unreadable: list[str] = []
    for name, data in sorted(files.items()):
        records: list[AuditRecord] = []
        for line in filter(bytes.strip, data.splitlines()):
            try:
                records.append(AuditRecord.decode(line))
            except ValueError:
                unreadable.append(name)
        tenures += _tenures(name, records, now_ms)
    tenures.sort(key=lambda tenure: (tenure.start_ms, tenure.end_ms, tenure.owner))
    return Audit(tuple(tenures), tuple(_overlaps(tenures)), tuple(dict.fromkeys(unreadable)), len(files), now_ms)


def _tenures(file: str, records: Iterable[AuditRecord], now_ms: int) -> Iterator[Tenure]:
    """Yield each holding that one file's records show.

    START or another owner ends an open one as lapsed, END as released, or lost if not `held`. A RENEW may begin one.
    The last, if open, is still held if valid at `now_ms`, else lapsed.
    """
    held: Tenure | None = None
    for record in records:
        at_ms, until_ms = record.at_ms, record.valid_until_ms
        if held is not None and (record.step == "START" or record.owner != held.owner):
            yield replace(held, end_ms=max(held.start_ms, min(held.end_ms, at_ms)))
            held = None
        if held is None:
            if record.step != "END":
                held = Tenure(record.owner, file, at_ms, until_ms, "lapsed")
        elif record.step == "RENEW":
            held = replace(held, end_ms=until_ms, renewals=held.renewals + 1)
        else:
            yield replace(held, end_ms=at_ms, how="released" if record.held else "lost")
            held = None
    if held is not None:
        is_over = lapsed(held.end_ms, now_ms)
        yield held if is_over else replace(held, how="held", end_ms=max(held.start_ms, now_ms))


def _overlaps(tenures: Sequence[Tenure]) -> Iterator[Overlap]:
    for number, earlier in enumerate(tenures):
        for later in tenures[number + 1 :] if earlier.how in ("released", "lost") else ():
            if later.start_ms >= earlier.end_ms:
                break
            if min(earlier.end_ms - later.start_ms, later.end_ms - earlier.start_ms) > GRACE_MS:
                yield Overlap((earlier.owner, later.owner), later.start_ms, min(earlier.end_ms, later.end_ms))
