"""Checks of callers' arguments, made before any request; each raises InvalidInput with the argument's name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from fsspec_cas.errors import InvalidInput, NotBytes

LARGEST_NUMBER = (1 << 53) - 1
"""The largest whole number that every JSON reader keeps exactly."""
_LONGEST_S = 100 * 365.25 * 86_400
_SHOWN = 200  # characters of a value in an error text


def seconds(value: object, name: str = "timeout", *, finite: bool = False, above: bool = False) -> float:
    """Return a duration as a float; raise InvalidInput unless a number of 0 or more (`above`: more than 0).

    `finite` refuses over 100 years.
    """
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    if not number >= 0 or (finite and number > _LONGEST_S) or (above and not number):
        least = "above 0" if above else "0 or more"
        raise InvalidInput(f"{name}={shown(value)} must be a number of seconds, {least}, e.g. {name}=30")
    return float(number)


def whole(value: object, name: str, *, least: int = 0) -> int:
    """Return the whole number; raise InvalidInput unless it is an int, no bool, from `least` to `LARGEST_NUMBER`."""
    if isinstance(value, int) and not isinstance(value, bool) and value > LARGEST_NUMBER:
        raise InvalidInput(f"{name} must be a whole number of at most {LARGEST_NUMBER}, which every JSON reader keeps")
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidInput(
            f"{name}={shown(value)} must be a whole number, {least} or more, e.g. {name}={max(least, 5)}"
        )
    return value


def check_text(value: object, name: str) -> str:
    """Return the text, which may be empty; raise InvalidInput for other values."""
    if not isinstance(value, str):
        raise InvalidInput(f"{name}={shown(value)} must be text, e.g. {name}='nightly'")
    return value


def function(value: Any, name: str, purpose: str) -> Callable[..., Any]:
    """Return the function; raise InvalidInput for a value that is not callable. `purpose` ends the message."""
    if not callable(value):
        raise InvalidInput(f"{name}={shown(value)} must be a function {purpose}")
    return value  # type: ignore[no-any-return] # callable() says no more


def several(value: Any, name: str, items: str) -> Iterator[Any]:
    """Return an iterator of the value's items; raise InvalidInput at once for text, bytes, a dict, or no iterable."""
    if not isinstance(value, (str, bytes, bytearray, dict)):
        try:
            return iter(value)
        except TypeError:  # NumPy's array of no dimension says that it can be iterated.
            pass
    example = f": give [{shown(value)}]" if isinstance(value, (str, bytes)) else ""
    raise InvalidInput(f"{name}={shown(value)} must be a list of {items}{example}")


def texts(value: Any, name: str, items: str) -> tuple[str, ...]:
    """Return the texts of an iterable; raise InvalidInput as `several`, and for an item that is no text."""
    result = tuple(several(value, name, items))
    strange = [item for item in result if not isinstance(item, str)]
    if strange:
        raise InvalidInput(f"{name} must be a list of {items}, and has {shown(strange[0])}, which is no text")
    return result


def shown(value: object) -> str:
    """Return the value for an error text, shortened; a value that cannot be printed is named by its type."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a repr may raise anything: Python's does for numbers of 4,301 digits
        text = f"this {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


Bytes = bytes | bytearray | memoryview


def check_bytes(path: str, data: object) -> bytes:
    """Return the bytes to write to `path`, copied if mutable.

    Other types are refused: `bytes(5)` would write five zeros and hide the mistake.

    Raises:
        NotBytes: `data` is not bytes, bytearray or memoryview.

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
    """Return a byte view of any object with the buffer protocol, for a stream to `path`; else raise NotBytes."""
    try:
        view = memoryview(data)  # type: ignore[arg-type] # this call is the check
    except TypeError:
        raise not_bytes(path, data) from None
    return view.cast("B") if view.nbytes and view.c_contiguous else memoryview(view.tobytes())


def not_bytes(path: str, data: object) -> NotBytes:
    """Return the error for a body that is not bytes, with its type and the remedy."""
    cure = "encode the text first: data.encode()" if isinstance(data, str) else "give bytes, bytearray or memoryview"
    return NotBytes(f"{path!r} cannot be written with a {type(data).__name__}: {cure}", path=path)
