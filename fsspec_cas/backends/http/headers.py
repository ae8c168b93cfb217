"""What the headers of a reply say, in whatever dialect: pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime

Headers = Mapping[str, Sequence[str]]  # names in lower case
_SINGLE = ("etag", "content-length", "x-goog-generation")


def one(headers: Headers, name: str) -> str | None:
    """The first value of a header."""
    values = headers.get(name)
    return values[0] if values else None


def header_flaw(headers: Headers, *, reading: bool) -> str | None:
    """Why no store can have sent these headers, or None.

    `reading`: the reply brings an object or its head, so its length must be known.
    """
    for name in _SINGLE:
        values = headers.get(name)
        if values is not None and len(values) > 1 and len(set(values)) > 1:
            return f"two different values of {name}"
    age = one(headers, "age")
    if age is not None and age.strip() not in ("", "0"):
        return f"it comes from a cache (Age: {age})"
    if reading and "content-length" not in headers and "transfer-encoding" not in headers:
        return "no length"
    return None


def later_s(headers: Headers) -> float | None:
    """Seconds of `Retry-After`; None for none, and for a date."""
    text = one(headers, "retry-after")
    return float(text) if text and text.isdigit() else None


def epoch_ms(moment: datetime) -> int:
    """Epoch ms of a time with a zone."""
    return int(moment.timestamp() * 1000)


def http_date_ms(text: str | None) -> int | None:
    """Epoch milliseconds of a `Date` header; None if it is missing or no date."""
    try:
        return epoch_ms(parsedate_to_datetime(text)) if text else None
    except ValueError:
        return None


def iso_ms(text: str) -> int:
    """Epoch ms of an RFC 3339 time; Python 3.10 reads three or six digits of a second only.

    Raises:
        ValueError: it is none.
    """
    try:
        return round(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000)
    except ValueError:
        if text[19:20] != ".":
            raise
        whole = datetime.fromisoformat(text[:19]).replace(tzinfo=timezone.utc)
        return epoch_ms(whole) + int(text[20:].rstrip("Z")[:3].ljust(3, "0"))
