"""A base path names the same lock here and in JVM Hudi."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from same_places import SAME_PLACE

from fsspec_cas import InvalidUrl, check_url
from jvm.artifacts import joined, tool

pytestmark = pytest.mark.jvm
SOURCE = Path(__file__).parent / "java" / "StoragePaths.java"
LOCK = "/.hoodie/.locks/table_lock.json"


def locks(jars: list[Path], urls: list[str]) -> list[str]:
    """Where JVM Hudi has them."""
    command = [tool("java"), "-cp", joined(jars), str(SOURCE), *urls]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    return [one.replace("file:/", "file:///") for one in said.splitlines()]


def test_redundant_slashes_and_dots_name_the_lock_of_storage_path(lock_classpath: list[Path]) -> None:
    urls = [url for url in SAME_PLACE if not url.startswith("cas::")]  # which only fsspec knows
    assert locks(lock_classpath, urls) == [f"{check_url(url)}{LOCK}" for url in urls]


def test_blank_at_the_end_which_storage_path_keeps_is_refused(lock_classpath: list[Path]) -> None:
    assert locks(lock_classpath, ["s3://b/t "]) == [f"s3://b/t {LOCK}"]
    with pytest.raises(InvalidUrl):
        check_url("s3://b/t ")
