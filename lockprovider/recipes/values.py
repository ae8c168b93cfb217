"""Checks of arguments that several recipes take: JSON values, names, fences."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fsspec_cas import InvalidInput
from fsspec_cas.given import LARGEST_NUMBER, check_text
from lockprovider.bounded import DEEPEST_VALUE, LARGEST_OBJECT, as_whole, check_fits
from lockprovider.recipes.errors import MalformedObject
from lockprovider.words import storable

UNNAMED = "~"  # prefix of producer names that the library makes
_LONGEST_NAME = 1000  # characters of a producer's name, which each write stores again
_LONGEST_TEXT = 1 << 16  # characters


def json_copy(value: Any, argument: str, most: int = LARGEST_OBJECT) -> Any:
    """Return a JSON copy of the value; tuples become lists.

    Raises InvalidInput, naming `argument`, for non-JSON, non-text keys, deep nesting, or more than `most` bytes.
    """
    _check_keys(value, argument, DEEPEST_VALUE)
    try:
        data = json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        check_fits(data, most=most)
        return json.loads(data)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{argument} must be a JSON value: {error}") from error


def copied(stored: Any) -> Any:
    """Return a copy of a stored JSON value."""
    return json.loads(json.dumps(stored))


def check_storable(value: Any, argument: str, most: int = _LONGEST_TEXT) -> str:
    """Return text of at most `most` characters that UTF-8 can store, or raise InvalidInput."""
    text = check_text(value, argument)
    if len(text) > most:
        raise InvalidInput(f"{argument} has {len(text)} characters, and {most} are the most: give a shorter one")
    if storable(text) != text:
        raise InvalidInput(f"{argument}={text!r} cannot be stored as UTF-8: give other text")
    return text


def check_producer(value: Any, argument: str) -> str:
    """Return a producer's (or one message's) name, or raise InvalidInput.

    It must be text, not empty, without `~` at its begin, UTF-8, and at most 1,000 characters.
    """
    if not isinstance(value, str) or not value or value.startswith(UNNAMED):
        raise InvalidInput(f"{argument}={value!r} must be a name that does not begin with {UNNAMED!r}")
    return check_storable(value, argument, _LONGEST_NAME)


def check_format(fields: Mapping[str, Any], path: str, *formats: int) -> None:
    """Check a stored object's format number; may raise MalformedObject, KeyError or ValueError."""
    if as_whole(fields["format"], "format") not in formats:
        versions = " and ".join(map(str, formats))
        raise MalformedObject(
            f"{path!r} has format {fields['format']}, this version of fsspec-cas reads {versions}: install a newer one"
        )


def check_fence(fence: Any) -> int:
    """Return the epoch of a lease, term or job, or the epoch itself; may raise InvalidInput."""
    epoch = getattr(fence, "epoch", fence)
    if isinstance(epoch, bool) or not isinstance(epoch, int) or not 0 < epoch <= LARGEST_NUMBER:
        raise InvalidInput(f"fence={fence!r} must be a lease, a term, a job, or its epoch (a whole number above 0)")
    return epoch


def epoch_of(fence: Any) -> int:
    """Return the epoch of a fence, or 0 without a fence; may raise InvalidInput."""
    return 0 if fence is None else check_fence(fence)


def _check_keys(value: Any, argument: str, levels: int) -> None:
    """Raise InvalidInput, naming `argument`, if a key in it is not text, or it is nested beyond `levels`."""
    if isinstance(value, (dict, list, tuple)) and not levels:
        raise InvalidInput(
            f"{argument} is nested more than {DEEPEST_VALUE} levels deep, which not every reader can parse"
        )
    for key in value if isinstance(value, dict) else ():
        if not isinstance(key, str):
            raise InvalidInput(f"{argument} has the key {key!r}, which would be read back as text: use text keys")
    for below in value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ():
        _check_keys(below, argument, levels - 1)
