"""What a store can do."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a kind of store is documented to do; `fsspec-cas probe` shows what one endpoint really does.

    Attributes:
        create: `put_if_absent` is atomic.
        match: `put_if_match` is atomic.
        delete_match: `delete_if_match` is atomic.
        read_changed: a conditional GET moves no body when nothing changed.
        unique_versions: a version never comes back, also not when equal bytes are written again.
        keeps_write_id: the identity of a write is stored with the object, so a lost answer can be settled.
        own_clock: a look (`head`) says when the object was written and when it was asked, by the store's own clock.
        writes_per_s: how often one object may be overwritten, or None where no limit is documented.

    >>> can = Store.from_url("memory://docs/store").capabilities
    >>> can.create, can.unique_versions
    (True, True)
    """

    create: bool
    match: bool
    delete_match: bool
    read_changed: bool
    unique_versions: bool
    keeps_write_id: bool
    own_clock: bool = False
    writes_per_s: float | None = None

    def to_json(self) -> dict[str, object]:
        """The capabilities as a JSON-able mapping.

        >>> can.to_json()["delete_match"]
        True
        """
        return asdict(self)
