"""s3fs's options become those of the independent reader."""

from __future__ import annotations

from lockprovider.demo.proof import reader_options


def test_key_secret_endpoint_and_region_are_renamed():
    options = {
        "key": "k", "secret": "s", "endpoint_url": "http://127.0.0.1:9", "client_kwargs": {"region_name": "r"},
    }  # fmt: skip
    assert reader_options("s3://b/t", options, {}) == {
        "aws_access_key_id": "k",
        "aws_secret_access_key": "s",
        "aws_endpoint": "http://127.0.0.1:9",
        "aws_region": "r",
        "aws_allow_http": "true",
    }


def test_endpoint_in_the_options_wins_over_the_environment():
    environ = {"AWS_ENDPOINT_URL": "https://from.environ"}
    assert reader_options("s3://b/t", {}, environ) == {"aws_endpoint": "https://from.environ"}
    nested = {"client_kwargs": {"endpoint_url": "https://nested"}}
    assert reader_options("s3://b/t", nested, environ)["aws_endpoint"] == "https://nested"


def test_plain_http_is_allowed_only_where_it_was_asked_for():
    assert "aws_allow_http" not in reader_options("s3://b/t", {"endpoint_url": "https://x"}, {})


def test_local_folder_needs_no_options():
    assert reader_options("/data/t", {"auto_mkdir": True}, {"AWS_ENDPOINT_URL": "x"}) == {}
