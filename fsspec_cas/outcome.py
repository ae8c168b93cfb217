"""The version of an object, a write under a condition, and the three outcomes of one.

A retry never drops the condition, and "lost" is never said because we could not see.

    match store.put_if_absent("leader.json", b"me"):
        case Won(version): ...
        case Lost(current=current): ...
        case Unknown() as unknown: ...

    version = store.put_if_absent("leader.json", b"me").unwrap()     # or raise AlreadyExists, OutcomeUnknown

There are three, so none of them is true or false: `if store.put_if_absent(...):` raises TypeError.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from fsspec_cas.errors import AlreadyExists, InvalidVersion, OutcomeUnknown, VersionMismatch


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


@dataclass(frozen=True, slots=True)
class Attributes:
    """Content type, user metadata, and what else the store's own API takes by name (`own`).

    They belong to one write: the next write of the object replaces them all. `own` may hold
    secrets, so `repr` leaves it out.
    """

    content_type: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict, hash=False)
    own: Mapping[str, Any] = field(default_factory=dict, hash=False, repr=False)


@dataclass(frozen=True, slots=True)
class Write:
    """One logical write or delete: its identity is chosen once and kept over all its sends.

    `create_once` says that nobody ever overwrites or deletes this path. Then another writer's object there
    proves that this write never was, also after a lost answer. `removes` says that it is a delete, and `certain` that
    the store's "done" means that this delete did it. `attributes` are what the object is made with besides its bytes.
    """

    path: str
    condition: Condition
    write_id: str
    create_once: bool = False
    removes: bool = False
    attributes: Attributes = Attributes()
    certain: bool = True


class _ThreeWay:
    """What is neither true nor false: a truth value would make one of three outcomes look like another."""

    __slots__ = ()

    def __bool__(self) -> NoReturn:
        raise TypeError(
            f"an outcome is Won, Lost or Unknown and has no truth value (this one is {type(self).__name__}): "
            "use `match`, or `.unwrap()`, which raises unless it was won"
        )


@dataclass(frozen=True, slots=True)
class Won(_ThreeWay):
    """The store holds (or held, until a later write) my bytes at `version`; of a delete, the version removed.

    It was applied at least once while its condition held, and more than once only where that came true again after
    others had written: a create on a path that they delete, or a match where versions are not unique. `resent` says
    that a late copy could do that: it was sent again while the answer to an earlier send was missing. Nobody can say
    what something on the way repeats by itself.

    >>> store = Store.from_url("memory://docs/store")
    >>> won = store.put_if_absent("leader", b"me")
    >>> won
    Won(version=Version(backend='memory', token='...'), resent=False)
    """

    version: Version
    resent: bool = field(default=False, compare=False)

    def unwrap(self) -> Version:
        """My version.

        >>> won.unwrap() == store.head("leader").version
        True
        """
        return self.version


@dataclass(frozen=True, slots=True)
class Lost(_ThreeWay):
    """The condition was false: mine never was, and never will be. `current` is what a look showed.

    Where it ends: a write that something on the way sends twice, and that a rival replaces before the look, is taken
    for a lost race. A delete is `Lost` only by the look that comes before it is sent; refused after that, with the
    object gone or replaced, it is `Unknown`.

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
        """Raise what a Python caller expects of a lost race.

        >>> lost.unwrap()
        Traceback (most recent call last):
        ...
        fsspec_cas.errors.AlreadyExists: '/docs/store/leader' already exists (...); it was not written
        """
        if isinstance(self.expected, Absent):
            raise AlreadyExists(
                f"{self.path!r} already exists ({self.current}); it was not written",
                path=self.path,
                current=self.current,
            )
        now = "no object is there" if self.current == ABSENT else f"it is {self.current}"
        raise VersionMismatch(
            f"{self.path!r} is not at version {self.expected}: {now}; nothing was changed",
            path=self.path,
            current=self.current,
        )


@dataclass(frozen=True, slots=True)
class Unknown(_ThreeWay):
    """My write may be there, may have been there, or may never have been: `why` says what was seen.

    It holds all that is needed to find out later, in another process too: `store.resolve(unknown)`. `data` is None
    where there are no bytes to send again: for a delete, which needs none, and for a stream that is gone; then only a
    look is left. Of a delete after which the object is gone nobody can ever tell whose it was.

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
        """Raise OutcomeUnknown.

        >>> unknown.unwrap()
        Traceback (most recent call last):
        ...
        fsspec_cas.errors.OutcomeUnknown: it is not known whether '/docs/store/leader' was written: ...
        """
        done = "removed" if self.write.removes else "written"
        raise OutcomeUnknown(
            f"it is not known whether {self.write.path!r} was {done}: {self.why}; "
            "call resolve(), or read it and decide",
            path=self.write.path,
            outcome=self,
        )


Outcome = Won | Lost | Unknown
