"""Values of a program as what JSON can say, and back.

JSON as it is; `bytes` (in base64); a pydantic model, by its class; or anything with `encode` and `decode`.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any, Generic, Protocol, TypeVar

from fsspec_cas import InvalidInput
from lockprovider.recipes.errors import MalformedObject
from lockprovider.recipes.values import json_copy

V = TypeVar("V")

LARGEST_STATE = 176 << 20
"""Bytes of a value as it is stored."""


class Codec(Protocol[V]):
    """Both directions; each gives a value of its own, that shares nothing with what it was made of.

    >>> class Words:
    ...     def encode(self, value):
    ...         return value.split()
    ...
    ...     def decode(self, stored):
    ...         return " ".join(stored)
    >>> codec: lockprovider.state.Codec = Words()
    >>> state = lockprovider.state.open("memory://docs/words.json", codec=codec)
    >>> state.put("two words").value
    'two words'
    """

    def encode(self, value: V) -> Any:
        """What JSON can say.

        Raises:
            InvalidInput: this value cannot be kept.

        >>> codec.encode("two words")
        ['two', 'words']
        """

    def decode(self, stored: Any) -> V:
        """The value.

        Raises:
            MalformedObject: what is stored is something else.

        >>> codec.decode(["two", "words"])
        'two words'
        """


class Json:
    """Values as JSON has them: dicts with text as keys, lists, text, numbers, true and false. Not None alone."""

    def encode(self, value: Any) -> Any:
        """See `Codec`."""
        if value is None:
            raise InvalidInput("None is no state: return the new value, or UNCHANGED to write nothing")
        return json_copy(value, "a state", LARGEST_STATE)

    def decode(self, stored: Any) -> Any:
        """See `Codec`."""
        return json.loads(json.dumps(stored))


class Raw:
    """Bytes."""

    def encode(self, value: bytes) -> dict[str, str]:
        """See `Codec`."""
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise InvalidInput(f"{type(value).__name__} is no bytes, and the state's codec is bytes")
        if (size := memoryview(value).nbytes) > LARGEST_STATE // 4 * 3:
            raise InvalidInput(f"{size} bytes are more than a state may have ({LARGEST_STATE // 4 * 3})")
        return {"base64": base64.b64encode(value).decode()}

    def decode(self, stored: Any) -> bytes:
        """See `Codec`."""
        try:
            return base64.b64decode(stored["base64"], validate=True)
        except (TypeError, ValueError, KeyError, binascii.Error) as error:
            raise MalformedObject(f'what is stored are no bytes ({{"base64": ...}}): {error!r}') from error


class Model(Generic[V]):
    """A pydantic model (version 2); its errors at reading are pydantic's own."""

    def __init__(self, model: type[V]) -> None:
        self._model: Any = model

    def encode(self, value: V) -> Any:
        """See `Codec`."""
        if not isinstance(value, self._model):
            raise InvalidInput(f"{type(value).__name__} is not the state's model {self._model.__name__}")
        given: Any = value
        return json_copy(given.model_dump(mode="json"), "a state", LARGEST_STATE)

    def decode(self, stored: Any) -> V:
        """See `Codec`."""
        value: V = self._model.model_validate(stored)
        return value


class Checked(Generic[V]):
    """A codec of the caller's, whose results are checked: what JSON cannot say fails the one who gave it alone."""

    def __init__(self, codec: Codec[V]) -> None:
        self.codec = codec

    def encode(self, value: V) -> Any:
        """See `Codec`."""
        return json_copy(self.codec.encode(value), "what the codec made of the state", LARGEST_STATE)

    def decode(self, stored: Any) -> V:
        """See `Codec`."""
        return self.codec.decode(stored)


def codec_of(given: Any) -> Codec[Any]:
    """The codec that a user means by `codec=`.

    Raises:
        InvalidInput: it is none.
    """
    if given is None:
        return Json()
    if given is bytes:
        return Raw()
    if isinstance(given, type) and hasattr(given, "model_validate") and hasattr(given, "model_dump"):
        return Model(given)
    if not isinstance(given, type) and hasattr(given, "encode") and hasattr(given, "decode"):
        return Checked(given)
    raise InvalidInput(f"codec={given!r} must be bytes, a pydantic model's class, or have encode and decode")
