"""Operations, which change a queue's `Contents`, and nothing else.

Three recognize their own repeats, so can be re-sent after a lost answer:

1. A put by (producer, seq).
2. A claim by the token that its client has chosen.
3. The end of a claim by message and token.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from lockprovider.recipes.broker_rules import Forgotten
from lockprovider.recipes.errors import ClaimLost, Fenced, Overloaded, QueueFull, SequenceGap, StateConflict
from lockprovider.recipes.queue.contents import (
    DONE,
    PRODUCERS,
    RECENT,
    SETTLED,
    Claim,
    Contents,
    Dead,
    Message,
    SegmentWanted,
    decode_claim,
    decode_message,
    promote,
    spill,
)
from lockprovider.recipes.values import UNNAMED, FailedNumbers, ProducerNumber


@dataclass(frozen=True, slots=True)
class New:
    """Message to put; `not_before_ms` 0: now."""

    body: Any
    key: str = ""
    priority: int = 0
    not_before_ms: int = 0
    body_json: str = field(default="", compare=False, repr=False)

    def numbered(self, n: int) -> Message:
        return Message(n, self.priority, self.not_before_ms, 0, self.key, self.body, body_json=self.body_json)


@dataclass(frozen=True, slots=True)
class Put:
    """Put a message once; numbers up to `known` are put."""

    message: New
    producer: str
    seq: int
    client: str
    known: int = 0
    fence: int = 0


@dataclass(frozen=True, slots=True)
class Take:
    token: str
    who: str
    visible_ms: int


@dataclass(frozen=True, slots=True)
class End:
    """End a claim by `verb` (ack, nack, bury); an ack also puts `then`."""

    n: int
    token: str
    verb: str
    then: tuple[New, ...] = ()
    delay_ms: int = 0
    error: str = ""
    counts: bool = True


@dataclass(frozen=True, slots=True)
class Beat:
    """Prolong claims, as before if `visible_ms` is 0; returns lost ones."""

    claims: tuple[tuple[int, str], ...]
    visible_ms: int = 0


@dataclass(frozen=True, slots=True)
class Lapse:
    n: int
    token: str
    beat: int


@dataclass(frozen=True, slots=True)
class Redrive:
    numbers: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Purge:
    rev: int


@dataclass(frozen=True, slots=True)
class Touch:
    """Write the object unchanged: writes begun earlier fail."""


@dataclass(frozen=True, slots=True)
class PutBefore:
    """Result of a repeated put; `n` 0: unknown."""

    n: int


@dataclass(frozen=True, slots=True)
class NothingReady:
    """Result of a claim without a message; one is due at `until_ms` (0: unknown)."""

    until_ms: int


QueueOperation = Put | Take | End | Beat | Lapse | Redrive | Purge | Touch


def carry_out(contents: Contents, operation: QueueOperation, now_ms: int, *, sent: bool = False) -> Any:
    """Apply one operation to `contents`; return its result.

    Put: a number or PutBefore. Take: Claim or NothingReady. Beat: lost numbers. Redrive, Purge: a count. Others: None.
    Raises its error, Forgotten (whether a `sent` one is done is unclear), or SegmentWanted: use a new copy.
    """
    match operation:
        case Put():
            return _put(contents, operation, sent=sent)
        case Take():
            return _take(contents, operation, now_ms, sent=sent)
        case End():
            _end(contents, operation, now_ms, sent=sent)
        case Beat(claims, visible_ms):
            return _beat(contents, claims, visible_ms, now_ms)
        case Lapse(n, token, beat):
            claim = contents.claims.get(n)
            if claim is not None and (claim.token, claim.beat) == (token, beat):
                _give_back(contents, claim, "nobody answered for it in time", 0, now_ms)
        case Redrive(numbers):
            return _redrive(contents, [*contents.dead] if numbers is None else numbers)
        case Purge(rev):
            return _purge(contents, rev)
        case Touch():
            contents.changed = True
    return None


def carry_out_all(
    contents: Contents, operations: Sequence[QueueOperation], now_ms: int, batch: str, *, sent: Sequence[bool] = ()
) -> list[Any]:
    """Apply a batch in its order; return each operation's result or error.

    A named producer's failed put fails its later ones. A change spills segments, forgets old ends of claims, increments
    `rev`, and records the id `batch`. `sent` marks operations that may be done. Raises only SegmentWanted: use a new
    copy.
    """
    results: list[Any] = []
    numbers, settled = FailedNumbers(), len(contents.settled)
    for operation, was_sent in zip(operations, sent or (False,) * len(operations), strict=True):
        number = number_of(operation)
        try:
            result = numbers.held_up([number]).get(0) or carry_out(contents, operation, now_ms, sent=was_sent)
        except SegmentWanted:
            raise
        except Exception as error:  # noqa: BLE001 - the operation's caller raises it
            result = error
        numbers.note(number, result)
        results.append(result)
    if contents.changed:
        spill(contents, now_ms, batch[-17:])
        contents.rev += 1
        contents.recent = (*contents.recent, batch)[-RECENT:]
        forgotten = max(0, min(settled, len(contents.settled) - SETTLED))  # none of this write's
        for token in [*contents.settled][:forgotten]:
            del contents.settled[token]
    return results


def number_of(operation: QueueOperation) -> ProducerNumber | None:
    if not isinstance(operation, Put) or operation.producer.startswith(UNNAMED):
        return None
    return operation.producer, operation.seq


def results_of(contents: Contents, tries: Mapping[str, list[Any]]) -> list[Any] | None:
    return next((tries[batch] for batch in contents.recent if batch in tries), None)


def sent_of(tries: Mapping[str, list[Any]], count: int) -> tuple[bool, ...]:
    return tuple(any(not isinstance(results[n], Exception) for results in tries.values()) for n in range(count))


def _put(contents: Contents, put: Put, *, sent: bool) -> int | PutBefore:
    """Add a message, record its producer's number and `fence`; return its number, or PutBefore for a repeat.

    Raises SequenceGap for a lower number that is no repeat, Fenced, QueueFull, Overloaded, and Forgotten if `sent` and
    unclear. A 1001st unnamed producer displaces the longest idle.
    """
    last, n, client = contents.producers.get(put.producer, (0, 0, ""))
    if put.seq <= last:
        if put.seq == last:
            return PutBefore(n)
        if put.seq <= put.known or (sent and client == put.client):
            return PutBefore(0)
        if sent:
            raise Forgotten(
                f"another client puts as {put.producer!r} at the same time, so message {put.seq} may be stored"
            )
        raise SequenceGap(
            f"{put.producer!r} has put {last}, and {put.seq} repeats none of them: number messages in the order of puts"
        )
    if 0 < put.fence < contents.epoch:
        newest = contents.epoch
        raise Fenced(
            f"epoch {put.fence} is over, because epoch {newest} has put messages: stop the work under the old epoch",
            newest,
        )
    displaced = put.producer if last else _displaced(contents, put.producer, sent=sent)
    number = _add(contents, [put.message])[0]
    contents.epoch = max(contents.epoch, put.fence)
    contents.producers.pop(displaced, None)  # the longest idle are first
    contents.producers[put.producer] = (put.seq, number, put.client)
    return number


def _displaced(contents: Contents, producer: str, *, sent: bool) -> str:
    """Return the producer that the new `producer` displaces: itself, or of 1000 unnamed ones the longest idle.

    At 1000 unnamed ones raises Forgotten if `sent`, at 1000 named ones Overloaded.
    """
    unnamed = producer.startswith(UNNAMED)
    alike = [name for name in contents.producers if name.startswith(UNNAMED) is unnamed]
    if len(alike) < PRODUCERS:
        return producer
    if not unnamed:
        raise Overloaded(f"{PRODUCERS} named producers have put messages, which is the limit: use fewer names")
    if sent:
        raise Forgotten(
            f"{PRODUCERS} unnamed producers have put messages since, so this put is forgotten: give producers names"
        )
    return alike[0]


def _add(contents: Contents, news: Iterable[New], freed: int = 0) -> list[int]:
    """Number messages, make them ready, and return the numbers; or raise QueueFull and add none.

    `freed`: bytes taken off `size` here, before the caller removes their message.
    """
    messages = [to_put.numbered(n) for n, to_put in enumerate(news, contents.next)]
    more = sum(len(added.text) for added in messages) - freed
    if messages and contents.size + more > contents.settings.max_bytes:
        _check_room(contents, messages, freed)
    contents.next += len(messages)
    contents.size += more
    contents.changed = True
    for added in messages:
        contents.add(added)
    return [added.n for added in messages]


def _check_room(contents: Contents, messages: Iterable[Message], freed: int) -> None:
    """Raise QueueFull unless the messages fit, when those without a key may go to segments."""
    most = contents.settings.max_bytes
    loose = [len(message.text) for message in messages if not message.key]
    keyed = sum(len(message.text) for message in messages if message.key)
    kept_bytes = min(contents.loose + sum(loose), max(most // 2, *loose, 0))
    if contents.size - contents.loose - freed + keyed + kept_bytes > most:
        raise QueueFull(f"the queue holds {contents.size} bytes of at most {most}: take messages first")


def _take(contents: Contents, take: Take, now_ms: int, *, sent: bool) -> Claim | NothingReady:
    """Claim the first due message whose key is free, counting the attempt; promote earlier due segments that fit.

    NothingReady: none, with the next due time. A `sent` repeat gets its claim, or NothingReady if that ended. Raises
    SegmentWanted, or QueueFull: dead letters leave segments no room.
    """
    if sent and (repeats := [claim for claim in contents.claims.values() if claim.token == take.token]):
        return repeats[0]
    if sent and any(ended.endswith(f".{take.token}") for ended in contents.settled):
        return NothingReady(0)
    index = _next_index(contents, now_ms)
    most_bytes = contents.settings.max_bytes
    while segment := next((item for item in contents.segments if item.due_ms <= now_ms), None):
        has_room = contents.size - contents.loose + max(most_bytes // 4, segment.size) <= most_bytes
        if not has_room or (index is not None and contents.ready[index].order < segment.first):
            break
        promote(contents, segment)
        index = _next_index(contents, now_ms)
    if index is None:
        if segment is not None and not contents.ready and not contents.claims:
            raise QueueFull(f"{len(contents.dead)} dead letters leave no room for waiting messages: redrive them")
        due_ms = (*(item.not_before_ms for item in contents.ready), *(item.due_ms for item in contents.segments))
        return NothingReady(min((item for item in due_ms if item > now_ms), default=0))
    message = contents.pop(index)
    contents.turn += 1
    taken = replace(message, attempts=message.attempts + 1)
    until_ms = now_ms + take.visible_ms
    claim = Claim(taken, take.token, take.who, 0, until_ms, take.visible_ms, contents.turn)
    contents.claims[message.n] = claim
    contents.size += len(taken.text) - len(message.text)
    contents.changed = True
    return claim


def _next_index(contents: Contents, now_ms: int) -> int | None:
    for index, message in enumerate(contents.ready):
        if message.not_before_ms <= now_ms and (not message.key or _is_first(contents, message)):
            return index
    return None


def _is_first(contents: Contents, message: Message) -> bool:
    if any(claim.message.key == message.key for claim in contents.claims.values()):
        return False
    return all(other.n >= message.n for other in contents.ready if other.key == message.key)


def _end(contents: Contents, end: End, now_ms: int, *, sent: bool) -> None:
    """End a claim: ack removes the message and puts `then`, bury makes it a dead letter, nack gives it back.

    After its last counted attempt nack buries it. A repeat changes nothing. Raises QueueFull for `then`; without this
    claim ClaimLost, or Forgotten if an ack may be done.
    """
    claim = contents.claims.get(end.n)
    name = f"{end.n}.{end.token}"
    if claim is None or claim.token != end.token:
        if contents.settled.get(name) == end.verb:
            return
        if sent and end.verb == "ack" and _is_forgotten(contents, end.n):
            raise Forgotten(f"message {end.n} may have been acked, but the worker that acked it is no longer known")
        raise ClaimLost(_why_lost(contents, end))
    match end.verb:
        case "ack":
            _add(contents, end.then, freed=len(claim.message.text))
            del contents.claims[end.n]
        case "bury":
            del contents.claims[end.n]
            contents.dead[end.n] = Dead(claim.message, end.error, now_ms)
        case _:
            _give_back(contents, claim, end.error, end.delay_ms, now_ms, counts=end.counts)
    contents.settled[name] = end.verb
    contents.changed = True


def _is_forgotten(contents: Contents, n: int) -> bool:
    exists = n in contents.claims or n in contents.dead or any(message.n == n for message in contents.ready)
    return not exists and not any(claim.startswith(f"{n}.") for claim in contents.settled)


def _why_lost(contents: Contents, end: End) -> str:
    """Return why a claim cannot be ended, for a message."""
    claim = contents.claims.get(end.n)
    ended = contents.settled.get(f"{end.n}.{end.token}")
    if ended is not None:
        return f"message {end.n} was {DONE[ended]} under this claim already"
    if claim is not None:
        return f"message {end.n} has been delivered to {claim.who} since: stop working on it"
    return f"the claim of message {end.n} has ended: stop working on it"


def _give_back(
    contents: Contents, claim: Claim, error: str, delay_ms: int, now_ms: int, *, counts: bool = True
) -> None:
    """End the claim: the message waits again after `delay_ms`, or becomes a dead letter after its last attempt.

    It keeps `error`. `counts=False` takes the attempt back: no dead letter.
    """
    old = claim.message
    del contents.claims[old.n]
    contents.changed = True
    if counts and old.attempts >= contents.settings.max_attempts:
        new = replace(old, error=error)
        contents.dead[new.n] = Dead(new, f"{new.attempts} attempts: {error}", now_ms)
    else:
        not_before_ms = now_ms + delay_ms if delay_ms else 0
        new = replace(old, attempts=old.attempts - (not counts), not_before_ms=not_before_ms, error=error)
        contents.add(new)
    contents.size += len(new.text) - len(old.text)


def _beat(contents: Contents, claims: Iterable[tuple[int, str]], visible_ms: int, now_ms: int) -> tuple[int, ...]:
    """Let claims last `visible_ms` from now, stored as their own time (0: their own time).

    Returns the numbers of messages whose claims are lost: gone, or with another token.
    """
    lost = []
    for n, token in claims:
        claim = contents.claims.get(n)
        if claim is None or claim.token != token:
            lost.append(n)
            continue
        visible = visible_ms or claim.visible_ms
        beaten = Claim(claim.message, token, claim.who, claim.beat + 1, now_ms + visible, visible, claim.turn)
        contents.claims[n] = beaten
        contents.changed = True
    return tuple(lost)


def _redrive(contents: Contents, numbers: Iterable[int]) -> int:
    """Make these dead letters ready now, attempts counted anew; return how many. Unknown numbers are skipped."""
    letters = [contents.dead.pop(n) for n in numbers if n in contents.dead]
    for dead in letters:
        again = replace(dead.message, attempts=0, not_before_ms=0)
        contents.size += len(again.text) - len(dead.message.text)
        contents.add(again)
        contents.changed = True
    return len(letters)


def _purge(contents: Contents, rev: int) -> int:
    """Remove ready and dead messages, and references to segments; return how many messages, with those in segments.

    Claimed ones stay. Raises StateConflict unless the revision is `rev` and `contents` unchanged.
    """
    if contents.rev != rev or contents.changed:
        raise StateConflict(
            f"the queue has changed since it was read (it has revision {contents.rev}, not {rev}): read it again",
            contents.rev,
        )
    removed = [*contents.ready, *(dead.message for dead in contents.dead.values())]
    count = len(removed) + sum(item.count for item in contents.segments)
    contents.size -= sum(len(item.text) for item in removed) + sum(len(item.text) for item in contents.segments)
    contents.ready, contents.segments, contents.dead, contents.loose = [], [], {}, 0
    contents.changed = bool(count) or contents.changed
    return count


@dataclass(slots=True)
class Watch:
    """Heartbeats as last read, and until when (monotonic s) each may stay unchanged.

    A claim lapses by the watcher's clock; at first, by the store's.
    """

    deadlines: dict[tuple[int, str, int], float] | None = None

    def look(self, contents: Contents, now_s: float, now_ms: int) -> None:
        first, before = self.deadlines is None, self.deadlines or {}
        self.deadlines = {}
        for n, claim in contents.claims.items():
            name = (n, claim.token, claim.beat)
            left_ms = min(claim.visible_ms, claim.until_ms - now_ms) if first else claim.visible_ms
            self.deadlines[name] = before.get(name, now_s + left_ms / 1000)

    def lapsed(self, now_s: float) -> list[Lapse]:
        return [Lapse(*name) for name, until_s in (self.deadlines or {}).items() if now_s > until_s]

    def next_s(self, now_s: float) -> float:
        return min((max(0.0, until_s - now_s) for until_s in (self.deadlines or {}).values()), default=float("inf"))


T = TypeVar("T")


class QueueCodec:
    """Codec of a queue's frequent operations."""

    @staticmethod
    def may_hand_over(operation: QueueOperation) -> bool:
        if isinstance(operation, Put):
            return operation.seq > 1 or not operation.producer.startswith(UNNAMED)
        return isinstance(operation, (Take, End, Beat))

    @staticmethod
    def encode(operation: QueueOperation) -> list[Any]:
        """Encode a Put, Take, End or Beat as JSON values; others raise TypeError."""
        match operation:
            case Put(message, producer, seq, client, known, fence):
                return ["put", _encoded_message(message), producer, seq, client, known, fence]
            case Take(token, who, visible_ms):
                return ["take", token, who, visible_ms]
            case End(n, token, verb, then, delay_ms, error, counts):
                return ["end", n, token, verb, [*map(_encoded_message, then)], delay_ms, error, counts]
            case Beat(claims, visible_ms):
                return ["beat", claims, visible_ms]
            case _:
                raise TypeError(f"{operation!r} is not handed over")

    @staticmethod
    def decode(encoded: list[Any]) -> QueueOperation:
        """Decode an operation that `encode` made; others raise ValueError or TypeError."""
        match encoded:
            case ["put", new, str(producer), int(seq), str(client), int(known), int(fence)]:
                return Put(_decoded_message(new), producer, seq, client, known, fence)
            case ["take", str(token), str(who), int(visible_ms)]:
                return Take(token, who, visible_ms)
            case ["end", int(n), str(token), str("ack" | "nack" | "bury") as verb, list(then), *rest]:
                delay_ms, error, counts = rest
                news = tuple(map(_decoded_message, then))
                return End(n, token, verb, news, _is(delay_ms, int), _is(error, str), _is(counts, bool))
            case ["beat", list(claims), int(visible_ms)]:
                return Beat(tuple((_is(n, int), _is(token, str)) for n, token in claims), visible_ms)
            case _:
                raise ValueError(f"{encoded!r} is no operation")

    @staticmethod
    def encode_result(result: Any) -> Any:
        """Encode a Put's, Take's, End's or Beat's result as JSON."""
        match result:
            case PutBefore(n):
                return ["was", n]
            case Claim():
                return json.loads(result.text)
            case NothingReady(until_ms):
                return ["nothing", until_ms]
            case _:
                return result

    @staticmethod
    def decode_result(operation: QueueOperation, encoded: Any) -> Any:
        """Decode the result of `operation`; others raise ValueError or TypeError."""
        match operation, encoded:
            case Put(), int():
                return encoded
            case Put(), ["was", int(n)]:
                return PutBefore(n)
            case Take(), ["nothing", int(until_ms)]:
                return NothingReady(until_ms)
            case Take(token), [_, str(claim_token), *_] if claim_token == token:
                return decode_claim(encoded)
            case End(), None:
                return None
            case Beat(), list():
                return tuple(_is(n, int) for n in encoded)
            case _:
                raise ValueError(f"{encoded!r} is no result of {operation!r}")


def _encoded_message(message: New) -> Any:
    return json.loads(message.numbered(0).text)


def _decoded_message(encoded: Any) -> New:
    message = decode_message(encoded)
    return New(message.body, message.key, message.priority, message.not_before_ms, message.body_json)


def _is(value: Any, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value
