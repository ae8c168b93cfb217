"""Is this commit slower than an older one, or does it send more requests? Both run in turns, on one server.

    python -m benchmarks.older_commit 0e514180               # all cases, five rounds: about ten minutes
    python -m benchmarks.older_commit HEAD~20 --rounds 3 --cases append upsert

The older commit is checked out into a temporary worktree. Each case runs in a process of its own, with the packages of
one of the two commits; a round runs each case for both, in alternating order. A case reports the median time of one
operation, the CPU time and the requests of all; the table shows the medians over the rounds, and the ratio of the
two. The server is `shaped_s3`: it answers at once for the cases of one client, and after the delays of a near S3 for
writers that share a table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.lock import ask
from benchmarks.s3_clients import Site
from benchmarks.shaped_s3 import ROOT, running

CHILD = Path(__file__).with_name("older_commit_child.py")
ALONE = ("put", "hand over", "publish", "append", "upsert")  # one client, no delays: the CPU time of this library
SHARED = ("16 ordered", "16 unordered")  # processes that append to one table, behind delays
DELAYS_MS = (15, 30, 40)  # GET, PUT, LIST
SHARED_S = 10.0


@contextmanager
def worktree(commit: str) -> Iterator[Path]:
    """Check out `commit` into a temporary folder, which is removed at the end."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "older"
        git("worktree", "add", "-q", "--detach", tree, commit)
        try:
            yield tree
        finally:
            git("worktree", "remove", "--force", tree)


def git(*arguments: str | Path) -> None:
    """Run git in this repository."""
    subprocess.run(["git", *arguments], cwd=ROOT, check=True)  # noqa: S607 - the one of the developer


def child(tree: Path, program: Path, task: dict[str, Any], **streams: Any) -> subprocess.Popen[str]:
    """Start `program` with the packages of `tree` and one argument: the task, with the tree in it, as JSON."""
    environment = os.environ | {"PYTHONPATH": str(tree), "AWS_EC2_METADATA_DISABLED": "true", "NO_PROXY": "127.0.0.1"}
    command = [sys.executable, "-P", str(program), json.dumps(task | {"tree": str(tree)})]
    return subprocess.Popen(command, text=True, cwd=tree, env=environment, **streams)


def start(tree: Path, task: dict[str, Any]) -> subprocess.Popen[str]:
    """Start a case with the packages of `tree`."""
    return child(tree, CHILD, task, stdout=subprocess.PIPE)


def finish(process: subprocess.Popen[str]) -> dict[str, float]:
    """Read the figures of a child; a child that failed ends the benchmark."""
    printed, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"a child failed with status {process.returncode}")
    figures: dict[str, float] = json.loads(printed)
    return figures


def measure(tree: Path, site: Site, case: str, count: int) -> dict[str, float]:
    """Run a case once with the code in `tree`.

    Return ms, CPU ms and requests of one operation, or of one of 16 writers' commits.
    """
    place = replace(site, prefix=uuid.uuid4().hex)
    task = {"case": case, "site": asdict(place), "options": place.storage_options, "count": count}
    if case in ALONE:
        return finish(start(tree, task))
    finish(start(tree, task | {"role": "make"}))
    ask(site, "DELETE", "/")
    writers = [start(tree, task | {"role": "writer", "number": n, "seconds": SHARED_S}) for n in range(16)]
    told = [finish(writer) for writer in writers]
    commits = sum(each["commits"] for each in told)
    requests = sum(json.loads(ask(site, "GET", "/")).values())
    return {
        "ms": 1000 * SHARED_S / commits,
        "cpu ms": sum(each["cpu_s"] for each in told) * 1000 / commits,
        "requests": requests / commits,
    }


def main() -> None:
    """Run each case with both commits by turns, and print a Markdown table of medians, or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("commit", help="the older one")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=60, help="operations of a case of one client")
    parser.add_argument("--cases", nargs="*", default=[*ALONE, *SHARED], choices=[*ALONE, *SHARED])
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    figures: dict[str, dict[str, list[dict[str, float]]]] = {}
    with worktree(given.commit) as older, running(0, 0) as prompt, running(*DELAYS_MS) as near:
        trees = {"older": older, "this": ROOT}
        for number in range(given.rounds):
            for case in given.cases:
                site = prompt if case in ALONE else near
                for name in sorted(trees, reverse=bool(number % 2)):
                    result = measure(trees[name], site, case, given.count)
                    figures.setdefault(case, {}).setdefault(name, []).append(result)
                    print(number, case, name, result, file=sys.stderr, flush=True)
    if given.json:
        print(json.dumps(figures))
        return
    print("| case | ms, older | ms, this | ratio | CPU ms, older | CPU ms, this | requests, older | requests, this |")
    print("|---|---|---|---|---|---|---|---|")
    for case, both in figures.items():
        middle = {
            name: {key: median(run[key] for run in runs) for key in ("ms", "cpu ms", "requests")}
            for name, runs in both.items()
        }
        old, new = middle["older"], middle["this"]
        print(
            f"| {case} | {old['ms']:.2f} | {new['ms']:.2f} | {new['ms'] / old['ms']:.2f} "
            f"| {old['cpu ms']:.2f} | {new['cpu ms']:.2f} | {old['requests']:.2f} | {new['requests']:.2f} |"
        )


if __name__ == "__main__":
    main()
