"""Reads the table with a reader that shares no code with its writers, and compares it with the reference.

The reader is hudi-rs (`pip install hudi`), written in Rust, with its own object store client.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import fsspec
import pyarrow as pa
from hudi import HudiTableBuilder

from lockprovider.demo import flights, jobs
from lockprovider.demo.compare import Comparison, compare

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

READER = "hudi-rs"
S3 = ("s3", "s3a")

_RENAMED = {
    "key": "aws_access_key_id",
    "secret": "aws_secret_access_key",
    "token": "aws_session_token",
    "endpoint_url": "aws_endpoint",
    "region_name": "aws_region",
}
_ENVIRONMENT = {"AWS_ENDPOINT_URL_S3": "aws_endpoint", "AWS_ENDPOINT_URL": "aws_endpoint"}


def prove(url: str, storage_options: Mapping[str, object], data: pa.Table, months: Sequence[int]) -> Comparison:
    """Compare the table at `url` with the three jobs done on one thread.

    Raises: whatever the reader raises if it cannot read the table.
    """
    found = read(url, storage_options)
    return compare(found, jobs.reference(data, months), flights.KEYS)


def read(url: str, storage_options: Mapping[str, object]) -> pa.Table:
    """The newest snapshot as hudi-rs sees it, its own meta columns included."""
    protocol = url.partition("://")[0]
    configured = fsspec.config.conf.get(protocol, {})
    options = reader_options(url, {**configured, **storage_options}, os.environ)
    if protocol in S3 and not {"aws_access_key_id", "aws_skip_signature"} & options.keys():
        options |= _credentials_of_the_aws_tools()
    table = HudiTableBuilder.from_base_uri(url).with_storage_options(options).build()
    batches = table.read()
    return pa.Table.from_batches(batches) if batches else flights.SCHEMA.empty_table()


def reader_options(url: str, storage_options: Mapping[str, object], environ: Mapping[str, str]) -> dict[str, str]:
    """s3fs's options in hudi-rs's words; an option with no counterpart is left out.

    hudi-rs takes `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and `AWS_REGION` from the environment by itself.
    """
    if url.partition("://")[0] not in S3:
        return {}
    nested = storage_options.get("client_kwargs")
    flat = {**(nested if isinstance(nested, dict) else {}), **storage_options}
    found = {theirs: environ[name] for name, theirs in _ENVIRONMENT.items() if name in environ}
    found |= {theirs: str(flat[ours]) for ours, theirs in _RENAMED.items() if flat.get(ours)}
    if found.get("aws_endpoint", "").startswith("http://"):
        found["aws_allow_http"] = "true"
    if storage_options.get("anon"):
        found["aws_skip_signature"] = "true"
    return found


def _credentials_of_the_aws_tools() -> dict[str, str]:
    """Those of `~/.aws`, of the environment or of the machine: hudi-rs would look for fewer than s3fs does."""
    import botocore.session  # noqa: PLC0415 - only for S3

    session = botocore.session.get_session()
    credentials = session.get_credentials()
    region = session.get_config_variable("region")
    found = {"aws_region": str(region)} if region else {}
    if credentials is None:
        return found
    frozen = credentials.get_frozen_credentials()
    parts = {"key": frozen.access_key, "secret": frozen.secret_key, "token": frozen.token}
    return found | {_RENAMED[name]: str(value) for name, value in parts.items() if value}
