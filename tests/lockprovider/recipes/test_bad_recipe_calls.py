"""Bad calls of queues, logs, states and elections: one typed error that names the value, and nothing is changed."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import lockprovider
from fsspec_cas import InvalidInput, InvalidUrl, NotBytes, Store, check_url
from lockprovider import InvalidSettings, NotPicklable, election, queue, state, wal
from lockprovider.recipes.errors import NotElected, TooLarge

INF, NAN = float("inf"), float("nan")
BYTE = "\udcff"  # how Python decodes a byte of a command line that is not UTF-8


@dataclass
class Made:
    """One of each, in a folder; the bad calls find them as they were."""

    folder: Path

    def __post_init__(self) -> None:
        self.queue = queue.create(self.at("queue.json"))
        self.log = wal.create(self.at("log"))
        self.state: Any = state.open(self.at("state.json"), default=dict)
        self.election = election.open(self.at("election.json"), name="a")
        self.tflock = state.TfLock.open(self.at("tf.json"))
        self.queue.put(1)
        self.log.append(b"1")
        self.state.put({})
        self.reader = self.log.reader("r")

    def at(self, name: str) -> str:
        return str(self.folder / name)

    def seen(self) -> tuple[object, ...]:
        return self.queue.stat(), self.log.info(), self.state.read(), self.election.leader(), self.tflock.shown()

    def close(self) -> None:
        for one in (self.queue, self.log, self.state, self.election):
            one.close()


Call = Callable[[Made], object]
Case = tuple[Call, type[Exception], list[str]]

OPENED: list[Case] = [
    *((lambda m, of=of: of(None), InvalidUrl, ["None"]) for of in (queue.create, queue.open, wal.create, wal.open)),
    *(
        (lambda m, of=of: of(""), InvalidUrl, ["''", "must name a bucket"])
        for of in (queue.open, wal.open, state.open, election.open)
    ),
    *((lambda m, of=of: of(5), InvalidUrl, ["5"]) for of in (state.open, election.open, state.TfLock.open)),
    *(
        (lambda m, of=of: of(m.at("n"), bogus=7), InvalidInput, ["bogus=7", "not an option", "storage_options="])
        for of in (queue.create, queue.open, wal.create, wal.open, state.open, election.open, state.TfLock.open)
    ),
    *(
        (lambda m, of=of: of(m.at("n"), timeout=-1), InvalidInput, ["timeout=-1", "0 or more"])
        for of in (queue.create, wal.create, state.open)
    ),
    *(
        (lambda m, of=of: of("memory://x", "p"), InvalidInput, ["memory://x", "open(url)"])
        for of in (queue.Queue, wal.Wal, state.State, election.Election, state.TfLock, queue.AsyncQueue, wal.AsyncWal)
    ),
    *(
        (lambda m, of=of: of(Store.from_url(m.folder), 5), InvalidInput, ["5", "not text"])
        for of in (queue.Queue, wal.Wal, state.State, election.Election, state.AsyncState, election.AsyncElection)
    ),
    (lambda m: queue.create(m.at("n"), visible_s="x"), InvalidInput, ["visible_s='x'", "seconds"]),
    (lambda m: queue.create(m.at("n"), visible_s=0), InvalidInput, ["visible_s=0", "above 0"]),
    (lambda m: queue.create(m.at("n"), visible_s=INF), InvalidInput, ["visible_s=inf"]),
    (lambda m: queue.create(m.at("n"), max_attempts=0), InvalidInput, ["max_attempts=0", "1 or more"]),
    (lambda m: queue.create(m.at("n"), max_bytes=10), InvalidInput, ["max_bytes=10", "4096"]),
    (lambda m: queue.create(m.at("n"), storage_options={"x": 1}), InvalidInput, ["'x'"]),
    (lambda m: wal.create(m.at("n"), slots=0), InvalidInput, ["slots=0"]),
    (lambda m: wal.create(m.at("n"), slots=True), InvalidInput, ["slots=True"]),
    (lambda m: wal.create(m.at("n"), retain="all"), InvalidInput, ["retain='all'", "readers"]),
    (lambda m: state.open(m.at("n"), default=5), InvalidInput, ["default=5", "default=dict"]),
    (lambda m: state.open(m.at("n"), keep=-1), InvalidInput, ["keep=-1"]),
    (lambda m: state.open(m.at("n"), codec="yaml"), InvalidInput, ["'yaml'"]),
    (lambda m: state.open(m.at("n"), edits="all"), InvalidInput, ["edits='all'", "advisory"]),
    (lambda m: election.open(m.at("n"), name=""), InvalidInput, ["name=''"]),
    (lambda m: election.open(m.at("n"), name=BYTE), InvalidInput, ["name='\\udcff'", "UTF-8"]),
    (lambda m: election.open(m.at("n"), value="x" * (4 << 20)), InvalidInput, ["value", "4194306 bytes"]),
    (lambda m: election.open(m.at("n"), value=object()), InvalidInput, ["value", "JSON"]),
    (lambda m: election.open(m.at("n"), validity=-1), InvalidSettings, ["validity=-1"]),
    (lambda m: election.open(m.at("n"), renew=100), InvalidSettings, ["renew=100"]),
    (lambda m: asyncio.run(queue.AsyncQueue.create(m.at("n"), bogus=7)), InvalidInput, ["bogus=7"]),
    (lambda m: asyncio.run(wal.AsyncWal.create(5)), InvalidUrl, ["5"]),
    (lambda m: election.AsyncElection.open(m.at("n"), name=5), InvalidInput, ["name=5"]),
]


def job_of(m: Made) -> queue.Job:
    job = m.queue.claim(visible_s=600)
    assert job is not None
    return job


def giving_back(m: Made, call: Callable[[queue.Job], object]) -> object:
    job = job_of(m)
    try:
        return call(job)
    finally:
        job.leave()


async def _nothing(_job: object) -> None:
    pass


class Later:
    async def __call__(self, _job: object) -> None: ...


QUEUES: list[Case] = [
    (lambda m: m.queue.put(object()), InvalidInput, ["JSON"]),
    (lambda m: m.queue.put({1: 2}), InvalidInput, ["1", "text"]),
    (lambda m: m.queue.put(NAN), InvalidInput, ["JSON", "has nan"]),
    (lambda m: m.queue.put({"a": [-INF]}), InvalidInput, ["JSON", "has -inf"]),
    (lambda m: m.queue.put("x" * 300_000), TooLarge, ["300", "its own object"]),
    (lambda m: m.queue.put(1, key=5), InvalidInput, ["key=5", "text"]),
    (lambda m: m.queue.put(1, priority="x"), InvalidInput, ["priority='x'"]),
    (lambda m: m.queue.put(1, priority=True), InvalidInput, ["priority=True"]),
    (lambda m: m.queue.put(1, delay_s="x"), InvalidInput, ["delay_s='x'"]),
    (lambda m: m.queue.put(1, delay_s=None), InvalidInput, ["delay_s=None"]),
    (lambda m: m.queue.put(1, delay_s=INF), InvalidInput, ["delay_s=inf", "at most 3155760000"]),
    (lambda m: m.queue.put(1, delay_s=10**400), InvalidInput, ["delay_s=1000", "at most 3155760000"]),
    (lambda m: m.queue.claim(timeout=10**400), InvalidInput, ["timeout=1000", "at most 3155760000"]),
    (lambda m: m.queue.claim(timeout=Decimal(5)), InvalidInput, ["timeout=Decimal('5')", "number of seconds"]),
    (lambda m: m.queue.put(1, priority=10**5000), InvalidInput, ["priority=this int"]),
    (lambda m: m.queue.put(1, dedupe=5), InvalidInput, ["dedupe=5", "name"]),
    (lambda m: m.queue.put(1, dedupe=""), InvalidInput, ["dedupe=''"]),
    (lambda m: m.queue.put(1, producer="p"), InvalidInput, ["producer", "seq"]),
    (lambda m: m.queue.put(1, seq=1), InvalidInput, ["producer", "seq"]),
    (lambda m: m.queue.put(1, producer=5, seq=1), InvalidInput, ["producer=5"]),
    (lambda m: m.queue.put(1, producer="p", seq=-1), InvalidInput, ["seq=-1"]),
    (lambda m: m.queue.put(1, fence="x"), InvalidInput, ["fence='x'"]),
    (lambda m: m.queue.put(1, dedupe="d" * 1001), InvalidInput, ["dedupe has 1001 characters", "1000"]),
    (lambda m: m.queue.put(1, producer="d" * 1001, seq=1), InvalidInput, ["producer has 1001 characters"]),
    (lambda m: m.queue.put_many(None), InvalidInput, ["bodies=None", "list"]),
    (lambda m: m.queue.put_many("abc"), InvalidInput, ["bodies='abc'", "list"]),
    (lambda m: m.queue.put_many({"a": 1}), InvalidInput, ["bodies={'a': 1}"]),
    (lambda m: m.queue.put_many([2], producer=5), InvalidInput, ["producer=5"]),
    (lambda m: m.queue.put_many([2], producer="~p"), InvalidInput, ["'~p'", "begin"]),
    (lambda m: m.queue.put_many([2], key="x"), InvalidInput, ["key='x'", "function"]),
    (lambda m: m.queue.claim(visible_s=0), InvalidInput, ["visible_s=0", "above 0"]),
    (lambda m: m.queue.claim(visible_s=INF), InvalidInput, ["visible_s=inf"]),
    (lambda m: m.queue.claim(timeout="5"), InvalidInput, ["timeout='5'"]),
    (lambda m: m.queue.jobs(visible_s="x"), InvalidInput, ["visible_s='x'"]),
    (lambda m: m.queue.work(5), InvalidInput, ["fn=5", "function"]),
    (lambda m: m.queue.work(Later()), InvalidInput, ["fn=", "is async", "of a job"]),
    (lambda m: m.queue.put_many([2], key=_nothing), InvalidInput, ["key=", "is async"]),
    (lambda m: m.queue.work(print, threads=0), InvalidInput, ["threads=0"]),
    (lambda m: m.queue.work(print, on_error=5), InvalidInput, ["on_error=5", "function"]),
    (lambda m: m.queue.peek(-1), InvalidInput, ["limit=-1"]),
    (lambda m: m.queue.redrive(5), InvalidInput, ["numbers=5", "list"]),
    (lambda m: m.queue.redrive(["x"]), InvalidInput, ["'x'", "whole number"]),
    (lambda m: m.queue.purge(expected="x"), InvalidInput, ["expected='x'"]),
    (lambda m: m.queue.last_seq(10**5000), InvalidInput, ["producer=this int"]),
    (lambda m: m.queue.put(1, fence=-(10**5000)), InvalidInput, ["fence=this int"]),
    (lambda m: m.queue.last_seq(""), InvalidInput, ["producer=''"]),
    (lambda m: m.queue.close("x"), InvalidInput, ["timeout='x'"]),
    (lambda m: asyncio.run(_tasks(m).work(5)), InvalidInput, ["fn=5"]),
    (lambda m: asyncio.run(_tasks(m).work(print)), InvalidInput, ["fn=", "not async", "async def", "of a job"]),
    (lambda m: asyncio.run(_tasks(m).work(_nothing, tasks=0)), InvalidInput, ["tasks=0"]),
    (lambda m: giving_back(m, lambda job: job.then(object())), InvalidInput, ["JSON"]),
    (lambda m: giving_back(m, lambda job: job.then(1, key=5)), InvalidInput, ["key=5"]),
    (lambda m: giving_back(m, lambda job: job.nack(delay_s=-1)), InvalidInput, ["delay_s=-1"]),
    (lambda m: giving_back(m, lambda job: job.nack(error=5)), InvalidInput, ["error=5", "text"]),
    (lambda m: giving_back(m, lambda job: job.bury(5)), InvalidInput, ["why=5", "text"]),
    (lambda m: giving_back(m, lambda job: job.extend(0)), InvalidInput, ["visible_s=0"]),
]


def _tasks(m: Made) -> queue.AsyncQueue:
    return queue.AsyncQueue.open(m.at("queue.json"))


def _candidate(m: Made) -> election.AsyncElection:
    return election.AsyncElection.open(m.at("election.json"), name="a")


LOGS: list[Case] = [
    (lambda m: m.log.append("x"), NotBytes, ["str"]),
    (lambda m: m.log.append(5), NotBytes, ["int"]),
    (lambda m: m.log.append_later(None), NotBytes, ["None"]),
    (lambda m: m.log.append_many(5), InvalidInput, ["records=5", "list"]),
    (lambda m: m.log.append_many(b"abc"), InvalidInput, ["records=b'abc'", "list"]),
    (lambda m: m.log.append_many(["x"]), NotBytes, ["str"]),
    (lambda m: m.log.appender(5), InvalidInput, ["producer=5"]),
    (lambda m: m.log.appender(""), InvalidInput, ["producer=''"]),
    (lambda m: m.log.appender("p").append(b"x", seq="x"), InvalidInput, ["seq='x'"]),
    (lambda m: m.log.appender("p").append(b"x", seq=0), InvalidInput, ["seq=0"]),
    (lambda m: m.log.appender("p").append_many([b"x"], first=-1), InvalidInput, ["first=-1"]),
    (lambda m: m.log.lead(fence="x"), InvalidInput, ["fence='x'"]),
    (lambda m: m.log.lead(producer=5), InvalidInput, ["producer=5"]),
    (lambda m: m.log.seal(5), InvalidInput, ["successor=5"]),
    (lambda m: m.log.seal(fence=-1), InvalidInput, ["fence=-1"]),
    (lambda m: m.log.read("x"), InvalidInput, ["start='x'", "oldest"]),
    (lambda m: m.log.read(True), InvalidInput, ["start=True"]),
    (lambda m: m.log.read(-1), InvalidInput, ["start=-1"]),
    (lambda m: m.log.position(b"x"), InvalidInput, ["start=b'x'"]),
    (lambda m: m.log.position(10**5000), InvalidInput, ["start=this int", "a slot"]),
    (lambda m: m.log.position(10**6), InvalidInput, ["start=1000000", "end"]),
    (lambda m: m.log.follow(idle_s="x"), InvalidInput, ["idle_s='x'"]),
    (lambda m: m.log.follow(timeout=-1), InvalidInput, ["timeout=-1"]),
    (lambda m: m.log.reader("a/b"), InvalidInput, ["'a/b'", "letters"]),
    (lambda m: m.log.reader("x" * 500), InvalidInput, ["200 at most"]),
    (lambda m: m.log.drop_reader(5), InvalidInput, ["name=5"]),
    (lambda m: m.log.trim(5), InvalidInput, ["before=5", "Position"]),
    *(
        (lambda m, call=call, bad=bad: call(m)(bad), InvalidInput, [part])
        for call in (lambda m: m.log.read, lambda m: m.log.trim, lambda m: m.reader.commit)
        for bad, part in [
            (wal.Position(1.5, 0), ".slot=1.5"),  # type: ignore[arg-type]
            (wal.Position(-1, 0), ".slot=-1"),
            (wal.Position(0, "x"), ".offset='x'"),  # type: ignore[arg-type]
            (wal.Position(0, 1 << 60), ".offset must be"),
        ]
    ),
    (lambda m: m.reader.commit(5), InvalidInput, ["position=5", "Position.parse"]),
    (lambda m: m.reader.follow(timeout="x"), InvalidInput, ["timeout='x'"]),
    (lambda m: wal.Position.parse("x"), InvalidInput, ["'x'"]),
    (lambda m: wal.Position.parse(7), InvalidInput, ["position=7"]),
    (lambda m: wal.Position.parse("1:" + "9" * 5000), InvalidInput, ["not a position"]),
    (lambda m: wal.Position.parse("9" * 16 + ":1"), InvalidInput, ["position.slot"]),
    (lambda m: m.log.close(-1), InvalidInput, ["timeout=-1"]),
]


async def _edited(m: Made, reason: str) -> None:
    async with state.AsyncState.open(m.at("state.json"), default=dict).edit(reason=reason):
        pass


STATES: list[Case] = [
    (lambda m: m.state.update(5), InvalidInput, ["fn=5", "UNCHANGED"]),
    (lambda m: m.state.update(lambda _: object()), InvalidInput, ["JSON"]),
    (lambda m: m.state.update(dict, reason=5), InvalidInput, ["reason=5", "text"]),
    (lambda m: m.state.update(dict, fence="x"), InvalidInput, ["fence='x'", "epoch"]),
    (lambda m: m.state.put(object()), InvalidInput, ["JSON"]),
    (lambda m: m.state.put({1: 2}), InvalidInput, ["1", "text"]),
    (lambda m: m.state.put({}, expected=-1), InvalidInput, ["expected=-1"]),
    (lambda m: m.state.put({}, expected=True), InvalidInput, ["expected=True"]),
    (lambda m: m.state.put({}, reason=5), InvalidInput, ["reason=5"]),
    (lambda m: m.state.edit(reason=5).__enter__(), InvalidInput, ["reason=5"]),
    (lambda m: m.state.edit(reason=BYTE).__enter__(), InvalidInput, ["reason=", "UTF-8"]),
    (lambda m: asyncio.run(_edited(m, BYTE)), InvalidInput, ["reason=", "UTF-8"]),
    (lambda m: m.state.update(dict, reason=BYTE), InvalidInput, ["reason=", "UTF-8"]),
    (lambda m: m.state.put({}, reason="x" * (1 << 17)), InvalidInput, ["reason has 131072 characters"]),
    (lambda m: m.state.rollback(1, reason=BYTE), InvalidInput, ["reason=", "UTF-8"]),
    (lambda m: m.state.edit(timeout=-1).__enter__(), InvalidSettings, ["timeout=-1"]),
    (lambda m: m.state.read(max_age_s="x"), InvalidInput, ["max_age_s='x'"]),
    (lambda m: m.state.history(-1), InvalidInput, ["limit=-1"]),
    (lambda m: m.state.history(None), InvalidInput, ["limit=None"]),
    (lambda m: m.state.at("x"), InvalidInput, ["serial='x'"]),
    (lambda m: m.state.diff(-1, 1), InvalidInput, ["serial=-1"]),
    (lambda m: m.state.rollback(True), InvalidInput, ["serial=True"]),
    (lambda m: m.state.unlock(None), InvalidInput, ["shown=None", "who()"]),
    (lambda m: m.state.settle(ValueError("x")), InvalidInput, ["ValueError", "OutcomeUnknown"]),
    (lambda m: m.state.close("x"), InvalidInput, ["timeout='x'"]),
    (lambda m: m.tflock.acquire(timeout="x"), InvalidInput, ["timeout='x'"]),
    (lambda m: m.tflock.acquire(operation=5), InvalidInput, ["operation=5"]),
    (lambda m: m.tflock.acquire(info=BYTE), InvalidInput, ["info=", "UTF-8"]),
    (lambda m: m.tflock.unlock(5), InvalidInput, ["shown=5", "shown()"]),
]


def leading(m: Made, call: Callable[[election.Term], object]) -> object:
    with election.open(m.at("led.json"), name="b", validity=60).lead(30) as term:
        try:
            return call(term)
        finally:
            term.check()


ELECTIONS: list[Case] = [
    (lambda m: m.election.lead("x"), InvalidInput, ["timeout='x'"]),
    (lambda m: m.election.lead(-1), InvalidInput, ["timeout=-1"]),
    (lambda m: m.election.run(5), InvalidInput, ["main=5", "term"]),
    (lambda m: m.election.run(_nothing), InvalidInput, ["main=", "is async"]),
    (lambda m: asyncio.run(_candidate(m).run(print)), InvalidInput, ["main=", "not async", "of a term"]),
    (lambda m: leading(m, lambda term: term.when_lost(Later())), InvalidInput, ["call=", "is async"]),
    (lambda m: m.election.run(print, on_deposed="x"), InvalidInput, ["'x'", "interrupt"]),
    (lambda m: m.election.run(print, grace=-1), InvalidInput, ["grace=-1"]),
    (lambda m: m.election.transfer(""), InvalidInput, ["to=''", "resign()"]),
    (lambda m: m.election.transfer(5), InvalidInput, ["to=5"]),
    (lambda m: m.election.transfer("b"), NotElected, ["does not lead"]),
    (lambda m: leading(m, lambda term: term.resign(5)), InvalidInput, ["to=5", "text"]),
    (lambda m: leading(m, lambda term: term.resign(BYTE)), InvalidInput, ["to=", "UTF-8"]),
    (lambda m: leading(m, lambda term: term.proclaim("x" * (4 << 20))), InvalidInput, ["value", "4194306 bytes"]),
    (lambda m: leading(m, lambda term: term.proclaim(object())), InvalidInput, ["value", "JSON"]),
    (lambda m: leading(m, lambda term: term.when_lost(5)), InvalidInput, ["call=5", "function"]),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    one = Made(tmp_path_factory.mktemp("bad"))
    yield one
    one.close()


@pytest.mark.parametrize("case", [*OPENED, *QUEUES, *LOGS, *STATES, *ELECTIONS])
def test_bad_call_of_a_recipe_is_one_typed_error_and_changes_nothing(made: Made, case: Case) -> None:
    call, kind, parts = case
    before = made.queue.stat().ready, *made.seen()[1:]
    with pytest.raises(kind) as refused:
        call(made)
    assert [part for part in parts if part not in str(refused.value)] == []
    assert not (made.folder / "n").exists()
    assert before == (made.queue.stat().ready, *made.seen()[1:])
    assert lockprovider.election.open(made.at("led.json")).leader() is None, "it can be led"


@pytest.mark.parametrize(
    "url",
    [
        "s3://KEY:s3/cret@bucket/folder/x.json",
        "s3:/KEY:s3/cret@bucket/x.json",
        "ftp://user:s3/cret@host/x.json",
        "s3://KEY:s3/cret@bucket/../x.json",
        "az://box/x.json?se=2027&sig=s3/cret",
        "gs://box/x.json?access_token=s3/cret",
    ],
)
@pytest.mark.parametrize("opens", [queue.open, wal.open, state.open, election.open, lockprovider.lock, Store.from_url])
def test_url_with_a_secret_in_it_is_refused_without_showing_it(opens, url) -> None:
    with pytest.raises(InvalidUrl, match="storage options") as caught:
        opens(url)
    assert "s3/cret" not in f"{caught.value} {caught.value!r}"


def test_access_point_with_an_at_sign_in_a_name_is_no_password() -> None:
    assert check_url("s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/name/a@b")
    assert check_url("abfss://box@account.dfs.core.windows.net/x?on=2")


def test_objects_bound_to_one_process_are_not_picklable(tmp_path) -> None:
    made = Made(tmp_path)
    things = [made.queue, made.log, made.state, made.election, made.reader, made.log.appender("a"), made.queue.claim()]
    things += [of.open(made.at("x")) for of in (queue.AsyncQueue, wal.AsyncWal, state.AsyncState)]
    for one in things:
        with pytest.raises(NotPicklable, match="belongs to this process"):
            pickle.dumps(one)
    made.close()
