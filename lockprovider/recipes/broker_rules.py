"""Decisions about handing operations to a broker, and what its answers prove. Pure.

1. A broker answers once its write is done.
2. A process closes its connection before it writes itself, and a broker drops operations of closed connections before
   each draft. If it misses the close, its write fails once the other process has written.
3. A broker adds no name to a table that forgets the oldest names: a late operation would be done twice.
4. Operations are not handed on: a process no longer the broker answers `NotHere`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from lockprovider.recipes.errors import (
    ClaimLost,
    CoordinationError,
    Fenced,
    LogFull,
    Overloaded,
    QueueFull,
    Sealed,
    SequenceGap,
    TooLarge,
)

T = TypeVar("T")
Offer = tuple[str, str]  # address, key

PLACES = 8  # hosts
_FINAL = (Fenced, Sealed, SequenceGap, ClaimLost, TooLarge)
_PASSED: dict[str, type[CoordinationError]] = {one.__name__: one for one in (*_FINAL, QueueFull, LogFull, Overloaded)}


class Forgotten(Exception):
    """A repeat cannot be told from a new operation."""


class NotHere(Exception):
    """The broker did not do it, or (`sent`) may have."""

    def __init__(self, message: str = "", *, sent: bool = False) -> None:
        super().__init__(message)
        self.sent = sent


@dataclass(frozen=True, slots=True, eq=False)
class Bundle(Generic[T]):
    """Operations of another process, which waits while `is_connected()`; `broker.Handover` asks it."""

    operations: tuple[T, ...]
    sent: tuple[bool, ...]
    is_connected: Callable[[], bool]


@dataclass(frozen=True, slots=True, eq=False)
class Foreign(Generic[T]):
    """Operation of a bundle; `sent`: it may be done."""

    operation: T
    bundle: Bundle[T]
    sent: bool


@dataclass(frozen=True, slots=True)
class HandedOver:
    """Results (None: not all), and whether each operation may be done."""

    results: list[Any] | None
    sent: tuple[bool, ...]


def flatten(operations: Sequence[Any]) -> list[Any]:
    """Return all bundles' operations as `Foreign`, then the others, in order.

    Own ones first could make the table of producers forget names.
    """
    flattened: list[Any] = []
    for operation in operations:
        if isinstance(operation, Bundle):
            flattened += [
                Foreign(each, operation, sent) for each, sent in zip(operation.operations, operation.sent, strict=True)
            ]
    return flattened + [operation for operation in operations if not isinstance(operation, Bundle)]


def regroup(operations: Sequence[Any], results: Sequence[Any]) -> list[Any]:
    """Return each operation's result, for a bundle a list, from `results` in the order of `flatten(operations)`."""
    remaining = iter(results)
    lists = {
        id(operation): [next(remaining) for _ in operation.operations]
        for operation in operations
        if isinstance(operation, Bundle)
    }
    return [lists[id(operation)] if isinstance(operation, Bundle) else next(remaining) for operation in operations]


def without_bundle(operation: Any) -> Any:
    return operation.operation if isinstance(operation, Foreign) else operation


def offers_of(named: object) -> dict[str, Offer]:
    """Each host's broker (address, key) from a stored mapping, without malformed ones."""
    if not isinstance(named, Mapping):
        return {}
    offers = {}
    for host, offer in named.items():
        if isinstance(offer, (list, tuple)) and len(offer) == 2 and all(isinstance(part, str) for part in offer):  # noqa: PLR2004
            offers[str(host)] = (offer[0], offer[1])
    return offers


def with_offer(named: object, host: str, offer: Offer) -> dict[str, Offer]:
    other_offers = {name: known_offer for name, known_offer in offers_of(named).items() if name != host}
    return dict([*other_offers.items(), (host, offer)][-PLACES:])


def broker_to_ask(named: object, host: str, own_offer: Offer | None, avoided: Callable[[str], bool]) -> Offer | None:
    offer = offers_of(named).get(host)
    return None if offer is None or offer == own_offer or avoided(offer[0]) else offer


def combine_answers(answers: Sequence[Any], sent: Sequence[bool]) -> HandedOver:
    if not any(isinstance(answer, NotHere) for answer in answers):
        return HandedOver(list(answers), tuple(sent))
    pairs = zip(answers, sent, strict=True)
    return HandedOver(None, tuple(was or not isinstance(answer, NotHere) or answer.sent for answer, was in pairs))


def is_unknown(result: object, *, handed: bool) -> bool:
    in_doubt = handed and isinstance(result, Exception) and not isinstance(result, (*_FINAL, NotHere))
    return in_doubt or isinstance(result, Forgotten)


def encode_result(result: object, encode: Callable[[Any], Any]) -> dict[str, Any]:
    if isinstance(result, NotHere):
        return {"not_here": result.sent}
    if isinstance(result, BaseException):
        name = type(result).__name__
        return {"error": name, "args": list(result.args)} if name in _PASSED else {"not_here": True}
    return {"ok": encode(result)}


def decode_result(encoded: object, decode: Callable[[Any], Any]) -> Any:
    """Return a broker's result, decoded by `decode`, or the error that it encodes, also NotHere.

    Malformed ones raise TypeError, KeyError, or as `decode`.
    """
    if not isinstance(encoded, dict):
        raise TypeError(f"{encoded!r} is no result")
    if "not_here" in encoded:
        return NotHere("it is to be done here", sent=encoded["not_here"] is not False)
    if "error" in encoded:
        if not all(isinstance(argument, (str, int)) for argument in encoded["args"]):
            raise TypeError(f"{encoded!r} is no error")
        return _PASSED[encoded["error"]](*encoded["args"])
    return decode(encoded["ok"])
