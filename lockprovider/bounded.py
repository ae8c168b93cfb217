"""Decoders of stored bytes, pure: a hostile object costs bounded memory.

Call them within `undecodable_as`, which turns their errors (`Undecodable`, `KeyError`, `ValueError`, `zlib.error`) into
one kind. A writer calls `check_fits` first.
"""

from __future__ import annotations

import base64
import contextlib
import json
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from fsspec_cas.arguments import LARGEST_NUMBER

LARGEST_OBJECT = 64 << 20
"""Most bytes of a stored object, unless its decoder has a better bound."""
LATEST_MS = 253_402_300_799_999
"""The last millisecond of a date (year 9999), as epoch ms."""
DEEPEST_VALUE = 64
"""Most levels of lists and objects in a value from a caller."""
DEEPEST = 72
"""Most levels of lists and objects in a stored object: a value and its envelope."""
DEEPEST_SCHEMA = 512
"""Most levels of lists and objects in a schema: a nested record takes four."""
MOST_ITEMS = 2_000_000
"""Most commas and opening brackets in one stored object. Each may take a hundred bytes of memory."""
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes({*range(256)} - {*b'[]{}"'})
_SHORT = 120  # characters
_START = 80  # bytes
_DECODING = (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    IndexError,
    OverflowError,
    RecursionError,
    MemoryError,
    zlib.error,
)


class Undecodable(ValueError):
    """Error of bytes that no writer here makes."""


@contextlib.contextmanager
def undecodable_as(
    kind: type[Exception], message: str, step: str = "", *, shown: bytes | None = None
) -> Iterator[None]:
    """Raise a block's decoding errors as `kind`: `message`, the start of `shown`, the reason, `step`.

    Decoding errors are `_DECODING`, such as ValueError, KeyError, TypeError. Errors of `kind` pass, except
    `Undecodable`.
    """
    try:
        yield
    except _DECODING as error:
        if isinstance(error, kind) and not isinstance(error, Undecodable):
            raise
        reason = f"it has no {error}" if isinstance(error, KeyError) else repr(error)
        why = str(error) if isinstance(error, Undecodable) else _short(reason)
        start = "" if shown is None else f", but {shown[:_START]!r}"
        raise kind(f"{message}{start}: {why}{step and '; '}{step}") from error


def parse_json(data: bytes, *, most: int, deepest: int = DEEPEST, items: int = MOST_ITEMS) -> Any:
    """Parse UTF-8 JSON.

    Raises `Undecodable` beyond the bounds (see `check_fits`), and for invalid JSON, infinite or NaN numbers, and lone
    surrogates.
    """
    check_fits(data, most=most, deepest=deepest, items=items)
    try:
        value = _DECODER.decode(data.decode())
        if b"\\u" in data:
            json.dumps(value, ensure_ascii=False).encode()
    except Undecodable:
        raise
    except UnicodeEncodeError as error:
        raise Undecodable("its text has a lone surrogate, which UTF-8 cannot store") from error
    except (ValueError, RecursionError) as error:
        raise Undecodable(f"it is no JSON ({_short(str(error))})") from error
    return value


def parse_object(data: bytes, *, most: int, deepest: int = DEEPEST) -> dict[str, Any]:
    value = parse_json(data, most=most, deepest=deepest)
    if not isinstance(value, dict):
        raise Undecodable(f"it holds a {type(value).__name__}, where a JSON object is expected")
    return value


def check_fits(data: bytes, *, most: int, deepest: int = DEEPEST, items: int = MOST_ITEMS) -> None:
    """Raise `Undecodable` if JSON has more than `most` bytes, `deepest` nested levels, or `items`.

    Items are commas and opening brackets, even in text. Parses nothing.
    """
    if len(data) > most:
        raise Undecodable(f"it has {len(data)} bytes, and {most} are the most that is read")
    opened = data.count(b"[") + data.count(b"{")
    if opened + data.count(b",") > items:
        raise Undecodable(f"it has more than {items} items, which is more than is read")
    if opened > deepest and depth(data, deepest + 1) > deepest:
        raise Undecodable(f"its lists and objects are nested more than {deepest} levels deep")


def depth(data: bytes, most: int) -> int:
    """Count nested levels of lists and objects in JSON, up to `most`, without parsing.

    Brackets in strings do not count; malformed JSON gives a lower bound.
    """
    if b"\\" in data:  # an escaped quote does not end its string
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = data.translate(_BRACKETS, _NO_BRACKETS).replace(b'""', b"")
    if b'"' in brackets:
        brackets = b"".join(brackets.split(b'"')[::2])
    levels = most if b"[" * most in brackets else 0
    while brackets and levels < most:
        flatter = brackets.replace(b"[]", b"")
        if len(flatter) == len(brackets):
            break
        brackets, levels = flatter, levels + 1
    return levels


def plausible(packed: bytes) -> int:
    return max(4 << 20, 32 * len(packed))


def inflate(packed: bytes, *, most: int, wbits: int = zlib.MAX_WBITS, like: bytes = b"") -> bytes:
    """Inflate a whole stream, with the preset dictionary `like`.

    Raises `Undecodable` beyond `most` bytes or for a stream cut off or followed by bytes, `zlib.error` for malformed
    bytes.
    """
    inflating = zlib.decompressobj(wbits, like) if like else zlib.decompressobj(wbits)
    data = inflating.decompress(packed, most + 1)
    if len(data) > most:
        raise Undecodable(f"it inflates to more than {most} bytes")
    if not inflating.eof or inflating.unused_data:
        raise Undecodable("its deflated bytes are cut off" if not inflating.eof else "bytes follow its deflated bytes")
    return data


def unbase64(text: Any, name: str) -> bytes:
    if type(text) is not str:
        raise _no(name, "base64 text", text)
    return base64.b64decode(text, validate=True)


def whole_in(fields: Mapping[str, Any], name: str, *, least: int = 0, most: int = LARGEST_NUMBER) -> int:
    return as_whole(fields[name], name, least=least, most=most)


def as_whole(value: Any, name: str, *, least: int = 0, most: int = LARGEST_NUMBER) -> int:
    if type(value) is not int or not least <= value <= most:
        raise _no(name, f"a whole number from {least} to {most}", value)
    return value


def are_wholes(values: tuple[Any, ...], *, least: int = 0) -> bool:
    for value in values:  # noqa: SIM110 - `all` is twice as slow
        if type(value) is not int or not least <= value <= LARGEST_NUMBER:
            return False
    return True


def text_in(fields: Mapping[str, Any], name: str, default: str | None = None) -> str:
    return as_text(fields[name] if default is None else fields.get(name, default), name)


def as_text(value: Any, name: str) -> str:
    if type(value) is not str:
        raise _no(name, "text", value)
    return value


def as_flag(value: Any, name: str) -> bool:
    if type(value) is not bool:
        raise _no(name, "true or false", value)
    return value


def _no(name: str, expected: str, value: Any) -> Undecodable:
    return Undecodable(f"{name} must be {expected}, and is {_short(_shown(value))}")


def _shown(value: Any) -> str:
    if isinstance(value, (list, dict)) or (isinstance(value, int) and abs(value) > LARGEST_NUMBER):
        return f"a {type(value).__name__}" if isinstance(value, (list, dict)) else "a larger one"
    return repr(value[:_SHORT] if isinstance(value, str) else value)


def _short(text: str) -> str:
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}..."


def _finite(text: str) -> float:
    value = float(text)
    if value - value != 0.0:
        raise Undecodable(f"the number {_short(text)} is too large")
    return value


def _not_finite(text: str) -> float:
    raise Undecodable(f"{text} is no number of JSON")


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_not_finite)
