"""What is to be decided: an object under the name of what its writer has seen, created once, read by who is on duty.

An intent says: all that it needs is there, and it asks to be published. It holds for one log of the lock record, from
the place on up to which its writer has judged itself, and nowhere else. An intent without a body is withdrawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, unquote

from lockprovider.record.commit_log import Log


@dataclass(frozen=True, slots=True)
class Intent:
    """A publish that waits for its decision.

    Attributes:
        log: the name of the log by which its writer has judged itself.
        place: up to which place of that log.
        stem: what the path that is going to be published begins with; no other publish's ever does.
        body: what the decider needs to judge it and to publish it.
    """

    log: str
    place: int
    stem: str
    body: bytes

    @property
    def name(self) -> str:
        """Its path below the folder of the intents."""
        return f"{folder(self.log)}{self.place}.{quote(self.stem, safe='')}"


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
    place, dot, stem = rest.partition(".")
    if not (slash and dot and stem and place.isdecimal()):
        return None
    return Intent(unquote(log), int(place), unquote(stem), body)
