"""README.md is followed from top to bottom, block by block: on local disk and on a loopback S3 server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from servers.seaweedfs import SeaweedFS
from test_documents import blocks

PYTHON = blocks("README.md", "python")
SHELL = blocks("README.md", "sh")
_OF_S3 = "s3://"


def follow(names: dict[str, Any]) -> dict[str, Any]:
    """Run the blocks in their order, as in one session."""
    for body in PYTHON:
        if _OF_S3 not in body:
            exec(compile(body, "README.md", "exec"), names)  # noqa: S102 - that is the point
    return names


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_readme_block_is_python_or_shell() -> None:
    assert len(PYTHON) >= 4
    assert len(SHELL) >= 4
    assert blocks("README.md", "") == []


def test_readme_can_be_followed_on_a_local_folder(here: Path) -> None:
    names = follow({})
    assert (here / "playground/writes/counter").read_text() == "1"
    assert (here / "playground/jobs/state/000007").read_text() == "..."
    assert names["table"].to_pandas()["fare"].sort_values().tolist() == [0.0, 3.5]
    assert [commit.operation for commit in names["table"].history()].count("DELETE") == 0, "it was undone"


def test_readme_can_be_followed_from_a_shell(here: Path) -> None:
    follow({})
    where = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = [body for body in SHELL if "playground" in body]
    assert len(ran) == 1
    done = subprocess.run(
        ["bash", "-euc", ran[0]],
        env={**os.environ, "PATH": where},
        cwd=here,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "one at a time" in done.stdout


def test_readme_can_be_followed_on_s3(here: Path, seaweedfs: SeaweedFS) -> None:
    names: dict[str, Any] = follow({})
    place = seaweedfs.new_prefix()
    for body in PYTHON:
        if _OF_S3 in body:
            options = f"options = {seaweedfs.storage_options!r}\n"
            text = body.replace("s3://bucket", place).replace(
                'options = {"endpoint_url": None, "anon": False}\n', options
            )
            assert options in text
            exec(compile(text, "README.md", "exec"), names)  # noqa: S102 - that is the point
    assert names["on_s3"].count() == 2
    assert seaweedfs.raw_head(f"{place}/table/state/1").status == 200
