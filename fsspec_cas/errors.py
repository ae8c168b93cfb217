"""Errors, grouped by what the caller would do next.

CasError
├── Refused              the condition was false, nothing was written: read again, decide again
│   ├── AlreadyExists        (a FileExistsError)
│   └── VersionMismatch
├── OutcomeUnknown       the write may be there or not: `resolve()`, or read and decide
├── StoreError           the store did not do the call, nothing was changed (an OSError)
│   ├── ObjectNotFound       (a FileNotFoundError)
│   ├── BucketNotFound       (a FileNotFoundError)
│   ├── AccessDenied         (a PermissionError)
│   └── Unavailable          throttled, unreachable or failing until the timeout; try again later
├── NotSupported         this store or protocol cannot do it; choose another
└── InvalidInput         a value that no retry mends (a ValueError)
    ├── InvalidUrl
    ├── InvalidVersion
    └── NotBytes             (a TypeError)

Every error is built from one sentence, carries `path` where there is one, and can be pickled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from fsspec_cas.outcome import Condition, Outcome, Unknown, Version


class CasError(Exception):
    """The root of the tree."""

    def __init__(self, message: str = "", *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class Refused(CasError):
    """The condition of a write was false; nothing was written.

    `current` is what a look showed right after: a `Version`, `ABSENT`, or None when it is not known.
    """

    def __init__(self, message: str = "", *, path: str = "", current: Condition | None = None) -> None:
        super().__init__(message, path=path)
        self.current = current


class AlreadyExists(Refused, FileExistsError):
    """`put_if_absent` found somebody else's object."""


class VersionMismatch(Refused):
    """`put_if_match` or `delete_if_match` found another version, or none."""


class OutcomeUnknown(CasError):
    """The write may have been applied, or applied and replaced since, or never applied.

    `outcome` says what is known; `resolve()` looks again and re-sends the same guarded write.
    """

    def __init__(
        self,
        message: str = "",
        *,
        path: str = "",
        outcome: Unknown | None = None,
        resolver: Callable[[], Outcome] | None = None,
    ) -> None:
        super().__init__(message, path=path)
        self.outcome = outcome
        self._resolver = resolver

    def resolve(self) -> Version:
        """The version that my write got, found out now.

        Raises:
            Refused: my write never was, and no copy of it can still be applied.
            OutcomeUnknown: it still cannot be told.
        """
        if self._resolver is None:
            raise self
        return self._resolver().unwrap()

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuilt, (type(self), str(self), self.path, self.outcome))


def _rebuilt(kind: type[OutcomeUnknown], message: str, path: str, outcome: Unknown | None) -> OutcomeUnknown:
    return kind(message, path=path, outcome=outcome)


class StoreError(CasError, OSError):
    """The store did not do the call."""


class ObjectNotFound(StoreError, FileNotFoundError):
    """There is no object at this path."""


class BucketNotFound(StoreError, FileNotFoundError):
    """There is no such bucket or container."""


class AccessDenied(StoreError, PermissionError):
    """The credentials are missing, wrong, or lack a permission."""


class Unavailable(StoreError):
    """The store could not be reached, or kept failing or throttling, until the timeout."""


class NotSupported(CasError):
    """This store or protocol cannot do what was asked."""


class InvalidInput(CasError, ValueError):
    """A value that no retry mends."""


class InvalidUrl(InvalidInput):
    """The URL cannot be understood."""


class InvalidVersion(InvalidInput):
    """The text is not a version, or a version of another kind of store."""


class NotBytes(InvalidInput, TypeError):
    """What was to be written is no bytes."""
