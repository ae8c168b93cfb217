"""Decisions about handing operations to a broker, and what its answers prove. Pure.

The object names, by host, the process that wrote it last there. A process that has read the object asks that broker, or
else writes itself and becomes the broker. No promise depends on a broker:

1. A broker carries out foreign operations like its own, and answers when its write is done. Operations keep their
   (client, seq) or token, so each repeat is recognized.
2. Without an answer, operations may be done (`sent`). The process carries them out itself, or asks another broker. A
   later refusal is an unknown outcome, unless it is final: the first broker may be late.
3. A process closes its connection before it writes itself, and a broker drops operations of closed connections before
   each draft. If it misses the close, its write fails once the other process has written.
4. A broker adds no name to a table that forgets the oldest names: a late operation would be done twice.
5. Operations are not handed on: a process that is no longer the broker answers `NotHere`.
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
Offer = tuple[str, str]  # an address, and the key that both sides know

PLACES = 8  # hosts with a named broker
_FINAL = (Fenced, Sealed, SequenceGap, ClaimLost, TooLarge)
_PASSED: dict[str, type[CoordinationError]] = {one.__name__: one for one in (*_FINAL, QueueFull, LogFull, Overloaded)}


class Forgotten(Exception):
    """A repeat cannot be told from a new operation: its name left the table."""


class NotHere(Exception):
    """The broker did not carry out the operation, or may have (`sent`)."""

    def __init__(self, message: str = "", *, sent: bool = False) -> None:
        super().__init__(message)
        self.sent = sent


@dataclass(frozen=True, slots=True, eq=False)
class Bundle(Generic[T]):
    """Operations of another process for one write; `wanted()`: it is still connected."""

    operations: tuple[T, ...]
    sent: tuple[bool, ...]
    wanted: Callable[[], bool]


@dataclass(frozen=True, slots=True, eq=False)
class Foreign(Generic[T]):
    """One operation of a bundle; with `sent` it may be done already."""

    operation: T
    bundle: Bundle[T]
    sent: bool


@dataclass(frozen=True, slots=True)
class Handed:
    """Outcome of handing over: results or None, and whether each may be done."""

    results: list[Any] | None
    sent: tuple[bool, ...]


def flat(operations: Sequence[Any]) -> list[Any]:
    """Flatten bundles into single operations, foreign ones first.

    Foreign ones add no name to the table, so none of their names is forgotten before its turn.
    """
    found: list[Any] = []
    for one in operations:
        if isinstance(one, Bundle):
            found += [Foreign(each, one, sent) for each, sent in zip(one.operations, one.sent, strict=True)]
    return found + [one for one in operations if not isinstance(one, Bundle)]


def regrouped(operations: Sequence[Any], results: Sequence[Any]) -> list[Any]:
    """Group the results of `flat` by the given operations and bundles."""
    left = iter(results)
    lists = {id(one): [next(left) for _ in one.operations] for one in operations if isinstance(one, Bundle)}
    return [lists[id(one)] if isinstance(one, Bundle) else next(left) for one in operations]


def own(operation: Any) -> Any:
    """Return the operation without its bundle."""
    return operation.operation if isinstance(operation, Foreign) else operation


def offers_of(there: object) -> dict[str, Offer]:
    """Return the brokers that an object names, by host; skips malformed ones."""
    if not isinstance(there, Mapping):
        return {}
    found = {}
    for place, offer in there.items():
        if isinstance(offer, (list, tuple)) and len(offer) == 2 and all(isinstance(one, str) for one in offer):  # noqa: PLR2004
            found[str(place)] = (offer[0], offer[1])
    return found


def with_offer(there: object, place: str, offer: Offer) -> dict[str, Offer]:
    """Return the brokers with this one as the newest of `PLACES`."""
    others = {name: one for name, one in offers_of(there).items() if name != place}
    return dict([*others.items(), (place, offer)][-PLACES:])


def whom_to_ask(there: object, place: str, mine: Offer | None, avoided: Callable[[str], bool]) -> Offer | None:
    """Return the broker to hand operations to; None: carry them out here."""
    offer = offers_of(there).get(place)
    return None if offer is None or offer == mine or avoided(offer[0]) else offer


def after_answer(answers: Sequence[Any], sent: Sequence[bool]) -> Handed:
    """Return a broker's results if complete; else mark operations that may be done."""
    if not any(isinstance(one, NotHere) for one in answers):
        return Handed(list(answers), tuple(sent))
    now = zip(answers, sent, strict=True)
    return Handed(None, tuple(was or not isinstance(one, NotHere) or one.sent for one, was in now))


def left_in_doubt(result: object, *, sent: bool) -> bool:
    """Return whether an error may be wrong, as a broker may still carry it out."""
    return sent and isinstance(result, Exception) and not isinstance(result, _FINAL)


def is_untold(result: object, *, handed: bool) -> bool:
    """Return whether the outcome of an operation cannot be known."""
    in_doubt = left_in_doubt(result, sent=handed) and not isinstance(result, NotHere)
    return in_doubt or isinstance(result, Forgotten)


def said_of(result: object, say: Callable[[Any], Any]) -> dict[str, Any]:
    """Encode a result; errors unknown to other processes become `NotHere`."""
    if isinstance(result, NotHere):
        return {"not_here": result.sent}
    if isinstance(result, BaseException):
        name = type(result).__name__
        return {"error": name, "args": list(result.args)} if name in _PASSED else {"not_here": True}
    return {"ok": say(result)}


def heard(said: object, understand: Callable[[Any], Any]) -> Any:
    """Decode a result; may raise ValueError, KeyError or TypeError."""
    if not isinstance(said, dict):
        raise TypeError(f"{said!r} is no result")
    if "not_here" in said:
        return NotHere("it is to be done here", sent=said["not_here"] is not False)
    if "error" in said:
        if not all(isinstance(one, (str, int)) for one in said["args"]):
            raise TypeError(f"{said!r} is no error")
        return _PASSED[said["error"]](*said["args"])
    return understand(said["ok"])
