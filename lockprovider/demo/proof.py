"""Reads the table with a reader that shares no code with its writers, and compares it with the reference.

The reader is hudi-rs (`pip install hudi`), written in Rust, with its own object store client.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import fsspec
import pyarrow as pa
import pyarrow.compute as pc
from hudi import HudiTableBuilder

from lockprovider.demo import flights

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
    return compare(found, flights.reference(data, months), flights.KEYS)


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


# -- are two tables the same set of rows? Independent of how either was made ---------------------------------------

Key = tuple[object, ...]

SHOWN = 5  # of each kind of difference


@dataclass(frozen=True, slots=True)
class Difference:
    """One value that is not what it should be. `column` is "row" when a whole row is missing or surplus."""

    key: Key
    column: str
    found: str
    expected: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came out of comparing a table with what it should be."""

    found_rows: int
    expected_rows: int
    missing: int
    surplus: int
    repeated: int
    changed: dict[str, int]
    first: tuple[Difference, ...]

    @property
    def equal(self) -> bool:
        """True if every row and every value is there, once, and nothing else."""
        return not (self.missing or self.surplus or self.repeated or self.changed)


def compare(found: pa.Table, expected: pa.Table, keys: Sequence[str]) -> Comparison:
    """Compare row for row by key; null equals null; the order of rows and columns does not matter.

    The comparison leaves out columns that only `found` has.

    Raises: KeyError if `found` lacks a column of `expected`.
    """
    found = found.select(expected.column_names).cast(expected.schema).combine_chunks()
    have, want = _keys(found, keys), _keys(expected, keys)
    place = {key: index for index, key in enumerate(have)}
    wanted = set(want)
    missing = [key for key in want if key not in place]
    surplus = [key for key in place if key not in wanted]
    repeated = [key for key, times in Counter(have).items() if times > 1] if len(place) < len(have) else []
    both = [(index, place[key]) for index, key in enumerate(want) if key in place]
    changed, values = _changes(found, expected, both, want)
    first = (
        *(Difference(key, "row", "missing", "present") for key in missing[:SHOWN]),
        *(Difference(key, "row", "present", "absent") for key in surplus[:SHOWN]),
        *(Difference(key, "row", "more than once", "once") for key in repeated[:SHOWN]),
        *values,
    )
    return Comparison(
        found_rows=len(have),
        expected_rows=len(want),
        missing=len(missing),
        surplus=len(surplus),
        repeated=len(repeated),
        changed=changed,
        first=first,
    )


def _keys(table: pa.Table, keys: Sequence[str]) -> list[Key]:
    return list(zip(*(table[key].to_pylist() for key in keys), strict=True))


def _changes(
    found: pa.Table, expected: pa.Table, both: list[tuple[int, int]], want: list[Key]
) -> tuple[dict[str, int], list[Difference]]:
    left = expected.take(pa.array([index for index, _ in both], pa.int64()))
    right = found.take(pa.array([index for _, index in both], pa.int64()))
    counts: dict[str, int] = {}
    shown: list[Difference] = []
    for column in expected.column_names:
        where = _unequal(left[column], right[column])
        if where:
            counts[column] = len(where)
        shown += [
            Difference(want[both[i][0]], column, str(right[column][i].as_py()), str(left[column][i].as_py()))
            for i in where[:SHOWN]
        ]
    return counts, shown


def _unequal(left: pa.ChunkedArray, right: pa.ChunkedArray) -> list[int]:
    same = pc.if_else(pc.or_(pc.is_null(left), pc.is_null(right)), False, pc.equal(left, right))
    both_null = pc.and_(pc.is_null(left), pc.is_null(right))
    mask = pc.invert(pc.or_(same, both_null)).combine_chunks()
    found: list[int] = pc.indices_nonzero(mask).to_pylist()
    return found
