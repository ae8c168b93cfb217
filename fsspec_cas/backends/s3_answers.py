"""What S3 answers: statuses and codes, whichever client has asked, and listings.

Listings are read from their XML at a tenth of what botocore's parser takes: it turns every field of every entry into an
object of its own, dates included, 50 ms of CPU for a page of 1000. Here the four fields that count are read, before
botocore parses what is left: an empty answer.

Sources: Amazon S3 API reference, "Error responses", ListObjectsV2; Amazon S3 User Guide, "Conditional requests";
botocore `handlers.decode_list_object_v2`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import unquote_plus
from xml.etree import ElementTree as ET

from fsspec_cas.answer import Denied, Entry, Missing, NoAnswer, NotNow, Page, Unchanged
from fsspec_cas.backends.wire import epoch_ms
from fsspec_cas.errors import AccessDenied, BucketNotFound, NotSupported, StoreError
from fsspec_cas.version import Version

A = TypeVar("A")

EVENT = "before-parse.s3.ListObjectsV2"
_PAGE = "fsspec-cas page"
_ROOT = "ListBucketResult"
THROTTLE_STATUS = 429
_DENIED_STATUS = (401, 403)
_DENIED_CODES = ("AccessDenied", "ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired")
# 409 means "somebody is writing this key just now": not applied, and not the same as 412.
_CONFLICT_CODES = ("ConditionalRequestConflict", "OperationAborted", "ConcurrentModification")


def write_refusal(status: int, code: str) -> Denied | None:
    """Of a write or a delete at a version."""
    # 404 NoSuchKey: AWS's answer to If-Match on a missing key. 304: old MinIO's answer to a failed condition.
    false = status in (304, 412) or (status == 404 and code != "NoSuchBucket")
    return Denied() if false else None


def create_refusal(status: int, code: str) -> Denied | None:
    """Of a create."""
    del code
    return Denied() if status in (304, 412) else None  # 404 speaks of the bucket


def read_refusal(status: int, code: str) -> Missing | Unchanged | None:
    """Of a look or a read."""
    if status == 304:
        return Unchanged()
    return Missing() if status == 404 and code != "NoSuchBucket" else None


def answer_of(
    status: int, code: str, path: str, refusal: Callable[[int, str], A | None], later_s: float | None = None
) -> A | NotNow | NoAnswer:
    """What an answer that is no success came to; `refusal` goes first.

    Raises:
        StoreError: no second send mends it. `NotSupported`: nor would it elsewhere in this store.
    """
    why = f"{status} {code}"
    answer = refusal(status, code)
    if answer is not None:
        return answer
    if status == 409 and code in _CONFLICT_CODES:
        return NotNow(why)
    if status == THROTTLE_STATUS:
        return NotNow(why, later_s)
    if status == 501 or code == "NotImplemented":
        raise NotSupported(f"the store at {path!r} does not implement conditional requests ({why})", path=path)
    if status in _DENIED_STATUS or code in _DENIED_CODES:
        raise AccessDenied(f"S3 refused access to {path!r}: {why}; check key, secret and policy", path=path)
    if status == 404:
        bucket = path.partition("/")[0]
        also = "" if code == "NoSuchBucket" else f", or what answers ({why}) is no S3 store: check the endpoint"
        raise BucketNotFound(f"there is no bucket {bucket!r}{also}; create it first", path=path)
    if 300 <= status < 500 and code not in ("RequestTimeout", "SlowDown"):
        raise StoreError(f"S3 refused the request for {path!r}: {why}", path=path)
    return NoAnswer(why, later_s)  # every 5xx, and errors inside a 200


def read_listing(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: object) -> None:
    """Take a whole and good page out of the answer; anything else is left to botocore. A handler of `EVENT`."""
    if response_dict.get("status_code") != 200:
        return
    try:
        root = ET.fromstring(response_dict["body"])  # noqa: S314 - as botocore does it; expat limits expansion
        space = root.tag.removesuffix(_ROOT)
        if not root.tag.endswith(_ROOT):
            return
        found = tuple(_entries(root, space, encoded=root.findtext(f"{space}EncodingType") == "url"))
    except (ET.ParseError, ValueError, TypeError, KeyError):
        return
    customized_response_dict[_PAGE] = Page(found, root.findtext(f"{space}NextContinuationToken"))
    response_dict["body"] = f"<{_ROOT}/>".encode()


def page_of(bucket: str, answer: dict[str, Any]) -> Page:
    """What was read from the answer, by us or by botocore. Paths are the keys with the bucket before them."""
    ours: Page | None = answer.get(_PAGE)
    if ours is None:
        ours = Page(tuple(map(_entry, answer.get("Contents", ()))), answer.get("NextContinuationToken"))
    return Page(tuple(replace(one, path=f"{bucket}/{one.path}") for one in ours.entries), ours.token)


def _entry(item: dict[str, Any]) -> Entry:
    return Entry(item["Key"], item["Size"], epoch_ms(item["LastModified"]), version_of(item.get("ETag")))


def version_of(etag: str | None) -> Version | None:
    """Some gateways take the quotes off some answers; it is one version all the same."""
    return Version("s3", etag if etag.startswith(('"', "W/")) else f'"{etag}"') if etag else None


def _entries(root: ET.Element, space: str, *, encoded: bool) -> Iterator[Entry]:
    names = {f"{space}{name}": name for name in ("Key", "Size", "LastModified", "ETag")}
    for item in root.iterfind(f"{space}Contents"):
        fields = {names[child.tag]: child.text or "" for child in item if child.tag in names}
        key = unquote_plus(fields["Key"]) if encoded else fields["Key"]
        yield Entry(key, int(fields["Size"]), _ms(fields["LastModified"]), version_of(fields.get("ETag")))


def _ms(text: str) -> int:
    return round(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000)
