"""Pages of S3 listings as they are read here, next to what botocore's own parser makes of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("s3fs")

from botocore.handlers import _decode_list_object
from botocore.model import ServiceModel
from botocore.parsers import create_parser
from botocore.session import Session

from fsspec_cas.answer import Entry, Page
from fsspec_cas.backends.reply import (
    HttpReply,
    StatementKind,
    StoreRequest,
    StoreStatement,
    Unproven,
    Verb,
    http_date_ms,
    iso_ms,
)
from fsspec_cas.backends.s3.answers import S3Dialect, version_of

DAY = "Sat, 21 Nov 2026"
SPACE = ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
ENTRY = "<Contents><Key>{}</Key><LastModified>{}</LastModified><ETag>&quot;e&quot;</ETag><Size>{}</Size></Contents>"


def body(*entries: tuple[str, str, int], space: str = SPACE, head: str = "", more: str = "") -> bytes:
    end = f"<IsTruncated>{str(bool(more)).lower()}</IsTruncated>"
    end += f"<NextContinuationToken>{more}</NextContinuationToken>" if more else ""
    text = "".join(ENTRY.format(*entry) for entry in entries)
    return f'<?xml version="1.0"?><ListBucketResult{space}>{head}<Name>b</Name>{text}{end}</ListBucketResult>'.encode()


def by_botocore(data: bytes) -> Page:
    loaded = Session().get_service_model("s3")
    assert isinstance(loaded, ServiceModel)
    shape = loaded.operation_model("ListObjectsV2").output_shape
    answer = create_parser("rest-xml").parse({"status_code": 200, "headers": {}, "body": data}, shape)
    _decode_list_object([], [("Contents", "Key")], answer, {"encoding_type_auto_set": True})
    entries = [
        Entry(f"b/{one['Key']}", one["Size"], int(one["LastModified"].timestamp() * 1000), version_of(one["ETag"]))
        for one in answer.get("Contents", ())
    ]
    return Page(tuple(entries), answer.get("NextContinuationToken"))


def heard(data: bytes, status: int = 200) -> Any:
    return S3Dialect().interpret(
        StoreRequest(Verb.LIST, "b/"),
        HttpReply(status, [("Content-Type", "application/xml")], data),
        gives_request_ids=None,
    )


@pytest.mark.parametrize(
    "data",
    [
        body(),
        body(("a", "2026-11-21T11:00:00.123Z", 5), ("b/c", "2026-11-21T11:00:00Z", 0), more="b/c &amp; on"),
        body(("a b&amp;&lt;é>", "2009-10-12T17:50:30.000Z", 1), space=""),
        body(("a+b%20c%2Bd", "2026-11-21T11:00:00.5Z", 1), head="<EncodingType>url</EncodingType>"),
        body(("a+b%20c%2Bd", "2026-11-21T11:00:00+02:00", 1)),
        body((" spaces ", "2026-11-21T11:00:00.123456Z", 2**40)),
        body(("a", "2026-11-21T11:00:00.9996Z", 1), ("b", "2026-11-21T11:00:00.1234567+02:00", 1)),
    ],
)
def test_page_is_read_as_botocore_reads_it(data: bytes) -> None:
    assert heard(data).document == by_botocore(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"<ListBucketResult",
        body().replace(b"<IsTruncated>false</IsTruncated>", b""),
        body(("a", "yesterday", 1)),
        body(("a", "2026-11-21T11:00:00.1234x67Z", 1)),
        body(head="<Prefix>elsewhere</Prefix>"),
        body().replace(b"<Name>", b"<Contents><Key>a</Key></Contents><Name>"),
    ],
)
def test_malformed_listing_page_is_not_believed(data: bytes) -> None:
    assert isinstance(heard(data), Unproven)
    assert isinstance(heard(body(), 404), Unproven)


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (iso_ms, "2026-11-21T04:00:00.5"),
        (http_date_ms, "Sat Nov 21 04:00:00 2026"),
        (http_date_ms, f"{DAY} 04:00 -0000"),
    ],
)
def test_time_without_a_zone_is_utc(read: Callable[[str], int], text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert read(text) // 1000 == 1795233600
    finally:
        monkeypatch.undo()
        time.tzset()


def test_truncated_page_without_a_token_is_refused_at_once() -> None:
    said = heard(body().replace(b"false", b"true"))
    assert isinstance(said, StoreStatement)
    assert said.kind is StatementKind.OTHER
    assert "ListObjectsV2" in said.advice
