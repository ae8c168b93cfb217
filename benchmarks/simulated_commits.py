"""How many commits a second could a table take, if no processor were short: the library in simulated time.

    python -m benchmarks.simulated_commits         # some minutes; --stores, --visibility, --writers, --seconds, --json

Each writer is a process of its own with the real `Table.append`, all of it: threads, clocks and the way to the store
are simulated, so a seed gives the same figures on every machine. A request takes what the row says, 15 % more or less,
and takes effect halfway. After each run the table is read: every acknowledged commit is there once, and none else.

Not to be fooled: what a commit computes is not simulated, `--cpu-ms` stands for it, before each commit; nothing is
lost, late or throttled but by the pace of a store that takes one write a second of an object. `benchmarks.table` runs
real processes, on cores that they share.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import product
from statistics import median, quantiles
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from benchmarks.lock import jain
from benchmarks.shaped_s3 import ROOT
from benchmarks.table_children import ROWS, SCHEMA, rows
from fsspec_cas import Store, Version, store
from fsspec_cas.answer import (
    Applied,
    Capabilities,
    ConditionFailed,
    Entry,
    Missing,
    NotApplied,
    ObjectState,
    Page,
    Unchanged,
)
from fsspec_cas.backends.base import AttributeRules
from fsspec_cas.outcome import Absent, Condition, Write
from lockprovider.table import Table, TableSpec

sys.path.insert(0, str(ROOT / "tests"))
from simulate.histories import Clock
from simulate.scheduler import Crew, Process, Scheduler, inside

ORDERED, UNORDERED = "ordered", "unordered"
_NOISE = 0.15
_WARM = 2  # commits of each writer, before what counts
_APART_S = 0.2  # between the first commits of the first writer and the last
_LATER_S = 3e9  # the table is made by this machine's clock: behind that its commits begin when they begin
_PAGE = 1000
_ROOT = "bucket/table"
_CAN = Capabilities(
    create=True, match=True, delete_match=True, read_changed=True, unique_versions=True, keeps_write_id=True
)


@dataclass(frozen=True)
class Delays:
    """Milliseconds; `writes_per_s` is how often an object takes a write."""

    get_ms: float
    put_ms: float
    list_ms: float
    writes_per_s: float | None = None


STORES = {
    "S3-like": Delays(15, 30, 40),
    "GCS-like": Delays(20, 50, 50, 1.0),
    "Azure-like": Delays(10, 18, 30),
}


@dataclass(frozen=True)
class Run:
    """What came of it; latencies in ms, requests for each commit."""

    store: str
    visibility: str
    writers: int
    seed: int
    per_s: float
    median_ms: float
    p99_ms: float
    requests: float
    refused: float
    throttled: float
    jain: float


@dataclass
class Objects:
    """What all writers share."""

    capabilities: Capabilities
    found: dict[str, ObjectState] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)  # sorted
    written_s: dict[str, float] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    serial: int = 0


class Way:
    """One process's way to the store: a backend whose requests wait in simulated time."""

    name = "simulated"
    blocking = True
    remote = True
    attribute_rules = AttributeRules()
    part_rules: Any = None  # nothing here is so large

    def __init__(self, objects: Objects, scheduler: Scheduler, delays: Delays) -> None:
        self.capabilities = objects.capabilities
        self._objects, self._scheduler, self._delays = objects, scheduler, delays

    async def put(self, write: Write, data: bytes, **_: Any) -> Any:
        """Create or replace, if the condition holds."""
        return self._ask(
            "PUT", self._delays.put_ms, lambda: self._put(write.path, data, write.condition, write.write_id)
        )

    async def head(self, path: str, **_: Any) -> Any:
        """What is there."""
        return self._ask("HEAD", self._delays.get_ms, lambda: _without_data(self._objects.found.get(path)))

    async def get(self, path: str, unless: Version | None, **_: Any) -> Any:
        """The object, if it is another."""
        return self._ask("GET", self._delays.get_ms, lambda: self._get(path, unless))

    async def delete(self, path: str, condition: Version | None, **_: Any) -> Any:
        """Remove it."""
        return self._ask("DELETE", self._delays.put_ms, lambda: self._delete(path, condition))

    async def delete_batch(self, paths: Sequence[str], **_: Any) -> Any:
        """Remove them all."""
        return self._ask("DELETE", self._delays.put_ms, lambda: self._delete_all(paths))

    async def list_page(self, prefix: str, start_after: str | None, token: str | None, **_: Any) -> Any:
        """A page."""
        return self._ask("LIST", self._delays.list_ms, lambda: self._page(prefix, token or start_after or ""))

    def adapt(self, refused: str = "") -> bool:
        """There is one dialect."""
        del refused
        return False

    async def close(self) -> None:
        """Nothing is open."""

    def _ask(self, verb: str, ms: float, effect: Callable[[], Any]) -> Any:
        """Sleep half of a request's simulated time, call `effect`, count its answer by verb, sleep the rest.

        Return the answer.
        """
        scheduler = self._scheduler
        leg_s = ms / 2000 * (1 + _NOISE * (2 * scheduler.random.random() - 1))
        scheduler.sleep(leg_s)
        answer = effect()
        self._objects.asked[f"{verb} {type(answer).__name__}"] += 1
        scheduler.sleep(leg_s)
        return answer

    def _put(self, path: str, data: bytes, condition: Condition, write_id: str) -> Any:
        """Write an object if the condition holds and its last write is not too recent; return the outcome."""
        objects, now_s, pace = self._objects, self._scheduler.now_s, self._delays.writes_per_s
        if pace and now_s - objects.written_s.get(path, -1e9) < 1 / pace:
            return NotApplied("429 too many writes of this object")
        there = objects.found.get(path)
        if (there and there.version) != (None if isinstance(condition, Absent) else condition):
            return ConditionFailed()
        if there is None:
            insort(objects.names, path)
        objects.serial += 1
        objects.written_s[path] = now_s
        version = Version(self.name, str(objects.serial))
        objects.found[path] = ObjectState(version, len(data), round(now_s * 1000), write_id, data)
        return Applied(version)

    def _get(self, path: str, unless: Version | None) -> Any:
        there = self._objects.found.get(path)
        return Unchanged() if there is not None and there.version == unless else there or Missing()

    def _delete(self, path: str, condition: Version | None) -> Any:
        """Delete an object if the condition holds.

        Return the outcome. A missing one counts as deleted without a condition.
        """
        there = self._objects.found.get(path)
        if condition is not None and (there is None or there.version != condition):
            return ConditionFailed()
        if there is not None:
            del self._objects.found[path]
            del self._objects.names[bisect_left(self._objects.names, path)]
        return Applied(None)

    def _delete_all(self, paths: Sequence[str]) -> Any:
        for path in paths:
            self._delete(path, None)
        return Applied(None)

    def _page(self, prefix: str, after: str) -> Page:
        names, found = self._objects.names, self._objects.found
        first = max(bisect_left(names, prefix), bisect_right(names, after))
        page = names[first : first + _PAGE + 1]
        page = page[: next((n for n, name in enumerate(page) if not name.startswith(prefix)), len(page))]
        entries = tuple(Entry(n, found[n].size, found[n].modified_ms, found[n].version) for n in page[:_PAGE])
        return Page(entries, entries[-1].path if len(page) > _PAGE else None)


def _without_data(there: ObjectState | None) -> ObjectState | Missing:
    return Missing() if there is None else replace(there, data=None)


class Pool:
    """`ThreadPoolExecutor` in simulated time."""

    def __init__(self, most: int, *_: Any, scheduler: Scheduler) -> None:
        self._most, self._scheduler = most, scheduler
        self._waiting: list[tuple[Answer, Callable[[], Any]]] = []
        self._running = 0

    def submit(self, call: Callable[[], Any]) -> Answer:
        """It runs as soon as there is room."""
        answer = Answer(self._scheduler)
        self._waiting.append((answer, call))
        if self._running < self._most:
            self._running += 1
            self._scheduler.spawn(self._scheduler.current.process, self._work, "pool")
        return answer

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - as the real one
        """What is under way goes on."""
        del wait
        if cancel_futures:
            self._waiting.clear()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def _work(self) -> None:
        """Run waiting calls one after the other, and set their answers or errors, until none is left."""
        while self._waiting:
            answer, call = self._waiting.pop(0)
            try:
                answer.set_result(call())
            except Exception as error:  # noqa: BLE001 - for whoever asks for the answer
                answer.set_exception(error)
            answer.over.set()
        self._running -= 1


class Answer(Future[Any]):
    """Of a pool: waiting for it takes simulated time."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self.over = scheduler.event()

    def result(self, timeout: float | None = None) -> Any:
        """What the call returned."""
        self.over.wait(timeout)
        return super().result(0)


@contextlib.contextmanager
def in_simulated_time(scheduler: Scheduler) -> Iterator[None]:
    """Replace threads, pools and background calls of the library by the scheduler's, then restore them."""

    def begin(call: Callable[[], Any]) -> Answer:
        return Pool(1, scheduler=scheduler).submit(call)

    named = [module for name, module in sys.modules.items() if name.partition(".")[0] in {"fsspec_cas", "lockprovider"}]
    pools = ("ThreadPoolExecutor", "WorksAtExit")
    pooled = [(module, name, getattr(module, name)) for module in named for name in pools if hasattr(module, name)]
    for module, name, real in pooled:
        setattr(module, name, inside(partial(Pool, scheduler=scheduler), real))
    background = store.BACKGROUND
    store.BACKGROUND = SimpleNamespace(begin=inside(begin, background.begin))  # type: ignore[assignment]
    try:
        with scheduler.in_place_of_threads():
            yield
    finally:
        store.BACKGROUND = background
        for module, name, real in pooled:
            setattr(module, name, real)


class Writers:
    """One table, and all who append to it until the time is over."""

    def __init__(
        self, delays: Delays, visibility: str, writers: int, seed: int, *, seconds: float, cpu_s: float
    ) -> None:
        self.scheduler = Scheduler(seed, Crew())
        self.objects = Objects(replace(_CAN, writes_per_s=delays.writes_per_s))
        self.delays, self.writers, self.seconds, self.cpu_s = delays, writers, seconds, cpu_s
        self.took_s: list[list[float]] = [[] for _ in range(writers)]
        self.done: set[int] = set()  # the first ids of acknowledged commits
        self.began_s = self.ended_s = 0.0
        self._warming = writers
        self._objects_of(Table.create(f"memory://{uuid4()}", TableSpec("t", SCHEMA, "id", visibility=visibility)))

    def run(self) -> None:
        """Run all writers, then one reader, in simulated time; keep the counts of requests of the measured part.

        Raises:
            RuntimeError: what is there at the end is not what was acknowledged.
        """
        with in_simulated_time(self.scheduler):
            self._go = self.scheduler.event()
            for number in range(self.writers):
                self.scheduler.spawn(Process(f"w{number}"), partial(self._write, number), f"w{number}")
            self.scheduler.run()
            self.asked = self.objects.asked.copy()
            self.scheduler.spawn(Process("reader"), self._read, "reader")
            self.scheduler.run()
            self.scheduler.end()
        for name, error in self.scheduler.errors:
            raise RuntimeError(f"{name}: {error!r}") from error

    def _objects_of(self, made: Table) -> None:
        for number, entry in enumerate(made.store.list("")):
            data, version = made.store.read(entry.path).data, Version(Way.name, f"made {number}")
            self.objects.found[f"{_ROOT}/{entry.path}"] = ObjectState(version, len(data), 0, None, data)
        self.objects.names.extend(sorted(self.objects.found))

    def _table(self, name: str) -> Table:
        world = Clock(self.scheduler, name, wrong_by_s=_LATER_S)
        way = Way(self.objects, self.scheduler, self.delays)
        return Table(Store(way, _ROOT, world=world), f"s3://{_ROOT}", world=world)

    def _write(self, number: int) -> None:
        """Warm up, wait until all writers have, then commit until the time is over, and record each duration."""
        scheduler, table = self.scheduler, self._table(f"w{number}-")
        scheduler.sleep(scheduler.random.random() * _APART_S)
        for commit in range(_WARM):
            self._commit(table, number, commit)
        self._warming -= 1
        if not self._warming:
            self.objects.asked.clear()
            self.began_s = scheduler.now_s
            self._go.set()
        self._go.wait()
        while scheduler.now_s < self.began_s + self.seconds:
            self.took_s[number].append(self._commit(table, number, _WARM + len(self.took_s[number])))
        self.ended_s = scheduler.now_s

    def _commit(self, table: Table, number: int, commit: int) -> float:
        began_s, part = self.scheduler.now_s, rows(number, commit)
        self.scheduler.sleep(self.cpu_s * (0.5 + self.scheduler.random.random()))  # else they walk in step
        table.append(part)
        self.done.add(part.column("id")[0].as_py())
        return self.scheduler.now_s - began_s

    def _read(self) -> None:
        ids = self._table("reader").to_arrow(["id"]).column("id").to_pylist()
        expected = {first + n for first in self.done for n in range(ROWS)}
        if len(ids) != len(expected) or {*ids} != expected:
            raise AssertionError(f"{len(ids)} rows are there, and {len(expected)} were acknowledged")


def run(name: str, visibility: str, writers: int, seed: int, *, seconds: float, cpu_ms: float) -> Run:
    """Simulate one case; return its rate, latencies, requests and fairness."""
    them = Writers(STORES[name], visibility, writers, seed, seconds=seconds, cpu_s=cpu_ms / 1000)
    them.run()
    took_ms = sorted(1000 * one for mine in them.took_s for one in mine)
    counts = [len(mine) for mine in them.took_s]
    asked = them.asked
    return Run(
        store=name,
        visibility=visibility,
        writers=writers,
        seed=seed,
        per_s=len(took_ms) / (them.ended_s - them.began_s),
        median_ms=median(took_ms),
        p99_ms=quantiles(took_ms, n=100)[-1] if len(took_ms) > 1 else took_ms[0],
        requests=asked.total() / len(took_ms),
        refused=sum(count for what, count in asked.items() if what.endswith("ConditionFailed")) / len(took_ms),
        throttled=sum(count for what, count in asked.items() if what.endswith("NotApplied")) / len(took_ms),
        jain=jain(counts),
    )


def main() -> None:
    """Simulate all cases of the command line, and print a Markdown table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stores", nargs="+", choices=STORES, default=list(STORES), help="their names")
    parser.add_argument("--visibility", nargs="+", choices=(ORDERED, UNORDERED), default=[ORDERED, UNORDERED])
    parser.add_argument("--writers", nargs="+", type=int, default=[1, 4, 16, 64])
    parser.add_argument("--seconds", type=float, default=10, help="simulated, of each run")
    parser.add_argument("--cpu-ms", type=float, default=12, help="what a commit computes")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--json", action="store_true", help="as JSON")
    given = parser.parse_args()
    cases = product(given.stores, given.visibility, given.writers, given.seeds)
    found = []
    for name, visibility, writers, seed in cases:
        print(f"{name}, {visibility}, {writers} writers, seed {seed}", file=sys.stderr)
        found.append(run(name, visibility, writers, seed, seconds=given.seconds, cpu_ms=given.cpu_ms))
    if given.json:
        print(json.dumps([asdict(one) for one in found]))
        return
    print("| store | visibility | writers | commits/s | median ms | p99 ms | requests |\n|---|---|---|---|---|---|---|")
    for one in found:
        figures = [f"{one.per_s:.1f}", f"{one.median_ms:.0f}", f"{one.p99_ms:.0f}", f"{one.requests:.1f}"]
        print(f"| {one.store} | {one.visibility} | {one.writers} | {' | '.join(figures)} |")


if __name__ == "__main__":
    main()
