"""Version of an object, a write under a condition, and its three outcomes.

    match store.put_if_absent("leader.json", b"me"):
        case Won(version): ...
        case Lost(current=current): ...
        case Unknown() as unknown: ...

A write whose fate could not be observed is never reported as lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from fsspec_cas.errors import AlreadyExists, InvalidVersion, OutcomeUnknown, VersionMismatch


@dataclass(frozen=True, slots=True, order=False)
class Version:
    """Store's token for one state of one object: ETag, generation, file's stamp.

    Versions are opaque and unordered. Where they are not unique (S3: the ETag is a hash), writing equal bytes brings an
    old version back.

    >>> version = Store.from_url("memory://docs/store").put_if_absent("a", b"1").unwrap()
    >>> Version.parse(str(version)) == version
    True
    """

    backend: str
    token: str

    def __str__(self) -> str:
        return f"{self.backend}:{self.token}"

    @classmethod
    def of(cls, given: Version | str) -> Version:
        """Return a `Version` unchanged, or the version of its text; other values raise InvalidVersion.

        >>> Version.of("s3:1") == Version("s3", "1") == Version.of(Version("s3", "1"))
        True
        """
        if isinstance(given, Version):
            return given
        if isinstance(given, str):
            return cls.parse(given)
        version = getattr(given, "version", None)
        if isinstance(version, cls):  # A Content's repr holds the whole object.
            raise InvalidVersion(f"a {type(given).__name__} is not a version: give its `version`, '{version}'")
        if isinstance(given, Absent):
            raise InvalidVersion("ABSENT is not a version: put_if_absent writes where no object exists")
        raise InvalidVersion(
            f"{given!r} is not a version: give the version that a read or a write returned, or its text"
        )

    @classmethod
    def parse(cls, text: str) -> Version:
        """Version whose text `backend:token` this is; other text raises InvalidVersion.

        >>> Version.parse("gcs:17")
        Version(backend='gcs', token='17')
        """
        backend, colon, token = text.partition(":")
        if not (backend and colon and token):
            raise InvalidVersion(f"{text!r} is not a version: expected 'backend:token' as printed by str(version)")
        return cls(backend, token)


@dataclass(frozen=True, slots=True)
class Absent:
    """State of a path without an object, and a create's condition; calls do not take it as a version.

    >>> store = Store.from_url("memory://docs/store")
    >>> store.put_if_match("a", b"2", "memory:0").current
    ABSENT
    """

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = Absent()

Condition = Version | Absent


@dataclass(frozen=True, slots=True)
class Attributes:
    """Content type, metadata, and parameters by the store's API names (`own`, perhaps secret)."""

    content_type: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict, hash=False)
    own: Mapping[str, Any] = field(default_factory=dict, hash=False, repr=False)


@dataclass(frozen=True, slots=True)
class Write:
    """One logical write or delete, with the same identity and condition in all sends.

    Attributes:
        create_once: no writer ever overwrites or deletes this path; another's object proves that this write was never
            applied.
        success_is_proof: the store's success proves that this delete removed the object.
    """

    path: str
    condition: Condition
    write_id: str
    create_once: bool = False
    removes: bool = False
    attributes: Attributes = Attributes()
    success_is_proof: bool = True


class _ThreeWay:
    __slots__ = ()

    def __bool__(self) -> NoReturn:
        raise TypeError(
            f"an outcome is Won, Lost or Unknown and has no truth value (this one is {type(self).__name__}): "
            "use `match`, or `.unwrap()`, which raises unless it was won"
        )


@dataclass(frozen=True, slots=True)
class Won(_ThreeWay):
    """The write was applied at `version` (of a delete: the version removed); a later write may have replaced it.

    It was applied at least once while its condition held, and again only if the condition became true again after other
    writes: a create on a path that others delete, or a match where versions are not unique. `resent`: a late copy could
    do that.

    >>> store = Store.from_url("memory://docs/store")
    >>> won = store.put_if_absent("leader", b"me")
    >>> won
    Won(version=Version(backend='memory', token='...'), resent=False)
    """

    version: Version
    resent: bool = field(default=False, compare=False)

    def unwrap(self) -> Version:
        """Version.

        >>> won.unwrap() == store.head("leader").version
        True
        """
        return self.version


@dataclass(frozen=True, slots=True)
class Lost(_ThreeWay):
    """The condition was false: the write was never applied, and never will be. `current` is the state read afterwards.

    The limit: a write that a proxy sends twice and a rival replaces before the read counts as lost.

    >>> store = Store.from_url("memory://docs/store")
    >>> first = store.put_if_absent("leader", b"somebody").unwrap()
    >>> lost = store.put_if_absent("leader", b"me")
    >>> isinstance(lost, Lost), lost.current == first
    (True, True)
    """

    path: str
    expected: Condition
    current: Condition

    def unwrap(self) -> Version:
        """Raise AlreadyExists for a create, VersionMismatch for any other write.

        >>> lost.unwrap()
        Traceback (most recent call last):
        ...
        fsspec_cas.errors.AlreadyExists: '/docs/store/leader' already exists (...); it was not written
        """
        if isinstance(self.expected, Absent):
            message = f"{self.path!r} already exists ({self.current}); it was not written"
            raise AlreadyExists(message, path=self.path, current=self.current)
        now = "no object exists" if self.current == ABSENT else f"it is {self.current}"
        message = f"{self.path!r} is not at version {self.expected}: {now}; nothing was changed"
        raise VersionMismatch(message, path=self.path, current=self.current)


@dataclass(frozen=True, slots=True)
class Unknown(_ThreeWay):
    """The write may be in place, may have been replaced, or may never have been applied; `why` gives the evidence.

    `data` is None for a delete or a stream.

    >>> from fsspec_cas.testing import Faulty, LoseAnswer, LoseRequest
    >>> store = Store.from_url("memory://docs/store")
    >>> lossy = Faulty(store.backend, {"put": [LoseAnswer()], "head": [LoseRequest()] * 99})
    >>> unknown = Store(lossy, store.root).put_if_absent("leader", b"me", timeout=0.5)
    >>> isinstance(unknown, Unknown), isinstance(store.resolve(unknown), Won)
    (True, True)
    """

    write: Write
    why: str
    data: bytes | None = field(repr=False, default=None)
    resent: bool = False

    def unwrap(self) -> Version:
        """Raise OutcomeUnknown, without a resolver: settle it by `Store.resolve`.

        >>> unknown.unwrap()
        Traceback (most recent call last):
        ...
        fsspec_cas.errors.OutcomeUnknown: '/docs/store/leader' may have been written: ...
        """
        path, done = self.write.path, "removed" if self.write.removes else "written"
        message = f"{path!r} may have been {done}: {self.why}; read it and decide, or settle it by Store.resolve"
        raise OutcomeUnknown(message, path=path, outcome=self)


Outcome = Won | Lost | Unknown


def won_or_lost(outcome: Outcome) -> bool:
    """True for `Won`, False for `Lost`; raises OutcomeUnknown for `Unknown`."""
    if isinstance(outcome, Unknown):
        outcome.unwrap()
    return isinstance(outcome, Won)
