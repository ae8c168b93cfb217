"""What do a queue, a state document, a log and an election cost, by requests and by time?

    python -m benchmarks.queues          # two minutes; --threads, --producers, --seconds, --put-ms, --get-ms, --json
    python -m benchmarks.queues --waiting 100000 1000000    # only that: queues in which so many wait
    python -m benchmarks.queues --pace 1 --threads 512      # only puts, at the pace of GCS
    python -m benchmarks.queues --peers     # only the queue and the log, and after each redis streams or slatedb

Threads of one process put a message, claim one and acknowledge it, again and again; update one document; and append
200 bytes to a log, without a producer's name and each as a producer of its own. The server is `shaped_s3`, whose
requests take as long as they are told to, and are counted. At the end each message was worked on once, the document has
counted each update, and each record is in the log once. One candidate of an election is elected and resigns, again and
again, and renews a term.

Not to be fooled: many threads are one interpreter. Processes contend for the object, threads do not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import lockprovider
from benchmarks.coordination import asked
from benchmarks.lock_peers import NotHere
from benchmarks.queue_peers import Row, StreamCycles, amount, figures, redis_streams, slatedb_puts
from benchmarks.s3_clients import Site, known_to_take
from benchmarks.shaped_s3 import running
from fsspec_cas import Store


def repeated(
    site: Site,
    count: int,
    seconds: float,
    call: Callable[[int], object],
    requests: Callable[[], int] | None = None,
) -> Row:
    """Call `call(number)` again and again on `count` threads for `seconds`; return rate, latencies and requests.

    `requests` counts those of a peer; None: those of the S3 server.
    """
    took_ms: list[float] = []
    guard = threading.Lock()
    asked(site, "DELETE")
    began_s = time.monotonic()
    end_s = began_s + seconds

    def run(number: int) -> None:
        while (sent_s := time.monotonic()) < end_s:
            call(number)
            with guard:
                took_ms.append(1000 * (time.monotonic() - sent_s))

    with ThreadPoolExecutor(count) as pool:
        for done in [pool.submit(run, number) for number in range(count)]:
            done.result()
    seconds = time.monotonic() - began_s
    return figures(took_ms, seconds, sum(asked(site).values()) if requests is None else requests())


def cycles(site: Site, count: int, seconds: float) -> Row:
    """Put, claim and acknowledge messages of one queue on `count` threads.

    AssertionError if one was worked on twice.
    """
    url = f"s3://{site.bucket}/queues/{count}.json"
    worked: Counter[int] = Counter()
    with lockprovider.queue.create(url, storage_options=site.storage_options, visible_s=60.0) as queue:

        def cycle(number: int) -> None:
            queue.put({"from": number})
            job = queue.claim(timeout=30.0)
            assert job is not None, "as many were put as are claimed"
            with job:
                worked[job.n] += 1

        row = repeated(site, count, seconds, cycle)
    assert set(worked.values()) == {1}, "a message was worked on twice"
    return row


def puts(site: Site, count: int, seconds: float) -> Row:
    """Put, and no more; what was refused for its pace is counted among the requests."""
    url = f"s3://{site.bucket}/queues/puts-{count}.json"
    with lockprovider.queue.create(url, storage_options=site.storage_options) as queue:
        row = repeated(site, count, seconds, lambda number: queue.put({"from": number}))
        refused = sum(times for what, times in asked(site).items() if what.endswith("429"))
        return {**row, "429": float(refused)}


def waiting(site: Site, most: int, count: int, seconds: float) -> tuple[Row, dict[str, float]]:
    """Fill a queue with `most` messages, then put, claim and acknowledge.

    Return the figures, and size and rate of the fill. AssertionError: a message is missing, came twice, or out of
    order.
    """
    name = f"waiting-{most}-{count}.json"
    url = f"s3://{site.bucket}/queues/{name}"
    seen: set[int] = set()
    with lockprovider.queue.create(url, storage_options=site.storage_options, visible_s=600.0) as queue:
        asked(site, "DELETE")
        began_s = time.monotonic()
        queue.put_many(range(most))
        took_s = time.monotonic() - began_s
        requests = sum(asked(site).values())
        held = len(Store.from_url(f"s3://{site.bucket}/queues", site.storage_options).read(name).data)

        def cycle(number: int) -> None:
            queue.put({"from": number})
            job = queue.claim(timeout=30.0)
            assert job is not None, "there are more than are claimed"
            with job:
                assert job.n not in seen, "a message was worked on twice"
                seen.add(job.n)

        row = repeated(site, count, seconds, cycle)
        assert queue.stat().ready == most, "a message is missing, or there twice"
        assert seen == {*range(1, len(seen) + 1)}, "they were not delivered in their order"
    return row, {"bytes": held, "puts/s": most / took_s, "requests a put": requests / most}


def updates(site: Site, count: int, seconds: float) -> Row:
    """Count up one state on `count` threads; AssertionError if an update was lost or counted twice."""
    url = f"s3://{site.bucket}/states/{count}.json"
    done = 0
    guard = threading.Lock()
    state: lockprovider.state.State[dict[str, int]] = lockprovider.state.open(
        url, storage_options=site.storage_options, default=dict
    )

    def update(_: int) -> None:
        nonlocal done
        state.update(lambda old: {"n": old.get("n", 0) + 1})
        with guard:
            done += 1

    row = repeated(site, count, seconds, update)
    assert state.read().value == {"n": done}, "an update was lost, or counted twice"
    return row


def appends(site: Site, count: int, seconds: float, *, named: bool) -> Row:
    """Append to one log on `count` threads, with a ring of 64 slots; `named`: by a producer for each, with numbers.

    AssertionError: a record is missing, or two have one offset.
    """
    url = f"s3://{site.bucket}/logs/{count}{'named' if named else ''}"
    told: Counter[int] = Counter()
    numbers = [0] * count
    with lockprovider.wal.create(url, storage_options=site.storage_options, slots=64, retain="slots") as log:
        producers = [log.appender(f"producer-{number}") for number in range(count)] if named else []

        def append(number: int) -> None:
            numbers[number] += 1
            data = b"%d" % number + bytes(200)
            done = producers[number].append(data, seq=numbers[number]) if named else log.append(data)
            assert done.position is not None
            told[done.position.offset] += 1

        row = repeated(site, count, seconds, append)
        assert {*told.values()} == {1}, "two records have one offset"
        assert log.end().offset == len(told) == sum(numbers), "a record is missing, or there twice"
    return row


def terms(site: Site, seconds: float) -> dict[str, Row]:
    """Measure terms of an election with one candidate: elected and resigned, and renewed.

    Return the figures of both.
    """
    url = f"s3://{site.bucket}/elections/one.json"
    rows: dict[str, Row] = {}
    epochs: list[int] = []
    with lockprovider.election.open(url, storage_options=site.storage_options, validity=600.0) as election:

        def lead(_: int) -> None:
            with election.lead() as term:
                epochs.append(term.epoch)

        lead(0)
        rows["election: elected, and resigned"] = repeated(site, 1, seconds, lead)
        assert epochs == [*range(epochs[0], epochs[0] + len(epochs))], "an epoch was given twice, or none"
        with election.lead() as term:
            rows["election: renewed"] = repeated(site, 1, seconds, lambda _: term.renew())
            term.check()
    return rows


def beside_peers(site: Site, given: argparse.Namespace) -> Iterator[tuple[str, Row]]:
    """Yield named figures of the queue and the log, each followed by its peers.

    A peer that cannot be had is reported.
    """
    with contextlib.ExitStack() as open_until_the_end:
        streams = None
        try:
            streams = open_until_the_end.enter_context(redis_streams(given.put_ms))
        except NotHere as error:
            print(f"redis is left out: {error}", file=sys.stderr)
        for count in given.threads:
            yield f"queue: put, claim and ack, {count} threads", cycles(site, count, given.seconds)
            if streams is not None:
                cycle = StreamCycles(streams, count)
                row = repeated(site, count, given.seconds, cycle, cycle.requests)
                assert {*cycle.worked.values()} == {1}, "a message was worked on twice"
                yield f"redis streams: the same, {count} threads", row
    for count in given.producers:
        yield f"log: append, {count} callers", appends(site, count, given.seconds, named=False)
        for flush_ms, name in ((None, "as it comes"), (1, "flush 1 ms")):
            try:
                yield f"slatedb, {name}: put, {count} tasks", slatedb_puts(site, count, given.seconds, flush_ms)
            except NotHere as error:
                print(f"slatedb is left out: {error}", file=sys.stderr)


def ratios(rows: Sequence[tuple[str, Row]]) -> dict[str, float]:
    """Return, for each peer, the rate of our row before it, divided by the peer's rate."""
    found, ours = {}, 1.0
    for name, row in rows:
        if name.startswith(("queue", "log", "state", "election")):
            ours = row["per s"]
        else:
            found[name] = ours / row["per s"]
    return found


def table(rows: Sequence[tuple[str, Row]]) -> str:
    """Return the rows as a Markdown table, with ratios to peers if there are any."""
    heads = [
        "per s",
        "median ms",
        "p99 ms",
        "requests each",
        *(["429"] if any("429" in row for _, row in rows) else []),
    ]
    beside = ratios(rows)
    last = ["here per s / its"] if beside else []
    lines = [f"| | {' | '.join([*heads, *last])} |", f"|{'---|' * (len(heads) + len(last) + 1)}"]
    for name, row in rows:
        told = [amount(row[head]) for head in heads] + [f"{beside[name]:.2f}" if name in beside else "" for _ in last]
        lines.append(f"| {name} | {' | '.join(told)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure the recipes and their peers on a server with delays, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 64])
    parser.add_argument("--producers", type=int, nargs="*", default=[1, 64, 512], help="of the log")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each")
    parser.add_argument("--get-ms", type=float, default=15.0)
    parser.add_argument("--put-ms", type=float, default=30.0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--waiting", type=int, nargs="*", help="measure nothing but queues in which so many wait")
    parser.add_argument("--pace", type=float, default=0.0, help="writes of an object a second; beyond them is 429")
    parser.add_argument("--peers", action="store_true", help="only the queue and the log, beside their peers")
    given = parser.parse_args()
    rows: list[tuple[str, Row]] = []
    if given.pace:
        known_to_take(given.pace)
    with running(given.get_ms, given.put_ms, pace=given.pace) as site:
        if given.pace:
            rows += [(f"queue: put, {count} threads", puts(site, count, given.seconds)) for count in given.threads]
            given.waiting = []
        if given.peers:
            rows += beside_peers(site, given)
            given.waiting = []
        for most in given.waiting or ():
            for count in given.threads:
                row, filled = waiting(site, most, count, given.seconds)
                print(f"{most:,} waiting, {count} threads:", {name: round(one, 4) for name, one in filled.items()})
                rows.append((f"queue: {most:,} waiting, put, claim and ack, {count} threads", row))
        for count in given.threads if given.waiting is None else ():
            rows.append((f"queue: put, claim and ack, {count} threads", cycles(site, count, given.seconds)))
            rows.append((f"state: update, {count} threads", updates(site, count, given.seconds)))
        for count in given.producers if given.waiting is None else ():
            rows.append((f"log: append, {count} callers", appends(site, count, given.seconds, named=False)))
            rows.append((f"log: append, {count} named producers", appends(site, count, given.seconds, named=True)))
        if given.waiting is None:
            rows += terms(site, given.seconds).items()
    print(json.dumps(dict(rows)) if given.json else table(rows))


if __name__ == "__main__":
    main()
