"""Table from a store's statement to the caller's answer or error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from fsspec_cas.answer import (
    Applied,
    ConditionFailed,
    Missing,
    NoAnswer,
    NotApplied,
    ObjectState,
    Page,
    Unchanged,
    Upload,
    UploadGone,
)
from fsspec_cas.backends.reply import Refusals, StatementKind, StoreRequest, StoreStatement, Verb, http_date_ms
from fsspec_cas.errors import AccessDenied, BucketNotFound, CasError, NotSupported, OutcomeUnknown, StoreError

Heeded = (
    Applied | ConditionFailed | UploadGone | Missing | Unchanged | Page | ObjectState | Upload | NotApplied | NoAnswer
)
Meaning = Callable[[StoreRequest, StoreStatement], Heeded]

_PASSING = frozenset({"SlowDown", "InternalError", "ServiceUnavailable", "RequestTimeout", "Throttling", "Busy"})
_OF_OBJECTS = (StatementKind.ABSENT, StatementKind.UNCHANGED, StatementKind.GONE)


def _applied(request: StoreRequest, statement: StoreStatement) -> Applied:
    return Applied(statement.version if request.verb.writes else None)


def _carried(request: StoreRequest, statement: StoreStatement) -> Heeded:
    """Return the statement's state, page or upload; StoreError without one.

    Raises OutcomeUnknown if a part has made the object.
    """
    if request.verb is Verb.PART and statement.version is not None and statement.document is None:
        summary = f"{request.path!r} was created from the parts so far ({statement.version}), before the last one"
        raise OutcomeUnknown(f"{summary}; read it and decide", path=request.path)
    if not isinstance(statement.document, (ObjectState, Page, Upload)):
        raise StoreError(
            f"the answer to the {request.verb.value} of {request.path!r} brought nothing", path=request.path
        )
    return statement.document


def _denied(request: StoreRequest, _: StoreStatement) -> ConditionFailed:
    return ConditionFailed(request.dialect)


def _each(request: StoreRequest, statement: StoreStatement) -> Heeded:
    """Return the answer to a delete of many objects: `Applied`, or `NoAnswer` if all refusals are temporary.

    Else raise AccessDenied or StoreError. Missing objects are no refusals.
    """
    refused = statement.document.codes if isinstance(statement.document, Refusals) else {}
    refusals = {key: code for key, code in refused.items() if code != "NoSuchKey"}
    if not refusals:
        return Applied(None)
    key, code = next(iter(refusals.items()))
    summary = f"{len(refusals)} of {len(request.paths)} objects were not removed, {key!r} first: {code}"
    if set(refusals.values()) <= _PASSING:
        return NoAnswer(f"503 {summary}")
    path = f"{request.path.partition('/')[0]}/{key}"
    kind = AccessDenied if "Denied" in code else StoreError
    names = ", ".join(repr(name) for name in list(refusals)[:10])
    raise kind(f"{summary}; refused: {names}", path=path)


def _later(_: StoreRequest, statement: StoreStatement) -> NotApplied | NoAnswer:
    return (NotApplied if statement.not_applied else NoAnswer)(statement.why, statement.retry_after_s)


ANSWERS: Mapping[tuple[Verb, StatementKind], Meaning] = MappingProxyType(
    {
        **{(verb, StatementKind.DONE): _applied for verb in Verb if verb.conditional or verb is Verb.DELETE},
        **{(verb, StatementKind.DONE): _carried for verb in (Verb.HEAD, Verb.GET, Verb.LIST, Verb.BEGIN, Verb.PART)},
        (Verb.DELETE_MANY, StatementKind.DONE): _each,
        (Verb.HEAD, StatementKind.ABSENT): lambda *_: Missing(),
        (Verb.GET, StatementKind.ABSENT): lambda *_: Missing(),
        (Verb.MATCH, StatementKind.ABSENT): _denied,
        (Verb.DELETE, StatementKind.ABSENT): _applied,
        (Verb.DELETE_MATCH, StatementKind.ABSENT): _denied,
        (Verb.GET, StatementKind.UNCHANGED): lambda *_: Unchanged(),
        **{(verb, StatementKind.FALSE): _denied for verb in Verb if verb.conditional},
        **{(verb, StatementKind.FALSE): _denied for verb in (Verb.BEGIN, Verb.PART)},
        (Verb.FINISH, StatementKind.GONE): lambda _, statement: UploadGone(
            f"{statement.why}: the upload was finished or dropped"
        ),
        **{(verb, StatementKind.CONFLICT): _later for verb in Verb},
        **{(verb, StatementKind.BUSY): _later for verb in Verb},
    }
)


def meaning(request: StoreRequest, statement: StoreStatement, vendor: str, now: str) -> Any:
    to_answer = ANSWERS.get((request.verb, statement.kind))
    if to_answer is None and request.verb.conditional and statement.kind in _OF_OBJECTS:
        to_answer = _later  # MinIO has answered stored objects with NoSuchKey
    if to_answer is not None:
        return to_answer(request, statement)
    raise refusal(request, statement, vendor, now)


def _clocks(now: str, date: str | None) -> str:
    text = f"this machine's clock says {now}, the store's {date or 'nothing'}"
    own_ms, store_ms = http_date_ms(now), http_date_ms(date)
    if own_ms is None or store_ms is None:
        return text
    side = "ahead" if own_ms > store_ms else "behind"
    return f"{text} ({abs(own_ms - store_ms) // 1000} s {side})"


def refusal(request: StoreRequest, statement: StoreStatement, vendor: str, now: str) -> CasError:
    """Error for a refusal, typed by the statement's kind, often with advice.

    FORBIDDEN, UNSUPPORTED and OTHER of a DELETE_MANY make NotSupported. `now`: this machine's time, for wrong clocks.
    """
    path, why = request.path, statement.why
    advice = f"; {statement.advice}" if statement.advice else ""
    container = "container" if vendor == "Azure" else "bucket"
    match statement.kind:
        case StatementKind.UNSUPPORTED | StatementKind.OTHER | StatementKind.FORBIDDEN if (
            request.verb is Verb.DELETE_MANY
        ):
            return NotSupported(
                f"the store at {path!r} does not support a request that deletes many objects: {why}", path=path
            )
        case StatementKind.NO_BUCKET:
            name = path.partition("/")[0]
            return BucketNotFound(f"the {container} {name!r} does not exist: create it first", path=path)
        case StatementKind.FORBIDDEN if "Skewed" in statement.code:
            return AccessDenied(
                f"{vendor} refused access to {path!r}: {why}; {_clocks(now, statement.date)}: set the clock", path=path
            )
        case StatementKind.FORBIDDEN:
            advice = advice or "; check key, secret and policy"
            return AccessDenied(f"{vendor} refused access to {path!r}: {why}{advice}", path=path)
        case StatementKind.UNSUPPORTED:
            summary = f"the store at {path!r} does not implement this {request.verb.value}"
            return NotSupported(f"{summary}: {why}{advice}", path=path)
        case StatementKind.GONE:
            return StoreError(f"the upload of {path!r} is gone ({why}); write it again", path=path)
    return StoreError(f"{vendor} refused the {request.verb.value} of {path!r}: {why}{advice}", path=path)
