"""An error after the creation of the table is told apart from a demo that could not start."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lockprovider import cli
from lockprovider.demo import run


class NoProcesses:
    """Processes that end at once, after a client without the lock has removed the table's log."""

    def __init__(self, job: run.Job, _: Path) -> None:
        self.url = job.url

    def __enter__(self) -> NoProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def messages(self) -> Iterator[tuple[str, Any]]:
        shutil.rmtree(Path(self.url) / ".hoodie" / "timeline")
        (Path(self.url) / ".hoodie" / "timeline").symlink_to("timeline")
        return iter(())


def test_error_after_the_creation_exits_with_1_and_names_the_table(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setattr(run, "find_java", lambda: SimpleNamespace(home="", version=17, origin="a test"))
    monkeypatch.setattr(run, "Processes", NoProcesses)
    words = ["demo", "--fast", "--url", str(tmp_path / "t"), "--out", str(tmp_path / "run.svg")]
    assert cli.main(words) == 1
    assert f"nothing is proved of the table at {tmp_path / 't'}" in capsys.readouterr().err
    assert cli.main(words) == 2
