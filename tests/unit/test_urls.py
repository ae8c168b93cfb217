"""Which URL names which store."""

from __future__ import annotations

import pytest

from fsspec_cas import NotSupported, backends
from fsspec_cas.backends import backend_for, split_url

KEY = {"account_key": "a2V5"}
ANON = {"token": "anon"}
S3 = {"key": "k", "secret": "s"}


@pytest.mark.parametrize(
    ("url", "options", "name", "path"),
    [
        ("memory://a/b", {}, "memory", "/a/b"),
        ("/a/b/", {}, "local", "/a/b"),
        ("file:///a/b", {}, "local", "/a/b"),
        ("cas::memory://a/b", {}, "memory", "/a/b"),
        ("s3://bucket/a/b/", S3, "s3", "bucket/a/b"),
        ("s3a://bucket/a", S3, "s3", "bucket/a"),
        ("s3n://bucket/a", S3, "s3", "bucket/a"),
        ("gs://bucket/a", ANON, "gcs", "bucket/a"),
        ("gcs://bucket/a", ANON, "gcs", "bucket/a"),
        ("az://container/a", {"account_name": "n", **KEY}, "azure", "container/a"),
        ("abfs://container/a", {"account_name": "n", **KEY}, "azure", "container/a"),
        ("abfs://container@name.dfs.core.windows.net/a", KEY, "azure", "container/a"),
        ("abfss://container@name.dfs.core.windows.net/a/b", KEY, "azure", "container/a/b"),
        ("wasbs://container@name.blob.core.windows.net/a/b", KEY, "azure", "container/a/b"),
    ],
)
def test_a_url_names_a_backend_and_a_path_in_it(url, options, name, path):
    fs, root = split_url(url, options)
    assert (backend_for(fs).name, root) == (name, path)


def test_an_azure_account_is_taken_from_the_url():
    fs, _ = split_url("abfss://container@name.dfs.core.windows.net/a", KEY)
    assert fs.account_name == "name"


@pytest.mark.parametrize(
    ("url", "extra"),
    [("s3a://b/x", "s3"), ("gs://b/x", "gcs"), ("az://c/x", "azure"), ("wasbs://c@n.blob.core.windows.net/x", "azure")],
)
def test_a_missing_package_is_named_by_its_extra(url, extra, monkeypatch):
    def missing(*_: object, **__: object) -> None:
        raise ImportError("not installed")

    monkeypatch.setattr(backends, "url_to_fs", missing)
    with pytest.raises(NotSupported, match=rf"fsspec-cas\[{extra}\]"):
        split_url(url)
