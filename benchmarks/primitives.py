"""What a conditional request costs, next to its peers, on one server in one run.

    python -m benchmarks.primitives                # about two minutes; --latencies, --json for the figures

Every client runs in a process of its own, once a round, in an order that changes from round to round. A ratio is the
median over the rounds of the ratio within a round: the machine's mood cancels out. Figures in ms are medians of rounds.

Not measured: TLS, distance, a real cloud. Where a request takes 20 ms, all clients look alike but for their CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rich.console import Console
from rich.progress import Progress

from benchmarks.s3_clients import ASYNC, OPERATIONS, SYNC, Site

HERE = Path(__file__).resolve().parent.parent
BASE = "aiobotocore"
WRITERS = (1, 8, 64)
Latencies = dict[str, list[dict[str, Any]]]


@contextmanager
def seaweedfs() -> Iterator[Site]:
    """The tests' own SeaweedFS."""
    sys.path.insert(0, str(HERE / "tests"))
    from servers.seaweedfs import SeaweedFS

    with SeaweedFS() as server:
        yield Site(server.endpoint, server.key, server.secret, server.region, server.bucket, "")


def ask(site: Site, **task: Any) -> Any:
    """Run one task of `s3_clients` in a fresh process, below a fresh prefix.

    Return its figures. SystemExit if it fails.
    """
    where = asdict(site) | {"prefix": uuid.uuid4().hex}
    environment = os.environ | {
        "PYTHONPATH": f"{HERE}{os.pathsep}{HERE / 'tests'}",
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }
    child = subprocess.run(
        [sys.executable, "-m", "benchmarks.s3_clients"],
        input=json.dumps({**task, "site": where}),
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if child.returncode not in (0, -6):  # obstore's process may abort at its exit, after all work is done
        raise SystemExit(f"{task} failed:\n{child.stderr}")
    return json.loads(child.stdout)


def measure(site: Site, arguments: argparse.Namespace, progress: Progress) -> dict[str, Any]:
    """Measure latencies and, unless `--latencies`, rates and streaming of all clients, in random order.

    Return them by kind.
    """
    clients = [*SYNC, *ASYNC]
    rng = random.Random(arguments.seed)
    counts = () if arguments.latencies else WRITERS
    runs = arguments.rounds * (len(clients) + len(counts) * len(clients))
    task = progress.add_task("requests", total=runs)
    latencies: Latencies = {name: [] for name in clients}
    rates: dict[str, dict[int, list[float]]] = {name: {n: [] for n in WRITERS} for name in clients}
    for _ in range(arguments.rounds):
        for name in rng.sample(clients, len(clients)):
            latencies[name].append(ask(site, kind="latencies", client=name, count=arguments.count))
            progress.advance(task)
        for writers in counts:
            for name in rng.sample(clients, len(clients)):
                if name != "signed request":  # one connection, one thread
                    found = ask(site, kind="throughput", client=name, writers=writers, count=arguments.count)
                    rates[name][writers].append(found)
                progress.advance(task)
    if arguments.latencies:
        return {"latencies": latencies}
    streamed = ask(site, kind="stream", size_mib=arguments.stream_mib)
    return {"latencies": latencies, "rates": rates, "stream": streamed}


def ratio(mine: list[float], base: list[float]) -> float:
    """The median of the ratios within each round."""
    return median(a / b for a, b in zip(mine, base, strict=True))


def latency_table(latencies: Latencies) -> Iterator[str]:
    """Yield markdown: medians with their ratio, and the client's CPU time, the mean of all operations."""
    base = {operation: _medians(latencies[BASE], operation) for operation in OPERATIONS}
    heads = [f"median ms (x {BASE})", *OPERATIONS, "CPU ms"]
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    for name, runs in latencies.items():
        cells = [name]
        for operation in OPERATIONS:
            medians = _medians(runs, operation)
            cells.append(f"{median(medians):.2f} ({ratio(medians, base[operation]):.2f})")
        cells.append(f"{median(fmean(run[operation]['cpu_ms'] for operation in OPERATIONS) for run in runs):.2f}")
        yield f"| {' | '.join(cells)} |"


def _medians(runs: list[dict[str, Any]], operation: str) -> list[float]:
    return [median(run[operation]["wall_ms"]) for run in runs]


def rate_table(rates: dict[str, dict[int, list[float]]]) -> Iterator[str]:
    """Creates per second."""
    yield "\n**creates per second, distinct keys**\n"
    yield "| client | " + " | ".join(f"{n} writer{'s' if n > 1 else ''}" for n in WRITERS) + " |"
    yield "|---" * (len(WRITERS) + 1) + "|"
    for name, found in rates.items():
        if found[1]:
            yield f"| {name} | " + " | ".join(f"{median(found[n]):,.0f}" for n in WRITERS) + " |"


def report(figures: dict[str, Any]) -> str:
    """Return all tables in Markdown, without rates and streaming if those were not measured."""
    lines = [*latency_table(figures["latencies"])]
    if "rates" not in figures:
        return "\n".join(lines)
    stream = figures["stream"]
    lines += rate_table(figures["rates"])
    lines.append(
        f"\n`open_exclusive` of {stream['size_mib']} MiB: {stream['mib_per_s']:.0f} MiB/s, "
        f"the process grew by {stream['grown_mib']:.0f} MiB."
    )
    return "\n".join(lines)


def main() -> None:
    """Measure on SeaweedFS, and print Markdown tables or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=300, help="timed requests of each kind, a round")
    parser.add_argument("--latencies", action="store_true", help="only single requests: no writers at once, no stream")
    parser.add_argument("--stream-mib", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with seaweedfs() as site, Progress(console=Console(stderr=True)) as progress:
        figures = measure(site, arguments, progress)
    print(json.dumps(figures) if arguments.json else report(figures))


if __name__ == "__main__":
    main()
