"""URLs with needless slashes and dots, and the form of each here, which JVM Hudi's StoragePath 1.2.0 names the same."""

from __future__ import annotations

SAME_PLACE = {
    "s3://b//t": "s3://b/t",
    "s3://b/a//t": "s3://b/a/t",
    "s3://b/./t": "s3://b/t",
    "s3://b/a/./t/.": "s3://b/a/t",
    "s3://b/t/": "s3://b/t",
    "s3://b/t//": "s3://b/t",
    "s3://b/": "s3://b",
    "s3://b/a b": "s3://b/a b",
    "s3://b/...": "s3://b/...",
    "s3://b/a%2Fb": "s3://b/a%2Fb",
    "/a//b/./c": "/a/b/c",
    "file:///a//b": "file:///a/b",
    "memory://a//b": "memory://a/b",
    "cas::s3://b//t": "cas::s3://b/t",
    "abfss://c@n.dfs.core.windows.net//t/": "abfss://c@n.dfs.core.windows.net/t",
}
