"""Arguments as a caller gave them: a number where one belongs, else refused by name before anything is sent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from fsspec_cas.errors import InvalidInput

LARGEST_NUMBER = (1 << 53) - 1
"""The largest whole number that every JSON reader keeps exactly."""
_LONGEST_S = 100 * 365.25 * 86_400


def seconds(value: object, name: str = "timeout", *, finite: bool = False, above: bool = False) -> float:
    """A time to wait: a number of seconds, 0 or more (`above` it).

    Infinite is for ever, where it need not be `finite`; what is finite is stored, and is a hundred years at most.

    Raises:
        InvalidInput: naming the value.
    """
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    if not number >= 0 or (finite and number > _LONGEST_S) or (above and not number):
        least = "above 0" if above else "0 or more"
        raise InvalidInput(f"{name}={value!r} must be a number of seconds, {least}, e.g. {name}=30")
    return float(number)


def whole(value: object, name: str, *, least: int = 0) -> int:
    """A count.

    Raises:
        InvalidInput: naming the value.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value > LARGEST_NUMBER:
        raise InvalidInput(f"{name} must be a whole number of at most {LARGEST_NUMBER}, which every JSON reader keeps")
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidInput(f"{name}={value!r} must be a whole number, {least} or more, e.g. {name}={max(least, 5)}")
    return value


def check_text(value: object, name: str) -> str:
    """Words, which may be none.

    Raises:
        InvalidInput: naming the value.
    """
    if not isinstance(value, str):
        raise InvalidInput(f"{name}={value!r} must be text, e.g. {name}='nightly'")
    return value


def function(value: Any, name: str, what: str) -> Callable[..., Any]:
    """What can be called.

    Raises:
        InvalidInput: naming the value.
    """
    if not callable(value):
        raise InvalidInput(f"{name}={value!r} must be a function {what}")
    return value  # type: ignore[no-any-return] # callable() says no more


def several(value: Any, name: str, what: str) -> Iterable[Any]:
    """Any number of them, and not one text, whose letters would be taken for them.

    Raises:
        InvalidInput: naming the value.
    """
    if isinstance(value, (str, bytes, bytearray, dict)) or not isinstance(value, Iterable):
        raise InvalidInput(f"{name}={value!r} must be a list of {what}")
    return value
