"""README.md is followed from top to bottom, block by block: on local disk, on a loopback S3 server, in Spark."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from servers.seaweedfs import SeaweedFS
from test_documents import blocks

PYTHON = blocks("README.md", "python")
SHELL = blocks("README.md", "sh")
_OF_SPARK, _OF_S3 = "engines import spark", "s3://"


def follow(names: dict[str, Any], *, besides: tuple[str, ...] = (_OF_SPARK, _OF_S3)) -> dict[str, Any]:
    """Run the blocks in their order, as in one session."""
    for body in PYTHON:
        if not any(word in body for word in besides):
            exec(compile(body, "README.md", "exec"), names)  # noqa: S102 - that is the point
    return names


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_block_is_python_or_shell_and_there_are_some() -> None:
    assert len(PYTHON) >= 7
    assert len(SHELL) >= 4
    assert blocks("README.md", "") == []


def test_it_can_be_followed_on_a_local_folder(here: Path) -> None:
    names = follow({})
    assert (here / "playground/writes/counter").read_text() == "1"
    assert (here / "playground/table/state/000007").read_text() == "..."
    assert names["table"].to_pandas()["fare"].sort_values().tolist() == [0.0, 3.5]
    assert names["changes"].to_arrow().num_rows == 2
    assert names["state"].read().value == {"day": "2026-11-22", "schema": 12}
    assert (here / "playground/trips.csv.gz").read_bytes().startswith(b"\x1f\x8b"), "as its name says"


def test_it_can_be_followed_from_a_shell(here: Path) -> None:
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
    assert "nobody else runs this" in done.stdout


def test_a_command_on_a_bucket_goes_on_a_folder_too(here: Path) -> None:
    """Those of the recipes, with the programs that they run standing for themselves."""
    lines = [line.partition(" #")[0] for body in SHELL for line in body.splitlines() if "s3://" in line]
    assert lines
    for line in lines:
        ours, command = line.split(" -- ")
        words = [word.replace("s3://bucket", "playground") for word in shlex.split(ours)]
        done = subprocess.run(
            [sys.executable, "-m", *words, "--", "echo", command], capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == command.strip()


def test_it_can_be_followed_on_s3(here: Path, seaweedfs: SeaweedFS) -> None:
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


def test_it_can_be_followed_in_spark(here: Path) -> None:
    from lockprovider.table.engines.java import spark_session

    names = follow({})
    names["spark"] = spark_session("readme", cores=1, attempts=1)
    try:
        for body in PYTHON:
            if _OF_SPARK in body:
                exec(compile(body, "README.md", "exec"), names)  # noqa: S102 - that is the point
        assert names["table"].count() == 3
    finally:
        names["spark"].stop()
