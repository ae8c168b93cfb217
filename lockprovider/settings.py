"""Settings of a lock: from arguments, or, with Hudi's lower bounds, from Hudi's keys or a URL's options.

Source: `StorageBasedLockConfig`, `HoodieLockConfig` of Hudi 1.2.0.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl

from fsspec_cas.arguments import shown
from lockprovider.errors import InvalidSettings
from lockprovider.hudi_keys import AZURE, BASE_PATH, PAUSE_MS, RENEW, RENEW_OLDER, VALIDITY, WAIT_MS, check

# JVM Hudi takes a lock over this long after `validUntil` (StorageBasedLockProvider).
GRACE_MS = 500
# A lock released with pending publishes keeps JVM writers away for at most this long.
HAND_OVER_S = 10.0
_RENEWALS_PER_VALIDITY = 10
_MARGIN_SHARE = 10
_MARGIN_MAX_S = 10.0
_LONGEST_S = 100 * 365.25 * 86_400
_NEEDED = ("validity", "timeout", "poll")
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, init=False)
class LockSettings:
    """Settings of a lock, with Hudi's words and defaults; all times are seconds.

    Attributes:
        validity: how long a lease lives without renewal, at most 100 years
            (`hoodie.write.lock.storage.validity.timeout.secs`).
        renew: interval of renewals, by default a tenth of `validity`
            (`hoodie.write.lock.storage.renew.interval.secs`).
        timeout: how long `acquire` waits for a held lock (`hoodie.write.lock.wait_time_ms`).
        poll: longest interval between a waiting client's reads (`hoodie.write.lock.wait_time_ms_between_retry`); a
            waiter in the record may sleep up to 4.5 s.
        check_store: whether S3 stores but Amazon's must prove that they obey conditions: see
            `fsspec_cas.probe.proof.require_safe_for_locks`.
        max_hold: how long a lease is renewed (None: until release). Then its holder gets `LeaseLost`, and others can
            take the lock when it lapses.

    >>> lockprovider.LockSettings(validity=60).renew
    6.0
    """

    validity: float
    renew: float
    timeout: float
    poll: float
    check_store: bool
    max_hold: float | None

    def __init__(
        self,
        validity: float = 300.0,
        renew: float | None = None,
        timeout: float = 60.0,
        poll: float = 1.0,
        *,
        check_store: bool = True,
        max_hold: float | None = None,
    ) -> None:
        times = {"validity": validity, "renew": renew, "timeout": timeout, "poll": poll, "max_hold": max_hold}
        text = ", ".join(
            f"{name}={shown(value)}" for name, value in times.items() if value is not None or name in _NEEDED
        )
        values: list[Any] = [value for name, value in times.items() if value is not None or name in _NEEDED]
        if not all(map(_is_number, values)):
            raise InvalidSettings(f"all times must be numbers of seconds: {text}")
        if not isinstance(check_store, bool):
            raise InvalidSettings(f"check_store={shown(check_store)} must be True or False")
        if not all(map(math.isfinite, values)):
            raise InvalidSettings(f"all times must be finite numbers of seconds: {text}")
        every = validity / _RENEWALS_PER_VALIDITY if renew is None else renew
        if validity <= 0 or every <= 0 or poll <= 0 or (max_hold is not None and max_hold <= 0):
            raise InvalidSettings(f"validity, renew, poll and max_hold must be above zero: {text}")
        if timeout < 0:
            raise InvalidSettings(f"timeout must not be below zero: {text}")
        if validity > _LONGEST_S:
            raise InvalidSettings(f"validity must be at most {_LONGEST_S:.0f}, or readers refuse the record: {text}")
        if validity < _RENEWALS_PER_VALIDITY * every * (1 - _ROUNDING):
            raise InvalidSettings(
                f"validity={validity:g} must be at least {_RENEWALS_PER_VALIDITY} x renew={every:g}: "
                "raise hoodie.write.lock.storage.validity.timeout.secs or lower "
                "hoodie.write.lock.storage.renew.interval.secs"
            )
        for name, value in {**times, "renew": every, "check_store": check_store}.items():
            object.__setattr__(self, name, value)

    @property
    def margin_s(self) -> float:
        """Seconds before `validUntil` at which a holder treats its lease as lapsed."""
        return min(self.validity / _MARGIN_SHARE, _MARGIN_MAX_S)

    @classmethod
    def from_hudi(cls, config: Mapping[str, object]) -> LockSettings:
        """Read a writer's configuration, with Hudi's defaults and bounds; `hudi_keys` lists the keys.

        Raises:
            InvalidSettings: another lock provider, a misspelt key, or a value that Hudi rejects too.

        >>> config = {
        ...     "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.StorageBasedLockProvider",
        ...     "hoodie.write.lock.storage.validity.timeout.secs": "600",
        ... }
        >>> lockprovider.LockSettings.from_hudi(config).validity
        600.0
        """
        check(config)
        return _settings(config, _words_of(config))


def checked(settings: object) -> LockSettings:
    if settings is None:
        return LockSettings()
    if not isinstance(settings, LockSettings):
        raise InvalidSettings(f"settings={shown(settings)} must be LockSettings, e.g. LockSettings(validity=60)")
    return settings


def check_functions(**functions: object) -> None:
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise InvalidSettings(f"{name}={shown(function)} must be a function, or left out")


def _is_number(value: object) -> bool:
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and float(value) is not None
    except OverflowError:
        return False


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a URL or config; absent ones are None. `on`: lock's path."""

    url: str
    settings: LockSettings | None = None
    on: str | None = None
    storage_options: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class _Word:
    """Setting's name and unit, `per_s` to a second; `whole` refuses fractions."""

    name: str
    unit: str = "seconds"
    per_s: int = 1
    whole: bool = False


_AZURE_SCHEMES = ("az", "abfs", "abfss", "wasb", "wasbs")
_LEAST_S = {"validity": 10.0, "renew": 1.0}
_FIELDS = ("validity", "renew", "timeout", "poll")
_IN_URL = {field: _Word(field) for field in _FIELDS}
_IN_CONFIG = {
    "validity": _Word(VALIDITY, whole=True),
    "renew": _Word(RENEW, whole=True),
    "timeout": _Word(WAIT_MS, "milliseconds", 1000, whole=True),
    "poll": _Word(PAUSE_MS, "milliseconds", 1000, whole=True),
}


def from_config(config: Mapping[str, object]) -> Options:
    """Read a lock's URL, settings and, for an Azure URL, credentials from Hudi's keys.

    Raises `InvalidSettings` without `hoodie.base.path`, and as `LockSettings.from_hudi`.
    """
    if not isinstance(config, Mapping):
        raise InvalidSettings(f"config={shown(config)} must be a mapping of Hudi's keys")
    base = config.get(BASE_PATH)
    if not isinstance(base, str) or not base.strip():
        raise InvalidSettings(f"{BASE_PATH}={shown(base)} must be the table's URL or folder: the lock is kept in it")
    # fsspec reads Hadoop's file:/folder as a relative path.
    url = "file://" + base.removeprefix("file:") if base.startswith("file:/") and "://" not in base else base
    others = {key: value for key, value in config.items() if key not in AZURE}
    azure: dict[str, Any] = {}
    if url.partition("://")[0] in _AZURE_SCHEMES:  # other stores ignore these keys, as in Hudi
        azure = {AZURE[key]: str(value) for key, value in config.items() if key in AZURE and value not in (None, "")}
    return Options(url, LockSettings.from_hudi(others), storage_options=azure)


def from_url(url: str) -> Options:
    """Split a URL into the part before `?` and lock options; a path without `://` stays whole.

    Raises `InvalidSettings` for an unknown, repeated or invalid option.
    """
    plain, question, query = url.partition("?")
    if not question or "://" not in plain:
        return Options(url)
    pairs = parse_qsl(query, keep_blank_values=True)
    options = dict(pairs)
    allowed = sorted((*_FIELDS, "check_store", "max_hold", "on"))
    for name in options:
        if name not in allowed:
            raise InvalidSettings(f"{name!r} in {url!r} is no option of a lock; those are {', '.join(allowed)}")
    if len(options) < len(pairs):
        raise InvalidSettings(f"{url!r} gives an option twice: {query!r}")
    on = options.pop("on", None)
    if not options:
        return Options(plain, None, on)
    check, most = options.pop("check_store", None), options.pop("max_hold", None)
    settings = _settings(options, _IN_URL)
    if check is not None:
        if check not in ("true", "false"):
            raise InvalidSettings(f"check_store={check!r} must be true or false")
        settings = replace(settings, check_store=check == "true")
    if most is not None:
        settings = replace(settings, max_hold=_seconds(_Word("max_hold"), most))
    return Options(plain, settings, on)


def _words_of(config: Mapping[str, object]) -> Mapping[str, _Word]:
    """Return each setting's config key and unit; `renew` has Hudi's older key if `config` does.

    Raises `InvalidSettings` if both disagree.
    """
    newer, older = _IN_CONFIG["renew"], _Word(RENEW_OLDER, whole=True)
    if RENEW_OLDER not in config:
        return _IN_CONFIG
    if RENEW in config and _seconds(newer, config[RENEW]) != _seconds(older, config[RENEW_OLDER]):
        raise InvalidSettings(
            f"{RENEW}={config[RENEW]} and {RENEW_OLDER}={config[RENEW_OLDER]} are two names of one setting "
            "and disagree: keep the first"
        )
    return {**_IN_CONFIG, "renew": older}


def _settings(values: Mapping[str, object], words: Mapping[str, _Word]) -> LockSettings:
    """Build settings from `values`, whose keys and units `words` names by field.

    Absent ones get defaults, a URL's `renew` a tenth of `validity`. Raises `InvalidSettings` for no number, one below
    Hudi's bounds, or a validity below ten renewals.
    """
    seconds = {field: _seconds(word, values[word.name]) for field, word in words.items() if word.name in values}
    validity, renew, timeout, poll = (seconds.get(field, _DEFAULTS[field]) for field in _FIELDS)
    if words is _IN_URL and "renew" not in seconds:
        renew = validity / _RENEWALS_PER_VALIDITY  # Hudi's key has its own default
    if validity < _RENEWALS_PER_VALIDITY * renew * (1 - _ROUNDING):
        longer, shorter = (_shown(field, words[field], values) for field in ("validity", "renew"))
        raise InvalidSettings(f"{longer} must be at least {_RENEWALS_PER_VALIDITY} x {shorter}")
    for field, least_s in _LEAST_S.items():
        if seconds.get(field, least_s) < least_s:
            raise InvalidSettings(f"{_shown(field, words[field], values)} must be at least {least_s:g} seconds")
    try:
        return LockSettings(validity, renew, timeout, poll)
    except InvalidSettings as error:
        written = ", ".join(_shown(field, words[field], values) for field in seconds)
        raise InvalidSettings(f"{written}: {error}") from None


_DEFAULTS = {field: float(getattr(LockSettings(), field)) for field in _FIELDS}


def _shown(field: str, word: _Word, values: Mapping[str, object]) -> str:
    if word.name in values:
        return f"{word.name}={values[word.name]}"
    return f"{word.name}={_DEFAULTS[field] * word.per_s:g} (the default)"


def _seconds(word: _Word, value: object) -> float:
    """Convert a setting's number or text to seconds.

    Raises `InvalidSettings` for no finite number, or a fraction where `word` is `whole`.
    """
    expected = f"a {'whole ' if word.whole else ''}number of {word.unit}"
    try:
        number = float(str(value).strip())
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or (word.whole and not number.is_integer()):
        raise InvalidSettings(f"{word.name}={value!r} must be {expected}")
    return number / word.per_s
