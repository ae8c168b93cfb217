"""Arguments as a caller gave them: a number where one belongs, bytes to be written, else refused by name.

Nothing is sent before. Bytes are one of Python's three types for them, and nothing that Python turns into bytes:
`bytes(5)` is five zeros, and `bytes([1, 2])` two bytes, so a number or a list that is written by mistake would go
unseen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from fsspec_cas.errors import InvalidInput, NotBytes

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


Bytes = bytes | bytearray | memoryview


def check_bytes(path: str, data: object) -> bytes:
    """The bytes that are to be written to `path`; a copy, where they could change meanwhile.

    Raises:
        NotBytes: it is anything else than bytes, bytearray or memoryview.

    >>> check_bytes("a", bytearray(b"1"))
    b'1'
    >>> check_bytes("a", "1")
    Traceback (most recent call last):
    ...
    fsspec_cas.errors.NotBytes: 'a' cannot be written with a str: encode the text first: data.encode()
    """
    if isinstance(data, bytes):
        return data
    if isinstance(data, bytearray | memoryview):
        return bytes(data)
    raise not_bytes(path, data)


def check_buffer(path: str, data: object) -> memoryview:
    """The bytes to be written to a stream: of any object that shares its memory, as Python's files take it.

    Raises:
        NotBytes: it shares none.
    """
    try:
        view = memoryview(data)  # type: ignore[arg-type] # the question is whether it is one
    except TypeError:
        raise not_bytes(path, data) from None
    return view.cast("B") if view.nbytes and view.c_contiguous else memoryview(view.tobytes())


def not_bytes(path: str, data: object) -> NotBytes:
    """Return the error for a body that is not bytes: it names the type that was given, and what to give instead."""
    cure = "encode the text first: data.encode()" if isinstance(data, str) else "give bytes, bytearray or memoryview"
    return NotBytes(f"{path!r} cannot be written with a {type(data).__name__}: {cure}", path=path)
