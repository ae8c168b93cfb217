"""A publish that is decided: what is to be created where, and how to know it again."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Pending:
    """A publish that has been decided and may not have been applied yet: create `path` from `staged`.

    Or, where `staged` is empty, with `data`. `sole`: its maker promises that nobody ever writes anything else to the
    path, so that whatever is there is this. `first`: what the same decision puts there before it; `sole`, with its
    bytes, and with nothing before itself.

    >>> pending = lockprovider.lock("memory://docs/lock").stage("state/7", b"seven")
    >>> pending.path, pending.sole
    ('state/7', False)
    """

    path: str
    staged: str
    digest: str
    data: bytes | None = None
    sole: bool = False
    first: Pending | None = None

    @classmethod
    def of_bytes(cls, path: str, data: bytes) -> Pending:
        """A `sole` publish of these bytes.

        >>> lockprovider.Pending.of_bytes("state/7", b"seven").digest == pending.digest
        True
        """
        return cls(path, "", digest(data), data, sole=True)

    @property
    def parts(self) -> tuple[Pending, ...]:
        """All that it puts there, in this order: who sees the last one sees all."""
        last = replace(self, first=None)
        return (last,) if self.first is None else (self.first, last)


def digest(data: bytes) -> str:
    """The identity of a published object's bytes."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()
