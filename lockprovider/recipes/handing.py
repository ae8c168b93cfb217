"""Whom a process hands its operations to, and what the answers are worth. Pure.

The object names, for each host, who wrote it last there: its address and a key. Who knows the object asks that one, and
else writes itself, and is named by that. Nothing rests on it:

1. A broker carries out what it is handed as it carries out its own, and answers when its write is done. Operations
   keep their (client, seq) or token wherever they go, so each answers for itself when it comes again.
2. Who gets no answer does not know whether it was done (`sent`), and carries it out itself, or hands it to another.
   What is refused then is told as unknown, unless it is refused for good: the first broker may be late.
3. Whoever gives up hangs up before it writes itself. A broker looks, before each draft, who has hung up, and drops
   their operations. Either it sees that, or the version that it writes upon is gone when they have written.
4. A broker adds no name to a table that forgets the oldest: what came late would be done a second time.
5. What was handed over is not handed on: a broker that is one no more says so (`NotHere`).
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

PLACES = 8  # hosts of which the broker is named
_FINAL = (Fenced, Sealed, SequenceGap, ClaimLost, TooLarge)
_PASSED: dict[str, type[CoordinationError]] = {one.__name__: one for one in (*_FINAL, QueueFull, LogFull, Overloaded)}


class Forgotten(Exception):
    """An operation that was sent before cannot be told from one that was not: what would tell has been pushed out."""


class NotHere(Exception):
    """The broker did not carry it out, or does not know; `sent`: it may have been."""

    def __init__(self, message: str = "", *, sent: bool = False) -> None:
        super().__init__(message)
        self.sent = sent


@dataclass(frozen=True, slots=True, eq=False)
class Bundle(Generic[T]):
    """What another process has handed over, to be carried out in one write; `wanted`: it has not hung up."""

    operations: tuple[T, ...]
    sent: tuple[bool, ...]
    wanted: Callable[[], bool]


@dataclass(frozen=True, slots=True, eq=False)
class Foreign(Generic[T]):
    """One operation of a bundle; `sent`: it may have been carried out before."""

    operation: T
    bundle: Bundle[T]
    sent: bool


@dataclass(frozen=True, slots=True)
class Handed:
    """What came of handing over: the results, or None; `sent`: of each, whether it may have been carried out."""

    results: list[Any] | None
    sent: tuple[bool, ...]


def flat(operations: Sequence[Any]) -> list[Any]:
    """Each operation, those of bundles first: they add no name, so none of theirs is forgotten before its turn."""
    found: list[Any] = []
    for one in operations:
        if isinstance(one, Bundle):
            found += [Foreign(each, one, sent) for each, sent in zip(one.operations, one.sent, strict=True)]
    return found + [one for one in operations if not isinstance(one, Bundle)]


def regrouped(operations: Sequence[Any], results: Sequence[Any]) -> list[Any]:
    """The results of `flat`, as many as there were operations: of a bundle they are a list."""
    left = iter(results)
    lists = {id(one): [next(left) for _ in one.operations] for one in operations if isinstance(one, Bundle)}
    return [lists[id(one)] if isinstance(one, Bundle) else next(left) for one in operations]


def own(operation: Any) -> Any:
    """The operation itself."""
    return operation.operation if isinstance(operation, Foreign) else operation


def offers_of(there: object) -> dict[str, Offer]:
    """Who offers to write, by host, as an object says it; what cannot be understood is nobody."""
    if not isinstance(there, Mapping):
        return {}
    found = {}
    for place, offer in there.items():
        if isinstance(offer, (list, tuple)) and len(offer) == 2 and all(isinstance(one, str) for one in offer):  # noqa: PLR2004
            found[str(place)] = (offer[0], offer[1])
    return found


def with_offer(there: object, place: str, offer: Offer) -> dict[str, Offer]:
    """The same with this one; of too many hosts the one that was longest there is forgotten."""
    others = {name: one for name, one in offers_of(there).items() if name != place}
    return dict([*others.items(), (place, offer)][-PLACES:])


def whom_to_ask(there: object, place: str, mine: Offer | None, avoided: Callable[[str], bool]) -> Offer | None:
    """Whom to hand operations to; None: carry them out here."""
    offer = offers_of(there).get(place)
    return None if offer is None or offer == mine or avoided(offer[0]) else offer


def after_answer(answers: Sequence[Any], sent: Sequence[bool]) -> Handed:
    """With all answered they are results; else all is to be done again, and of each is known whether it may be done."""
    if not any(isinstance(one, NotHere) for one in answers):
        return Handed(list(answers), tuple(sent))
    now = zip(answers, sent, strict=True)
    return Handed(None, tuple(was or not isinstance(one, NotHere) or one.sent for one, was in now))


def left_in_doubt(result: object, *, sent: bool) -> bool:
    """Whether this error says too much of an operation that was handed over before: it may be carried out yet."""
    return sent and isinstance(result, Exception) and not isinstance(result, _FINAL)


def is_untold(result: object, *, handed: bool) -> bool:
    """Whether nobody can tell what became of it."""
    in_doubt = left_in_doubt(result, sent=handed) and not isinstance(result, NotHere)
    return in_doubt or isinstance(result, Forgotten)


def said_of(result: object, say: Callable[[Any], Any]) -> dict[str, Any]:
    """A result for the wire. What only this process knows, as the store's errors, is no answer for another."""
    if isinstance(result, NotHere):
        return {"not_here": result.sent}
    if isinstance(result, BaseException):
        name = type(result).__name__
        return {"error": name, "args": list(result.args)} if name in _PASSED else {"not_here": True}
    return {"ok": say(result)}


def heard(said: object, understand: Callable[[Any], Any]) -> Any:
    """A result from the wire.

    Raises:
        ValueError, KeyError, TypeError: it is none.
    """
    if not isinstance(said, dict):
        raise TypeError(f"{said!r} is no result")
    if "not_here" in said:
        return NotHere("it is to be done here", sent=said["not_here"] is not False)
    if "error" in said:
        if not all(isinstance(one, (str, int)) for one in said["args"]):
            raise TypeError(f"{said!r} is no error")
        return _PASSED[said["error"]](*said["args"])
    return understand(said["ok"])
