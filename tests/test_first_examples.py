"""The five minutes of each package's page work from a clone: every block that uses `playground`, from top to bottom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_documents import blocks


def follow(page: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run the blocks of a page that use the playground folder, as in one session."""
    bodies = [body for body in blocks(page, "python") if "playground/" in body]
    assert bodies
    for body in bodies:
        exec(compile(body, page, "exec"), names)  # noqa: S102 - that is the point
    return names


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_first_example_of_the_lock_publishes_and_releases(here: Path) -> None:
    names = follow("lockprovider/README.md", {})
    assert (here / "playground/jobs/state/000008").read_bytes() == b"..."
    assert names["lock"].status().state == "released"


def test_first_examples_of_the_recipes_run_in_one_session(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    follow("lockprovider/recipes/README.md", {})
    said = capsys.readouterr().out
    assert all(word in said for word in ("2026-11-22", "mon", "tue", "order", "vm-7"))


def test_first_example_of_tables_commits_reads_and_undoes(here: Path) -> None:
    names = follow("lockprovider/table/README.md", {})
    assert names["table"].count("fare is null") == 1, "the restore took the transaction back"
