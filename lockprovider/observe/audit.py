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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from lockprovider.bounded import LATEST_MS, Undecodable, as_flag, parse_object, text_in, undecodable_as, whole_in
from lockprovider.record.record import HUDI_LOCK_PATH, lapsed
from lockprovider.settings import GRACE_MS

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

    @property
    def ended(self) -> bool:
        """Whether the holder recorded its end."""
        return self.how in ("released", "lost")


@dataclass(frozen=True, slots=True)
class Flag:
    """Something to look at, between two moments.

    Attributes:
        kind: `overlap`: two held the lock at once, and clocks that differ by 500 ms do not explain it; `early`: taken
            before the lease of one who recorded no end had run out (it was broken, or its last record is missing);
            `clocks`: an overlap that clocks explain; `lapse`: held on after the lease had run out; `unended`: the
            holder recorded no end; `unreadable`: lines that are no audit record.
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
    """Who held the lock when, in order of taking it; `free` are the gaps in which nobody did."""

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
    flags += [*_unended(tenures), *_lapses(tenures), *_overlaps(tenures)]
    flags.sort(key=lambda flag: (flag.from_ms, flag.kind))
    return Audit(tuple(tenures), tuple(flags), tuple(_free(tenures)), len(files), now_ms)


def _records(data: bytes) -> tuple[list[AuditRecord], int]:
    records, bad = [], 0
    for line in data.splitlines():
        if not line.strip():
            continue
        try:
            records.append(AuditRecord.decode(line))
        except ValueError:
            bad += 1
    return records, bad


def _tenures(file: str, records: Iterable[AuditRecord], now_ms: int) -> Iterator[Tenure]:
    """The tenures of one file. One that is open when the next begins was never ended."""
    held: Tenure | None = None
    for record in records:
        if held is not None and (record.step == "START" or record.owner != held.owner):
            yield replace(held, end_ms=max(held.start_ms, min(held.end_ms, record.at_ms)))
            held = None
        if held is None:
            if record.step == "END":
                continue  # of nothing that was begun
            held = Tenure(record.owner, file, record.at_ms, record.valid_until_ms, "lapsed", record.valid_until_ms)
        elif record.step == "RENEW":
            held = _renewed(_gone_on(held, record.at_ms), record.valid_until_ms)
        else:
            how: How = "released" if record.held else "lost"
            yield replace(_gone_on(held, record.at_ms), end_ms=record.at_ms, how=how)
            held = None
    if held is not None:
        still_held = replace(held, how="held", end_ms=max(held.start_ms, now_ms))
        yield held if lapsed(held.end_ms, now_ms) else still_held


def _renewed(held: Tenure, until_ms: int) -> Tenure:
    return replace(held, end_ms=until_ms, promised_ms=until_ms, renewals=held.renewals + 1)


def _gone_on(held: Tenure, at_ms: int) -> Tenure:
    """The tenure, with the stretch after its lease ran out, if it was recorded so late."""
    return replace(held, lapses=(*held.lapses, (held.end_ms, at_ms))) if at_ms > held.end_ms else held


def _unended(tenures: Iterable[Tenure]) -> Iterator[Flag]:
    for tenure in tenures:
        if tenure.how == "lapsed":
            yield Flag("unended", tenure.start_ms, tenure.end_ms, (tenure.owner,), tenure.file)


def _lapses(tenures: Iterable[Tenure]) -> Iterator[Flag]:
    for tenure in tenures:
        for from_ms, to_ms in tenure.lapses:
            yield Flag("lapse", from_ms, to_ms, (tenure.owner,), tenure.file)


def _overlaps(tenures: Iterable[Tenure]) -> Iterator[Flag]:
    open_tenures: list[Tenure] = []
    for later in tenures:
        open_tenures = [earlier for earlier in open_tenures if earlier.end_ms > later.start_ms]
        for earlier in open_tenures:
            if later.end_ms > earlier.start_ms:
                to_ms = min(earlier.end_ms, later.end_ms)
                yield Flag(_kind(earlier, later), later.start_ms, to_ms, (earlier.owner, later.owner), earlier.file)
        open_tenures.append(later)


def _kind(earlier: Tenure, later: Tenure) -> Kind:
    """By how far clocks would have to differ for the two to have been apart."""
    end_ms = earlier.end_ms if earlier.ended else earlier.promised_ms
    if min(end_ms - later.start_ms, later.end_ms - earlier.start_ms) <= GRACE_MS:
        return "clocks"
    return "overlap" if earlier.ended else "early"


def _free(tenures: Sequence[Tenure]) -> Iterator[tuple[int, int]]:
    busy_until: list[int] = []
    for tenure in tenures:
        busy_until.append(max([tenure.end_ms, *busy_until[-1:]]))
    starts = [tenure.start_ms for tenure in tenures]
    for end_ms, start_ms in zip(busy_until, starts[1:], strict=False):
        if start_ms > end_ms:
            yield end_ms, start_ms


# -- in words and as JSON ----------------------------------------------------------------------------------------------


def audit_fields(audit: Audit) -> dict[str, Any]:
    """The audit as JSON."""
    return {
        "files": audit.files,
        "now_ms": audit.now_ms,
        "tenures": [
            {
                "owner": tenure.owner,
                "start_ms": tenure.start_ms,
                "end_ms": tenure.end_ms,
                "held_ms": tenure.end_ms - tenure.start_ms,
                "how": tenure.how,
                "renewals": tenure.renewals,
                "file": tenure.file,
            }
            for tenure in audit.tenures
        ],
        "free": [{"from_ms": from_ms, "to_ms": to_ms} for from_ms, to_ms in audit.free],
        "flags": [
            {
                "kind": flag.kind,
                "wrong": flag.wrong,
                "from_ms": flag.from_ms,
                "to_ms": flag.to_ms,
                "owners": flag.owners,
                "file": flag.file,
            }
            for flag in audit.flags
        ],
        "wrong": audit.wrong,
    }
