"""Hudi's audit of its storage lock: the records, and what they tell about who held the lock when.

While `.hoodie/.locks/audit_enabled.json` says `{"STORAGE_LOCK_AUDIT_SERVICE_ENABLED":true}`, every holder keeps a file
`.hoodie/.locks/audit/<begin>_<owner>.jsonl` with one line for taking the lock, one for each renewal and one for giving
it back, each with the time BEFORE the request was sent, on the holder's own clock.

Not promised: that it is complete. Both writers write it after the fact and do without when the store fails; a holder
that dies writes no end. JVM Hudi keeps one file for all acquisitions of a provider, under the time of the first.

Source: `StorageLockProviderAuditService`, `AuditServiceFactory`, `StorageBasedLockProvider` of Hudi 1.2.0.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from lockprovider.bounded import LATEST_MS, Undecodable, as_flag, parse_object, text_in, undecodable_as, whole_in
from lockprovider.settings import GRACE_MS
from lockprovider.storage_lock.record import HUDI_LOCK_PATH, lapsed

AuditStep = Literal["START", "RENEW", "END"]
How = Literal["released", "lost", "lapsed", "held"]
Kind = Literal["overlap", "early", "clocks", "lapse", "unended", "unreadable"]

_LARGEST = 1 << 16  # bytes of a line, or of the switch
_ENABLED = "STORAGE_LOCK_AUDIT_SERVICE_ENABLED"
_STEPS: Mapping[str, AuditStep] = {"START": "START", "RENEW": "RENEW", "END": "END"}


# -- records -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One line of an audit file.

    Attributes:
        owner: UUID of the lock client.
        began_ms: when the file was begun (Hudi calls it the transaction's start).
        at_ms: when the request of this step was about to be sent.
        step: what it was.
        valid_until_ms: what the step promised to others.
        held: whether the lock was held when this was noted. An END that was not held is a loss.
    """

    owner: str
    began_ms: int
    at_ms: int
    step: AuditStep
    valid_until_ms: int
    held: bool

    def encode(self) -> bytes:
        """The line, fields in the order in which JVM Hudi has them."""
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
        """Read a line, ours or JVM Hudi's.

        Raises:
            ValueError: it is none.
        """
        with undecodable_as(Undecodable, f"not an audit record: {line[:80]!r}"):
            found = parse_object(line, most=_LARGEST)
            return cls(
                owner=text_in(found, "ownerId"),
                began_ms=whole_in(found, "transactionStartTime", most=LATEST_MS),
                at_ms=whole_in(found, "timestamp", most=LATEST_MS),
                step=_STEPS[text_in(found, "state")],
                valid_until_ms=whole_in(found, "lockExpiration", most=LATEST_MS),
                held=as_flag(found["lockHeld"], "lockHeld"),
            )


@dataclass(frozen=True, slots=True)
class Places:
    """Where the audit of one lock is: Hudi's places for a table's lock, beside the object for any other."""

    switch: str
    folder: str

    def file(self, began_ms: int, owner: str) -> str:
        """The file of one holder."""
        return f"{self.folder}/{began_ms}_{owner}.jsonl"


def places(lock_path: str) -> Places:
    """Where the audit of the lock at this path is."""
    folder, _, name = lock_path.rpartition("/")
    if name == HUDI_LOCK_PATH.rpartition("/")[2] and folder:
        return Places(f"{folder}/audit_enabled.json", f"{folder}/audit")
    return Places(f"{lock_path}.audit_enabled.json", f"{lock_path}.audit")


def encode_switch(*, enabled: bool) -> bytes:
    """What JVM Hudi's `locks audit enable` and `disable` write."""
    return json.dumps({_ENABLED: enabled}, separators=(",", ":")).encode()


def decode_switch(data: bytes) -> bool:
    """Whether it says that records are wanted; what cannot be read says no, as in Hudi."""
    try:
        value = parse_object(data, most=_LARGEST)[_ENABLED]
    except (KeyError, ValueError):
        return False
    return value is True or value == "true"


# -- what they tell ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tenure:
    """One holding of the lock, as its holder recorded it.

    Attributes:
        how: `released`; `lost`: it ended when the lock was not held any more; `lapsed`: no end was recorded, `end_ms`
            is when the last promise ran out; `held`: no end was recorded, and the last promise still stands.
        promised_ms: until when the last record said that it would be held.
        lapses: stretches in which the lease had run out before it was renewed.
    """

    owner: str
    file: str
    start_ms: int
    end_ms: int
    how: How
    promised_ms: int
    renewals: int = 0
    lapses: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Flag:
    """Something to look at, between two moments.

    Attributes:
        kind: `overlap`: two held the lock at once, and clocks that differ by 500 ms do not explain it; `early`: taken
            before the lease of a holder that recorded no end had run out (the lock was broken, or the last record is
            missing); `clocks`: an overlap that clocks explain; `lapse`: held on after the lease had run out; `unended`:
            the holder recorded no end; `unreadable`: lines that are no audit record.
    """

    kind: Kind
    from_ms: int
    to_ms: int
    owners: tuple[str, ...]
    file: str

    @property
    def wrong(self) -> bool:
        """Whether the lock did not do its work, if the records are true."""
        return self.kind == "overlap"


@dataclass(frozen=True, slots=True)
class Audit:
    """The tenures of a lock in the order in which clients took it; `free` has the gaps in which no client held it."""

    tenures: tuple[Tenure, ...]
    flags: tuple[Flag, ...]
    free: tuple[tuple[int, int], ...]
    files: int
    now_ms: int

    @property
    def wrong(self) -> bool:
        """Whether two held it at once."""
        return any(flag.wrong for flag in self.flags)


def analyse(files: Mapping[str, bytes], now_ms: int) -> Audit:
    """What the files tell, by name and bytes; `now_ms` says which open ends still stand."""
    tenures: list[Tenure] = []
    flags: list[Flag] = []
    for name, data in sorted(files.items()):
        records, bad = _records(data)
        tenures += _tenures(name, records, now_ms)
        if bad:
            flags.append(Flag("unreadable", 0, 0, (), name))
    tenures.sort(key=lambda tenure: (tenure.start_ms, tenure.end_ms, tenure.owner))
    for tenure in tenures:
        alone = (tenure.owner,)
        flags += [Flag("lapse", *lapse, alone, tenure.file) for lapse in tenure.lapses]
        if tenure.how == "lapsed":
            flags.append(Flag("unended", tenure.start_ms, tenure.end_ms, alone, tenure.file))
    overlaps, free = _overlaps_and_gaps(tenures)
    flags = sorted([*flags, *overlaps], key=lambda flag: (flag.from_ms, flag.kind))
    return Audit(tuple(tenures), tuple(flags), tuple(free), len(files), now_ms)


def _records(data: bytes) -> tuple[list[AuditRecord], int]:
    records, bad = [], 0
    for line in filter(bytes.strip, data.splitlines()):
        try:
            records.append(AuditRecord.decode(line))
        except ValueError:
            bad += 1
    return records, bad


def _tenures(file: str, records: Iterable[AuditRecord], now_ms: int) -> Iterator[Tenure]:
    """The tenures of one file. One that is open when the next begins was never ended."""
    held: Tenure | None = None
    for record in records:
        at_ms, until_ms = record.at_ms, record.valid_until_ms
        if held is not None and (record.step == "START" or record.owner != held.owner):
            yield replace(held, end_ms=max(held.start_ms, min(held.end_ms, at_ms)))
            held = None
        if held is None:
            if record.step != "END":  # an end of nothing that was begun says nothing
                held = Tenure(record.owner, file, at_ms, until_ms, "lapsed", until_ms)
            continue
        if at_ms > held.end_ms:
            held = replace(held, lapses=(*held.lapses, (held.end_ms, at_ms)))
        if record.step == "RENEW":
            held = replace(held, end_ms=until_ms, promised_ms=until_ms, renewals=held.renewals + 1)
        else:
            yield replace(held, end_ms=at_ms, how="released" if record.held else "lost")
            held = None
    if held is not None:
        is_over = lapsed(held.end_ms, now_ms)
        yield held if is_over else replace(held, how="held", end_ms=max(held.start_ms, now_ms))


def _overlaps_and_gaps(tenures: Iterable[Tenure]) -> tuple[list[Flag], list[tuple[int, int]]]:
    flags: list[Flag] = []
    gaps: list[tuple[int, int]] = []
    open_tenures: list[Tenure] = []
    busy_until_ms: int | None = None
    for later in tenures:
        open_tenures = [earlier for earlier in open_tenures if earlier.end_ms > later.start_ms]
        for earlier in open_tenures:
            if later.end_ms > earlier.start_ms:
                owners, to_ms = (earlier.owner, later.owner), min(earlier.end_ms, later.end_ms)
                flags.append(Flag(_kind(earlier, later), later.start_ms, to_ms, owners, earlier.file))
        open_tenures.append(later)
        if busy_until_ms is not None and later.start_ms > busy_until_ms:
            gaps.append((busy_until_ms, later.start_ms))
        busy_until_ms = max(later.end_ms, later.end_ms if busy_until_ms is None else busy_until_ms)
    return flags, gaps


def _kind(earlier: Tenure, later: Tenure) -> Kind:
    """By how far clocks would have to differ for the two to have been apart."""
    is_ended = earlier.how in ("released", "lost")
    end_ms = earlier.end_ms if is_ended else earlier.promised_ms
    if min(end_ms - later.start_ms, later.end_ms - earlier.start_ms) <= GRACE_MS:
        return "clocks"
    return "overlap" if is_ended else "early"


def audit_fields(audit: Audit) -> dict[str, Any]:
    """The audit as JSON."""
    tenures = ("owner", "start_ms", "end_ms", "how", "renewals", "file")
    flags = ("kind", "wrong", "from_ms", "to_ms", "owners", "file")
    return {
        "files": audit.files,
        "now_ms": audit.now_ms,
        "tenures": [
            {"held_ms": one.end_ms - one.start_ms, **{name: getattr(one, name) for name in tenures}}
            for one in audit.tenures
        ],
        "free": [{"from_ms": from_ms, "to_ms": to_ms} for from_ms, to_ms in audit.free],
        "flags": [{name: getattr(flag, name) for name in flags} for flag in audit.flags],
        "wrong": audit.wrong,
    }
