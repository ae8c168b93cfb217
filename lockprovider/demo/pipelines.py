"""The processes of the demonstration: three Spark pipelines and, for a merge-on-read table, a service that compacts.

Each process gets a job and one end of a pipe. It sends messages; it receives one word at a time: `go` (all processes
have started), `ingest` (that pipeline died) and `alone` (all pipelines have ended). A closed pipe means that the
conductor is gone, and ends the process.
"""

from __future__ import annotations

import _thread
import os
import threading
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fsspec_cas import Machine
from lockprovider import LockSettings
from lockprovider.demo import flights
from lockprovider.table import HeartbeatSettings, Table, TableEvent, TableSettings, TableSpec
from lockprovider.table.engines import spark as engine
from lockprovider.table.engines.java import spark_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

    from pyspark.sql import DataFrame, SparkSession

    from lockprovider.table import TableTransaction

ROLES = ("ingest", "protect", "backfill")
COMPACT = "compact"
RETRIES = 30
POLL_S = 0.3
LEAST_LOGS = 4  # while the pipelines write: fewer wait for more

# Short times, so that a killed pipeline is noticed while people watch. A real table keeps the defaults, Hudi's.
SETTINGS = TableSettings(
    lock=LockSettings(validity=30.0, renew=3.0, timeout=120.0),
    heartbeat=HeartbeatSettings(interval_s=3.0, misses=5),
)


@dataclass(frozen=True, slots=True)
class Message:
    """What a process tells the conductor.

    `kind` is one of the table's events, or started, progress, finished. `at_ms` is the sender's wall clock: good for
    drawing, for nothing else.
    """

    kind: str
    role: str
    at_ms: int
    instant: str = ""
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Job:
    """Where the table is, of which type, the months of the story, and which Java runs Spark."""

    url: str
    storage_options: dict[str, object]
    months: tuple[int, ...]
    is_merge_on_read: bool = False
    java_home: str = ""

    @property
    def roles(self) -> tuple[str, ...]:
        """All processes: those of a merge-on-read table include the compaction service."""
        return (*ROLES, COMPACT) if self.is_merge_on_read else ROLES

    @property
    def spec(self) -> TableSpec:
        """The flights by key, partitioned by month."""
        table_type = "merge_on_read" if self.is_merge_on_read else "copy_on_write"
        keys, by = flights.KEYS, (flights.PARTITION,)
        return TableSpec(flights.TABLE_NAME, flights.SCHEMA, keys, by, table_type=table_type)

    @property
    def plan(self) -> tuple[flights.Delivery, ...]:
        """All deliveries of the story."""
        return flights.plan(self.months)


def run(role: str, job: Job, pipe: Connection, log: str) -> None:
    """Run one process to its end. What it and its JVM print goes into the file `log`."""
    os.setsid()  # Ctrl-C reaches the conductor alone, and the JVM can be ended with this process
    output = os.open(log, os.O_WRONLY | os.O_CREAT, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ["JAVA_HOME"] = job.java_home
    worker = Worker(role, job, pipe)
    threading.Thread(target=worker.listen, daemon=True).start()
    spark = None if role == COMPACT else spark_session(f"lockprovider demo {role}")
    worker.open()
    if spark is None:
        compact(worker)
    else:
        {"ingest": ingest, "protect": protect, "backfill": backfill}[role](worker, spark)
        spark.stop()
    worker.say("finished")


class Worker:
    """What all processes have: the table, and the pipe to the conductor."""

    def __init__(self, role: str, job: Job, pipe: Connection) -> None:
        self.role, self.job = role, job
        self.table: Table
        self.go, self.upstream_gone, self.alone = threading.Event(), threading.Event(), threading.Event()
        self.world = Machine()
        self._pipe = pipe
        self._sending = threading.Lock()

    def open(self) -> None:
        """Open the table, say so, and wait until all other processes have."""
        options = self.job.storage_options
        self.table = Table.open(self.job.url, storage_options=options, settings=SETTINGS, watcher=self._watch)
        self.say("started", pid=os.getpid())
        self.go.wait()

    def say(self, kind: str, **detail: object) -> None:
        """Tell the conductor, at once."""
        self._send(Message(kind, self.role, self.world.now_ms(), detail=detail))

    def progress(self, done: int, total: int, doing: str = "") -> None:
        """Say how far the work is."""
        self.say("work", done=done, total=total, doing=doing)

    def listen(self) -> None:
        """Follow the words of the conductor, until it is gone."""
        words = {"go": self.go, "ingest": self.upstream_gone, "alone": self.alone}
        try:
            while True:
                words.get(self._pipe.recv(), threading.Event()).set()
        except (EOFError, OSError):
            self.go.set()
            _thread.interrupt_main()

    def history(self, timeline: Any = None) -> list[flights.Done]:
        """The completed commits of a timeline (default: the newest) in the words of the story, by completion."""
        writes = (timeline or self.table.timeline()).writes
        found = (flights.done(i.completion or "", dict(self.table.metadata_of(i).extra)) for i in writes)
        return sorted((entry for entry in found if entry), key=lambda entry: entry.completion)

    def commit(self, fn: Callable[[TableTransaction], None]) -> None:
        """Run one transaction; a conflict runs it again from a fresh snapshot."""
        self.table.transact(fn, retries=RETRIES)

    def _watch(self, event: TableEvent) -> None:
        self._send(Message(event.kind, self.role, event.at_ms, event.instant, event.detail))

    def _send(self, message: Message) -> None:
        with self._sending:
            self._pipe.send(message)


def compact(worker: Worker) -> None:
    """Merge log files into base files until no pipeline is left, and then once more, so that no log file is left."""
    done, is_last = 0, False
    while not is_last:
        worker.progress(done, done, "waits for log files")
        is_last = worker.alone.wait(POLL_S)
        logs = sum(one.log_files for one in worker.table.compact(dry_run=True))
        if logs >= (1 if is_last else LEAST_LOGS):
            worker.progress(done, done, f"merges {logs} log files")
            done += len(worker.table.compact())
    worker.progress(done, done)


def ingest(worker: Worker, spark: SparkSession) -> None:
    """Upsert one delivery after the other."""
    data = flights.load()
    steps = flights.to_deliver(worker.history(), worker.job.plan)
    for number, delivery in enumerate(steps):
        worker.progress(number, len(steps), delivery.name)
        batch = spark.createDataFrame(flights.rows(data, delivery))

        def deliver(txn: TableTransaction, batch: DataFrame = batch, delivery: flights.Delivery = delivery) -> None:
            txn.extra.update(flights.words("ingest", delivery.month, delivery=delivery.name))
            engine.write(txn, upserts=batch)

        worker.commit(deliver)
    worker.progress(len(steps), len(steps))


def protect(worker: Worker, spark: SparkSession) -> None:
    """Replace raw tail numbers until ingest is over and nothing raw is left; the freshest month first."""

    def protect_month(txn: TableTransaction, month: int) -> None:
        covers = flights.last_delivery(worker.history(txn.timeline), month)
        txn.extra.update(flights.words("protect", month, covers=covers))
        rows = engine.read(spark, txn, partitions=[str(month)])
        engine.write(txn, upserts=_raw(rows).mapInArrow(pseudonymise, rows.schema))

    def look(history: list[flights.Done]) -> tuple[int, int, tuple[int, ...]]:
        return flights.protected_deliveries(history), len(worker.job.plan), flights.to_protect(history)

    _month_by_month(worker, look, protect_month)
    left = _raw(engine.read(spark, worker.table, columns=["tailnum"])).count()
    if left:
        raise RuntimeError(f"{left} raw tail numbers are left although every delivery was protected")


def backfill(worker: Worker, spark: SparkSession) -> None:
    """Correct each month once its deliveries are complete; the freshest month first."""

    def correct_month(txn: TableTransaction, month: int) -> None:
        txn.extra.update(flights.words("backfill", month))
        rows = engine.read(spark, txn, partitions=[str(month)])
        rows.createOrReplaceTempView("flights")
        cancelled = rows.where("dep_time is null").select(*flights.KEYS, flights.PARTITION)
        engine.write(txn, upserts=spark.sql(FILL).select(*rows.columns), deletes=cancelled)

    def look(history: list[flights.Done]) -> tuple[int, int, tuple[int, ...]]:
        corrected = sum(entry.role == "backfill" for entry in history)
        return corrected, len(worker.job.months), flights.to_backfill(history, worker.job.plan)

    _month_by_month(worker, look, correct_month)


def _month_by_month(
    worker: Worker,
    look: Callable[[list[flights.Done]], tuple[int, int, tuple[int, ...]]],
    work: Callable[[TableTransaction, int], None],
) -> None:
    """Commit one month after the other, the freshest first, until ingest is over and no month waits."""
    while True:
        is_ingest_gone = worker.upstream_gone.is_set()  # before the history: it is complete then
        history = worker.history()
        done, total, waiting = look(history)
        worker.progress(done, total, f"month {waiting[-1]}" if waiting else "waits for ingest")
        if waiting:
            worker.commit(lambda txn, month=waiting[-1]: work(txn, month))  # type: ignore[misc]
        elif is_ingest_gone or not flights.to_deliver(history, worker.job.plan):
            return
        else:
            worker.world.sleep(POLL_S)


def _raw(rows: DataFrame) -> DataFrame:
    return rows.where(f"tailnum is not null and not startswith(tailnum, '{flights.PSEUDONYM_PREFIX}')")


def pseudonymise(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Replace `tailnum` in each batch; runs on the executors."""
    for batch in batches:
        place = batch.schema.get_field_index("tailnum")
        coded = batch.column(place).dictionary_encode()
        names = pa.array([_alias(tail) for tail in coded.dictionary.to_pylist()], pa.string())
        yield batch.set_column(place, "tailnum", names.take(coded.indices))


def _alias(tail: str) -> str:
    # Written a second time, apart from `flights.pseudonym`, which proves it.
    keyed = blake2b(tail.encode(), key=flights.PSEUDONYM_KEY, digest_size=flights.PSEUDONYM_BYTES)
    return flights.PSEUDONYM_PREFIX + keyed.hexdigest()


# sort_array + element_at: the lower median in integers; percentile functions go through doubles.
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
