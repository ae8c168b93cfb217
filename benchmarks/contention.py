"""How many contenders share one lock: a simulation of the waiting policy, exact and in seconds.

    python -m benchmarks.contention                # a table; --only, --seeds, --json

The decisions are the real ones (`machine` and `polling` of `lockprovider.storage_lock`); the store, its delays,
the clocks and the processes are simulated, so a seed gives the same figures on every machine. What it cannot show is
what the processes themselves cost: `benchmarks.lock` runs real ones.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import math
import random
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass, field, replace
from statistics import median, quantiles
from typing import Any

from fsspec_cas import ABSENT, Version
from fsspec_cas.sender import delay_s
from lockprovider.settings import LockSettings
from lockprovider.storage_lock.machine import (
    Apply,
    Busy,
    Done,
    Ended,
    Held,
    Idle,
    PutRecord,
    PutWon,
    ReadRecord,
    RecordSeen,
    Release,
    Rolling,
    TakeLock,
    refused,
    step,
)
from lockprovider.storage_lock.polling import (
    Join,
    Observation,
    TakeTurn,
    Waiter,
    at_last,
    comes_again,
    join_failed,
    next_action,
    next_poll,
    with_waiter,
)
from lockprovider.storage_lock.record import LockRecord, Me, Moment

Task = Generator[Any, Any, Any]
SETTINGS = LockSettings()
_SKEW_S = 0.05
_NOISE = 0.15
_NOT_NOW = object()  # 429


@dataclass(frozen=True)
class Case:
    """Who contends for how long on what store. Seconds; `rounds` is how often each asks, 0: again and again."""

    processes: int
    threads: int = 1  # in each
    rounds: int = 1
    lasts_s: float = 60.0
    get_s: float = 0.015
    put_s: float = 0.030
    hold_s: float = 0.002
    work_s: float = 0.0  # between a release and the next ask
    poll_s: float = 1.0
    policy: str = "line"  # or "naive": look every poll_s, +-50 %, and take what is free
    apart_s: float = 0.05  # between the first asks of the first and the last
    first_s: float = 0.0  # that the first turn of all lasts longer than the others
    die: int = 0  # processes that stop for ever while they wait
    die_by_s: float = 2.0  # from 1 s on
    give_up: int = 0  # processes after those, whose wish ends
    give_up_s: float = 3.0
    late_s: float = 0.0  # when the last process asks first, if that is later than the others
    writes_per_s: float = 0.0  # the store's bound for one object; 0: none
    long_s: float = 0.0  # one turn in ten, at random, lasts longer by this
    guests: int = 0  # clients besides that look once a second and know nothing of the line, as JVM Hudi's

    @property
    def contenders(self) -> int:
        return self.processes * self.threads


@dataclass
class Result:
    """What came of it."""

    case: Case
    acquisitions: int
    per_s: float
    requests: float  # per acquisition
    hand_over_ms: float  # release sent -> next has it, median
    hand_over_p99_ms: float
    wait_median_s: float
    wait_max_s: float
    unserved: int
    idle_max_s: float  # that the lock was free while somebody waited who was to live and to go on
    pause_max_s: float
    drain_s: float  # from the first release to the last acquisition
    guest_wait_s: float  # the longest of those who know nothing of the line

    @property
    def unfairness(self) -> float:
        return self.wait_max_s / self.wait_median_s if self.wait_median_s else 1.0


@dataclass
class _Store:
    record: LockRecord | None = None
    version: Version | None = None
    count: int = 0
    next_write_s: float = 0.0


@dataclass
class _Process:
    name: str
    skew_s: float
    waiting: deque[_Contender] = field(default_factory=deque)
    machine: Any = field(default_factory=Idle)
    seen: tuple[LockRecord, Version] | None = None
    busy: bool = False
    gap_s: float | None = None
    waited_s: float = 0.0
    released_s: float = -1e9
    dead: bool = False
    dies: bool = False


@dataclass
class _Contender:
    process: _Process
    me: Me
    asks_left: int
    asked_s: float = 0.0
    served: int = 0
    waits: bool = False
    until_s: float = math.inf  # it waits at most


class Simulation:
    """One run of one case with one seed."""

    def __init__(self, case: Case, seed: int) -> None:
        self.case, self.now_s, self.requests = case, 0.0, 0
        self.random = random.Random(seed)
        self._queue: list[tuple[float, int, Any]] = []
        self._order = itertools.count()
        self._store = _Store()
        self._nonces = itertools.count()
        self.waits: list[float] = []
        self.hand_overs: list[float] = []
        self._release_sent_s: float | None = None
        self._first_s = case.first_s
        self._free_since_s: float | None = None
        self._first_free_s: float | None = None
        self._served_s = self._idle_s = self._pause_s = 0.0
        self._guest_wait_s, self._guest_asked_s = 0.0, math.inf
        self.contenders: list[_Contender] = []

    def run(self) -> Result:
        """Simulate the case until every event is handled or `lasts_s` has passed; return its figures."""
        for p in range(self.case.processes):
            process = _Process(f"p{p:03}", self.random.uniform(-_SKEW_S, _SKEW_S))
            for t in range(self.case.threads):
                me = Me(f"{process.name}-{t}", SETTINGS, waiter_name=process.name)
                contender = _Contender(process, me, self.case.rounds or 1 << 30)
                self.contenders.append(contender)
                late_s = self.case.late_s if p == self.case.processes - 1 else 0.0
                self.at(late_s + self.random.random() * self.case.apart_s, lambda c=contender: self._asks(c))
        self._some_leave()
        for _ in range(self.case.guests):
            self._go_on(self._guest(), None)
        while self._queue and self.now_s < self.case.lasts_s:
            self.now_s, _, call = heapq.heappop(self._queue)
            call()
        return self._result()

    def _some_leave(self) -> None:
        """Choose the processes that will die, each at a random time, and the contenders that give up at `give_up_s`."""
        case = self.case
        for process in [c.process for c in self.contenders[:: case.threads]][1 : 1 + case.die]:
            dies_s = 1.0 + self.random.random() * (case.die_by_s - 1.0)
            process.dies = True
            self.at(dies_s, lambda p=process: setattr(p, "dead", True))
        for contender in self.contenders[case.threads * (1 + case.die) :][: case.threads * case.give_up]:
            contender.until_s = case.give_up_s

    def at(self, when_s: float, call: Any) -> None:
        heapq.heappush(self._queue, (when_s, next(self._order), call))

    # -- processes -----------------------------------------------------------------------------------------------------

    def _asks(self, contender: _Contender) -> None:
        process = contender.process
        contender.asked_s, contender.waits = self.now_s, True
        if process.released_s > 0 and not process.busy and not process.waiting:
            process.gap_s = self.now_s - process.released_s
        process.waiting.append(contender)
        self._next(process)

    def _next(self, process: _Process) -> None:
        if process.busy or not process.waiting:
            return
        process.busy = True
        self._go_on(self._turn(process, process.waiting.popleft()), None)

    def _go_on(self, task: Task, answer: Any) -> None:
        try:
            delay_s, then = task.send(answer)
        except StopIteration:
            return
        self.at(self.now_s + delay_s, lambda: self._go_on(task, then() if then else None))

    def _turn(self, process: _Process, me: _Contender) -> Task:
        """Acquire, hold and release the lock once for a contender.

        Record its wait and the hand-over, and let it ask again. A contender that gives up ends without a turn.
        """
        yield from (self._acquire_naive if self.case.policy == "naive" else self._acquire)(process, me)
        if self.now_s >= me.until_s and isinstance(process.machine, Idle):
            process.busy = False
            return self._next(process)
        if self._release_sent_s is not None:
            self.hand_overs.append(self.now_s - self._release_sent_s)
        self.waits.append(self.now_s - me.asked_s)
        self._served_s, me.waits = self.now_s, False
        me.served += 1
        first_s, self._first_s = self._first_s, 0.0
        long_s = self.case.long_s if self.case.long_s and self.random.random() < 0.1 else 0.0
        yield first_s + self.case.hold_s + long_s, None
        self._release_sent_s = self.now_s
        yield from self._release(process, me.me)
        process.busy = False
        process.released_s = self.now_s
        me.asks_left -= 1
        if me.asks_left > 0:
            self.at(self.now_s + self.case.work_s, lambda: self._asks(me))
        self._next(process)

    def _again(self, process: _Process) -> bool:
        gap_s = process.gap_s
        return bool(process.waiting) or (gap_s is not None and comes_again(gap_s, process.waited_s))

    def _release(self, process: _Process, me: Me) -> Task:
        while isinstance(process.machine, Held):
            yield from self._feed(process, me, Release(self._moment(process), self._again(process)))
            self._nothing_is_left(process)

    @staticmethod
    def _nothing_is_left(process: _Process) -> None:
        """Refused, for somebody joined, it finds pending what it took over: that is there."""
        if isinstance(process.machine, Rolling):
            process.machine = process.machine.held

    def _request(self, latency_s: float) -> Task:
        self.requests += 1
        yield self._leg_s(latency_s), None
        yield self._leg_s(latency_s), None

    def _acquire(self, process: _Process, me: _Contender) -> Task:
        """Acquire the lock by this library's polling rules, or return without it when the contender gives up.

        A dead process waits for ever.
        """
        waiter, began_s = Waiter(process.name, self.case.poll_s, self.now_s), self.now_s
        while True:
            if process.dead:
                yield 1e9, None
            sent_s, seen = self.now_s, (yield from self._look(process))
            if seen is None:
                what = TakeTurn(())
            elif self.now_s >= me.until_s:
                what = at_last(waiter, seen)
                if what is None:
                    return
            else:
                waiter, what = next_action(waiter, seen, self.random.random())
                if isinstance(what, Join):
                    waiter, what = yield from self._join(process, waiter, seen)
            if isinstance(what, TakeTurn):
                if (yield from self._take(process, me.me, what.waiters)):
                    process.waited_s = self.now_s - began_s
                    return
                if seen is None:
                    continue
                lost = replace(self._observed(process, sent_s if seen.took_s else self.now_s), lost_race=True)
                waiter, what = next_poll(waiter, lost, self.random.random())
            pause_s = max(0.0, min(what.seconds, me.until_s - self.now_s))
            self._pause_s = max(self._pause_s, pause_s)
            yield pause_s, None

    def _look(self, process: _Process) -> Task:
        """What is seen; without a request, if it is as one of this process has released it."""
        sent_s = self.now_s
        released = process.machine.released if isinstance(process.machine, Idle) else None
        process.machine = Idle()
        if released is None:
            process.seen = yield from self._get()
        return self._observed(process, sent_s) if process.seen else None

    def _observed(self, process: _Process, sent_s: float) -> Observation:
        now = self._moment(process)
        known = bool(process.seen[0].nonce)
        return Observation(*process.seen, now.now_ms, now.monotonic_s, self.now_s - sent_s, known)

    def _take(self, process: _Process, me: Me, line: tuple[str, ...]) -> Task:
        there = RecordSeen(*(process.seen or (None, None)), self._moment(process))
        effect = yield from self._feed(process, me, TakeLock(there, line))
        return not isinstance(effect, Busy)

    def _join(self, process: _Process, waiter: Waiter, seen: Observation) -> Task:
        record = with_waiter(seen.record, process.name)
        version = yield from self._put(record, seen.version)
        if version is None:
            return join_failed(waiter, seen, self.random.random())
        process.seen = (record, version)
        return next_poll(waiter, replace(seen, record=record), self.random.random())

    def _acquire_naive(self, process: _Process, me: _Contender) -> Task:
        while True:
            yield from self._look(process)
            if (yield from self._take(process, me.me, ())):
                return
            yield self.case.poll_s * self.random.uniform(0.5, 1.5), None

    def _guest(self) -> Task:
        """Behave as JVM Hudi's lock provider, again and again.

        Polls each second, joins no waiters, and drops our fields.
        """
        hold_s, nobody = max(self.case.hold_s, 0.1), "jvm"
        while True:
            yield 5.0 * self.random.random(), None
            self._guest_asked_s = self.now_s
            while True:
                seen = yield from self._get()
                now_ms = round((1e6 + self.now_s) * 1000)
                if seen is None or seen[0].expired or seen[0].lapsed_at(now_ms):
                    record = LockRecord(nobody, now_ms + 300_000, expired=False)
                    version = yield from self._put(record, ABSENT if seen is None else seen[1])
                    if version is not None:
                        break
                yield 1.0, None
            self._guest_wait_s = max(self._guest_wait_s, self.now_s - self._guest_asked_s)
            self._guest_asked_s = math.inf
            yield hold_s, None
            yield from self._put(replace(record, expired=True), version)

    def _feed(self, process: _Process, me: Me, event: Any) -> Task:
        """Give an event to the process's lock machine, carry out its requests, and return its last effect."""
        while True:
            process.machine, effect = step(me, process.machine, event)
            match effect:
                case ReadRecord():
                    process.seen = yield from self._get()
                    event = RecordSeen(*(process.seen or (None, None)), self._moment(process))
                case PutRecord(record, condition):
                    version = yield from self._put(record, condition)
                    if version is not None:
                        process.seen = (record, version)
                    event = refused(process.machine) if version is None else PutWon(version)
                case Apply() if event == PutWon(process.seen[1]) and process.machine.then == "acquired":
                    yield from self._request(self.case.get_s)  # it is there
                    process.machine = process.machine.held
                    return Done("acquired")
                case Done() | Ended() | Busy() | Apply() | None:
                    return effect

    def _moment(self, process: _Process) -> Moment:
        return Moment(round((1e6 + self.now_s + process.skew_s) * 1000), self.now_s, str(next(self._nonces)))

    # -- the store -----------------------------------------------------------------------------------------------------

    def _get(self) -> Task:
        self.requests += 1
        got = yield self._leg_s(self.case.get_s), lambda: (self._store.record, self._store.version)
        yield self._leg_s(self.case.get_s), None
        return None if got[0] is None else got

    def _put(self, record: LockRecord, condition: Any) -> Task:
        """Write the record under a condition, again after each throttling.

        Return its version, or None if the condition failed.
        """
        refusals = 0
        while True:
            self.requests += 1
            version = yield self._leg_s(self.case.put_s), lambda: self._land(record, condition)
            yield self._leg_s(self.case.put_s), None
            if version is not _NOT_NOW:
                return version
            refusals += 1
            yield delay_s(refusals, self.random.random(), 0.5 / self.case.writes_per_s), None

    def _land(self, record: LockRecord, condition: Any) -> Any:
        """Apply a write at the store.

        Return the new version, None if the condition failed, or `_NOT_NOW` if throttled.
        """
        store = self._store
        if condition != (ABSENT if store.version is None else store.version):
            return None
        if self.case.writes_per_s:
            if self.now_s < store.next_write_s:
                return _NOT_NOW
            store.next_write_s = self.now_s + 1 / self.case.writes_per_s
        self._note_free(record)
        store.count += 1
        store.record, store.version = record, Version("sim", str(store.count))
        return store.version

    def _note_free(self, after: LockRecord) -> None:
        """Note at the write of `after` since when the lock is free, or how long it was while others waited."""
        before = self._store.record
        if before is not None and before.epoch != after.epoch and self._free_since_s is not None:
            asked_s = [c.asked_s for c in self._still_wait()]
            self._idle_s = max(self._idle_s, self.now_s - max(self._free_since_s, min(asked_s, default=self.now_s)))
            self._free_since_s = None
        if after.is_free and self._free_since_s is None:
            self._free_since_s = self.now_s
            self._first_free_s = self._first_free_s or self.now_s

    def _leg_s(self, latency_s: float) -> float:
        return latency_s / 2 * self.random.lognormvariate(0, _NOISE)

    def _result(self) -> Result:
        """Compute the figures; contenders that still wait count with their wait so far."""
        waits, hand = sorted(self.waits), sorted(self.hand_overs) or [0.0]
        return Result(
            case=self.case,
            acquisitions=len(waits),
            per_s=len(waits) / self.now_s,
            requests=self.requests / max(1, len(waits)),
            hand_over_ms=1000 * median(hand),
            hand_over_p99_ms=1000 * quantiles([*hand, hand[-1]], n=100)[98],
            wait_median_s=median(waits),
            wait_max_s=max([waits[-1], *(self.now_s - c.asked_s for c in self._still_wait())]),
            unserved=sum(c.served == 0 for c in self.contenders),
            idle_max_s=self._idle_s,
            pause_max_s=self._pause_s,
            drain_s=self._served_s - (self._first_free_s or 0.0),
            guest_wait_s=max(self._guest_wait_s, self.now_s - self._guest_asked_s),
        )

    def _still_wait(self) -> list[_Contender]:
        """Who is to live and to go on."""
        return [c for c in self.contenders if c.waits and not c.process.dies and c.until_s == math.inf]


def cases(seconds: float) -> Iterator[tuple[str, Case]]:
    """Yield the table's cases by name: all contenders once, and again and again, with this lock and plain polling.

    Also with deaths, and with Google's limit of writes. `seconds`: simulated time of a closed loop.
    """
    policies = (("line", 1.0), ("naive", 0.1), ("naive", 1.0))
    for contenders, (policy, poll_s) in itertools.product((8, 32, 128), policies):
        for processes in sorted({4, contenders}):
            threads = contenders // processes
            yield "all once", Case(processes, threads, policy=policy, poll_s=poll_s, lasts_s=1e9)
            yield "again and again", Case(processes, threads, rounds=0, policy=policy, poll_s=poll_s, lasts_s=seconds)
    yield "again and again, 3 of 8 die", Case(8, 1, rounds=0, lasts_s=seconds, die=3)
    for policy, poll_s in (policies[0], policies[2]):
        pace = {"writes_per_s": 1.0, "get_s": 0.05, "put_s": 0.08, "policy": policy, "poll_s": poll_s}
        yield "GCS, all once", Case(4, 2, lasts_s=1e9, **pace)
        yield "GCS, again and again", Case(4, 2, rounds=0, lasts_s=5 * seconds, **pace)


def pooled(case: Case, seeds: int) -> Result:
    """Simulate a case with each seed.

    Return the medians of its figures, but the worst of longest waits and unserved.
    """
    runs = [Simulation(case, seed).run() for seed in range(seeds)]
    names = ("acquisitions", "per_s", "requests", "hand_over_ms", "hand_over_p99_ms", "wait_median_s")
    middle = {name: median(getattr(run, name) for run in runs) for name in names}
    worst = max(runs, key=lambda run: run.unfairness)
    return Result(
        case=case,
        wait_max_s=worst.unfairness * middle["wait_median_s"],
        unserved=max(run.unserved for run in runs),
        idle_max_s=max(run.idle_max_s for run in runs),
        pause_max_s=max(run.pause_max_s for run in runs),
        drain_s=max(run.drain_s for run in runs),
        guest_wait_s=max(run.guest_wait_s for run in runs),
        **middle,
    )


HEADS = (
    "case",
    "policy",
    "contenders",
    "requests",
    "hand-over ms (p99)",
    "median wait s",
    "longest / median",
)


def row(name: str, r: Result) -> tuple[str, ...]:
    """Return a result as the cells of one line of the table."""
    case = r.case
    policy = "lockprovider" if case.policy == "line" else f"polls every {case.poll_s:g} s"
    return (
        name,
        policy,
        f"{case.processes}x{case.threads}",
        f"{r.requests:.1f}",
        f"{r.hand_over_ms:.0f} ({r.hand_over_p99_ms:.0f})",
        f"{r.wait_median_s:.2f}",
        f"{r.unfairness:.1f}",
    )


def main() -> None:
    """Simulate the chosen cases, and print a Markdown table or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=30.0, help="simulated, of a closed loop")
    parser.add_argument("--only", default="", metavar="NAME", help="the cases whose names begin with it")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    chosen = [(name, case) for name, case in cases(args.seconds) if name.startswith(args.only)]
    results = [(name, pooled(case, args.seeds)) for name, case in chosen]
    if args.json:
        print(json.dumps([{"name": name, **asdict(r), "unfairness": r.unfairness} for name, r in results], indent=2))
        return
    print(f"| {' | '.join(HEADS)} |\n|{'---|' * len(HEADS)}")
    for name, result in results:
        print(f"| {' | '.join(row(name, result))} |")


if __name__ == "__main__":
    main()
