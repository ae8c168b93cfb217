"""What the lock costs: a cycle next to the same requests sent raw, and many contenders next to plain polling.

    python -m benchmarks.lock                      # about a minute; --rounds, --seconds, --contenders, --json

The cycle is `acquire` and `release`: two requests where the own record is known, three cold. Every client runs in a
process of its own, once a round, in an order that changes; a ratio is the median of the ratios within a round. The
server is `benchmarks.shaped_s3`: without delay, where only the client's CPU counts, and with the delays of a bucket in
the same region. Contenders are threads in four processes, each with a `Lock` of its own, that hold the lock for 2 ms.
The same by simulation, on more machines than one has: `benchmarks.contention`.

The locks of redis, ZooKeeper and etcd are measured too, where their servers are found (`benchmarks.lock_peers`).

Not to be fooled: those are one process each, without a quorum, and redis keeps the lock in memory only; ZooKeeper's and
etcd's syncs cost what the disk makes of them; with more contenders than cores their own CPU is part of it. Requests are
counted by the server.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import os
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, replace
from statistics import median, quantiles
from typing import Any

from benchmarks.contention import Case, pooled
from benchmarks.contention import row as simulated_row
from benchmarks.lock_peers import serving, there
from benchmarks.s3_clients import Site
from benchmarks.shaped_s3 import ROOT, running

SHAPES = {"no delay": (0.0, 0.0), "GET 15 ms, PUT 30 ms": (15.0, 30.0)}
CLIENTS = ("lockprovider", "aiobotocore", "obstore")
PROCESSES = 4
NAIVE_S = 0.1


def child(site: Site, task: dict[str, Any]) -> subprocess.Popen[str]:
    """A process for one task."""
    return launched("benchmarks.lock_children", {**task, "site": asdict(site)})


def launched(module: str, task: dict[str, Any]) -> subprocess.Popen[str]:
    """A process for one task of a module."""
    environment = os.environ | {"AWS_EC2_METADATA_DISABLED": "true", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    process = subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment,
    )
    assert process.stdin is not None
    tell(process, task)
    return process


def tell(process: subprocess.Popen[str], what: dict[str, Any]) -> None:
    """One line to it."""
    assert process.stdin is not None
    process.stdin.write(f"{json.dumps(what)}\n")
    process.stdin.flush()


def figures(process: subprocess.Popen[str]) -> Any:
    """What it printed."""
    assert process.stdout is not None
    printed = process.stdout.read()
    if process.wait() not in (0, -6):  # obstore's process may abort at its exit, after all work is done
        raise SystemExit(f"a child failed: {process.returncode}")
    return json.loads(printed)


def measure_cycles(rounds: int, count: int, rng: random.Random) -> dict[str, Any]:
    """Milliseconds, by shape and temperature, by client: for each round those of the clock and of the CPU."""
    found: dict[str, Any] = {}
    for shape, delays in SHAPES.items():
        with running(*delays) as site:
            for cold in (False, True):
                by_client: dict[str, list[Any]] = {client: [] for client in CLIENTS}
                for _ in range(rounds):
                    for client in rng.sample(CLIENTS, len(CLIENTS)):
                        where = replace(site, prefix=uuid.uuid4().hex)
                        task = {"kind": "cycles", "client": client, "cold": cold}
                        task["count"] = count if shape == "no delay" else max(10, count // 10)
                        by_client[client].append(figures(child(where, task)))
                found[f"{shape}, {'3 requests, cold' if cold else '2 requests'}"] = by_client
    return found


def measure_peers(rounds: int, count: int) -> dict[str, list[Any]]:
    """The cycles of other locks, without delay, where their servers can be had."""
    found: dict[str, list[Any]] = {}
    for peer in there():
        with serving(peer) as site:
            task = {"kind": "cycles", "client": peer.name, "cold": False, "count": count}
            found[peer.name] = [figures(child(site, task)) for _ in range(rounds)]
    return found


def cycle_table(found: dict[str, Any]) -> Iterator[str]:
    """Markdown."""
    yield "| cycle | client | median ms | p99 ms | x aiobotocore | x obstore | client CPU ms | x aiobotocore |"
    yield "|---|---|---|---|---|---|---|---|"
    for what, by_client in found.items():
        middle = {client: [median(run["wall"]) for run in runs] for client, runs in by_client.items()}
        cpu = {client: [sum(run["cpu"]) / len(run["cpu"]) for run in runs] for client, runs in by_client.items()}
        for client, runs in by_client.items():
            p99 = median(quantiles(run["wall"], n=100)[-1] for run in runs)
            ratios = [paired(middle[client], middle[base]) for base in ("aiobotocore", "obstore")]
            cells = (
                what,
                client,
                f"{median(middle[client]):.2f}",
                f"{p99:.2f}",
                *(f"{ratio:.2f}" for ratio in ratios),
                f"{median(cpu[client]):.2f}",
                f"{paired(cpu[client], cpu['aiobotocore']):.2f}",
            )
            yield f"| {' | '.join(cells)} |"


def paired(mine: list[float], base: list[float]) -> float:
    """The median of the ratios within each round."""
    return median(a / b for a, b in zip(mine, base, strict=True))


def ask(site: Site, verb: str, path: str, body: bytes = b"") -> bytes:
    """One request of our own to the server."""
    connection = http.client.HTTPConnection(site.endpoint.removeprefix("http://"))
    connection.request(verb, path, body)
    answer = connection.getresponse().read()
    connection.close()
    return answer


def contend(site: Site, contenders: int, policy: str, *, drain: bool, seconds: float) -> dict[str, Any]:
    """One run: four processes, their turns and what the server was asked."""
    where = replace(site, prefix=uuid.uuid4().hex)
    if policy == "naive":
        ask(site, "PUT", f"/{site.bucket}/{where.prefix}/lock.json", b"free")
    task = {"kind": "contend", "policy": policy, "drain": drain, "poll_s": NAIVE_S}
    children = [child(where, {**task, "threads": contenders // PROCESSES}) for _ in range(PROCESSES)]
    for process in children:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    ask(site, "DELETE", "/")
    start_s = time.monotonic() + 0.2
    for process in children:
        tell(process, {"start_s": start_s, "end_s": start_s + (300 if drain else seconds)})
    turns = [tuple(turn) for process in children for turn in figures(process)]
    asked = json.loads(ask(site, "GET", "/"))
    return summary(turns, asked) | {"contenders": contenders, "policy": policy, "drain": drain}


def summary(turns: list[tuple[float, ...]], asked: dict[str, int]) -> dict[str, Any]:
    """Figures of one run. Who was not served waited at least until the end."""
    served = sorted((turn for turn in turns if turn[1]), key=lambda turn: turn[1])
    hand_overs = [1000 * (b[1] - a[2]) for a, b in itertools.pairwise(served)]
    waits = [taken - asked_s for asked_s, taken, _ in served]
    longest = max([*waits, *(end - asked_s for asked_s, taken, end in turns if not taken)])
    return {
        "acquisitions": len(served),
        "requests": sum(asked.values()) / len(served),
        "asked": asked,
        "hand_over_ms": median(hand_overs),
        "hand_over_p99_ms": quantiles(hand_overs, n=100)[98],
        "per_s": len(served) / (served[-1][2] - served[0][0]),
        "wait_median_s": median(waits),
        "unfairness": longest / median(waits),
        "overlaps": sum(b[1] < a[2] for a, b in itertools.pairwise(served)),
    }


def contention_table(runs: list[dict[str, Any]]) -> Iterator[str]:
    """Markdown."""
    yield "| | lock | contenders | requests | hand-over ms (p99) | per s | median wait s | max/median | overlaps |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for run in runs:
        cells = (
            "drain" if run["drain"] else "closed loop",
            f"polled every {NAIVE_S:g} s" if run["policy"] == "naive" else "lockprovider",
            f"{run['contenders']} in {PROCESSES} processes",
            f"{run['requests']:.1f}",
            f"{run['hand_over_ms']:.0f} ({run['hand_over_p99_ms']:.0f})",
            f"{run['per_s']:.1f}",
            f"{run['wait_median_s']:.2f}",
            f"{run['unfairness']:.1f}",
            str(run["overlaps"]),
        )
        yield f"| {' | '.join(cells)} |"


def paced_table() -> Iterator[str]:
    """By simulation: a store that takes one write a second to one object."""
    yield "| simulated | lock | contenders | requests | hand-over ms (p99) | per s | wait s | max/median | unserved |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for policy, poll_s in (("line", 1.0), ("naive", 1.0)):
        for rounds, lasts_s in ((1, 1e9), (0, 300.0)):
            case = Case(4, 2, rounds, lasts_s, get_s=0.05, put_s=0.08, writes_per_s=1.0, policy=policy, poll_s=poll_s)
            yield f"| {' | '.join(simulated_row('drain' if rounds else 'closed loop', pooled(case, 3)))} |"


def main() -> None:
    """Run it all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=200, help="cycles a round; a tenth of them with delays")
    parser.add_argument("--seconds", type=float, default=5.0, help="of a closed loop")
    parser.add_argument("--contenders", type=int, nargs="*", default=[8])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    cycles = measure_cycles(arguments.rounds, arguments.count, random.Random(arguments.seed))
    cycles["no delay, 2 requests"] |= measure_peers(arguments.rounds, arguments.count)
    with running(*SHAPES["GET 15 ms, PUT 30 ms"]) as site:
        runs = [
            contend(site, contenders, policy, drain=drain, seconds=arguments.seconds)
            for contenders in arguments.contenders
            for drain in (True, False)
            for policy in ("line", "naive")
        ]
    if arguments.json:
        print(json.dumps({"cycles": cycles, "contention": runs}))
        return
    for table in (cycle_table(cycles), contention_table(runs), paced_table()):
        print("\n".join(table), end="\n\n")


if __name__ == "__main__":
    main()
