"""Checks of recipes' arguments and of stored objects' formats, and the order of a producer's numbers."""

from __future__ import annotations

import inspect
import json
import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fsspec_cas import InvalidInput
from fsspec_cas.arguments import LARGEST_NUMBER, check_function, check_text, shown
from fsspec_cas.bridge.threads import Later
from lockprovider.bounded import DEEPEST_VALUE, LARGEST_OBJECT, as_whole, check_fits
from lockprovider.recipes.errors import MalformedObject, SequenceGap
from lockprovider.words import is_storable

T = TypeVar("T")
ProducerNumber = tuple[Hashable, int]
UNNAMED = "~"  # prefix of the library's names
_LONGEST_NAME = 1000  # characters
_LONGEST_TEXT = 1 << 16  # characters
_MOST_RANGES = 1000


def json_copy(value: Any, argument: str, most: int = LARGEST_OBJECT) -> Any:
    """Return a JSON copy of the value (tuples become lists).

    Raises InvalidInput, naming `argument`, for what JSON lacks, NaN, keys that are no text, and above `most` bytes or
    64 levels.
    """
    _check_json(value, argument, DEEPEST_VALUE)
    try:
        data = json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        check_fits(data, most=most)
        return json.loads(data)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{argument} must be a JSON value: {error}") from error


def copied(stored: Any) -> Any:
    return json.loads(json.dumps(stored))


def check_storable(value: Any, argument: str, most: int = _LONGEST_TEXT) -> str:
    text = check_text(value, argument)
    if len(text) > most:
        raise InvalidInput(f"{argument} has {len(text)} characters, and {most} are the most: give a shorter one")
    if not is_storable(text):
        raise InvalidInput(f"{argument}={text!r} cannot be stored as UTF-8: give other text")
    return text


def check_call(value: Any, name: str, purpose: str, *, awaited: bool = False) -> Callable[..., Any]:
    """Return the function; another value raises InvalidInput.

    So does an async function; if `awaited`, a built-in instead. Whether calls return an awaitable is unchecked.
    """
    call = check_function(value, name, purpose)
    is_async = inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(type(call).__call__)
    if is_async and not awaited:
        raise InvalidInput(f"{name}={shown(call)} is async, and is not awaited here: give a plain function {purpose}")
    if awaited and inspect.isbuiltin(call):
        raise not_async(call, name, purpose)
    return call


def not_async(call: object, name: str, purpose: str) -> InvalidInput:
    return InvalidInput(f"{name}={shown(call)} is not async, and is awaited here: give an `async def` {purpose}")


def check_producer(value: Any, argument: str) -> str:
    if not isinstance(value, str) or not value or value.startswith(UNNAMED):
        raise InvalidInput(f"{argument}={shown(value)} must be a name that does not begin with {UNNAMED!r}")
    return check_storable(value, argument, _LONGEST_NAME)


def check_format(fields: Mapping[str, Any], path: str, *formats: int) -> None:
    """Raise MalformedObject, naming `path`, for an object whose `format` is not in `formats`."""
    if as_whole(fields["format"], "format") not in formats:
        versions = " and ".join(map(str, formats))
        raise MalformedObject(
            f"{path!r} has format {fields['format']}, this version of fsspec-cas reads {versions}: install a newer one"
        )


def check_fence(fence: Any) -> int:
    epoch = getattr(fence, "epoch", fence)
    if isinstance(epoch, bool) or not isinstance(epoch, int) or not 0 < epoch <= LARGEST_NUMBER:
        raise InvalidInput(
            f"fence={shown(fence)} must be a lease, a term, a job, or its epoch (a whole number above 0)"
        )
    return epoch


def epoch_of(fence: Any) -> int:
    return 0 if fence is None else check_fence(fence)


def _check_json(value: Any, argument: str, levels: int) -> None:
    """Raise InvalidInput for NaN, infinity or a key that is no text, at any depth, or above `levels`."""
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidInput(f"{argument} must be a JSON value, and has {value!r}, which JSON lacks: give None or text")
    if isinstance(value, (dict, list, tuple)) and not levels:
        raise InvalidInput(
            f"{argument} is nested more than {DEEPEST_VALUE} levels deep, which not every reader can parse"
        )
    for key in value if isinstance(value, dict) else ():
        if not isinstance(key, str):
            raise InvalidInput(f"{argument} has the key {key!r}, which would be read back as text: use text keys")
    for below in value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ():
        _check_json(below, argument, levels - 1)


class NumberRanges:
    """Set of numbers, e.g. a producer's acknowledged ones, kept as ranges."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []  # first, last

    def __contains__(self, number: int) -> bool:
        index = bisect_right(self._ranges, (number, math.inf)) - 1
        return index >= 0 and number <= self._ranges[index][1]

    def add(self, number: int) -> None:
        """Add a number, joined to adjacent ranges; beyond 1000 ranges forget the lowest."""
        if number in self:
            return
        first, last, ranges = number, number, [*self._ranges]  # a copy: an interrupt must not lose a range
        index = bisect_right(ranges, (number, math.inf))
        if index < len(ranges) and ranges[index][0] == number + 1:
            last = ranges.pop(index)[1]
        if index and ranges[index - 1][1] == number - 1:
            index -= 1
            first = ranges.pop(index)[0]
        ranges.insert(index, (first, last))
        self._ranges = ranges[-_MOST_RANGES:]


class AcknowledgedNumbers:
    """Numbers of a producer's successful writes. Not thread-safe.

    It looks at the writes' futures: a callback may run after the caller has the result, or in a caller that holds the
    lock around this object.
    """

    def __init__(self) -> None:
        self._numbers = NumberRanges()
        self._waiting: deque[tuple[int, Later[Any]]] = deque()

    def add_waiting(self, number: int, answer: Later[Any]) -> None:
        self._waiting.append((number, answer))

    def note_ended(self, number: int) -> bool:
        """Note the numbers of ended writes, in the order added; return whether a write of `number` succeeded."""
        self._note()
        return number in self._numbers

    def _note(self) -> None:
        while self._waiting and self._waiting[0][1].done():
            ended, answer = self._waiting[0]
            if not answer.cancelled() and answer.exception() is None:
                self._numbers.add(ended)
            self._waiting.popleft()  # last, as an interrupt may come before

    def waiting(self) -> list[Later[Any]]:
        return [answer for _, answer in self._waiting if not answer.done()]

    def forget_waiting(self) -> None:
        """Note the ended writes, and forget those under way, which never end in a forked child."""
        self._note()
        self._waiting.clear()


@dataclass(slots=True)
class FailedNumbers:
    """Remembers each producer's lowest failed number. Not thread-safe."""

    failed: dict[Hashable, int] = field(default_factory=dict)

    def held_up(self, batch: Sequence[ProducerNumber | None]) -> dict[int, SequenceGap]:
        """Return, by index, a SequenceGap for each number above its producer's failed one; None is unnumbered.

        Later numbers of the producer pass if the batch repeats the failed one before them.
        """
        gaps: dict[int, SequenceGap] = {}
        again: set[Hashable] = set()
        for index, number in enumerate(batch):
            failed = None if number is None or number[0] in again else self.failed.get(number[0])
            if number is None or failed is None:
                continue
            if number[1] == failed:
                again.add(number[0])
            elif number[1] > failed:
                gaps[index] = SequenceGap(f"{failed} failed: repeat it before {number[1]}")
        return gaps

    def run_allowed(
        self,
        operations: Sequence[T],
        named: Sequence[ProducerNumber | None],
        carry_out: Callable[[list[T]], Sequence[Any]],
    ) -> list[Any]:
        """Call `carry_out` with the operations not held up, if any; return results in order.

        Others get SequenceGap. `named`: each one's number. Calls `note` for each result, maybe an error; `carry_out`'s
        own error is noted for all, and raised.
        """
        gaps = self.held_up(named)
        taken = [index for index in range(len(operations)) if index not in gaps]
        try:
            carried = carry_out([operations[index] for index in taken]) if taken else ()
            by_index = {**gaps, **dict(zip(taken, carried, strict=True))}
        except BaseException as error:
            for number in named:
                self.note(number, error)
            raise
        results = [by_index[index] for index in range(len(operations))]
        for number, result in zip(named, results, strict=True):
            self.note(number, result)
        return results

    def note(self, numbered: ProducerNumber | None, result: object) -> None:
        """Record an error's number if it is its producer's lowest failed one; its success removes it.

        SequenceGap and unnumbered operations (None) are ignored.
        """
        if numbered is None:
            return
        who, number = numbered
        if isinstance(result, BaseException) and not isinstance(result, SequenceGap):
            self.failed[who] = min(number, self.failed.get(who, number))
        elif self.failed.get(who) == number and not isinstance(result, BaseException):
            del self.failed[who]

    def forget(self, who: Hashable) -> None:
        self.failed.pop(who, None)
