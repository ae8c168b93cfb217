"""What does clustering cost, and what does a filtered read gain by it, next to delta-rs?

    python -m benchmarks.table_small_files          # 3 to 6 minutes; --rounds, --files, --json

    join   1,000 files of 20 rows, one commit each, into one: `Table.cluster()`, delta-rs' `optimize.compact`
    sort   40 files of 50,000 rows, sorted by a column that is all over them, into files of 4 MB:
           `Table.cluster(sort_by=...)`, delta-rs' `optimize.z_order`

Each table is made once by its own client, and copied for each round; each round runs in a process of its own, in turns.
Then a hundredth of the rows is read by that column, before and after. Seconds and MB (the process's peak, rows of the
reads included) are medians, a ratio is the median of those within the rounds. The rows must be the same afterwards.

Not to be fooled: it is on a local disk, where each of our files is synced before the commit, and none of delta-rs's;
our files carry record keys, Hudi's five columns and bloom filters.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lockprovider.table import Table, TableSpec

OURS, DELTA = "lockprovider.table", "deltalake"
ROOT = Path(__file__).resolve().parent.parent
MOST = 1_000_000  # of the column that is filtered by
UNITS = ("cluster_s", "before_s", "after_s", "peak_mb")


@dataclass(frozen=True)
class Case:
    """So many files of so many rows; `target` is the size of the new ones."""

    files: int
    rows: int
    sort_by: str | None
    target: int

    def parts(self) -> Iterator[pa.Table]:
        """The rows of each file."""
        random = np.random.default_rng(7)
        for number in range(self.files):
            ids = np.arange(self.rows) + number * self.rows
            values = random.integers(0, MOST, self.rows)
            yield pa.table({"id": ids, "value": values, "name": [f"name {n % 977}" for n in ids.tolist()]})


def cases(files: int) -> dict[str, Case]:
    """By name."""
    return {"join": Case(files, 20, None, 128 << 20), "sort": Case(40, 50_000, "value", 4 << 20)}


def made(client: str, case: Case, url: str) -> None:
    """The table, a commit a file."""
    if client == OURS:
        table = Table.create(url, TableSpec("t", next(case.parts()).schema, ("id",)))
        for rows in case.parts():
            table.append(rows)
        shutil.rmtree(Path(url) / ".hoodie" / ".locks")  # each round is of another, who need not wait for this one
        return
    import deltalake

    for rows in case.parts():
        deltalake.write_deltalake(url, rows, mode="append")


def clustered(client: str, case: Case, url: str) -> Callable[[], object]:
    """What joins its files."""
    if client == OURS:
        table, sort_by = Table.open(url), [case.sort_by] if case.sort_by else []
        return lambda: table.cluster(sort_by, case.target, 1 << 40)
    import deltalake

    optimize = deltalake.DeltaTable(url).optimize
    if case.sort_by:
        column = case.sort_by
        return lambda: optimize.z_order([column], target_size=case.target)
    return lambda: optimize.compact(target_size=case.target)


def some(client: str, url: str) -> pa.Table:
    """A hundredth of the rows."""
    wanted = pc.field("value") < MOST // 100
    if client == OURS:
        return Table.open(url).to_arrow(filter=wanted)
    import deltalake

    found: pa.Table = deltalake.DeltaTable(url).to_pyarrow_dataset().to_table(filter=wanted)
    return found


def files_of(client: str, url: str) -> int:
    """How many files a reader has."""
    if client == OURS:
        return len(Table.open(url).snapshot().slices)
    import deltalake

    return len(deltalake.DeltaTable(url).file_uris())


def child(client: str, case: Case, url: str) -> dict[str, Any]:
    """One round."""
    found: dict[str, Any] = {"files_before": files_of(client, url)}
    start_s = time.perf_counter()
    before = some(client, url)
    found["before_s"] = time.perf_counter() - start_s
    work = clustered(client, case, url)
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    work()
    found |= {"cluster_s": time.perf_counter() - start_s, "cpu_s": time.process_time() - start_cpu_s}
    start_s = time.perf_counter()
    after = some(client, url)
    found["after_s"] = time.perf_counter() - start_s
    if sorted(before["id"].to_pylist()) != sorted(after["id"].to_pylist()) or not after.num_rows:
        raise SystemExit(f"{client} has other rows afterwards")
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {**found, "files_after": files_of(client, url), "peak_mb": peak_mb}


def measured(name: str, given: argparse.Namespace, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """All rounds of one case, by client."""
    case = cases(given.files)[name]
    found: dict[str, list[dict[str, Any]]] = {OURS: [], DELTA: []}
    for client in found:
        made(client, case, str(folder / client))
    for turn in range(given.rounds):
        for client in (OURS, DELTA) if turn % 2 else (DELTA, OURS):
            shutil.copytree(folder / client, folder / "round")
            words = ["--child", client, name, str(folder / "round"), "--files", str(given.files)]
            run = subprocess.run(
                [sys.executable, "-m", "benchmarks.table_small_files", *words],
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
                check=True,
            )
            found[client].append(json.loads(run.stdout))
            shutil.rmtree(folder / "round")
    return found


def lines(found: dict[str, dict[str, list[dict[str, Any]]]]) -> Iterator[str]:
    """Markdown."""
    yield "| | table | files | clustering s | read before s | read after s | peak MB |"
    yield "|---|---|---|---|---|---|---|"
    for name, clients in found.items():
        for client, rounds in clients.items():
            cells = [name, client, f"{rounds[0]['files_before']} to {rounds[0]['files_after']}"]
            for unit in UNITS:
                value = f"{median(one[unit] for one in rounds):.{0 if unit == 'peak_mb' else 2}f}"
                pairs = zip(rounds, clients[DELTA], strict=True)
                ratio = f" ({median(mine[unit] / theirs[unit] for mine, theirs in pairs):.1f}x)"
                cells.append(value + (ratio if client == OURS else ""))
            yield f"| {' | '.join(cells)} |"


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        client, name, url = given.child
        print(json.dumps(child(client, cases(given.files)[name], url)))
        return
    found = {}
    for name in cases(given.files):
        with tempfile.TemporaryDirectory(prefix="table-small-files-") as folder:
            found[name] = measured(name, given, Path(folder))
    print(json.dumps(found) if given.json else "\n".join(lines(found)))


if __name__ == "__main__":
    main()
