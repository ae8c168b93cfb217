"""What does the age of a table cost whoever opens it, and a commit? Tables of more and more commits, none archived.

    python -m benchmarks.table_age             # most minutes are for 10,000 commits; --kept FOLDER keeps them
    python -m benchmarks.table_age --appends   # each commit makes a file group of its own; --obstore, --rounds, --json

The tables are made by real commits on local disk, each into one of twenty file groups by turns, and lie then as they
are in the memory of the server of `benchmarks.shaped_s3` (GET 15, PUT 30, LIST 40 ms; a process of its own). Opening is
`Table.open` and which files there are (`snapshot`), by a handle that knows nothing; commits are one by such a handle,
its opening included, and some by the same handle after that. All by turns, each in a fresh process whose imports, S3
client and connections are there before the clock starts (it has opened another table, and committed to it), as they
would hide a difference. Requests are the server's count, of a commit with those that nobody waits for. A ratio is the
median of those within the rounds.

Not to be fooled: before the 64th commit a table has no checkpoint and is listed, which takes longer; so compare with 80
commits, too. All opening is measured before the first commit is; by the last of them the tables have five more a round.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import median

from benchmarks.lock import figures, launched
from benchmarks.s3_clients import Site
from benchmarks.shaped_s3 import running
from benchmarks.table_age_children import Costs

CHILDREN = "benchmarks.table_age_children"
WHAT = {"open": "open", "fresh": "commit by a new handle", "held": "commit by the same handle"}
OTHER = "other"  # which a process opens first

Found = dict[str, dict[int, list[Costs]]]  # by what was done, by commits: of each round


def made(folder: Path, commits: list[int], *, appends: bool) -> Path:
    """Make the missing tables of these numbers of commits below `folder`; return the folder to be served."""
    tables = folder / ("appends" if appends else "upserts")
    for name, count in (*((str(count), count) for count in commits), (OTHER, 1)):
        whole = tables / "bucket" / name
        if not whole.exists():
            part = tables / f"part-of-{name}"
            figures(launched(CHILDREN, {"what": "make", "folder": str(part), "commits": count, "appends": appends}))
            whole.parent.mkdir(exist_ok=True)
            part.rename(whole)
    return tables


def measured(site: Site, commits: list[int], rounds: int, *, obstore: bool, appends: bool) -> Found:
    """Open and commit to each table in fresh processes, in each round.

    Return medians of each round by kind and table.
    """
    found: Found = {what: {count: [] for count in commits} for what in WHAT}
    common = {"site": asdict(site), "obstore": obstore, "appends": appends}
    for what in ("open", "commit"):
        for number in range(rounds):
            first = number % len(commits)
            for count in commits[first:] + commits[:first]:
                task = {**common, "what": what, "table": str(count), "first": 5 * number}
                for name, costs in figures(launched(CHILDREN, task)).items():
                    found[name][count].append({unit: median(one[unit] for one in costs) for unit in costs[0]})
    return found


def lines(found: Found) -> Iterator[str]:
    """Yield a Markdown table of medians, with ratios to younger tables."""
    counts = [*next(iter(found.values()))]
    younger = counts[:-1]
    ratios = [f"x {count:,}" for count in younger]
    heads = ["", "commits", "requests", "ms", *ratios, "CPU ms", *ratios]
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    for what, of_tables in found.items():
        for count, costs in of_tables.items():
            cells = [WHAT[what], f"{count:,}", f"{median(one['requests'] for one in costs):g}"]
            for unit in ("ms", "cpu_ms"):
                cells.append(f"{median(one[unit] for one in costs):.0f}")
                cells += [_ratio(costs, of_tables[other], unit) if other < count else "" for other in younger]
            yield f"| {' | '.join(cells)} |"


def _ratio(costs: list[Costs], others: list[Costs], unit: str) -> str:
    return f"{median(one[unit] / other[unit] for one, other in zip(costs, others, strict=True)):.2f}"


@contextlib.contextmanager
def kept(folder: Path | None) -> Iterator[Path]:
    """Where tables are made: there, or for this run only."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="table-age-") as made_here:
        yield Path(made_here)


def main() -> None:
    """Make the tables, measure them on a server with delays, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, nargs="+", default=[10, 80, 10_000], help="of each table, ascending")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--appends", action="store_true", help="commits that make a file group each")
    parser.add_argument("--obstore", action="store_true", help="by way of obstore")
    parser.add_argument("--kept", type=Path, help="a folder in which tables stay for the next run")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with kept(given.kept) as folder:
        tables = made(folder, given.commits, appends=given.appends)
        with running(15, 30, 40, holds=tables) as site:
            found = measured(site, given.commits, given.rounds, obstore=given.obstore, appends=given.appends)
    print(json.dumps(found) if given.json else "\n".join(lines(found)))


if __name__ == "__main__":
    main()
