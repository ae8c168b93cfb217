"""Settings that cannot work are refused, and both sides are named."""

from __future__ import annotations

import pytest

from lockprovider import InvalidSettings, LockSettings


def test_the_defaults_are_hudis() -> None:
    settings = LockSettings()
    assert (settings.validity_s, settings.renew_s) == (300, 30)


def test_a_validity_below_ten_renewals_is_refused_naming_both_settings() -> None:
    LockSettings(validity_s=10, renew_s=1)
    with pytest.raises(InvalidSettings) as refusal:
        LockSettings(validity_s=9.9, renew_s=1)
    said = str(refusal.value)
    for part in (
        "validity_s=9.9",
        "renew_s=1",
        "hoodie.write.lock.storage.validity.timeout.secs",
        "hoodie.write.lock.storage.renew.interval.secs",
    ):
        assert part in said


@pytest.mark.parametrize("wrong", [{"validity_s": 0}, {"renew_s": 0}, {"renew_s": -1}, {"poll_s": 0}], ids=str)
def test_what_must_be_above_zero_is_refused_naming_it(wrong: dict[str, float]) -> None:
    (name,) = wrong
    with pytest.raises(ValueError, match=name):
        LockSettings(**wrong)


@pytest.mark.parametrize(("validity_s", "margin_s"), [(300, 10), (100, 10), (50, 5), (5, 0.5)])
def test_the_margin_is_a_tenth_of_the_validity_and_ten_seconds_at_most(validity_s: float, margin_s: float) -> None:
    assert LockSettings(validity_s=validity_s, renew_s=0.1).margin_s == margin_s
