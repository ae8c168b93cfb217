"""Errors, grouped by what the caller would do next.

    CasError
        Refused              read and decide again: AlreadyExists, VersionMismatch
        OutcomeUnknown       settle it by `Store.resolve`
        StoreError           nothing was written: ObjectNotFound, BucketNotFound, AccessDenied, Unavailable (try later)
        NotSupported         choose another store
        InvalidInput         correct the argument: InvalidUrl, InvalidVersion, NotBytes

Every error has a one-sentence message and can be pickled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from fsspec_cas.outcome import Condition, Outcome, Unknown, Version


class CasError(Exception):
    """Base class of all errors of this library; `path` names the object, or is empty."""

    def __init__(self, message: str = "", *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class Refused(CasError):
    """The condition of a write was false; nothing was written.

    `current` is the state read afterwards: a `Version`, `ABSENT`, or None if unknown.
    """

    def __init__(self, message: str = "", *, path: str = "", current: Condition | None = None) -> None:
        super().__init__(message, path=path)
        self.current = current


class AlreadyExists(Refused, FileExistsError):
    """A create found an object at its path."""


class VersionMismatch(Refused):
    """`put_if_match` or `delete_if_match` found another version, or no object."""


class OutcomeUnknown(CasError):
    """The write may have been applied, applied and replaced since, or never applied; `outcome` holds the evidence."""

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
        """Read again, and re-send the write while its condition holds.

        Without a resolver, which only some calls of the `cas` filesystem set, raise this error: use `Store.resolve`.

        Raises:
            Refused: no copy of the write was or will be applied.
            OutcomeUnknown: the outcome still cannot be determined.
        """
        if self._resolver is None:
            raise self
        return self._resolver().unwrap()

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (str(self),), {"path": self.path, "outcome": self.outcome})


class StoreError(CasError, OSError):
    """The call failed and nothing was written; an unconditional delete may have been performed."""


class ObjectNotFound(StoreError, FileNotFoundError):
    """No object exists at this path."""


class BucketNotFound(StoreError, FileNotFoundError):
    """The bucket or container does not exist."""


class AccessDenied(StoreError, PermissionError):
    """The credentials are missing, wrong, or lack a permission."""


class Unavailable(StoreError):
    """The store could not be reached, or kept failing or throttling until the timeout."""


class NotSupported(CasError):
    """This store or protocol cannot perform the operation."""


class InvalidInput(CasError, ValueError):
    """An argument has a value that no retry makes valid."""


class InvalidUrl(InvalidInput):
    """The URL or path of a store is not valid, or contains a secret."""


class InvalidVersion(InvalidInput):
    """The text is not a version, or a version of another kind of store."""


class NotBytes(InvalidInput, TypeError):
    """The data of a write is not bytes."""
