"""What callers give to more than one recipe, checked: what JSON can say, names, fences."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fsspec_cas import InvalidInput
from fsspec_cas.given import check_text, whole
from lockprovider.bounded import DEEPEST_VALUE, LARGEST_OBJECT, as_whole, check_fits
from lockprovider.recipes.errors import MalformedObject

UNNAMED = "~"  # what the names of producers begin with that nobody has named


def json_copy(value: Any, what: str, most: int = LARGEST_OBJECT) -> Any:
    """The value as JSON will give it back, sharing nothing with the one that was given.

    Raises:
        InvalidInput: JSON cannot say it, or would say it otherwise, or no reader would take it: it is nested too deep,
            or has more than `most` bytes.
    """
    _check_keys(value, what, DEEPEST_VALUE)
    try:
        data = json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        check_fits(data, most=most)
        return json.loads(data)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{what} must be what JSON can say: {error}") from error


def check_name(value: Any, what: str) -> str:
    """Text that can be stored.

    Raises:
        InvalidInput: it is no text, or has half of a character, as names of files may have that are not UTF-8.
    """
    text = check_text(value, what)
    if storable(text) != text:
        raise InvalidInput(f"{what}={text!r} cannot be stored as UTF-8: give other text")
    return text


def check_producer(value: Any, what: str) -> str:
    """The name of a producer, or of one message.

    Raises:
        InvalidInput: it is none, or cannot be stored.
    """
    if not isinstance(value, str) or not value or value.startswith(UNNAMED):
        raise InvalidInput(f"{what}={value!r} must be a name that does not begin with {UNNAMED!r}")
    return check_name(value, what)


def check_format(found: Mapping[str, Any], path: str, *known: int) -> None:
    """Check that this version knows the format of a stored object.

    Raises:
        MalformedObject: it does not.
        KeyError, ValueError: the object has no format, or one that is no number.
    """
    if as_whole(found["format"], "format") not in known:
        versions = " and ".join(map(str, known))
        raise MalformedObject(f"{path!r} has format {found['format']}, this version knows {versions}: use a newer one")


def check_fence(fence: Any) -> int:
    """The epoch of a lease, a term or a job, or the epoch itself.

    Raises:
        InvalidInput: it is none.
    """
    return whole(getattr(fence, "epoch", fence), "fence", least=1)


def storable(text: str) -> str:
    """The text, with what UTF-8 cannot say written out."""
    return text.encode(errors="backslashreplace").decode()


def _check_keys(value: Any, what: str, levels: int) -> None:
    if isinstance(value, (dict, list, tuple)) and not levels:
        raise InvalidInput(f"{what} is nested more than {DEEPEST_VALUE} levels deep, which not every reader takes")
    if isinstance(value, dict):
        for key, below in value.items():
            if not isinstance(key, str):
                raise InvalidInput(f"{what} has the key {key!r}, which would come back as text: JSON has no other keys")
            _check_keys(below, what, levels - 1)
    elif isinstance(value, (list, tuple)):
        for below in value:
            _check_keys(below, what, levels - 1)
