"""How long a lease is valid and how often it is renewed; relations are checked here, naming both sides."""

from __future__ import annotations

from dataclasses import dataclass

from lockprovider.errors import InvalidSettings

# Hudi grants this much after `validUntil` before it takes a lock over (StorageBasedLockProvider).
GRACE_MS = 500
_RENEWALS_PER_VALIDITY = 10
_MARGIN_SHARE = 10
_MARGIN_MAX_S = 10.0


@dataclass(frozen=True, slots=True)
class LockSettings:
    """Hudi's names and defaults, in seconds.

    Attributes:
        validity_s: how long a lease lives without renewal (`hoodie.write.lock.storage.validity.timeout.secs`).
        renew_s: how often it is renewed (`hoodie.write.lock.storage.renew.interval.secs`).
        timeout_s: how long `lock()` waits for a held lock.
        poll_s: the slowest pace at which a waiting client looks at the record.
    """

    validity_s: float = 300.0
    renew_s: float = 30.0
    timeout_s: float = 60.0
    poll_s: float = 1.0

    def __post_init__(self) -> None:
        if self.validity_s <= 0 or self.renew_s <= 0 or self.poll_s <= 0:
            raise InvalidSettings(f"validity_s, renew_s and poll_s must be above zero: {self}")
        if self.validity_s < _RENEWALS_PER_VALIDITY * self.renew_s:
            raise InvalidSettings(
                f"validity_s={self.validity_s:g} must be at least {_RENEWALS_PER_VALIDITY} x renew_s={self.renew_s:g}: "
                "raise hoodie.write.lock.storage.validity.timeout.secs or lower "
                "hoodie.write.lock.storage.renew.interval.secs"
            )

    @property
    def margin_s(self) -> float:
        """How long before `validUntil` a holder stops believing in its own lease."""
        return min(self.validity_s / _MARGIN_SHARE, _MARGIN_MAX_S)
