"""The double keeps the documented preconditions on every road, asked without an SDK."""

from __future__ import annotations

import json
from urllib.parse import urlencode

import pytest

from servers.gcs_double import TOKEN, GcsDouble
from servers.raw import send


@pytest.fixture
def double():
    with GcsDouble() as server:
        yield server


def ask(double, method, target, body=b"", headers=None, **query):
    url = f"{target}?{urlencode(query)}" if query else target
    return send(double.endpoint, method, url, {"authorization": f"Bearer {TOKEN}", **(headers or {})}, body)


def upload(double, name, data, **query):
    where = f"/upload/storage/v1/b/{double.bucket}/o"
    return ask(double, "POST", where, data, uploadType="media", name=name, **query)


def generation(answer):
    return json.loads(answer.body)["generation"]


def begin(double, name, **query):
    where = f"/upload/storage/v1/b/{double.bucket}/o"
    answer = ask(double, "POST", where, b"{}", uploadType="resumable", name=name, **query)
    assert answer.status == 200
    return answer.headers["location"].removeprefix(double.endpoint)


@pytest.fixture
def stored(double):
    """Two generations, of which the second is there."""
    return [generation(upload(double, "a", data)) for data in (b"old", b"now")]


@pytest.mark.parametrize(
    ("query", "on_get", "on_upload"),
    [
        ({"ifGenerationMatch": "new"}, 200, 200),
        ({"ifGenerationMatch": "old"}, 412, 412),
        ({"ifGenerationMatch": "0"}, 412, 412),
        ({"ifGenerationNotMatch": "old"}, 200, 200),
        ({"ifGenerationNotMatch": "new"}, 304, 412),
        ({"ifGenerationNotMatch": "0"}, 200, 200),
        ({"ifMetagenerationMatch": "1"}, 200, 200),
        ({"ifMetagenerationMatch": "2"}, 412, 412),
        ({"ifMetagenerationNotMatch": "1"}, 304, 412),
        ({"ifMetagenerationNotMatch": "2"}, 200, 200),
    ],
)
def test_every_precondition_counts_on_every_road(double, stored, query, on_get, on_upload):
    sent = {name: {"old": stored[0], "new": stored[1]}.get(value, value) for name, value in query.items()}
    there = f"/storage/v1/b/{double.bucket}/o/a"
    assert ask(double, "GET", there, **sent).status == on_get
    assert ask(double, "GET", there, alt="media", **sent).status == on_get
    location = begin(double, "a", **sent)
    assert ask(double, "PUT", location, b"resumed").status == on_upload
    if on_upload != 200:
        assert upload(double, "a", b"more", **sent).status == on_upload
        assert ask(double, "DELETE", there, **sent).status == on_upload
        assert ask(double, "GET", there, alt="media").body == b"now"


def test_condition_of_a_resumable_upload_counts_when_it_ends(double):
    location = begin(double, "a", ifGenerationMatch="0")
    upload(double, "a", b"somebody else")
    assert ask(double, "PUT", location, b"mine").status == 412
    assert ask(double, "GET", f"/storage/v1/b/{double.bucket}/o/a", alt="media").body == b"somebody else"


def test_resumable_upload_in_pieces_reports_progress_and_total(double):
    location = begin(double, "a")
    first = ask(double, "PUT", location, b"12345", {"content-range": "bytes 0-4/*"})
    assert (first.status, first.headers["range"]) == (308, "bytes=0-4")
    asked = ask(double, "PUT", location, b"", {"content-range": "bytes */*"})
    assert (asked.status, asked.headers["range"]) == (308, "bytes=0-4")
    assert ask(double, "GET", f"/storage/v1/b/{double.bucket}/o/a").status == 404
    assert ask(double, "PUT", location, b"678", {"content-range": "bytes 5-7/8"}).status == 200
    assert ask(double, "GET", f"/storage/v1/b/{double.bucket}/o/a", alt="media").body == b"12345678"


def test_cancelled_resumable_upload_leaves_nothing(double):
    location = begin(double, "a")
    ask(double, "PUT", location, b"12345", {"content-range": "bytes 0-4/*"})
    assert ask(double, "DELETE", location).status == 499
    assert ask(double, "PUT", location, b"x").status == 404
    assert ask(double, "GET", f"/storage/v1/b/{double.bucket}/o/a").status == 404


def test_multipart_body_with_bare_line_feeds_is_refused(double):
    body = b'--m\nContent-Type: application/json\n\n{"name": "a"}\n--m\nContent-Type: text/plain\n\nx\n--m--\n'
    where = f"/upload/storage/v1/b/{double.bucket}/o"
    kind = {"content-type": "multipart/related; boundary=m"}
    assert ask(double, "POST", where, body, kind, uploadType="multipart").status == 400


def test_generation_grows_and_never_comes_back(double):
    made = [int(generation(upload(double, "a", b"same"))) for _ in range(20)]
    assert made == sorted(set(made))
