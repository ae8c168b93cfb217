"""What a store says about which write an object came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fsspec_cas.errors import InvalidVersion


@dataclass(frozen=True, slots=True, order=False)
class Version:
    """The token that a store gave to one state of one object: an ETag, a generation, a file's stamp.

    Opaque: compare it for equality, send it back as a condition, keep it as text (`str(version)`), and
    nothing else. It says nothing about order. Where `Capabilities.unique_versions` is false (S3: the ETag
    is a hash of the content), writing equal bytes again brings an old version back.

    >>> version = Store.from_url("memory://docs/store").put_if_absent("a", b"1").unwrap()
    >>> Version.parse(str(version)) == version
    True
    """

    backend: str
    token: str

    def __str__(self) -> str:
        """The text form, `backend:token`; `Version.parse` reads it back."""
        return f"{self.backend}:{self.token}"

    @classmethod
    def of(cls, given: Version | str) -> Version:
        """A version that was given as such, or as its text.

        Raises:
            InvalidVersion: it is neither.

        >>> Version.of("s3:1") == Version("s3", "1") == Version.of(Version("s3", "1"))
        True
        """
        if isinstance(given, Version):
            return given
        if isinstance(given, str):
            return cls.parse(given)
        raise InvalidVersion(f"{given!r} is no version: give what a read or a write returned, or its text")

    @classmethod
    def parse(cls, text: str) -> Version:
        """Read the text form back.

        >>> Version.parse("gcs:17")
        Version(backend='gcs', token='17')

        Raises:
            InvalidVersion: the text is not `backend:token`.
        """
        backend, colon, token = text.partition(":")
        if not (backend and colon and token):
            raise InvalidVersion(f"{text!r} is not a version: expected 'backend:token' as printed by str(version)")
        return cls(backend, token)


@dataclass(frozen=True, slots=True)
class Absent:
    """The state of a path that holds no object; as a condition: only if nothing is there.

    >>> store = Store.from_url("memory://docs/store")
    >>> store.put_if_match("a", b"2", "memory:0").current
    ABSENT
    """

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = Absent()

Condition = Version | Absent
