"""`pytest -m soak --soak MINUTES`: an older commit and this one share a lock and a table.

The persisted bytes are the contract between the two. Two writers of each commit claim numbers under one lock, and
append to and upsert into one table; one of them is killed every few seconds and started again. At the end each
acknowledged row is there once, no number was claimed twice, and the older commit and this one read the same rows.
`--older COMMIT` chooses the older one; before 68f97fc4 the fields of the lock record had other names.
"""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.older_commit import child, worktree
from fsspec_cas import Store
from lockprovider.table import Table, TableSpec
from soak import older_child

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers.seaweedfs import SeaweedFS

pytestmark = pytest.mark.soak
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(older_child.__file__)
MOMENT_S = 2.0  # after its first acknowledged verb a writer dies within this time
START_S = 120.0


@pytest.fixture
def older(request: pytest.FixtureRequest) -> Iterator[Path]:
    commit = request.config.getoption("--older")
    known = subprocess.run(
        ["git", "cat-file", "-e", f"{commit}^{{commit}}"], cwd=ROOT, capture_output=True, check=False
    )
    if known.returncode:
        pytest.skip(f"this clone has no commit {commit}: give --older COMMIT, or fetch the whole history")
    with worktree(commit) as tree:
        yield tree


class Writer:
    """One child process, which is killed and started again; what it acknowledged is in its file."""

    def __init__(self, number: int, tree: Path, url: str, options: dict[str, object], folder: Path) -> None:
        self.number, self.log = number, folder / f"writer-{number}.log"
        self._tree, self._life, self._before = tree, 0, 0
        self._task = {"number": number, "url": url, "options": options, "log": str(self.log)}
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self._life += 1
        self._before = len(self.acknowledged())
        with self.log.with_suffix(".err").open("ab") as errors:
            self._process = child(self._tree, PROGRAM, {**self._task, "life": self._life}, stderr=errors)

    def kill(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, self.log.with_suffix(".err").read_text()
        self._process.kill()
        self._process.wait()

    def wait_for_acknowledgement(self) -> None:
        """Wait until it has acknowledged a verb since it was started."""
        until_s = time.monotonic() + START_S
        while len(self.acknowledged()) == self._before:
            assert time.monotonic() < until_s, self.log.with_suffix(".err").read_text()
            time.sleep(0.1)

    def acknowledged(self) -> list[tuple[str, int]]:
        """The verbs that returned, each with its number; a line that a kill cut off was not acknowledged."""
        lines = self.log.read_text().split("\n")[:-1] if self.log.exists() else []
        return [(verb, int(number)) for verb, number in (line.split() for line in lines)]


def test_older_commit_and_this_one_share_a_lock_and_a_table(
    seaweedfs: SeaweedFS, older: Path, tmp_path: Path, request: pytest.FixtureRequest, seed: int
) -> None:
    url, options = f"{seaweedfs.url}shared", seaweedfs.storage_options
    spec = TableSpec("shared", older_child.SCHEMA, record_keys=("id",), ordering="value")
    table = Table.create(f"{url}/table", spec, storage_options=options)
    writers = [Writer(number, older if number % 2 else ROOT, url, options, tmp_path) for number in range(4)]
    rng, kills = random.Random(seed), Counter[int]()
    until_s = time.monotonic() + float(request.config.getoption("--soak")) * 60
    with contextlib.ExitStack() as stack:
        for writer in writers:
            writer.start()
            stack.callback(writer.kill)
        for writer in writers:
            writer.wait_for_acknowledgement()
        while time.monotonic() < until_s or len(kills) < len(writers):
            victim = rng.choice(writers)
            victim.wait_for_acknowledgement()
            time.sleep(rng.uniform(0, MOMENT_S))  # a death at any moment
            victim.kill()
            kills[victim.number] += 1
            victim.start()
    rows = table.to_arrow(["id", "value", "writer"]).sort_by("id").to_pylist()
    done = {writer.number: writer.acknowledged() for writer in writers}
    appended = Counter(row["id"] for row in rows)
    assert [id_ for id_, times in appended.items() if times > 1] == []
    for number, verbs in done.items():
        first = number << 40
        expected = {first + n for verb, n in verbs if verb == "append"}
        assert expected - appended.keys() == set(), f"writer {number} lost rows"
        highest = max((n for verb, n in verbs if verb == "upsert"), default=-1)
        own = [row["value"] for row in rows if row["id"] == older_child.OWN + number]
        assert max(own, default=-1) >= highest, f"the last upsert of writer {number} is lost"
    store = Store.from_url(url, options)
    for number, verbs in done.items():
        for claimed in (n for verb, n in verbs if verb == "claim"):
            assert store.read(f"numbers/{claimed}").data == str(number).encode(), "a number was given to two writers"
    assert read_by(older, url, options, tmp_path) == rows == read_by(ROOT, url, options, tmp_path)
    print(f"\n{dict(kills)} kills, {Counter(verb for verbs in done.values() for verb, _ in verbs)}, {len(rows)} rows")  # noqa: T201


def read_by(tree: Path, url: str, options: dict[str, object], folder: Path) -> list[dict[str, object]]:
    task: dict[str, object] = {"number": -1, "url": url, "options": options, "log": str(folder / "read.json")}
    assert child(tree, PROGRAM, task).wait() == 0
    rows: list[dict[str, object]] = json.loads((folder / "read.json").read_text())
    return rows
