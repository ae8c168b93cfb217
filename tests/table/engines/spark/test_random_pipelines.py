"""Random pipelines by every engine and verb, and streams that are stopped and killed anywhere, against plain dicts.

    pytest --soak 5 --seed 7 tests/table/engines/spark/test_random_pipelines.py::test_random_pipelines...

A history is three tables with two queries between them. `main` is changed by all; `source` grows, and is followed by
the queries: `tally` counts how often each key came, `versions` keeps each version. After each step all readers agree
with what the dicts say. The seed of a history is printed before it begins; `--seed` makes it the first one.
"""

from __future__ import annotations

import os
import pickle
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from pyspark.errors import StreamingQueryException
from table.engines.spark.pipelines import (
    BASE,
    KINDS,
    NOT_WITH_BUCKETS,
    READERS,
    SETTINGS,
    WRITERS,
    Change,
    Rows,
    Streams,
    change,
    filtered,
    listed,
    loaded,
    spec,
    sums,
)
from table.engines.spark.spark_tables import RUN_S, forget_last_batch, to_its_end
from table.own_process import TESTS
from table.tables import by_hudi_rs, let_beat_age, orphans, upsert

from lockprovider.table import Table
from lockprovider.table.engines import dask as by_dask
from lockprovider.table.engines import spark as engine
from lockprovider.table.engines.spark.data_source import register

STEPS = 12  # of one history
KILLED = -signal.SIGKILL


class World:
    """The tables of one history, and what should be in them."""

    def __init__(self, spark: Any, folder: Path, seed: int) -> None:
        self.spark, self.folder, self.dice, self.base = spark, folder, random.Random(seed), 0
        kinds = {name: self.dice.choice([*KINDS]) for name in ("main", "source")}
        kinds["tally"] = self.dice.choice([kind for kind in KINDS if "ordered" not in kind])
        self.has_buckets = "buckets" in kinds["main"]
        specs = {name: spec(kind) for name, kind in kinds.items()}
        specs["versions"] = spec("copy on write", keys=("id", "value"))
        self.tables = {name: Table.create(str(folder / name), one, settings=SETTINGS) for name, one in specs.items()}
        self.rows: dict[str, Rows] = {"main": {}, "source": {}}
        self.before: list[tuple[str, Rows]] = []
        self.commits: list[Rows] = []  # of the source, each with the rows that it wrote
        self.seen = {"tally": 0, "versions": 0}  # commits that the queries have written
        self.tallied: Counter[tuple[int, str]] = Counter()
        self.generation, self.is_named = 0, self.dice.random() < 0.5
        self.streams = Streams(spark, folder)
        self.say(f"{kinds}, {'named' if self.is_named else 'unnamed'} stream")

    def say(self, words: str) -> None:
        print(f"    {words}", flush=True)  # noqa: T201 - the story of a failure

    def next_base(self) -> int:
        self.base += 1
        return self.base

    # -- what should be there ------------------------------------------------------------------------------------------

    def check(self, *names: str) -> None:
        """All readers agree with the dicts."""
        for name in names:
            wanted = sorted((key, part, value) for (key, part), value in self.wanted(name).items())
            for reader, read in READERS.items():
                assert sorted(read(self.spark, self.tables[name])) == wanted, f"{name} by {reader}"

    def wanted(self, name: str) -> Rows:
        return dict(self.tallied) if name == "tally" else self.rows[name]

    def check_versions(self) -> None:
        """A row that was appended twice is there twice."""
        wanted = sorted((*key, value) for some in self.commits[: self.seen["versions"]] for key, value in some.items())
        for reader, read in READERS.items():
            assert sorted(read(self.spark, self.tables["versions"])) == wanted, f"versions by {reader}"

    # -- steps ---------------------------------------------------------------------------------------------------------

    def write(self) -> None:
        by, some = self._change()
        self.say(f"{by}: {some}")
        WRITERS[by][some.verb](self.spark, self.tables["main"], some)
        self._written(some)

    def _change(self) -> tuple[str, Change]:
        pairs = [(by, verb) for by, verbs in WRITERS.items() for verb in verbs]
        by, verb = self.dice.choice([pair for pair in pairs if not self.has_buckets or pair not in NOT_WITH_BUCKETS])
        return by, change(self.dice, verb, self.rows["main"], self.next_base())

    def _written(self, some: Change) -> None:
        self.rows["main"] = some.done_to(self.rows["main"])
        self.check("main")

    def killed_write(self) -> None:
        """A driver dies in the middle of a write, which is there as a whole or not at all."""
        verb = self.dice.choice([*WRITERS["spark"]])
        some, moment = change(self.dice, verb, self.rows["main"], self.next_base()), self.dice.randint(1, 12)
        (self.folder / "change").write_bytes(pickle.dumps(("spark", some)))
        ended = self._child("main", str(moment))
        found = {row[:2]: row[2] for row in listed(self.tables["main"].to_arrow())}
        is_there = found == some.done_to(self.rows["main"])
        self.say(f"a driver, killed at event {moment}: {ended}, is there: {is_there}; {some}")
        assert is_there or ended
        if is_there:
            self._written(some)
        self.check("main")

    def pipeline(self) -> None:
        """Read by one engine, filtered, joined and changed; written again."""
        by, base = self.dice.choice(("spark", "data source", "dask")), self.next_base() * BASE
        keys = ["id", "part"]
        self.say(f"rows of main that the source has too, by {by}")
        main, source = self.tables["main"], self.tables["source"]
        if by == "dask":
            joined = by_dask.read(main).merge(by_dask.read(source)[keys], on=keys)
            by_dask.upsert(main, joined.assign(value=base + joined.value % 100)[["id", "part", "value"]])
        else:
            read = engine.read(self.spark, main) if by == "spark" else loaded(self.spark, main)
            joined = read.join(engine.read(self.spark, source, keys), keys)
            engine.upsert(main, joined.selectExpr("id", "part", f"{base} + value % 100 as value"))
        changed = {key: base + value % 100 for key, value in self.rows["main"].items() if key in self.rows["source"]}
        self.rows["main"] |= changed
        self.check("main")

    def feed(self) -> None:
        """The source gets rows by any engine."""
        by, verb = self.dice.choice([*WRITERS]), self.dice.choice(("append", "upsert"))
        if (by, verb) in NOT_WITH_BUCKETS:
            verb = "upsert"
        some = Change("append")
        while not some.rows:
            some = change(self.dice, verb, self.rows["source"], self.next_base())
        self.say(f"source by {by}: {some}")
        WRITERS[by][verb](self.spark, self.tables["source"], some)
        self.rows["source"] = some.done_to(self.rows["source"])
        self.commits.append({(key, part): value for key, part, value in some.rows})
        self.check("source")

    def look(self) -> None:
        """Filters, joins and the past."""
        part, least = self.dice.choice("abc"), self.base * BASE // 2
        where = f"part = '{part}' or value > {least}"
        wanted = sorted((*key, v) for key, v in self.rows["main"].items() if key[1] == part or v > least)
        self.say(f"where {where}")
        condition = (pc.field("part") == part) | (pc.field("value") > least)
        for reader, found in filtered(self.spark, self.tables["main"], where, condition).items():
            assert sorted(found) == wanted, reader
        total: Counter[str] = Counter()
        for key, value in self.rows["main"].items():
            if key in self.rows["source"]:
                total[key[1]] += value + self.rows["source"][key]
        for reader, by_part in sums(self.spark, self.tables["main"], self.tables["source"]).items():
            assert by_part == dict(total), f"join by {reader}"
        for version, there in self.before[-2:]:
            old = sorted((*key, value) for key, value in there.items())
            assert sorted(listed(self.tables["main"].to_arrow(as_of=version))) == old, version
            found = engine.read(self.spark, self.tables["main"], as_of=version).collect()
            assert sorted(map(tuple, found)) == old, version
        self.before.append((self.tables["main"].version, dict(self.rows["main"])))

    def service(self) -> None:
        """Files are written again; nothing changes, and no query sees it."""
        name = self.dice.choice(("main", "source", "tally"))
        config = self.tables[name].config()
        may = ["compact"] if config.is_merge_on_read else []
        may += ["cluster"] if config.bucket_index is None else []
        if not may:
            return
        does = self.dice.choice(may)
        by = self.dice.choice(("table", "spark", "dask"))
        self.say(f"{does} {name} by {by}")
        match by:
            case "table":
                getattr(self.tables[name], does)()
            case "spark":
                getattr(engine, does)(self.spark, self.tables[name])
            case _:
                getattr(by_dask, does)(self.tables[name])
        self.check(name)

    # -- streams -------------------------------------------------------------------------------------------------------

    @property
    def checkpoint(self) -> Path:
        return self.folder / f"tally-checkpoint-{self.generation}"

    @property
    def stream_id(self) -> str | None:
        return f"counts {self.generation}" if self.is_named else None

    def _tallied(self) -> None:
        """The query has come to its end."""
        for some in self.commits[self.seen["tally"] :]:
            self.tallied.update(some.keys())
        self.seen["tally"] = len(self.commits)
        self.check("tally")

    def _run_tally(self) -> None:
        assert to_its_end(self.streams.tally(self.checkpoint, self.stream_id))
        self._tallied()

    def _run_versions(self) -> None:
        assert to_its_end(self.streams.versions(self.folder / "versions-checkpoint"))
        self.seen["versions"] = len(self.commits)
        self.check_versions()

    def stream(self) -> None:
        """Both queries go on; some fail between two writes, or Spark has forgotten that a batch is done."""
        fails, forgets = self.dice.random() < 0.5, self.dice.random() < 0.5
        self.say(f"queries: fails {fails}, forgets {forgets}")
        if forgets:
            for checkpoint in (self.checkpoint, self.folder / "versions-checkpoint"):
                if any(path.name.isdigit() for path in (checkpoint / "commits").glob("*")):
                    forget_last_batch(checkpoint)
        if fails and self.seen["tally"] < len(self.commits):
            self.streams.between = _fail
            with pytest.raises(StreamingQueryException, match="between two writes"):
                to_its_end(self.streams.tally(self.checkpoint, self.stream_id))
            self.streams.between = lambda: None
        self._run_tally()
        self._run_versions()

    def new_checkpoint(self) -> None:
        """Refused with an old `stream_id`; with a new one, or none, it is another stream and begins anew."""
        if not self.seen["tally"]:
            return
        self.say("a new checkpoint")
        if self.is_named:
            with pytest.raises(StreamingQueryException, match="WrongCheckpoint"):
                to_its_end(self.streams.tally(self.folder / f"refused-{self.base}-{len(self.commits)}", self.stream_id))
            self.check("tally")
            self._run_tally()
        if self.dice.random() < 0.3:
            self.say("and a new stream")
            self.generation, self.seen["tally"] = self.generation + 1, 0
            self._run_tally()

    def killed_stream(self) -> None:
        """A driver dies in the middle of a batch; the query goes on with the same checkpoint."""
        self.feed()
        what = self.dice.choice(("tally", "versions"))
        moment = self.dice.choice(("task", "before", "after"))
        if what == "tally":
            moment = self.dice.choice(("between", *map(str, range(1, 25))))
        (self.folder / "stream_id").write_text(self.stream_id or "")
        (self.folder / "checkpoint").write_text(str(self.checkpoint))
        self.say(f"query {what}, killed at {moment}: {self._child(what, moment)}")
        self._run_tally() if what == "tally" else self._run_versions()

    def _child(self, *words: str) -> int:
        """How a driver of its own ended: killed, or well; it may also have lost the lease that it has too short."""
        command = [sys.executable, "-m", "table.engines.spark.pipelines_child", str(self.folder), *words]
        environment = os.environ | {"PYTHONPATH": str(TESTS)}
        with subprocess.Popen(command, cwd=TESTS, env=environment, start_new_session=True) as child:
            try:
                ended = child.wait(RUN_S)
            finally:
                child.kill()
        assert ended in {KILLED, 0}, f"the driver ended with {ended}"
        return ended

    # -- the end -------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """What the dead left is cleared away by the next writer, and nothing of it stays."""
        self._run_tally()
        self._run_versions()
        for name, table in self.tables.items():
            for beat in (self.folder / name / ".hoodie" / ".heartbeat").glob("*"):
                let_beat_age(beat)
            upsert(table, (1, "z", 1))
            assert table.timeline().pending_writes == (), name
            assert orphans(self.folder / name) == set(), name
            assert (1, "z", 1) in by_hudi_rs(table.url)


def _fail() -> None:
    raise RuntimeError("between two writes")


CHOICES: dict[str, float] = {
    "write": 10,
    "feed": 5,
    "pipeline": 2,
    "look": 2,
    "stream": 4,
    "service": 2,
    "new_checkpoint": 1,
    "killed_write": 0.7,
    "killed_stream": 0.7,
}


@pytest.mark.soak
def test_random_pipelines_and_killed_streams_agree_with_a_dict(
    spark: Any, tmp_path: Path, seed: int, request: pytest.FixtureRequest
) -> None:
    register(spark)
    end_s, number = time.monotonic() + float(request.config.getoption("--soak")) * 60, 0
    taken: Counter[str] = Counter()
    while number == 0 or time.monotonic() < end_s:
        print(f"history {number}: --seed {seed + number}", flush=True)  # noqa: T201 - to run it again
        world = World(spark, tmp_path / str(number), seed + number)
        for done in range(STEPS):
            if done and time.monotonic() > end_s:
                break
            step = world.dice.choices([*CHOICES], [*CHOICES.values()])[0]
            taken[step] += 1
            does: Callable[[], None] = getattr(world, step)
            does()
        world.end()
        number += 1
    print(number, "histories:", dict(taken))  # noqa: T201 - what was tried
