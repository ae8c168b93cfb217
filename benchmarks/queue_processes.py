"""What does it cost that many processes use one queue or log: each for itself, or with a broker?

    python -m benchmarks.queue_processes     # two minutes; --processes, --threads, --seconds, --put-ms, --only, --json

Each process has threads that put a message, claim one and acknowledge it, again and again, or that append 200 bytes to
a log. The server is `shaped_s3`, whose requests take as long as they are told to, and are counted. All begin at once,
when the last has done its first operation. At the end each message was worked on once, and each record is in the log
once.

Not to be fooled: all processes share this machine's processors, with the server; requests are exact, times are not.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import lockprovider
from benchmarks.coordination import asked
from benchmarks.lock import jain
from benchmarks.queue_peers import Row, amount
from benchmarks.s3_clients import Site
from benchmarks.shaped_s3 import running

ROOT = Path(__file__).resolve().parent.parent


def cycling(site: Site, task: dict[str, Any]) -> None:
    """Be one process of a crowd: print "ready", wait for a line, work on threads until the end, and print the figures.

    Stays until stdin ends, since a broker serves the others.
    """
    url, shared = f"s3://{site.bucket}/{task['name']}", {"broker": task["broker"]}
    took_ms: list[list[float]] = [[] for _ in range(task["threads"])]
    done: list[int] = []
    guard = threading.Lock()
    queue = log = None
    if task["kind"] == "queue":
        queue = lockprovider.queue.Queue.open(url, storage_options=site.storage_options, **shared)
    else:
        log = lockprovider.wal.Wal.open(url, storage_options=site.storage_options, **shared)

    def one() -> int:
        """Append once, or put, claim and acknowledge one message; return the offset, or the message's number."""
        if log is not None:
            position = log.append(bytes(200)).position
            assert position is not None
            return position.offset
        assert queue is not None
        queue.put({"from": task["number"]})
        job = queue.claim(timeout=60.0)
        assert job is not None, "as many were put as are claimed"
        with job:
            return job.n

    def run(number: int) -> None:
        while (sent_s := time.monotonic()) < end_s:
            n = one()
            took_ms[number].append(1000 * (time.monotonic() - sent_s))
            with guard:
                done.append(n)

    done.append(one())
    print("ready", flush=True)
    sys.stdin.readline()
    end_s = time.monotonic() + task["seconds"]
    threads = [threading.Thread(target=run, args=(number,)) for number in range(task["threads"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps({"took_ms": took_ms, "done": done}), flush=True)
    sys.stdin.readline()  # a broker lives as long as the others ask
    for client in (queue, log):
        if client is not None:
            client.close()


def crowd(site: Site, kind: str, *, broker: bool, processes: int, threads: int, seconds: float) -> Row:
    """Let processes work on one queue or log at the same time; return rate, latencies, requests and fairness.

    AssertionError: a message was worked on twice, or a record is missing.
    """
    name = f"crowds/{kind}-{broker}.json"
    url, options = f"s3://{site.bucket}/{name}", site.storage_options
    if kind == "queue":
        lockprovider.queue.create(url, storage_options=options, visible_s=600.0).close()
    else:
        lockprovider.wal.create(url, storage_options=options, slots=64, retain="slots").close()
    task = {"kind": kind, "name": name, "broker": broker, "threads": threads, "seconds": seconds}
    started = []
    for number in range(processes):
        given = json.dumps([asdict(site), {**task, "number": number}])
        command = [sys.executable, "-m", "benchmarks.queue_processes", "--child", given]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True))
    try:
        for child in started:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        asked(site, "DELETE")
        for child in started:
            assert child.stdin is not None
            child.stdin.write("\n")
            child.stdin.flush()
        told = [json.loads(child.stdout.readline()) for child in started if child.stdout is not None]
        requests = asked(site)
    finally:
        for child in started:
            assert child.stdin is not None
            child.stdin.close()
            child.wait()
    done = Counter(n for one in told for n in one["done"])
    assert set(done.values()) == {1}, "a message was worked on twice, or two records have one offset"
    if kind == "log":
        with lockprovider.wal.open(url, storage_options=options) as log:
            assert log.end().offset == len(done), "a record is missing, or there twice"
    each = [[ms for thread in one["took_ms"] for ms in thread] for one in told]
    took_ms = sorted(ms for one in each for ms in one)
    counts = [len(one) for one in each]
    return {
        "per s": len(took_ms) / seconds,
        "median ms": median(took_ms),
        "p99 ms": quantiles(took_ms, n=100, method="inclusive")[98],
        "longest ms": took_ms[-1],
        "PUTs each": sum(count for name, count in requests.items() if name.startswith("PUT")) / len(took_ms),
        "requests each": sum(requests.values()) / len(took_ms),
        "Jain": jain(counts),
    }


def table(rows: Sequence[tuple[str, Row]]) -> str:
    """Markdown."""
    heads = ["per s", "median ms", "p99 ms", "requests each", "Jain"]
    lines = [f"| | {' | '.join(heads)} |", f"|{'---|' * (len(heads) + 1)}"]
    lines += [f"| {name} | " + " | ".join(amount(row[head]) for head in heads) + " |" for name, row in rows]
    return "\n".join(lines)


def main() -> None:
    """Measure queue and log, each with and without a broker, and print a table or JSON.

    With `--child` be one process.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--threads", type=int, default=8, help="of each")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each")
    parser.add_argument("--get-ms", type=float, default=15.0)
    parser.add_argument("--put-ms", type=float, default=30.0)
    parser.add_argument("--only", nargs="*", default=["queue", "log"])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is not None:
        site, task = json.loads(given.child)
        cycling(Site(**site), task)
        return
    rows: list[tuple[str, Row]] = []
    many = {"processes": given.processes, "threads": given.threads, "seconds": given.seconds}
    with running(given.get_ms, given.put_ms) as site:
        for kind in given.only:
            for broker in (False, True):
                name = f"{kind}, {given.processes} x {given.threads}, {'a broker' if broker else 'each for itself'}"
                rows.append((name, crowd(site, kind, broker=broker, **many)))
    print(json.dumps(dict(rows)) if given.json else table(rows))


if __name__ == "__main__":
    main()
