"""What is to be decided: an object under the name of what its writer has seen, created once, read by who is on duty.

An intent says: all that it needs is there, and it asks to be published. It holds for one log of the lock record, from
the place on up to which its writer has judged itself, and nowhere else. An intent without a body is withdrawn.

A short body stands in the name, too, deflated by what is much like it and known to whoever decides: a sample of the
decider's, and the last entry before its place. That spares a read.
"""

from __future__ import annotations

import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass, field, replace
from urllib.parse import quote, unquote

from fsspec_cas.given import LARGEST_NUMBER
from lockprovider.bounded import inflate
from lockprovider.storage_lock.commit_log import LARGEST, Log

_LONGEST = 255  # bytes of a name: MinIO's limit, and of many file systems
_SUM = 4  # bytes


@dataclass(frozen=True, slots=True)
class Intent:
    """A publish that waits for its decision.

    Attributes:
        log: the name of the log by which its writer has judged itself.
        place: up to which place of that log.
        stem: what the path that is going to be published begins with; no other publish's ever does.
        body: what the decider needs to judge it and to publish it.
        told: the body as it stands in its name; empty where it does not.
    """

    log: str
    place: int
    stem: str
    body: bytes
    told: str = field(default="", compare=False)

    @property
    def name(self) -> str:
        """Its path below the folder of the intents."""
        name = f"{folder(self.log)}{self.place}.{quote(self.stem, safe='')}"
        return f"{name}!{self.told}" if self.told else name

    def telling(self, log: Log, sample: bytes) -> Intent:
        """The same with its body in its name, if there is room for that."""
        told = replace(self, told=_packed(self.body, sample + _before(log, self.place)))
        return told if len(told.name) - len(folder(self.log)) <= _LONGEST else self

    def read(self, log: Log, sample: bytes) -> Intent:
        """The same with the body that its name tells; without one, if it tells none, or not by these."""
        return replace(self, body=_unpacked(self.told, sample + _before(log, self.place)))


def folder(log: str) -> str:
    """Where the intents of one log are; those of others are void."""
    return f"{quote(log, safe='')}/"


def is_over(intent: Intent, log: Log | None) -> bool:
    """Whether no write can decide it any more, now that the record has this log: also should it be posted again."""
    if log is None or log.name != intent.log or intent.place < log.first:
        return True
    return any(entry.path.startswith(intent.stem) for entry in log.entries)


def parse(name: str, body: bytes) -> Intent | None:
    """The intent of that name; None if it is none."""
    log, slash, rest = name.partition("/")
    rest, _, told = rest.partition("!")
    place, dot, stem = rest.partition(".")
    if not (slash and dot and stem and place.isdecimal() and int(place) <= LARGEST_NUMBER and len(body) <= LARGEST):
        return None
    return Intent(unquote(log), int(place), unquote(stem), body, told)


def _before(log: Log, place: int) -> bytes:
    """The last that was published before that place, as far as the log goes back."""
    since = log.since(place - 1)
    return (since[0].data or b"") if since else b""


def _packed(body: bytes, like: bytes) -> str:
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS, 9, zlib.Z_DEFAULT_STRATEGY, like)
    packed = zlib.crc32(body).to_bytes(_SUM, "big") + packer.compress(body) + packer.flush()
    return urlsafe_b64encode(packed).decode().rstrip("=")


def _unpacked(told: str, like: bytes) -> bytes:
    """Nothing, if it was packed with something else."""
    try:
        packed = urlsafe_b64decode(told + "=" * (-len(told) % 4))
        body = inflate(packed[_SUM:], most=LARGEST, wbits=-zlib.MAX_WBITS, like=like)
    except (ValueError, zlib.error):
        return b""
    return body if zlib.crc32(body).to_bytes(_SUM, "big") == packed[:_SUM] else b""
