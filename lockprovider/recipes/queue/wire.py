"""A queue's operations and their results as JSON, for a broker. Pure."""

from __future__ import annotations

import base64
import json
from typing import Any, TypeVar

from lockprovider.recipes.queue.contents import Claim, decode_claim
from lockprovider.recipes.queue.operations import (
    UNNAMED,
    Beat,
    End,
    New,
    NothingReady,
    Put,
    QueueOperation,
    Take,
    Was,
)

T = TypeVar("T")


class QueueCodec:
    """See `WireCodec`. What is rare is not handed over, nor what adds a name that is forgotten again."""

    @staticmethod
    def may_hand_over(operation: QueueOperation) -> bool:
        """A client's first message without a producer's name, and one with `dedupe`, is put by itself."""
        if isinstance(operation, Put):
            return operation.seq > 1 or not operation.producer.startswith(UNNAMED)
        return isinstance(operation, (Take, End, Beat))

    @staticmethod
    def say(operation: QueueOperation) -> list[Any]:
        """An operation that may be handed over."""
        match operation:
            case Put(message, producer, seq, client, known, fence):
                return ["put", _said(message), producer, seq, client, known, fence]
            case Take(token, who, visible_ms):
                return ["take", token, who, visible_ms]
            case End(n, token, verb, then, delay_ms, error, counts):
                return ["end", n, token, verb, [_said(one) for one in then], delay_ms, error, counts]
            case Beat(claims, visible_ms):
                return ["beat", claims, visible_ms]
            case _:
                raise TypeError(f"{operation!r} is not handed over")

    @staticmethod
    def understand(said: list[Any]) -> QueueOperation:
        """See `WireCodec`."""
        match said:
            case ["put", new, str(producer), int(seq), str(client), int(known), int(fence)]:
                return Put(_new(new), producer, seq, client, known, fence)
            case ["take", str(token), str(who), int(visible_ms)]:
                return Take(token, who, visible_ms)
            case ["end", int(n), str(token), str("ack" | "nack" | "bury") as verb, list(then), *rest]:
                delay_ms, error, counts = rest
                news = tuple(map(_new, then))
                return End(n, token, verb, news, _is(delay_ms, int), _is(error, str), _is(counts, bool))
            case ["beat", list(claims), int(visible_ms)]:
                return Beat(tuple((_is(n, int), _is(token, str)) for n, token in claims), visible_ms)
            case _:
                raise ValueError(f"{said!r} is no operation")

    @staticmethod
    def say_result(operation: QueueOperation, result: Any) -> Any:
        """See `WireCodec`."""
        del operation
        match result:
            case Was(n):
                return ["was", n]
            case Claim():
                return json.loads(result.text)
            case NothingReady(until_ms):
                return ["nothing", until_ms]
            case _:
                return result

    @staticmethod
    def understand_result(operation: QueueOperation, said: Any) -> Any:
        """See `WireCodec`."""
        match operation, said:
            case Put(), int():
                return said
            case Put(), ["was", int(n)]:
                return Was(n)
            case Take(), ["nothing", int(until_ms)]:
                return NothingReady(until_ms)
            case Take(token), [_, str(told), *_] if told == token:
                return decode_claim(said)
            case End(), None:
                return None
            case Beat(), list():
                return tuple(_is(n, int) for n in said)
            case _:
                raise ValueError(f"{said!r} is no result of {operation!r}")


def _said(new: New) -> list[Any]:
    raw = isinstance(new.body, bytes)
    body = base64.b64encode(new.body).decode() if raw else new.body
    return ["bytes" if raw else "json", body, new.key, new.priority, new.not_before_ms]


def _new(said: Any) -> New:
    match said:
        case ["bytes", str(body), str(key), int(priority), int(not_before_ms)]:
            return New(base64.b64decode(body, validate=True), key, priority, not_before_ms)
        case ["json", body, str(key), int(priority), int(not_before_ms)]:
            return New(body, key, priority, not_before_ms)
        case _:
            raise ValueError(f"{said!r} is no message")


def _is(value: Any, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value
