"""Settings that cannot work are refused, and both sides are named."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from lockprovider import InvalidSettings, LockSettings
from lockprovider.storage_lock.lock import wait_s


def test_defaults_are_hudis() -> None:
    settings = LockSettings()
    assert (settings.validity, settings.renew) == (300, 30)


def test_validity_below_ten_renewals_is_refused_naming_both_settings() -> None:
    LockSettings(validity=10, renew=1)
    with pytest.raises(InvalidSettings) as refusal:
        LockSettings(validity=9.9, renew=1)
    said = str(refusal.value)
    for part in (
        "validity=9.9",
        "renew=1",
        "hoodie.write.lock.storage.validity.timeout.secs",
        "hoodie.write.lock.storage.renew.interval.secs",
    ):
        assert part in said


@pytest.mark.parametrize(
    "wrong", [{"validity": 0}, {"validity": 4e9}, {"renew": 0}, {"renew": -1}, {"poll": 0}], ids=str
)
def test_setting_out_of_range_is_refused_by_name(wrong: dict[str, float]) -> None:
    (name,) = wrong
    with pytest.raises(ValueError, match=name):
        LockSettings(**wrong)


@pytest.mark.parametrize("value", [10**400, 10**5000, True, "1"], ids=["large", "huge", "flag", "text"])
def test_time_that_is_no_float_is_refused(value: Any) -> None:
    for name in ("validity", "renew", "timeout", "poll", "max_hold"):
        with pytest.raises(InvalidSettings, match=f"{name}="):
            LockSettings(**{name: value})
    with pytest.raises(InvalidSettings, match="timeout="):
        wait_s(value, 0.0)


@pytest.mark.parametrize(("validity_s", "margin_s"), [(300, 10), (100, 10), (50, 5), (5, 0.5)])
def test_margin_is_a_tenth_of_the_validity_and_ten_seconds_at_most(validity_s: float, margin_s: float) -> None:
    assert LockSettings(validity=validity_s, renew=0.1).margin_s == margin_s


def test_settings_are_made_again_of_their_fields() -> None:
    settings = LockSettings(validity=60, max_hold=5)
    assert LockSettings(**asdict(settings)) == settings
