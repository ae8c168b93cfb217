"""Pages of S3 listings as they are read here, next to what botocore's own parser makes of them."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("s3fs")

from botocore.handlers import _decode_list_object
from botocore.model import ServiceModel
from botocore.parsers import create_parser
from botocore.session import Session

from fsspec_cas import Store
from fsspec_cas.backends import s3, s3_answers
from fsspec_cas.backends.s3_answers import page_of, read_listing

SPACE = ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
ENTRY = "<Contents><Key>{}</Key><LastModified>{}</LastModified><ETag>&quot;e&quot;</ETag><Size>{}</Size></Contents>"


def body(*entries: tuple[str, str, int], space: str = SPACE, head: str = "", more: str = "") -> bytes:
    end = f"<NextContinuationToken>{more}</NextContinuationToken>" if more else ""
    text = "".join(ENTRY.format(*entry) for entry in entries)
    return f'<?xml version="1.0"?><ListBucketResult{space}>{head}<Name>b</Name>{text}{end}</ListBucketResult>'.encode()


def by_botocore(data: bytes) -> Any:
    loaded = Session().get_service_model("s3")
    assert isinstance(loaded, ServiceModel)
    shape = loaded.operation_model("ListObjectsV2").output_shape
    answer = create_parser("rest-xml").parse({"status_code": 200, "headers": {}, "body": data}, shape)
    _decode_list_object([], [("Contents", "Key")], answer, {"encoding_type_auto_set": True})
    return page_of("b", answer)


def by_us(data: bytes) -> Any:
    response: dict[str, Any] = {"status_code": 200, "headers": {}, "body": data}
    answer: dict[str, Any] = {}
    read_listing(response_dict=response, customized_response_dict=answer, operation_model=None)
    assert response["body"] == b"<ListBucketResult/>"
    return page_of("b", answer)


@pytest.mark.parametrize(
    "data",
    [
        body(),
        body(("a", "2026-11-21T11:00:00.123Z", 5), ("b/c", "2026-11-21T11:00:00Z", 0), more="b/c &amp; on"),
        body(("a b&amp;&lt;é>", "2009-10-12T17:50:30.000Z", 1), space=""),
        body(("a+b%20c%2Bd", "2026-11-21T11:00:00.5Z", 1), head="<EncodingType>url</EncodingType>"),
        body(("a+b%20c%2Bd", "2026-11-21T11:00:00+02:00", 1)),
        body((" spaces ", "2026-11-21T11:00:00.123456Z", 2**40)),
    ],
)
def test_a_page_is_read_as_botocore_reads_it(data: bytes) -> None:
    try:
        found = by_us(data)
    except AssertionError:
        assert b"00.5Z" in data, "only a time that Python 3.10 cannot read is left to botocore"
        return
    assert found == by_botocore(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"<ListBucketResult",
        b"<Error><Code>InternalError</Code></Error>",
        body(("a", "yesterday", 1)),
        b"<ListBucketResult><Contents><Key>a</Key></Contents></ListBucketResult>",
    ],
)
def test_what_is_no_good_page_is_left_to_botocore(data: bytes) -> None:
    response: dict[str, Any] = {"status_code": 200, "body": data}
    answer: dict[str, Any] = {}
    read_listing(response, answer)
    assert (response["body"], answer) == (data, {})


def test_an_error_is_left_to_botocore() -> None:
    response: dict[str, Any] = {"status_code": 404, "body": body()}
    read_listing(response, {})
    assert response["body"] == body()


def test_a_real_listing_is_read_here(seaweedfs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.from_url(seaweedfs.new_prefix(), seaweedfs.storage_options)
    names = ["a b", "a/é&<+%20", "z"]
    for name in names:
        store.put_if_absent(name, name.encode()).unwrap()
    ours: list[bool] = []

    def seen(bucket: str, answer: dict[str, Any]) -> Any:
        ours.append(s3_answers._PAGE in answer)
        return page_of(bucket, answer)

    monkeypatch.setattr(s3, "page_of", seen)
    entries = store.list("")
    assert ours == [True]
    assert [entry.path for entry in entries] == names
    assert [entry.size for entry in entries] == [len(name.encode()) for name in names]
    assert entries[0].modified_ms is not None
    assert abs(entries[0].modified_ms - (store.head("a b").modified_ms or 0)) < 1000
