"""One table whose lists many processes append to, while some are killed and some stopped; and those who look on."""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from patience import MORE_S, until
from recipes.freezing import stop
from recipes.speaking import Speaking

from lockprovider.demo.proof import reader_options
from lockprovider.table import KeepActive, KeepCommits, Table
from lockprovider.table.doctor.rules import diagnose
from lockprovider.table.format.layout import parse_instant
from soak.list_child import SETTINGS, SHARED, SPEC, lists, row

if TYPE_CHECKING:
    from servers.base import Server

STOPS_S = (0.5, 4.0, 20.0)  # the second is within a lease and a heartbeat, the last is not


class Appender(Speaking):
    """A process, and what it was told of its entries."""

    def __init__(self, table: Table, name: str) -> None:
        super().__init__("soak.list_child", table.url, table.storage_options, name)
        self.name = name

    def told(self, word: str) -> list[list[str]]:
        return [said[1:] for said in map(str.split, tuple(self.lines)) if said[0] == word]

    @property
    def done(self) -> set[str]:
        return {entry for entry, _ in self.told("done")}


class Crowd:
    """The table, its processes, and what went wrong."""

    def __init__(self, server: Server, seed: int, visibility: str | None) -> None:
        spec = SPEC if visibility is None else replace(SPEC, visibility=visibility)
        self.options: dict[str, Any] = dict(server.storage_options)
        self.table = Table.create(server.new_prefix(), spec, storage_options=self.options, settings=SETTINGS)
        for name in SHARED:
            self.table.append(row(name, []))
        self.seed, self.chance = seed, random.Random(seed)
        self.everybody: list[Appender] = []
        self.running: list[Appender] = []
        self.over = threading.Event()
        self.happened: Counter[str] = Counter()
        self.failures: list[str] = []
        self.listed: set[str] = set()  # completion times, as one sees them who only lists
        self.was_behind = False

    def opened(self) -> Table:
        return Table.open(self.table.url, storage_options=self.options, settings=SETTINGS)

    def start(self) -> None:
        self.everybody.append(Appender(self.table, f"p{len(self.everybody)}"))
        self.running.append(self.everybody[-1])

    @contextmanager
    def of(self, processes: int, lookers: Sequence[Callable[[Crowd], None]]) -> Iterator[None]:
        with ExitStack() as ended:
            ended.callback(lambda: [one.close() for one in self.everybody])
            for _ in range(processes):
                self.start()
            until(lambda: all(one.done or one.is_over() for one in self.running))
            threads = [threading.Thread(target=self._look, args=(look,)) for look in lookers]
            for thread in threads:
                thread.start()
                ended.callback(thread.join)
            ended.callback(self.over.set)
            yield

    def disturb(self, seconds: float, wanted: Sequence[str]) -> None:
        """Kill and stop one after the other, for `seconds` and on until all that is wanted has happened.

        Another comes for each that is dead. At the end all are awake.
        """
        end_s, wakes = time.monotonic() + seconds, list[tuple[float, Appender]]()
        while not self.over.wait(self.chance.uniform(0.5, 5.0)) and time.monotonic() < (
            end_s if all(self.happened[what] for what in wanted) else end_s + MORE_S
        ):
            for wake_s, one in tuple(wakes):
                if wake_s < time.monotonic():
                    wakes.remove((wake_s, one))
                    one.process.send_signal(signal.SIGCONT)
            asleep = [one for _, one in wakes]
            one = self.chance.choice([one for one in self.running if one not in asleep])
            if self.chance.random() < 0.5:
                one.process.kill()
                self.running.remove(one)
                self.start()
                self.happened["killed"] += 1
            elif len(asleep) < len(self.running) // 2:
                stop(one.process)
                wakes.append((time.monotonic() + self.chance.choice(STOPS_S), one))
                self.happened["stopped"] += 1
        for _, one in wakes:
            one.process.send_signal(signal.SIGCONT)

    def settle(self) -> None:
        """All that are alive have committed once more."""
        before = {one.name: len(one.done) for one in self.running}
        until(lambda: self.failures or all(len(one.done) > before[one.name] or one.is_over() for one in self.running))

    def audit(self) -> dict[str, object]:
        """What is wrong; call it when all processes are ended."""
        assert all(one.process.returncode == -signal.SIGKILL for one in self.everybody), "one ended by itself"
        if self.happened[follow.__name__]:
            follow(self)  # what came after it had stopped looking
        self.table.sweep()
        found = lists(self.opened())
        entries = Counter(entry for there in found.values() for entry in there)
        told = {word: [said for one in self.everybody for said in one.told(word)] for word in ("done", "refused")}
        done, completions = {entry for entry, _ in told["done"]}, [completion for _, completion in told["done"]]
        own = {
            name: [int(entry.partition(".")[2]) for entry in there] for name, there in found.items() if name[0] == "p"
        }
        self.happened |= Counter(done=len(done), refused=len(told["refused"]))
        self.happened["unknown"] = sum(len(one.told("unknown")) for one in self.everybody)
        wrong = {
            "failures": self.failures,
            "lost": sorted(done - entries.keys()),
            "refused, and there": sorted({entry for (entry,) in told["refused"]} & entries.keys()),
            "twice": sorted(entry for entry, times in entries.items() if times > 1),
            "one time for two": sorted(time for time, times in Counter(completions).items() if times > 1),
            "out of order": sorted(name for name, there in own.items() if there != sorted(there)),
            "other for hudi-rs": [] if by_hudi_rs(self) == found else ["its rows"],
            "never listed": sorted({*completions} - self.listed) if self.listed and not self.was_behind else [],
            "doctor": [
                str(one)
                for _, _, said in diagnose(self.opened())
                for one in said
                if one.state == "wrong" and "dead" not in one.what
            ],
        }
        return {what: some for what, some in wrong.items() if some}

    def live(self, processes: int, lookers: Sequence[Callable[[Crowd], None]], seconds: float) -> dict[str, object]:
        """All of it for so long; what is wrong then. What did not happen has tested nothing: that is wrong, too."""
        wanted = ("killed", "stopped", *(look.__name__ for look in lookers))
        with self.of(processes, lookers):
            self.disturb(seconds, wanted)
            self.settle()
        wrong = self.audit()
        missing = [what for what in ("done", *wanted) if not self.happened[what]]
        return wrong | ({"never happened": missing} if missing else {})

    @property
    def report(self) -> str:
        """What happened, for people."""
        return f"\n{json.dumps({'seed': self.seed, 'behind': self.was_behind, **self.happened})}"

    def acknowledged(self) -> set[str]:
        return set[str]().union(*(one.done for one in tuple(self.everybody)))

    def _look(self, look: Callable[[Crowd], None]) -> None:
        try:
            while not self.over.is_set():
                look(self)
                self.happened[look.__name__] += 1
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test says so
            self.failures.append(f"{look.__name__}: {type(error).__name__}: {error}"[:2000])
            self.over.set()


def read_ours(crowd: Crowd) -> None:
    _complete(crowd, lambda: lists(crowd.opened()))


def read_by_hudi_rs(crowd: Crowd) -> None:
    _complete(crowd, lambda: by_hudi_rs(crowd))


def follow(crowd: Crowd) -> None:
    """As JVM Hudi's incremental readers do: list, and take what is completed later than all that was taken."""
    last = max(crowd.listed, default="")
    names = (entry.path.rpartition("/")[2] for entry in crowd.table.store.list(".hoodie/timeline/"))
    there = {one.completion for one in map(parse_instant, names) if one and one.changes_rows and one.is_completed}
    if last and not any(one <= last for one in there):
        crowd.was_behind = True  # archived before it came by: this machine is too slow for it
    crowd.listed |= {one for one in there if one > last}


def serve(crowd: Crowd) -> None:
    """What keeps the table small."""
    if not crowd.over.wait(10):
        crowd.opened().clean(KeepCommits(100))
        crowd.opened().archive(KeepActive(200, 250))


def by_hudi_rs(crowd: Crowd) -> dict[str, list[str]]:
    from hudi import HudiTableBuilder

    options: Any = dict(reader_options(crowd.table.url, crowd.options, {}))
    batches = HudiTableBuilder.from_base_uri(crowd.table.url).with_options(options).build().read()
    found = [one for batch in batches for one in pa.record_batch(batch).select(["id", "entries"]).to_pylist()]
    assert len({one["id"] for one in found}) == len(found), "hudi-rs saw a key twice"
    return {one["id"]: one["entries"].split() for one in found}


def _complete(crowd: Crowd, read: Callable[[], dict[str, list[str]]]) -> None:
    least = crowd.acknowledged()
    there = {entry for entries in read().values() for entry in entries}
    assert not least - there, f"acknowledged, and not there: {sorted(least - there)[:5]}"
