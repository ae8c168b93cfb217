"""Draw the pictures of the specifications: who asks the store for what, and when, in real runs in simulated time.

    python -m benchmarks.pictures         # writes .docs/pictures/*.svg; a second

Each picture is one run of the library as it is. Only threads, clocks and the store are simulated, so each run writes
the same bytes. A read takes 15 ms, a write 30 ms, a listing 40 ms, as on S3.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa

from benchmarks.shaped_s3 import ROOT
from benchmarks.simulated_commits import _CAN, _LATER_S, _ROOT, STORES, Objects, Way, in_simulated_time
from fsspec_cas import Store, Version
from fsspec_cas.answer import Applied, ConditionFailed, ObjectState
from fsspec_cas.outcome import Absent, Write
from lockprovider import HUDI_LOCK_PATH, Intent, LeaseLost, Lock, LockRecord, LockSettings
from lockprovider.lanes import INK, RED, Box, Lane, Mark, draw_lanes
from lockprovider.table import Table, TableSpec

sys.path.insert(0, str(ROOT / "tests"))
from simulate.histories import AllSeen, Clock
from simulate.scheduler import Crew, Process, Scheduler

FOLDER = ROOT / ".docs" / "pictures"
COLOURS = {"A": "#0969da", "B": "#bf5700", "C": "#1a7f37", "D": "#8250df"}
PALE = 0.45
# What a path is called in a picture: the first pattern that fits.
NAMES = {
    r"table_lock\.json$": "lock record",
    r"/intents/": "intents",
    r"hoodie\.properties$": "properties",
    r"/\.heartbeat/": "heartbeat",
    r"\.requested$": "B.requested",
    r"inflight$": "B.inflight",
    r"/timeline/\d+_\d+\.": "B_C.commit",
    r"/timeline/": "timeline",
    r"marker|/\.temp/": "marker",
    r"\.parquet$": "base file",
}


@dataclass(frozen=True)
class Request:
    """One request of a client, from its start to its answer."""

    client: str
    does: str
    path: str
    start_ms: int
    end_ms: int
    refused: bool
    means: str = ""

    @property
    def name(self) -> str:
        """What the path is called in a picture."""
        return _shown(self.path.removeprefix(f"{_ROOT}/"))

    @property
    def reads(self) -> bool:
        """Whether it changes nothing."""
        return self.does in {"read", "look", "list"}

    @property
    def tells(self) -> str:
        """What a reader of the picture is told of it."""
        return f"{self.client}'s late write is refused" if self.refused else self.means

    def mark(self) -> Mark:
        """A moment with its meaning."""
        colour = RED if self.refused else COLOURS[self.client]
        return Mark(self.end_ms, "cross" if self.refused else "triangle", colour, "", self.tells)

    def box(self) -> Box:
        """A request that changes nothing is pale, a refused one hollow."""
        words = f"{self.client}: {self.does} {self.path}{', refused' if self.refused else ''}"
        pale = PALE if self.reads else 1.0
        label = f"{self.does}: {self.means}" if self.means else self.does
        return Box(self.start_ms, self.end_ms, COLOURS[self.client], words, label, hollow=self.refused, opacity=pale)


@dataclass(frozen=True)
class Phase:
    """What a client's caller waits for, or does."""

    client: str
    name: str
    start_ms: int
    end_ms: int

    def box(self) -> Box:
        """A call, from its start to its return."""
        return Box(self.start_ms, self.end_ms, COLOURS[self.client], self.name, self.name)


class NotingWay(Way):
    """A client's way to the simulated store, which notes each request."""

    def __init__(self, scene: Scene, client: str) -> None:
        super().__init__(scene.objects, scene.scheduler, STORES["S3-like"])
        self._scene, self._client = scene, client

    async def put(self, write: Write, data: bytes, **kwargs: Any) -> Any:
        """Create or replace."""
        does = "create" if isinstance(write.condition, Absent) else "replace"
        answer = await self._noted(does, write.path, super().put(write, data, **kwargs))
        if write.path.endswith(HUDI_LOCK_PATH) and isinstance(answer, Applied):
            self._scene.record_is(LockRecord.decode(data))
        return answer

    async def get(self, path: str, unless: Any, **kwargs: Any) -> Any:
        """Read."""
        return await self._noted("read", path, super().get(path, unless, **kwargs))

    async def head(self, path: str, **kwargs: Any) -> Any:
        """Look."""
        return await self._noted("look", path, super().head(path, **kwargs))

    async def delete(self, path: str, condition: Any, **kwargs: Any) -> Any:
        """Remove."""
        return await self._noted("delete", path, super().delete(path, condition, **kwargs))

    async def delete_batch(self, paths: Sequence[str], **kwargs: Any) -> Any:
        """Remove all."""
        return await self._noted("delete", " ".join(sorted(paths)), super().delete_batch(paths, **kwargs))

    async def list_page(self, prefix: str, start_after: Any, token: Any, **kwargs: Any) -> Any:
        """List."""
        return await self._noted("list", prefix, super().list_page(prefix, start_after, token, **kwargs))

    def _ask(self, verb: str, ms: float, effect: Callable[[], Any]) -> Any:
        """Send a request that takes as long as all others of its kind."""
        self._scheduler.sleep(ms / 2000)
        answer = effect()
        self._objects.asked[verb] += 1
        self._scheduler.sleep(ms / 2000)
        return answer

    async def _noted(self, does: str, path: str, asking: Any) -> Any:
        start_ms = self._scene.now_ms()
        answer = await asking
        refused = isinstance(answer, ConditionFailed)
        self._scene.requests.append(Request(self._client, does, path, start_ms, self._scene.now_ms(), refused))
        return answer


class Steady(Clock):
    """A clock of the simulation whose random numbers are all the same, so that no picture depends on their order."""

    def random(self) -> float:
        """The middle."""
        return 0.5


@dataclass
class Scene:
    """A store, its clients, and what happened."""

    scheduler: Scheduler = field(default_factory=lambda: Scheduler(1, Crew()))
    objects: Objects = field(default_factory=lambda: Objects(_CAN))
    requests: list[Request] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)
    decided: dict[str, int] = field(default_factory=dict)  # path -> when a write of the record decided it
    holder: str = ""

    def now_ms(self) -> int:
        """Simulated milliseconds since the start."""
        return round(self.scheduler.now_s * 1000)

    def store(self, client: str, *, later_s: float = 0.0) -> Store:
        """The store, as this client asks it."""
        world = Steady(self.scheduler, client, wrong_by_s=later_s)
        return Store(NotingWay(self, client), _ROOT, world=world)  # type: ignore[arg-type] # by name

    def lock(self, client: str, settings: LockSettings | None = None) -> Lock:
        """The lock of this client."""
        return Lock(self.store(client), settings=settings, world=Steady(self.scheduler, client))

    @contextlib.contextmanager
    def phase(self, client: str, name: str) -> Iterator[None]:
        """Note how long the block takes."""
        start_ms = self.now_ms()
        try:
            yield
        finally:
            self.phases.append(Phase(client, name, start_ms, self.now_ms()))

    def record_is(self, record: LockRecord) -> None:
        """Note what the last request, a write of `record`, means: a new holder, a release, or newly decided paths.

        A write takes effect halfway through its request.
        """
        request = self.requests[-1]
        logged = record.log.entries if record.log else ()
        new = [publish.path for publish in (*logged, *record.all_pending) if publish.path not in self.decided]
        self.decided |= dict.fromkeys(new, (request.start_ms + request.end_ms) // 2)
        holder = "" if record.is_free else record.owner[:1]  # `Clock` makes ids of its client's name
        if holder != self.holder and not new:
            self.requests[-1] = replace(request, means=f"{holder} holds" if holder else "released")
        self.holder = holder

    def run(self, lives: Mapping[str, Callable[[], object]]) -> None:
        """Run each client's function as a simulated process, until all have ended.

        RuntimeError from the first failed one.
        """
        with in_simulated_time(self.scheduler):
            for client, life in lives.items():
                self.scheduler.spawn(Process(client), life, client)
            self.scheduler.run()
            self.scheduler.end()
        for name, error in self.scheduler.errors:
            raise RuntimeError(f"{name}: {error!r}") from error

    def draw(self, title: str, words: str, legend: Sequence[Box | Mark], *, is_long: bool = False) -> str:
        """Draw each client's calls, what was decided, and each object's requests, until the last call has returned.

        If `is_long`, requests are too short to be seen, and marks show what they mean.
        """
        start_ms, end_ms = min(each.start_ms for each in self.phases), max(each.end_ms for each in self.phases)
        requests = [_later(each, -start_ms) for each in self.requests if start_ms <= each.start_ms < end_ms]
        phases = [_later(each, -start_ms) for each in self.phases]
        lanes = [
            Lane(f"client {client}", [each.box() for each in phases if each.client == client], (), colour)
            for client, colour in COLOURS.items()
            if any(each.client == client for each in phases)
        ]
        at: dict[int, list[str]] = {}
        for path, when_ms in self.decided.items():
            if when_ms >= start_ms:
                at.setdefault(when_ms - start_ms, []).append(_shown(path))
        lanes.append(Lane("decided", (), [Mark(ms, "dot", RED, "", ", ".join(paths)) for ms, paths in at.items()], RED))
        for name in dict.fromkeys(each.name for each in requests):
            rows = _packed([each for each in requests if each.name == name], is_long=is_long)
            lanes += [Lane(name if row == 0 else "", [each.box() for each in boxes]) for row, boxes in enumerate(rows)]
            if is_long and name == "lock record":
                lanes += [Lane("", (), [each.mark()]) for each in requests if each.name == name and each.tells]
        return draw_lanes(title, words, lanes, legend=legend, elapsed=True)


def _later(what: Any, ms: int) -> Any:
    return replace(what, start_ms=what.start_ms + ms, end_ms=what.end_ms + ms)


def _shown(path: str) -> str:
    return next((name for pattern, name in NAMES.items() if re.search(pattern, path)), path)


def _packed(requests: Sequence[Request], *, is_long: bool = False) -> list[list[Request]]:
    """Put the requests into rows without overlap: writes first, then by time."""
    rows: list[list[Request]] = []
    for request in sorted(requests, key=lambda each: (each.reads, each.start_ms)):
        row = next((row for row in rows if _fits(row, request, is_long=is_long)), None)
        if row is None:
            rows.append(row := [])
        row.append(request)
    return rows


def _fits(row: Sequence[Request], request: Request, *, is_long: bool) -> bool:
    if is_long:  # all are strokes, but what was refused, which took long
        return row[0].refused == request.refused
    return row[0].reads == request.reads and row[-1].end_ms <= request.start_ms


LEGEND = (
    Box(0, 0, INK, "a write (create if absent, replace a version)"),
    Box(0, 0, INK, "a read", opacity=PALE),
    Box(0, 0, INK, "a refused write: another was first", hollow=True),
    Mark(0, "dot", RED, "decided: it will be there, whoever dies now"),
)


def publish() -> str:
    """Simulate one client that acquires, publishes and releases; return its picture as SVG."""
    scene = Scene()

    def life() -> None:
        """Acquire, publish and release as client A, each as a phase."""
        lock = scene.lock("A")
        with scene.phase("A", "acquire()"):
            lease = lock.acquire()
        with scene.phase("A", 'publish("state/7", b"seven")'):
            lease.publish("state/7", b"seven")
        with scene.phase("A", "release()"):
            lease.release()

    scene.run({"A": life})
    words = "The second write of the lock record carries the bytes of state/7: the next holder can finish the publish."
    return scene.draw("The life of a publish", words, [LEGEND[0], LEGEND[1], LEGEND[3]])


def paused_holder() -> str:
    """Simulate a holder that is paused before a write until another client has the lock; return the picture as SVG."""
    scene, settings = Scene(), LockSettings(validity=10, renew=1, poll=1)

    def holder() -> None:
        """Hold the lock as client A, then be frozen until 17 s within a publish, which raises LeaseLost."""
        process = scene.scheduler.current.process
        with scene.phase("A", "holds"):
            lease = scene.lock("A", settings).acquire()
            scene.scheduler.sleep(2)
        scene.scheduler.at(scene.scheduler.now_s + 0.02, lambda: setattr(process, "frozen_until_s", 17.0))
        try:
            with scene.phase("A", "is paused in publish(state/7)"):
                lease.publish("state/7", b"seven")
        except LeaseLost:
            with scene.phase("A", "LeaseLost"):
                scene.scheduler.sleep(2)

    def other() -> None:
        """Wait for the lock as client B from 1 s on, publish under it, and release it."""
        lock = scene.lock("B", settings)
        scene.scheduler.sleep(1)
        with scene.phase("B", "waits in acquire()"):
            lease = lock.acquire()
        with scene.phase("B", "holds"):
            scene.scheduler.sleep(1.5)
            lease.publish("state/8", b"eight")
            scene.scheduler.sleep(5)
            lease.release()

    scene.run({"A": holder, "B": other})
    words = "A's late write names a version of the record that is gone, so the store refuses it. No clock decides that."
    return scene.draw("A paused holder", words, [*LEGEND], is_long=True)


STARTS_S = {"A": 1.0, "B": 1.007, "C": 1.153, "D": 1.157}  # of the group commit: C and D come when B leads


def group_commit() -> str:
    """Simulate four clients that commit at about the same time, of which the second leads.

    Return the picture as SVG.
    """
    scene = Scene()

    def prepare() -> None:
        lock = scene.lock("A")
        with lock.acquire(keeps_log=True) as lease:
            lease.publish(lock.stage("tx/0", b"0", unshared=True), b"0", new=True)

    def life(client: str, after_s: float) -> None:
        """Commit an intent as `client`, `after_s` after the start."""
        lock = scene.lock(client)
        scene.scheduler.sleep(after_s)
        with scene.phase(client, f"commit tx/{client}"):
            record = lock.look()
            assert record is not None
            assert record.log is not None
            lock.commit(Intent(record.log.name, record.log.next, f"tx/{client}", b"[]"), AllSeen())

    scene.run({"A": prepare})
    scene.run({client: partial(life, client, after_s) for client, after_s in STARTS_S.items()})
    words = "B loses to A, and announces that it leads. C and D then post intents, and one write of B decides both."
    return scene.draw("The life of a group commit", words, LEGEND)


def upsert() -> str:
    """Simulate an upsert of one row into a table that the process has written to before; return the picture as SVG."""
    scene = Scene()
    rows = partial(pa.table, schema=pa.schema([("id", pa.int64()), ("fare", pa.float64())]))
    made = Table.create("memory://pictures", TableSpec("trips", rows({"id": [], "fare": []}).schema, "id", buckets=1))
    for number, entry in enumerate(made.store.list("")):
        data, version = made.store.read(entry.path).data, Version(Way.name, f"made {number}")
        scene.objects.found[f"{_ROOT}/{entry.path}"] = ObjectState(version, len(data), 0, None, data)
        made.store.delete(entry.path)
    scene.objects.names.extend(sorted(scene.objects.found))

    def life() -> None:
        """Upsert three times to warm up, forget these requests, and upsert once as a phase."""
        store = scene.store("A", later_s=_LATER_S)
        table = Table(store, f"s3://{_ROOT}", world=Steady(scene.scheduler, "A", wrong_by_s=_LATER_S))
        for fare in (3.5, 4.5, 5.5):
            table.upsert(rows({"id": [1], "fare": [fare]}))
            scene.scheduler.sleep(5)
        scene.requests.clear()
        with scene.phase("A", "upsert(rows)"):
            table.upsert(rows({"id": [1], "fare": [6.5]}))
        with scene.phase("A", "returned"):
            scene.scheduler.sleep(0.06)

    scene.run({"A": life})
    words = "B is the begin time of the write, C its completion time. Readers see the file once B_C.commit is there."
    return scene.draw("The life of an upsert", words, [LEGEND[0], LEGEND[1], LEGEND[3]])


PICTURES = {"publish": publish, "paused_holder": paused_holder, "group_commit": group_commit, "upsert": upsert}


def main() -> None:
    """Write the pictures."""
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
