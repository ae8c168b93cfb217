"""Arguments as a caller gave them: a number where one belongs, else refused by name before anything is sent."""

from __future__ import annotations

import math

from fsspec_cas.errors import InvalidInput


def seconds(value: object, name: str = "timeout") -> float:
    """A time to wait: a number of seconds, 0 or more; infinite is for ever.

    Raises:
        InvalidInput: naming the value.
    """
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    if not number >= 0:
        raise InvalidInput(f"{name}={value!r} must be a number of seconds, 0 or more, e.g. {name}=30")
    return float(number)


def whole(value: object, name: str, *, least: int = 0) -> int:
    """A count.

    Raises:
        InvalidInput: naming the value.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidInput(f"{name}={value!r} must be a whole number, {least} or more, e.g. {name}={max(least, 5)}")
    return value
