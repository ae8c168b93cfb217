"""The three pipelines; each is a process of its own: `python -m lockprovider.demo.pipelines ROLE EVENTS_FD`."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

import pyarrow as pa

from lockprovider.demo import agenda, flights
from lockprovider.demo.lines import SPARK_IS_UP
from lockprovider.demo.settings import table_spec
from lockprovider.demo.worker import POLL_S, Worker, told
from lockprovider.table import Table
from lockprovider.table.convert import compile_plan
from lockprovider.table.engines import spark as engine
from lockprovider.table.engines.java import spark_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from lockprovider.table import TableTransaction
    from lockprovider.table.timeline.timeline import Timeline

RETRIES = 30


@dataclass(slots=True, kw_only=True)
class Pipeline(Worker):
    """One running pipeline, with its session."""

    spark: SparkSession

    @property
    def plan(self) -> tuple[flights.Delivery, ...]:
        """All deliveries of the story."""
        return flights.plan(self.job.months)

    def history(self, timeline: Timeline | None = None) -> list[agenda.Done]:
        """The completed commits of a timeline (default: now) in the demonstration's words, by completion."""
        writes = (timeline or self.table.timeline()).writes
        found = (agenda.done(i.completion or "", dict(self.table.metadata_of(i).extra)) for i in writes)
        return sorted((entry for entry in found if entry), key=lambda entry: entry.completion)

    def commit(self, fn: Callable[[TableTransaction], None]) -> None:
        """Run one transaction; a conflict runs it again from a fresh snapshot."""
        result = self.table.transact(fn, retries=RETRIES)
        self.say("result", completion=result.completion, attempts=result.attempts)

    def ingest_over(self, history: list[agenda.Done]) -> bool:
        """True if no further delivery will come."""
        return not agenda.to_deliver(history, self.plan) or self.upstream_gone.is_set()


def ingest(pipe: Pipeline) -> None:
    """Upsert one delivery after the other."""
    data = flights.load()
    steps = agenda.to_deliver(pipe.history(), pipe.plan)
    for number, delivery in enumerate(steps):
        pipe.say("progress", done=number, total=len(steps), doing=delivery.name)
        batch = pipe.spark.createDataFrame(flights.rows(data, delivery))
        pipe.commit(_deliver(batch, delivery))
    pipe.say("progress", done=len(steps), total=len(steps), doing="")


def _deliver(batch: DataFrame, delivery: flights.Delivery) -> Callable[[TableTransaction], None]:
    def fn(txn: TableTransaction) -> None:
        txn.extra.update(agenda.words("ingest", delivery.month, delivery=delivery.name))
        engine.write(txn, upserts=batch)

    return fn


def protect(pipe: Pipeline) -> None:
    """Replace raw tail numbers until ingest is over and nothing raw is left; the freshest month first."""
    while True:
        history = pipe.history()
        waiting = agenda.to_protect(history)[::-1]
        pipe.say(
            "progress",
            done=agenda.protected_deliveries(history),
            total=len(pipe.plan),
            doing=f"month {waiting[0]}" if waiting else "waits for ingest",
        )
        if waiting:
            pipe.commit(_protect_month(pipe, waiting[0]))
        elif pipe.ingest_over(history):
            break
        else:
            pipe.world.sleep(POLL_S)
    left = _raw(engine.read(pipe.spark, pipe.table, columns=["tailnum"])).count()
    if left:
        raise RuntimeError(f"{left} raw tail numbers are left although every delivery was protected")


def _protect_month(pipe: Pipeline, month: int) -> Callable[[TableTransaction], None]:
    def fn(txn: TableTransaction) -> None:
        covers = agenda.last_delivery(pipe.history(txn.timeline), month)
        txn.extra.update(agenda.words("protect", month, covers=covers))
        rows = engine.read(pipe.spark, txn, partitions=[str(month)])
        engine.write(txn, upserts=_raw(rows).mapInArrow(pseudonymise, rows.schema))

    return fn


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
    if tail.startswith(flights.PSEUDONYM_PREFIX):
        return tail
    keyed = blake2b(key=flights.PSEUDONYM_KEY, digest_size=flights.PSEUDONYM_BYTES)
    keyed.update(tail.encode())
    return f"{flights.PSEUDONYM_PREFIX}{keyed.hexdigest()}"


def backfill(pipe: Pipeline) -> None:
    """Correct each month once its deliveries are complete; the freshest month first."""
    while True:
        history = pipe.history()
        ready = agenda.to_backfill(history, pipe.plan)[::-1]
        corrected = sum(entry.role == "backfill" for entry in history)
        pipe.say(
            "progress",
            done=corrected,
            total=len(pipe.job.months),
            doing=f"month {ready[0]}" if ready else "waits for ingest",
        )
        if ready:
            pipe.commit(_correct_month(pipe, ready[0]))
        elif pipe.ingest_over(history):
            break
        else:
            pipe.world.sleep(POLL_S)


def _correct_month(pipe: Pipeline, month: int) -> Callable[[TableTransaction], None]:
    def fn(txn: TableTransaction) -> None:
        txn.extra.update(agenda.words("backfill", month))
        rows = engine.read(pipe.spark, txn, partitions=[str(month)])
        rows.createOrReplaceTempView("flights")
        filled = pipe.spark.sql(FILL).select(*rows.columns)
        cancelled = rows.where("dep_time is null").select(*flights.KEYS, flights.PARTITION)
        engine.write(txn, upserts=filled, deletes=cancelled)

    return fn


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

PIPELINES = {"ingest": ingest, "protect": protect, "backfill": backfill}


def rehearse(pipe: Pipeline) -> None:
    """Do this pipeline's work once on a small table of its own: the first Spark job of each kind is slow."""
    times = pa.array([0, 1, 2], pa.timestamp("us", tz="UTC"))
    rows = pa.table({"time_hour": times, "dep_time": [600, 600, None], "air_time": [50, None, None]})
    rows = rows.append_column("month", pa.array([1, 1, 1], pa.int32()))
    for column in ("carrier", "origin", "dest", "tailnum"):
        rows = rows.append_column(column, pa.array(["X"] * 3))
    for column in ("flight", "dep_delay", "arr_delay"):
        rows = rows.append_column(column, pa.array([0] * 3, pa.int32()))
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as folder:
        pipe.table = Table.create(folder, table_spec(is_merge_on_read=pipe.job.is_merge_on_read))
        batch = pipe.spark.createDataFrame(compile_plan(rows.schema, flights.SCHEMA)(rows))
        for fn in (_deliver(batch, flights.Delivery(1, "main")), _protect_month(pipe, 1), _correct_month(pipe, 1)):
            pipe.table.transact(fn)


def main(role: str, events_fd: int) -> None:
    """Run one pipeline to its end."""
    job, orders = told()
    pipe = Pipeline(role, job, events_fd, spark=spark_session(f"lockprovider demo {role}"))
    pipe.listen(orders)
    rehearse(pipe)
    print(SPARK_IS_UP, flush=True)  # noqa: T201 - into the log
    pipe.open()
    PIPELINES[role](pipe)
    pipe.say("finished")
    pipe.spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
