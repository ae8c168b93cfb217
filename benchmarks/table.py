"""What does a commit cost when many write one table, next to deltalake, lance and pyiceberg?

    python -m benchmarks.table                     # about eight minutes; --quick, --json, --engines, --writers, --only
    python -m benchmarks.table --only commits --paths --stores "GET 15, PUT 30, LIST 40 ms"  # what the requests are for

Writers are processes that append a hundred rows a commit, again and again. The stores: SeaweedFS, and the in-memory S3
server of `benchmarks.shaped_s3` with the delays of a bucket in the same region, whose requests are counted. After each
run the table is read: every commit that was acknowledged has to be there, whole and once, and nothing else; if not so
of ours, the benchmark ends with an error. The second table is of one writer, after more and more commits: how long a
commit takes, and to find out what the table consists of, with a handle that was there all the time and with a fresh
one. Of ours the last row is after `table.archive()`, if that moved anything (it leaves up to thirty commits where they
are), and one commit: until that, a handle that was there lists as well.

Not to be fooled: the writers share this machine's cores with the server, so that without delays one measures CPU. A
rate counts until the last commit that was begun is done. pyiceberg's catalog is a SQLite file on this machine's disk,
without the way that a catalog is away; its retries are the benchmark's, as its manual says. SeaweedFS makes losers of a
race for one key wait for a second.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from statistics import median, quantiles
from typing import Any

from benchmarks.lock import ChildFailed, ask, figures, jain, launched, tell
from benchmarks.s3_clients import Site
from benchmarks.shaped_s3 import ROOT, running

ENGINES = ("lockprovider.table", "deltalake", "lance", "pyiceberg")
AT_ONCE = "ours, unordered"  # if asked for: commits that appear at once
ON_OBSTORE = "ours, on obstore"  # if asked for: another client of S3
BOTH = "ours, on obstore, unordered"  # if asked for
UPSERTS = ("upserts, non-blocking", "upserts, optimistic")  # if asked for
OURS = (ENGINES[0], AT_ONCE, ON_OBSTORE, BOTH, *UPSERTS)
SHAPED = "GET 15, PUT 30, LIST 40 ms"
PACED = "GET 20, PUT 50, LIST 50 ms, 1 write/s"  # of one object, as on GCS
WEED = "SeaweedFS"
PACE = 1.0
ROWS = 100
CHILDREN = "benchmarks.table_children"


@dataclass(frozen=True)
class Run:
    """What came of some writers' commits."""

    store: str
    engine: str
    writers: int
    per_s: float
    median_ms: float
    p99_ms: float
    failed: int
    asked: int  # calls of `append`
    again: float  # per commit: how often it conflicted and was tried again by its caller
    requests: float | None  # per commit; None where the server does not count
    refused: float | None
    throttled: float | None  # 429
    cpu_ms: float  # of a writer's process, per commit
    jain: float
    wrong: int  # acknowledged commits that are not there, whole and once, and rows of others
    why: str
    paths: dict[str, float]  # requests per commit, by verb, status and what they are for


# The first that is found in a path says what the object is.
_KINDS = (
    ("/.locks/intents/", "intent"),
    ("table_lock.json", "lock record"),
    ("/.locks/checkpoints/", "checkpoint"),
    ("/.heartbeat/", "heartbeat"),
    ("/.temp/", "marker"),
    ("hoodie.properties", "properties"),
    (".requested", "requested"),
    ("inflight", "inflight"),
    ("/timeline/", "timeline"),
    (".hoodie_partition_metadata", "metafile"),
    ("/_delta_log/", "log"),
    ("/_versions/", "manifest"),
    ("/_transactions/", "transaction"),
    ("/metadata/", "metadata"),
    (".parquet", "data"),
    (".lance", "data"),
)


@contextlib.contextmanager
def seaweedfs() -> Iterator[Site]:
    """A real server."""
    sys.path.insert(0, str(ROOT / "tests"))
    from servers.seaweedfs import SeaweedFS

    with SeaweedFS() as server:
        yield Site(server.endpoint, server.key, server.secret, "us-east-1", server.bucket, "")


@contextlib.contextmanager
def store(name: str, slower: float) -> Iterator[Site]:
    """Run the named store, with its delays times `slower`; yield it."""
    if name == WEED:
        shaped = seaweedfs()
    elif name == PACED:
        shaped = running(20 * slower, 50 * slower, 50 * slower, PACE / slower)
    else:
        shaped = running(15 * slower, 30 * slower, 40 * slower)
    with shaped as site:
        yield site


def alone(task: dict[str, Any]) -> Any:
    """What a process of its own says."""
    return figures(launched(CHILDREN, task))


def pace(name: str, slower: float) -> float | None:
    """How many writes a second the store is known to take of one object."""
    return PACE / slower if name == PACED else None


def measured(name: str, site: Site, engine: str, writers: int, seconds: float, *, slower: float) -> Run:
    """Make a table, commit with `writers` processes for `seconds`, check the rows, and return the figures.

    SystemExit: a commit of this library was lost or doubled.
    """
    where = replace(site, prefix=uuid.uuid4().hex)
    with tempfile.TemporaryDirectory() as folder:
        task = {"engine": engine, "site": asdict(where), "folder": folder, "pace": pace(name, slower)}
        alone({**task, "kind": "make"})
        children = [launched(CHILDREN, {**task, "kind": "commits", "writer": n}) for n in range(writers)]
        try:
            told, requests, start_s = together(name, site, children, seconds)
        finally:
            for process in children:  # if one has failed
                process.kill()
        there = alone({**task, "kind": "check"})
    run = summary((name, engine), told, requests, there, start_s)
    if run.wrong and engine in OURS:
        raise SystemExit(f"{engine}: {run.wrong} commits were lost or doubled")
    return run


def together(
    name: str, site: Site, children: list[subprocess.Popen[str]], seconds: float
) -> tuple[list[Any], dict[str, int] | None, float]:
    """Let the ready children write from one moment on; return their results, the counts of requests, and that moment.

    The counts are None for SeaweedFS. ChildFailed: a child is not ready.
    """
    for process in children:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise ChildFailed("a writer did not get ready")
    counts = name != WEED
    if counts:
        ask(site, "DELETE", "/")
    start_s = time.monotonic() + 0.3
    for process in children:
        tell(process, {"start_s": start_s, "end_s": start_s + seconds})
    told = [figures(process) for process in children]
    return told, json.loads(ask(site, "GET", "/?paths")) if counts else None, start_s


def kinds(requests: dict[str, int]) -> Counter[str]:
    """The requests by verb, status and what they are for, not by path."""
    found: Counter[str] = Counter()
    for what, count in requests.items():
        verb, status, path = what.split(" ", 2)
        kind = next((name for part, name in _KINDS if part in path), "several" if verb == "POST" else "other")
        found[f"{verb} {status} {kind}"] += count
    return found


def summary(
    what: tuple[str, str], told: list[Any], requests: dict[str, int] | None, there: dict[str, int], start_s: float
) -> Run:
    """Compute a run's figures. `what`: store and engine; `there`: rows in the table, by commit."""
    done = [[call for call in one["done"] if call[2]] for one in told]
    took_ms = [1000 * (ended_s - began_s) for calls in done for began_s, ended_s, *_ in calls] or [0.0, 0.0]
    counts = [len(calls) for calls in done]
    last_s = max((call[1] for one in told for call in one["done"]), default=start_s + 1)
    expected = {f"{n}/{k}" for n, one in enumerate(told) for k, call in enumerate(one["done"]) if call[2]}
    good = {name for name, count in there.items() if count == ROWS}
    commits = max(1, sum(counts))
    refusals = sum(count for what, count in (requests or {}).items() if what.split(" ")[1] == "412")
    throttled = sum(count for what, count in (requests or {}).items() if what.split(" ")[1] == "429")
    return Run(
        *what,
        writers=len(told),
        per_s=sum(counts) / (last_s - start_s),
        median_ms=median(took_ms),
        p99_ms=quantiles(took_ms, n=100, method="inclusive")[98] if len(took_ms) > 1 else took_ms[0],
        failed=sum(len(one["done"]) for one in told) - sum(counts),
        asked=sum(len(one["done"]) for one in told),
        again=sum(call[3] for calls in done for call in calls) / commits,
        requests=None if requests is None else sum(requests.values()) / commits,
        refused=None if requests is None else refusals / commits,
        throttled=None if requests is None else throttled / commits,
        cpu_ms=1000 * sum(one["cpu_s"] for one in told) / commits,
        jain=jain(counts),
        wrong=len(expected - good) + len(there.keys() - expected),
        why=next((one["why"] for one in told if one["why"]), ""),
        paths={what: count / commits for what, count in sorted(kinds(requests or {}).items())},
    )


def commit_table(runs: list[Run]) -> Iterator[str]:
    """Yield a Markdown table of runs, with a column for the store if there are several."""
    stores = {run.store for run in runs}
    heads = ["store"] if len(stores) > 1 else []
    heads += ["table", "writers", "commits/s", "median ms", "p99 ms", "failed", "requests", "CPU ms", "Jain"]
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    for run in runs:
        failed = f"{run.failed} of {run.asked}" if run.failed else "0"
        cells = (
            *([run.store] if len(stores) > 1 else []),
            run.engine,
            str(run.writers),
            f"{run.per_s:.1f}",
            f"{run.median_ms:.0f}",
            f"{run.p99_ms:.0f}",
            f"{failed}, {run.wrong} lost or doubled" if run.wrong else failed,
            "-" if run.requests is None else f"{run.requests:.1f}",
            f"{run.cpu_ms:.0f}",
            f"{run.jain:.2f}",
        )
        yield f"| {' | '.join(cells)} |"


def path_table(runs: list[Run]) -> Iterator[str]:
    """Markdown; requests per commit."""
    heads = [f"{run.engine}, {run.writers}" for run in runs]
    yield f"| {' | '.join(['requests per commit', *heads])} |"
    yield "|---" * (1 + len(heads)) + "|"
    for what in sorted({what for run in runs for what in run.paths}):
        cells = (f"{run.paths[what]:.2f}" if what in run.paths else "-" for run in runs)
        yield f"| {' | '.join([what, *cells])} |"


def grown(name: str, site: Site, engine: str, counts: list[int], limit_s: float) -> list[dict[str, Any]]:
    """One engine's growth on one store; as far as it gets in the time."""
    where = replace(site, prefix=uuid.uuid4().hex)
    with tempfile.TemporaryDirectory() as folder:
        task = {"engine": engine, "site": asdict(where), "folder": folder, "counts": counts, "limit_s": limit_s}
        alone({**task, "kind": "make"})
        return [{"store": name, "engine": engine, **one} for one in alone({**task, "kind": "growth"})]


def growth_table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a Markdown table of commits and loads, with ratios to the same engine after the fewest commits."""
    yield "| store | table | commits | commit ms | x | load, held ms | x | load, fresh ms | x |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for row in rows:
        first = next(one for one in rows if (one["store"], one["engine"]) == (row["store"], row["engine"]))
        cells = [row["store"], row["engine"], f"{row['commits']}{', archived' if row.get('archived') else ''}"]
        for what in ("commit_ms", "held_ms", "fresh_ms"):
            cells += [f"{row[what]:.1f}", f"{row[what] / first[what]:.2f}"]
        yield f"| {' | '.join(cells)} |"


def main() -> None:
    """Measure commits and growth, and print Markdown tables or JSON; failed runs are reported and left out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--engines", nargs="*", default=list(ENGINES), choices=[*ENGINES, AT_ONCE, ON_OBSTORE, BOTH, *UPSERTS]
    )
    parser.add_argument("--writers", type=int, nargs="*", default=[1, 4, 16])
    parser.add_argument("--seconds", type=float, default=6.0, help="of a run; twice that with delays")
    parser.add_argument("--stores", nargs="*", default=[WEED, SHAPED], choices=[WEED, SHAPED, PACED])
    parser.add_argument("--counts", type=int, nargs="*", default=[10, 100, 1000])
    parser.add_argument("--slower", type=float, default=1.0, help="times the delays, where the cores are too few")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for one engine's growth")
    parser.add_argument("--only", choices=["commits", "growth"])
    parser.add_argument("--quick", action="store_true", help="a minute: ours alone, and little of it")
    parser.add_argument("--paths", action="store_true", help="also what the requests of commits are for, where counted")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.quick:
        given.engines, given.stores, given.counts, given.seconds = [ENGINES[0]], [SHAPED], [10, 100], 3.0
    runs: list[Run] = []
    growth: list[dict[str, Any]] = []
    for name in given.stores:
        with store(name, given.slower) as site:
            for writers in given.writers if given.only != "growth" else ():
                for engine in given.engines:
                    seconds = given.seconds * (1 if name == WEED else 2 * given.slower)
                    try:
                        runs.append(measured(name, site, engine, writers, seconds, slower=given.slower))
                    except ChildFailed as reason:
                        print(f"{engine} with {writers} writers on {name} is NOT measured: {reason}", file=sys.stderr)
                        continue
                    print(list(commit_table(runs[-1:]))[-1], runs[-1].why, file=sys.stderr, flush=True)
            if given.only != "commits" and name == given.stores[0]:
                for engine in given.engines:
                    growth += grown(name, site, engine, given.counts, given.limit)
    if given.json:
        print(json.dumps({"commits": [asdict(run) for run in runs], "growth": growth}))
        return
    traced = [run for run in runs if run.requests is not None] if given.paths else []
    for table in filter(
        None, (runs and commit_table(runs), traced and path_table(traced), growth and growth_table(growth))
    ):
        print("\n".join(table), end="\n\n")


if __name__ == "__main__":
    main()
