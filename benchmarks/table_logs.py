"""What do log files cost, next to copy-on-write: an upsert, a read with a tenth of the rows in logs, a compaction?

    python -m benchmarks.table_logs                # 2 to 4 minutes; --rows, --rounds, --json

Two million rows of 8 columns in one commit, in four tables: copy-on-write and merge-on-read, without an index and with
16 buckets. Then, in a process of its own each round and in turns: a snapshot read of all columns; an upsert of every
tenth key, in no order; the same read; then of merge-on-read the compaction, of copy-on-write all rows written again
(read, and `overwrite`). Each table is made once, and copied for each round.

CPU seconds and MB written are medians, of three reads each round; ratios are the medians of those to the copy-on-write
table of the same kind, within the rounds. The rows must be right after the upsert, and the same after the compaction.

Not to be fooled: it is on a local disk, where each file is synced before the commit; the reads are of files that the
system has in memory. An upsert of few keys rewrites the same files by copy-on-write, and writes less into logs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.table_bulk_children import SPEC, Work, arrow_rows, measured, sums
from lockprovider.table import Table, TableSpec

ROOT = Path(__file__).resolve().parent.parent
STEPS = ("read before", "upsert", "read after", "compaction")
ROWS = (  # of the printed table: its name, the step, the unit, the format
    ("upsert, CPU s", "upsert", "cpu_s", ".2f"),
    ("upsert, MB written", "upsert", "bytes", ".0f"),
    ("read after it, CPU s", "read after", "cpu_s", ".2f"),
    ("compaction or rewrite, CPU s", "compaction", "cpu_s", ".2f"),
)
COW, MOR = "copy-on-write", "merge-on-read"
KINDS = {f"{kind}, {index}": index for index in ("no index", "16 buckets") for kind in (COW, MOR)}


@dataclass(frozen=True)
class Tenth(Work):
    """An upsert is of every tenth key, none of them new."""

    def ranges(self, operation: str) -> tuple[range, ...]:
        """The ids."""
        return (range(0, self.rows, 1 if operation == "append" else 10),)


def spec_of(kind: str) -> TableSpec:
    """The table; logs are ordered by a column."""
    buckets = 16 if "buckets" in kind else None
    table_type = "merge_on_read" if kind.startswith(MOR) else "copy_on_write"
    return replace(SPEC, ordering="at", buckets=buckets, table_type=table_type)


def later(rows: pa.Table) -> pa.Table:
    """The same, of a second later."""
    at = rows.column("at").cast(pa.int64())
    return rows.set_column(3, rows.schema.field("at"), pc.add(at, 1_000_000).cast(rows.schema.field("at").type))


def written(url: str) -> int:
    """Bytes of all data files."""
    return sum(path.stat().st_size for path in Path(url).rglob("*") if path.is_file() and ".hoodie" not in path.parts)


def child(kind: str, rows: int, url: str) -> dict[str, Any]:
    """Run one round: read, upsert, read, compact (or overwrite).

    Return each step's costs. SystemExit for wrong rows.
    """
    table, change = Table.open(url), later(arrow_rows(Tenth(rows), "all over"))
    found: dict[str, Any] = {}

    def step(name: str, run: Callable[[], object]) -> None:
        before, again = written(url), 3 if name.startswith("read") else 1
        costs = [asdict(measured(run)) for _ in range(again)]
        found[name] = {unit: median(one[unit] for one in costs) for unit in costs[0]} | {"bytes": written(url) - before}

    expected = sums(table.to_arrow(["count"]))[1] + len(change)  # the second version of a row counts one more
    step("read before", table.to_arrow)
    step("upsert", lambda: table.upsert(change))
    step("read after", table.to_arrow)
    after = sums(table.to_arrow(["count"]))
    step("compaction", table.compact if kind.startswith(MOR) else lambda: table.overwrite(table.to_arrow()))
    if not after == sums(table.to_arrow(["count"])) == (rows, expected):
        raise SystemExit(f"{kind} has other rows: {after}, not {(rows, expected)}")
    return found


def made(kind: str, rows: int, url: str) -> None:
    """The table, of one commit."""
    Table.create(url, spec_of(kind)).append(arrow_rows(Tenth(rows), "append"))


def told(what: str, kind: str, rows: int, url: Path) -> str:
    """What a process of its own prints."""
    words = [f"--{what}", kind, str(url), "--rows", str(rows)]
    command = [sys.executable, "-m", "benchmarks.table_logs", *words]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=True).stdout


def rounds(given: argparse.Namespace, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Make each kind of table once, then run each round on a copy; return the costs by kind."""
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    for kind in KINDS:
        told("make", kind, given.rows, folder / kind)
        shutil.rmtree(folder / kind / ".hoodie" / ".locks")  # each round is of another, who need not wait for this one
    for turn in range(given.rounds):
        for kind in KINDS if turn % 2 else reversed(KINDS):
            shutil.copytree(folder / kind, folder / "round")
            found[kind].append(json.loads(told("child", kind, given.rows, folder / "round")))
            shutil.rmtree(folder / "round")
    return found


def lines(found: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    """Markdown: a row for each step and unit, a column for each table; ratios to copy-on-write in brackets."""
    yield f"| | {' | '.join(KINDS)} |"
    yield "|---" * (1 + len(KINDS)) + "|"
    for name, step, unit, form in ROWS:
        cells = []
        for kind, index in KINDS.items():
            base = found[f"{COW}, {index}"]
            ratio = median(mine[step][unit] / its[step][unit] for mine, its in zip(found[kind], base, strict=True))
            value = median(one[step][unit] for one in found[kind]) / (1e6 if unit == "bytes" else 1)
            cell = f"{value:{form}}"
            cells.append(cell if found[kind] is base else f"{cell} ({ratio:.2f}x)")
        yield f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    """Run all rounds, and print a Markdown table or JSON; with `--make` or `--child`, be one step's process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    for process in ("--make", "--child"):
        parser.add_argument(process, nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.make:
        made(given.make[0], given.rows, given.make[1])
        return
    if given.child:
        kind, url = given.child
        print(json.dumps(child(kind, given.rows, url)))
        return
    with tempfile.TemporaryDirectory(prefix="table-logs-") as folder:
        found = rounds(given, Path(folder))
    print(json.dumps(found) if given.json else "\n".join(lines(found)))


if __name__ == "__main__":
    main()
