"""Contents of a queue's object and of its segments. Pure.

{"format":1, "id":uuid, "rev":n, "next":n, "turn":n, "epoch":n, "settings":{...}, "ready":[message,...],
"claims":[[message,token,who,beat,until,visible,turn],...], "dead":[[message,why,at],...],
"producers":{name:[seq,n,client]}, "settled":[[claim,verb],...], "recent":[id,...]} message:
[n,priority,not_before,attempts,key,body,kind,error]

Format 2 adds "segments":[[name,count,bytes,priority,n,due],...], with priority and number of the first message, and
when one is due. A segment's object is written once, under a name never used again:

{"format":1, "id":uuid of the queue, "messages":[message,...]}

An optional "broker" names the processes that write for others: {host:[address,key]}. Times are epoch ms. `rev` rises
with each write, `turn` with each claim. `recent` has the ids of the last writes: they settle lost answers, and make
each write's bytes differ.
"""

from __future__ import annotations

import base64
import json
import re
from bisect import insort
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fsspec_cas import InvalidInput
from fsspec_cas.arguments import LARGEST_NUMBER, check_seconds, check_whole
from lockprovider.bounded import (
    LARGEST_OBJECT,
    LATEST_MS,
    MOST_ITEMS,
    Undecodable,
    are_wholes,
    as_text,
    as_whole,
    check_fits,
    parse_object,
    text_in,
    unbase64,
    undecodable_as,
    whole_in,
)
from lockprovider.recipes.errors import MalformedObject, QueueFull
from lockprovider.recipes.values import check_format

_FORMAT, _SEGMENT_FORMAT = 1, 1
_FORMAT_WITH_SEGMENTS = 2
RECENT = 64  # writes
SETTLED = 1024  # ended claims
VISIBLE_S, MAX_ATTEMPTS, MAX_BYTES = 600.0, 5, 4 << 20
LARGEST_QUEUE = LARGEST_OBJECT
DONE = {"ack": "acked", "nack": "returned", "bury": "buried"}
PRODUCERS = 1000  # named, and as many unnamed

_dump = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """Settings that all clients of a queue share; raises InvalidInput.

    Attributes:
        visible_s: seconds that a claim lives without a heartbeat, by default.
        max_attempts: deliveries until a message becomes a dead letter.
        max_bytes: largest object; further messages wait in segments.

    >>> lockprovider.queue.QueueSettings(max_attempts=3).visible_s
    600.0
    """

    visible_s: float = VISIBLE_S
    max_attempts: int = MAX_ATTEMPTS
    max_bytes: int = MAX_BYTES

    def __post_init__(self) -> None:
        visible_s, most = check_seconds(self.visible_s, "visible_s", finite=True, above=True), LARGEST_QUEUE // 2
        object.__setattr__(self, "visible_s", visible_s)
        check_whole(self.max_attempts, "max_attempts", least=1)
        if check_whole(self.max_bytes, "max_bytes", least=4096) > most:
            because = "because every client reads the whole object"
            raise InvalidInput(f"max_bytes={self.max_bytes} must be at most {most}, {because}")


@dataclass(frozen=True, slots=True)
class Message:
    """`text` caches the message's JSON, `body_json` its body's."""

    n: int
    priority: int
    not_before_ms: int
    attempts: int
    key: str
    body: Any = field(hash=False)
    error: str = ""
    body_json: str = field(default="", compare=False, repr=False)
    text: str = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        raw = isinstance(self.body, bytes)
        body_json = self.body_json or _dump(base64.b64encode(self.body).decode() if raw else self.body)
        numbers = f"{self.n},{self.priority},{self.not_before_ms},{self.attempts}"
        kind, error = '"bytes"' if raw else '"json"', _dump(self.error) if self.error else '""'
        object.__setattr__(self, "body_json", body_json)
        object.__setattr__(self, "text", f"[{numbers},{_dump(self.key)},{body_json},{kind},{error}]")

    def body_copy(self) -> Any:
        return self.body if isinstance(self.body, (bytes, str)) else json.loads(self.body_json)

    @property
    def order(self) -> tuple[int, int]:
        return -self.priority, self.n


@dataclass(frozen=True, slots=True)
class Claim:
    """`token` is of this delivery."""

    message: Message
    token: str
    who: str
    beat: int
    until_ms: int
    visible_ms: int
    turn: int
    text: str = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        rest = _dump((self.token, self.who, self.beat, self.until_ms, self.visible_ms, self.turn))
        object.__setattr__(self, "text", f"[{self.message.text},{rest[1:]}")


@dataclass(frozen=True, slots=True)
class Dead:
    message: Message
    why: str
    at_ms: int

    @property
    def text(self) -> str:
        return f"[{self.message.text},{_dump(self.why)},{self.at_ms}]"


@dataclass(frozen=True, slots=True)
class Segment:
    """`messages` is None unless the segment is new or was read.

    `first`: their lowest order. `due_ms`: when one may be delivered (0: now).
    """

    name: str
    count: int
    size: int
    first: tuple[int, int]
    due_ms: int
    messages: tuple[Message, ...] | None = field(default=None, compare=False, repr=False)
    text: str = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        text = _dump([self.name, self.count, self.size, -self.first[0], self.first[1], self.due_ms])
        object.__setattr__(self, "text", text)

    def encode(self, queue_id: str) -> bytes:
        head = _dump({"format": _SEGMENT_FORMAT, "id": queue_id})[:-1]
        return _readable(f'{head},"messages":[{",".join(message.text for message in self.messages or ())}]}}')


@dataclass(slots=True)
class Contents:
    """`ready` and `segments` are in the order of delivery."""

    id: str
    settings: QueueSettings = field(default_factory=QueueSettings)
    rev: int = 0
    next: int = 1
    turn: int = 0
    epoch: int = 0
    ready: list[Message] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    claims: dict[int, Claim] = field(default_factory=dict)
    dead: dict[int, Dead] = field(default_factory=dict)
    producers: dict[str, tuple[int, int, str]] = field(default_factory=dict)
    settled: dict[str, str] = field(default_factory=dict)
    recent: tuple[str, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)
    size: int = 0  # bytes of messages and segment references
    loose: int = 0  # bytes of ready messages without a key
    changed: bool = False

    def copy(self) -> Contents:
        """Return a copy, with `changed` False, whose lists and tables may be changed, except `more`."""
        return replace(
            self,
            ready=self.ready.copy(),
            segments=self.segments.copy(),
            claims=self.claims.copy(),
            dead=self.dead.copy(),
            producers=self.producers.copy(),
            settled=self.settled.copy(),
            changed=False,
        )

    @property
    def waiting(self) -> int:
        return len(self.ready) + sum(segment.count for segment in self.segments)

    def add(self, message: Message) -> None:
        """Make a message ready. The caller adjusts `size`."""
        insort(self.ready, message, key=lambda other: other.order)
        self.loose += 0 if message.key else len(message.text)

    def pop(self, index: int) -> Message:
        message = self.ready.pop(index)
        self.loose -= 0 if message.key else len(message.text)
        return message

    def encode(self) -> bytes:
        """Encode as JSON, segments by reference. Raises QueueFull above 64 MiB or 2,000,000 items."""
        shared = self.settings
        settings = {"visible_s": shared.visible_s, "max_attempts": shared.max_attempts, "max_bytes": shared.max_bytes}
        number = _FORMAT_WITH_SEGMENTS if self.segments else _FORMAT
        head = {"format": number, "id": self.id, "rev": self.rev, "next": self.next, "turn": self.turn}
        tail = {"producers": self.producers, "settled": [*self.settled.items()], "recent": self.recent}
        parts = (
            _dump({**self.more, **head, "epoch": self.epoch, "settings": settings})[:-1],
            f'"ready":[{",".join(item.text for item in self.ready)}]',
            *([f'"segments":[{",".join(item.text for item in self.segments)}]'] if self.segments else []),
            f'"claims":[{",".join(item.text for item in self.claims.values())}]',
            f'"dead":[{",".join(item.text for item in self.dead.values())}]',
            _dump(tail)[1:],
        )
        return _readable(",".join(parts))


def _readable(text: str) -> bytes:
    data = text.encode()
    with undecodable_as(QueueFull, "the queue cannot be stored", "take or redrive messages first, or put smaller ones"):
        if len(data) > MOST_ITEMS:  # shorter ones fit
            check_fits(data, most=LARGEST_QUEUE)
    return data


_KNOWN = {"format", "id", "rev", "next", "turn", "epoch", "settings", "ready", "claims", "dead", "producers", "settled"}
_KNOWN |= {"recent", "segments"}
_SETTINGS = {"visible_s", "max_attempts", "max_bytes"}
_SEGMENT = re.compile(r"[\w.-]+")


def decode_queue(data: bytes, path: str) -> Contents:
    """Decode a queue's object, segments by reference. Unknown fields go to `more`.

    Other bytes and newer formats raise MalformedObject, naming `path`.
    """
    with undecodable_as(MalformedObject, f"{path!r} is not a queue and was not changed", "give the queue another path"):
        fields = parse_object(data, most=LARGEST_QUEUE)
        check_format(fields, path, _FORMAT, _FORMAT_WITH_SEGMENTS)
        claims = [decode_claim(item) for item in fields["claims"]]
        dead = [
            Dead(decode_message(message), as_text(why, "why"), as_whole(at_ms, "at", most=LATEST_MS))
            for message, why, at_ms in fields["dead"]
        ]
        if {*fields["settings"]} != _SETTINGS:
            raise Undecodable("its settings are not those of a queue")
        contents = Contents(
            id=text_in(fields, "id"),
            settings=QueueSettings(**fields["settings"]),
            rev=whole_in(fields, "rev"),
            next=whole_in(fields, "next"),
            turn=whole_in(fields, "turn"),
            epoch=whole_in(fields, "epoch"),
            ready=[decode_message(item) for item in fields["ready"]],
            segments=[_segment(item) for item in fields.get("segments", ())],
            claims={item.message.n: item for item in claims},
            dead={item.message.n: item for item in dead},
            producers={name: _producer(item) for name, item in fields["producers"].items()},
            settled={as_text(token, "claim"): _verb(verb) for token, verb in fields["settled"]},
            recent=tuple(as_text(item, "recent") for item in fields["recent"]),
            more={name: value for name, value in fields.items() if name not in _KNOWN},
        )
    messages = [*contents.ready, *(item.message for item in claims), *(item.message for item in dead)]
    contents.size = sum(len(item.text) for item in messages) + sum(len(item.text) for item in contents.segments)
    contents.loose = sum(len(item.text) for item in contents.ready if not item.key)
    return contents


def decode_segment(data: bytes, queue_id: str, path: str) -> tuple[Message, ...]:
    with undecodable_as(MalformedObject, f"{path!r} is not a segment of a queue and was not changed"):
        fields = parse_object(data, most=LARGEST_QUEUE)
        if (fields["format"], fields["id"]) != (_SEGMENT_FORMAT, queue_id):
            raise Undecodable(f"it belongs to another queue than {queue_id}, or has a newer format")
        return tuple(decode_message(stored) for stored in fields["messages"])


def decode_claim(stored: list[Any]) -> Claim:
    """Decode a claim's seven stored fields; others raise ValueError or TypeError."""
    message, token, who, beat, until_ms, visible_ms, turn = stored
    as_whole(until_ms, "until", most=LATEST_MS)
    as_whole(visible_ms, "visible", most=LATEST_MS)
    message = decode_message(message)
    return Claim(
        message,
        as_text(token, "token"),
        as_text(who, "who"),
        as_whole(beat, "beat"),
        until_ms,
        visible_ms,
        as_whole(turn, "turn"),
    )


def decode_message(stored: list[Any]) -> Message:
    """Decode a message's eight stored fields; others raise ValueError or TypeError."""
    n, priority, not_before_ms, attempts, key, body, kind, error = stored
    if not are_wholes((n, attempts)):
        raise Undecodable("a message has no number or no count of its attempts")
    as_whole(priority, "priority", least=-LARGEST_NUMBER)
    as_whole(not_before_ms, "not_before", most=LATEST_MS)
    as_text(key, "key")
    as_text(error, "error")
    if kind == "bytes":
        body = unbase64(body, "body")
    elif kind != "json":
        raise Undecodable(f"message {n} is of kind {kind!r}")
    return Message(n, priority, not_before_ms, attempts, key, body, error)


def _segment(stored: list[Any]) -> Segment:
    """Decode a reference to a segment; others raise ValueError or TypeError."""
    name, count, size, priority, n, due_ms = stored
    if not _SEGMENT.fullmatch(as_text(name, "segment")):
        raise Undecodable(f"a segment has the name {name[:200]!r}")
    as_whole(priority, "priority", least=-LARGEST_NUMBER)
    first = (-priority, as_whole(n, "n"))
    due_ms = as_whole(due_ms, "due", most=LATEST_MS)
    return Segment(name, as_whole(count, "count", least=1), as_whole(size, "size"), first, due_ms)


def _verb(stored: Any) -> str:
    if stored not in DONE:
        raise Undecodable(f"a claim has ended by none of {', '.join(DONE)}")
    return as_text(stored, "verb")


def _producer(stored: list[Any]) -> tuple[int, int, str]:
    seq, n, who = stored
    return as_whole(seq, "seq"), as_whole(n, "n"), as_text(who, "producer")


# 1. A message with a key stays in the object: whether an earlier one has its key must be known without a read.
# 2. A segment comes back whole, when no message in the object would be delivered before its first. Delayed messages
#    have their own segments, which count once one is due.
# 3. A segment is written before the object names it, and removed after it no longer does. If its writer's base version
#    is gone and the object does not name it, none ever will.
SEGMENT = 1000  # messages
IN_OBJECT = 2000  # ready messages without a key


class SegmentWanted(Exception):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def spill(contents: Contents, now_ms: int, stem: str) -> None:
    """Move ready messages without a key, the last to be delivered, delayed ones first, into new segments of `contents`.

    At most 2000 stay, in half of `max_bytes`, but always one. Names end in `stem`. Writes no object.
    """
    most_bytes = contents.settings.max_bytes // 2
    if len(contents.ready) <= IN_OBJECT and contents.loose <= most_bytes:
        return
    loose = sorted(
        (item for item in contents.ready if not item.key), key=lambda item: (_due_ms(item, now_ms), item.order)
    )
    moved: set[int] = set()
    while len(loose) > 1 and (len(loose) > IN_OBJECT or contents.loose > most_bytes):
        segment = _cut(loose, now_ms, stem, most_bytes // 2)
        moved.update(item.n for item in segment.messages or ())
        contents.segments.append(segment)
        contents.size += len(segment.text) - segment.size
        contents.loose -= segment.size
        contents.changed = True
    contents.ready = [item for item in contents.ready if item.n not in moved]
    contents.segments.sort(key=lambda segment: segment.first)


def promote(contents: Contents, segment: Segment) -> None:
    """Move a segment's messages back among the ready ones, in the order of delivery.

    SegmentWanted: they were not read; nothing has changed.
    """
    if segment.messages is None:
        raise SegmentWanted(segment.name)
    contents.segments.remove(segment)
    contents.size += segment.size - len(segment.text)
    contents.loose += segment.size
    contents.ready = sorted((*contents.ready, *segment.messages), key=lambda message: message.order)
    contents.changed = True


def with_messages(contents: Contents, loaded: Mapping[str, tuple[Message, ...]]) -> Contents:
    contents.segments = [
        segment if segment.messages is loaded.get(segment.name) else replace(segment, messages=loaded.get(segment.name))
        for segment in contents.segments
    ]
    return contents


def _cut(loose: list[Message], now_ms: int, stem: str, most_bytes: int) -> Segment:
    """Move up to 1000 messages from the end of `loose`, all delayed or all due, into a new segment.

    It has at most `most_bytes`, or one larger message. `loose`, of two or more, keeps one.
    """
    waits = _due_ms(loose[-1], now_ms) > 0
    taken: list[Message] = []
    size = 0
    while len(loose) > 1 and len(taken) < SEGMENT and (not taken or size + len(loose[-1].text) <= most_bytes):
        if (_due_ms(loose[-1], now_ms) > 0) is not waits:
            break
        taken.append(loose.pop())
        size += len(taken[-1].text)
    taken.reverse()
    first = min(message.order for message in taken)
    due_ms = min(_due_ms(message, now_ms) for message in taken)
    name = f"{min(message.n for message in taken)}.{stem}"
    return Segment(name, len(taken), size, first, due_ms, tuple(taken))


def _due_ms(message: Message, now_ms: int) -> int:
    return message.not_before_ms if message.not_before_ms > now_ms else 0
