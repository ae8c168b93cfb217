"""What a queue's object holds. Pure.

{"format": 1, "id": uuid, "rev": n, "next": n, "turn": n, "epoch": n, "settings": {...},
 "ready": [message, ...], "claims": [[message, token, who, beat, until, visible, turn], ...],
 "dead": [[message, why, at], ...], "producers": {name: [seq, n, client]}, "settled": [[claim, verb], ...],
 "recent": [id, ...]}
message: [n, priority, not_before, attempts, key, body, kind, error]

Times are epoch ms. `rev` rises with each write, `next` is the number of the next message, `turn` rises with each claim.
`recent` has the identities of the last writes, by which a lost answer is settled; it also makes the bytes of each write
differ. Fields that are not known are kept. A format that is not known is refused, and never written over.
"""

from __future__ import annotations

import base64
import json
from bisect import insort
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lockprovider.recipes.errors import MalformedObject

_FORMAT = 1
RECENT = 64  # writes whose identity is kept
SETTLED = 1024  # claims whose end is kept
VISIBLE_S, MAX_ATTEMPTS, MAX_BYTES = 600.0, 5, 4 << 20
PRODUCERS = 1000  # of those with a name, and as many of those without

_dump = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """What is the same for all who use a queue.

    Attributes:
        visible_s: how long a claim lives without a heartbeat, where the worker does not say.
        max_attempts: after so many deliveries a message that was not acked is a dead letter.
        max_bytes: how large the object may become.
    """

    visible_s: float = VISIBLE_S
    max_attempts: int = MAX_ATTEMPTS
    max_bytes: int = MAX_BYTES


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `text` is its JSON, made once."""

    n: int
    priority: int
    not_before_ms: int
    attempts: int
    key: str
    body: Any = field(hash=False)
    error: str = ""
    text: str = field(default="", compare=False)

    def told(self) -> Message:
        """With its text.

        Raises:
            TypeError, ValueError: the body is neither bytes nor what JSON can say.
        """
        raw = isinstance(self.body, bytes)
        shown, kind = (base64.b64encode(self.body).decode(), "bytes") if raw else (self.body, "json")
        fate = (self.n, self.priority, self.not_before_ms, self.attempts, self.key)
        return replace(self, text=_dump([*fate, shown, kind, self.error]))

    def given(self) -> Any:
        """The body for one who may change it."""
        return self.body if isinstance(self.body, (bytes, str)) else json.loads(_dump(self.body))

    @property
    def order(self) -> tuple[int, int]:
        """The higher priority first, then who came first."""
        return -self.priority, self.n


@dataclass(frozen=True, slots=True)
class Claim:
    """A message that somebody works on. `token` is of this delivery alone; `beat` rises with each heartbeat."""

    message: Message
    token: str
    who: str
    beat: int
    until_ms: int
    visible_ms: int
    turn: int

    @property
    def text(self) -> str:
        """Its JSON."""
        rest = _dump([self.token, self.who, self.beat, self.until_ms, self.visible_ms, self.turn])
        return f"[{self.message.text},{rest[1:]}"


@dataclass(frozen=True, slots=True)
class Dead:
    """A message that is not delivered any more: it failed too often, or was buried."""

    message: Message
    why: str
    at_ms: int

    @property
    def text(self) -> str:
        """Its JSON."""
        return f"[{self.message.text},{_dump(self.why)},{self.at_ms}]"


@dataclass(slots=True)
class Contents:
    """The whole object, to be changed by `operations.apply`, on a copy. `ready` is in the order of delivery."""

    id: str
    settings: QueueSettings = field(default_factory=QueueSettings)
    rev: int = 0
    next: int = 1
    turn: int = 0
    epoch: int = 0
    ready: list[Message] = field(default_factory=list)
    claims: dict[int, Claim] = field(default_factory=dict)
    dead: dict[int, Dead] = field(default_factory=dict)
    producers: dict[str, tuple[int, int, str]] = field(default_factory=dict)
    settled: dict[str, str] = field(default_factory=dict)
    recent: tuple[str, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)
    size: int = 0  # of the messages, in bytes
    changed: bool = False

    def copy(self) -> Contents:
        """To be changed."""
        return replace(
            self,
            ready=self.ready.copy(),
            claims=self.claims.copy(),
            dead=self.dead.copy(),
            producers=self.producers.copy(),
            settled=self.settled.copy(),
            changed=False,
        )

    def add(self, message: Message) -> None:
        """Make it ready."""
        insort(self.ready, message, key=lambda one: one.order)

    def encode(self) -> bytes:
        """As JSON."""
        kept = self.settings
        settings = {"visible_s": kept.visible_s, "max_attempts": kept.max_attempts, "max_bytes": kept.max_bytes}
        head = {"format": _FORMAT, "id": self.id, "rev": self.rev, "next": self.next, "turn": self.turn}
        tail = {"producers": self.producers, "settled": [*self.settled.items()], "recent": self.recent}
        parts = (
            _dump({**self.more, **head, "epoch": self.epoch, "settings": settings})[:-1],
            f'"ready":[{",".join(one.text for one in self.ready)}]',
            f'"claims":[{",".join(one.text for one in self.claims.values())}]',
            f'"dead":[{",".join(one.text for one in self.dead.values())}]',
            _dump(tail)[1:],
        )
        return ",".join(parts).encode()


_KNOWN = {"format", "id", "rev", "next", "turn", "epoch", "settings", "ready", "claims", "dead", "producers", "settled"}
_KNOWN |= {"recent"}


def decode_queue(data: bytes, path: str) -> Contents:
    """The queue in these bytes.

    Raises:
        MalformedObject: they are none, or of a format that is not known.
    """
    try:
        found = json.loads(data)
        if not isinstance(found, dict) or not {"id", "ready", "claims"} <= {*found}:
            raise MalformedObject(f"{path!r} is no queue, and is left as it is: give the queue another path")
        if found["format"] != _FORMAT:
            known = f"this version knows {_FORMAT}: use a newer one"
            raise MalformedObject(f"{path!r} has format {found['format']!r}, {known}")
        claims = [Claim(_message(message), *rest) for message, *rest in found["claims"]]
        dead = [Dead(_message(message), *rest) for message, *rest in found["dead"]]
        contents = Contents(
            id=str(found["id"]),
            settings=QueueSettings(**found["settings"]),
            rev=int(found["rev"]),
            next=int(found["next"]),
            turn=int(found["turn"]),
            epoch=int(found["epoch"]),
            ready=[_message(one) for one in found["ready"]],
            claims={one.message.n: one for one in claims},
            dead={one.message.n: one for one in dead},
            producers={name: (int(seq), int(n), str(who)) for name, (seq, n, who) in found["producers"].items()},
            settled={str(token): str(verb) for token, verb in found["settled"]},
            recent=tuple(found["recent"]),
            more={name: value for name, value in found.items() if name not in _KNOWN},
        )
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, MalformedObject):
            raise
        raise MalformedObject(f"{path!r} is no queue: {error!r}") from error
    messages = [*contents.ready, *(one.message for one in claims), *(one.message for one in dead)]
    contents.size = sum(len(one.text) for one in messages)
    return contents


def _message(stored: list[Any]) -> Message:
    n, priority, not_before_ms, attempts, key, body, kind, error = stored
    if kind == "bytes":
        body = base64.b64decode(body, validate=True)
    elif kind != "json":
        raise ValueError(f"message {n} is of kind {kind!r}")
    return Message(n, priority, not_before_ms, attempts, key, body, error).told()
