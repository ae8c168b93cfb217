"""Table from a store's statement about a request to the caller's answer or error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from fsspec_cas.answer import (
    Applied,
    Denied,
    Gone,
    Missing,
    NoAnswer,
    NotNow,
    Page,
    Seen,
    Unchanged,
    Upload,
)
from fsspec_cas.backends.reply import Refusals, Says, Spoken, StoreRequest, Verb, http_date_ms
from fsspec_cas.errors import AccessDenied, BucketNotFound, CasError, NotSupported, StoreError

Heeded = Applied | Denied | Gone | Missing | Unchanged | Page | Seen | Upload | NotNow | NoAnswer
Meaning = Callable[[StoreRequest, Spoken], Heeded]

_PASSING = frozenset({"SlowDown", "InternalError", "ServiceUnavailable", "RequestTimeout", "Throttling", "Busy"})


def _applied(asked: StoreRequest, spoken: Spoken) -> Applied:
    return Applied(spoken.version if asked.verb.writes else None)


def _carried(asked: StoreRequest, spoken: Spoken) -> Heeded:
    if not isinstance(spoken.document, (Seen, Page, Upload)):
        raise StoreError(f"the answer to the {asked.verb.value} of {asked.path!r} brought nothing", path=asked.path)
    return spoken.document


def _denied(asked: StoreRequest, _: Spoken) -> Denied:
    return Denied(asked.dialect)


def _each(asked: StoreRequest, spoken: Spoken) -> Heeded:
    """Return the answer to a delete of many objects; raise if some were refused."""
    refused = spoken.document.codes if isinstance(spoken.document, Refusals) else {}
    left = {key: code for key, code in refused.items() if code != "NoSuchKey"}
    if not left:
        return Applied(None)
    key, code = next(iter(left.items()))
    what = f"{len(left)} of {len(asked.paths)} objects were not removed, {key!r} first: {code}"
    if set(left.values()) <= _PASSING:
        return NoAnswer(f"503 {what}")
    path = f"{asked.path.partition('/')[0]}/{key}"
    kind = AccessDenied if "Denied" in code else StoreError
    names = ", ".join(repr(name) for name in list(left)[:10])
    raise kind(f"{what}; refused: {names}", path=path)


def _later(_: StoreRequest, spoken: Spoken) -> NotNow | NoAnswer:
    return (NotNow if spoken.undone else NoAnswer)(spoken.why, spoken.retry_after_s)


ANSWERS: Mapping[tuple[Verb, Says], Meaning] = MappingProxyType(
    {
        **{(verb, Says.DONE): _applied for verb in (Verb.CREATE, Verb.MATCH, Verb.FINISH)},
        **{(verb, Says.DONE): _applied for verb in (Verb.DELETE, Verb.DELETE_MATCH, Verb.ABORT)},
        **{(verb, Says.DONE): _carried for verb in (Verb.HEAD, Verb.GET, Verb.LIST, Verb.BEGIN, Verb.PART)},
        (Verb.DELETE_MANY, Says.DONE): _each,
        (Verb.HEAD, Says.ABSENT): lambda *_: Missing(),
        (Verb.GET, Says.ABSENT): lambda *_: Missing(),
        (Verb.MATCH, Says.ABSENT): _denied,
        (Verb.DELETE, Says.ABSENT): _applied,
        (Verb.DELETE_MATCH, Says.ABSENT): _denied,
        (Verb.GET, Says.UNCHANGED): lambda *_: Unchanged(),
        **{
            (verb, Says.FALSE): _denied
            for verb in (Verb.CREATE, Verb.MATCH, Verb.DELETE_MATCH, Verb.BEGIN, Verb.PART, Verb.FINISH)
        },
        **{(verb, Says.EXISTS): _denied for verb in (Verb.CREATE, Verb.PART, Verb.FINISH)},
        (Verb.FINISH, Says.GONE): lambda _, spoken: Gone(f"{spoken.why}: the upload was finished or dropped"),
        (Verb.ABORT, Says.GONE): _applied,
        **{(verb, Says.CONFLICT): _later for verb in Verb},
        **{(verb, Says.BUSY): _later for verb in Verb},
    }
)


def meaning(asked: StoreRequest, spoken: Spoken, vendor: str, now: str) -> Any:
    """Translate the store's statement into an answer, or raise StoreError or NotSupported.

    `now` is this machine's time, for a message about clocks.
    """
    found = ANSWERS.get((asked.verb, spoken.says))
    if found is not None:
        return found(asked, spoken)
    raise refusal(asked, spoken, vendor, now)


def _clocks(now: str, date: str | None) -> str:
    text = f"this machine's clock says {now}, the store's {date or 'nothing'}"
    own_ms, store_ms = http_date_ms(now), http_date_ms(date)
    if own_ms is None or store_ms is None:
        return text
    side = "ahead" if own_ms > store_ms else "behind"
    return f"{text} ({abs(own_ms - store_ms) // 1000} s {side})"


def refusal(asked: StoreRequest, spoken: Spoken, vendor: str, now: str) -> CasError:
    """Return the error for a refusal, with the next step."""
    path, why = asked.path, spoken.why
    advice = f"; {spoken.advice}" if spoken.advice else ""
    container = "container" if vendor == "Azure" else "bucket"
    match spoken.says:
        case Says.UNSUPPORTED | Says.OTHER | Says.FORBIDDEN if asked.verb is Verb.DELETE_MANY:
            return NotSupported(
                f"the store at {path!r} does not support a request that deletes many objects: {why}", path=path
            )
        case Says.NO_BUCKET:
            name = path.partition("/")[0]
            return BucketNotFound(f"the {container} {name!r} does not exist: create it first", path=path)
        case Says.FORBIDDEN if "Skewed" in spoken.code:
            return AccessDenied(
                f"{vendor} refused access to {path!r}: {why}; {_clocks(now, spoken.date)}: set the clock", path=path
            )
        case Says.FORBIDDEN:
            advice = advice or "; check key, secret and policy"
            return AccessDenied(f"{vendor} refused access to {path!r}: {why}{advice}", path=path)
        case Says.UNSUPPORTED:
            what = f"the store at {path!r} does not implement this {asked.verb.value}"
            return NotSupported(f"{what}: {why}{advice}", path=path)
        case Says.GONE:
            return StoreError(f"the upload of {path!r} is gone ({why}); write it again", path=path)
    return StoreError(f"{vendor} refused the {asked.verb.value} of {path!r}: {why}{advice}", path=path)
