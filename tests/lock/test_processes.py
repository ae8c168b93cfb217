"""The lock between real processes on real servers: contention, SIGSTOP, kill -9, clocks that are an hour wrong.

What is true is asked of the server itself, past the software under test.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
import pytest
from servers.stores import STORES

from fsspec_cas import Machine, Store
from lock.puppet import Puppet
from lock.worker import SteppedClock, count
from lockprovider import HUDI_LOCK_PATH, LeaseLost, Lock, LockRecord, LockSettings, NotAcquired

if TYPE_CHECKING:
    from servers.base import Server

# So long that a machine that stands still for minutes does not make it lapse.
LONG = {"validity": 3600.0, "renew": 360.0, "poll": 0.2}
# So short that a test can wait for it.
SHORT = {"validity": 2.5, "renew": 0.25, "poll": 0.1}
HOUR_S = 3600.0


@dataclass
class Place:
    """An empty folder in a store."""

    url: str
    options: dict[str, Any]
    look: Callable[[str], bytes | None]  # what is there, read past the software under test
    puppets: list[Puppet]

    def puppet(self, **settings: float) -> Puppet:
        self.puppets.append(Puppet(self.url, self.options, **settings))
        return self.puppets[-1]

    def lock(self, clock: SteppedClock | None = None, **settings: float) -> Lock:
        """A client in the test's own process."""
        return Lock(self.store, settings=LockSettings(**settings), world=clock or Machine())

    @property
    def store(self) -> Store:
        return Store.from_url(self.url, self.options)

    @property
    def record(self) -> LockRecord:
        return LockRecord.decode(self.look(HUDI_LOCK_PATH) or b"")

    def begin_counting(self) -> tuple[Any, str]:
        fs, folder = fsspec.url_to_fs(self.url, **self.options)
        fs.pipe_file(f"{folder}/counter", b"0")
        return fs, folder


def on_server(server: Server) -> tuple[str, dict[str, Any], Callable[[str], bytes | None]]:
    prefix = server.new_prefix()

    def look(path: str) -> bytes | None:
        got = server.raw_get(f"{prefix}/{path}")
        return got.body if got.ok else None

    return prefix, server.storage_options, look


def on_disk(folder: Path) -> tuple[str, dict[str, Any], Callable[[str], bytes | None]]:
    def look(path: str) -> bytes | None:
        return (folder / path).read_bytes() if (folder / path).exists() else None

    return f"file://{folder}", {"auto_mkdir": True}, look


@pytest.fixture(params=STORES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    name = request.param
    found = on_disk(tmp_path / uuid.uuid4().hex) if name == "local" else on_server(request.getfixturevalue(name))
    made = Place(*found, [])
    yield made
    for puppet in made.puppets:
        puppet.close()


# -- contention --------------------------------------------------------------------------------------------------------


def assert_exact(place: Place, told: list[dict[str, Any]], sections: int) -> None:
    epochs = [epoch for one in told for epoch in one["epochs"]]
    assert [failure for one in told for failure in one["failures"]] == []
    assert [overlap for one in told for overlap in one["overlaps"]] == []
    assert place.look("counter") == str(sections).encode()
    assert len(set(epochs)) == sections
    for one in told:
        assert one["epochs"] == sorted(one["epochs"])


@pytest.mark.parametrize(
    ("clients", "threads", "rounds"), [(4, 4, 2), pytest.param(8, 8, 4, marks=pytest.mark.soak)], ids=str
)
def test_threads_increment_plain_counter_without_overlap_or_loss(
    place: Place, clients: int, threads: int, rounds: int
) -> None:
    counter = place.begin_counting()
    store = place.store
    locks = [Lock(store, settings=LockSettings(**LONG)) for _ in range(clients)]
    told = count(store, counter, [lock.acquire for lock in locks for _ in range(threads)], rounds)
    assert_exact(place, [told], clients * threads * rounds)


@pytest.mark.parametrize(("processes", "rounds"), [(5, 2), pytest.param(16, 8, marks=pytest.mark.soak)], ids=str)
def test_processes_increment_plain_counter_without_overlap_or_loss(place: Place, processes: int, rounds: int) -> None:
    place.begin_counting()
    puppets = [place.puppet(**LONG) for _ in range(processes)]
    for puppet in puppets:
        puppet.tell("count", rounds, 1, 1)
    assert_exact(place, [puppet.hear()["answer"] for puppet in puppets], processes * rounds)


def test_overlap_without_the_lock_is_detected(tmp_path: Path) -> None:
    """So the two tests above can fail."""
    place = Place(*on_disk(tmp_path / "x"), [])
    counter = place.begin_counting()
    both = threading.Barrier(2)

    class NoLock:
        epoch = 1

        def __enter__(self) -> NoLock:
            return self

        def __exit__(self, *_: object) -> None:
            """Nothing was taken."""

        def check(self) -> None:
            """Always held."""

    fs, folder = counter

    class Together:
        """A filesystem on which the two read at the same moment."""

        pipe_file = staticmethod(fs.pipe_file)

        @staticmethod
        def cat_file(path: str) -> bytes:
            both.wait(60)
            data: bytes = fs.cat_file(path)
            both.wait(60)
            return data

    told = count(place.store, (Together, folder), [lambda _: NoLock()] * 2, 1)
    assert len(told["overlaps"]) == 1
    assert place.look("counter") == b"1"


# -- a holder that is stopped ------------------------------------------------------------------------------------------


def test_holder_stopped_during_publish_finds_it_refused(place: Place) -> None:
    """Its own clocks do not help it: its lease would live for an hour, and its successor's clock is two hours ahead."""
    holder = place.puppet(**LONG)
    holder.ask("signal_before", "table_lock.json", "SIGSTOP", True)
    stale = holder.ask("acquire", 60)
    holder.tell("publish", "state/1", "stale")
    holder.wait_until_stopped()
    ahead = SteppedClock()
    ahead.wrong_by_s = 2 * HOUR_S
    with place.lock(ahead, **LONG).acquire(60) as lease:
        lease.publish("state/2", b"newer")
        holder.go_on()
        told = holder.hear()
        assert told["error"] == "LeaseLost", told
        assert lease.owner in told["why"]
        assert stale["owner"] in told["why"]
        lease.check()
        assert lease.renew()
        holder.tell("check")
        assert holder.hear()["error"] == "LeaseLost"
    assert place.look("state/1") is None
    assert place.look("state/2") == b"newer"
    assert place.record.epoch == lease.epoch


@pytest.mark.parametrize("place", ["local", "seaweedfs"], indirect=True)
def test_holder_stopped_past_its_lease_learns_of_the_loss_on_waking(place: Place) -> None:
    holder = place.puppet(**SHORT)
    holder.ask("acquire", 60)
    holder.stop()
    with place.lock(**LONG).acquire(120) as lease:
        assert lease.epoch > 0
        holder.tell("check")
        holder.tell("publish", "state/1", "stale")
        holder.tell("release")
        holder.go_on()
        assert [holder.hear().get("error") for _ in range(3)] == ["LeaseLost", "LeaseLost", None]
        lease.publish("state/2", b"newer")
        lease.check()
    assert place.look("state/1") is None
    assert place.look("state/2") == b"newer"


# -- a holder that is killed -------------------------------------------------------------------------------------------


def test_successor_of_killed_holder_finishes_its_decided_publish(place: Place) -> None:
    holder = place.puppet(**SHORT)
    holder.ask("signal_before", "state/1", "SIGKILL", False)
    holder.tell("acquire_and_publish", "state/1", "decided")
    assert holder.wait_until_dead() == -9
    left = place.record
    assert left.pending is not None
    assert left.pending.path == "state/1"
    assert place.look("state/1") is None
    with place.lock(**LONG).acquire(120) as lease:
        assert place.look("state/1") == b"decided"
        assert time.time() * 1000 > left.valid_until_ms + 500, "it did not wait for the lease to lapse"
        assert lease.epoch > left.epoch
        lease.publish("state/2", b"after it")
    assert place.look("state/2") == b"after it"
    assert place.record.pending is None


@pytest.mark.parametrize("place", ["local", "seaweedfs"], indirect=True)
def test_holder_killed_before_the_commit_publishes_nothing(place: Place) -> None:
    holder = place.puppet(**SHORT)
    holder.ask("signal_before", "table_lock.json", "SIGKILL", True)
    holder.tell("acquire_and_publish", "state/1", "staged only")
    assert holder.wait_until_dead() == -9
    behind = SteppedClock()
    behind.wrong_by_s = -HOUR_S
    with place.lock(**LONG).acquire(120):
        assert place.look("state/1") is None
    dead = place.puppet(**SHORT)
    dead.ask("acquire", 60)
    dead.kill9()
    with pytest.raises(NotAcquired):
        place.lock(behind, **LONG).acquire(0)


# -- clocks that are wrong ---------------------------------------------------------------------------------------------


def test_holder_keeps_lock_and_publishes_after_wall_clock_step(place: Place) -> None:
    holder, other = place.puppet(**LONG | {"validity": 600.0, "renew": 60.0}), place.lock(**LONG)
    for path, wrong_by_s in (("state/back", -HOUR_S), ("state/ahead", HOUR_S)):
        holder.ask("step_clock", 0)
        holder.ask("acquire", 60)
        holder.ask("step_clock", wrong_by_s)
        assert holder.ask("renew") is True
        with pytest.raises(NotAcquired):
            other.acquire(0)
        assert holder.ask("check") == "held"
        assert holder.ask("publish", path, "mine") == "published"
        holder.ask("release")
        with other.acquire(60):
            assert place.look(path) == b"mine"


def test_contender_an_hour_ahead_takes_over_and_only_one_publishes(place: Place) -> None:
    with place.lock(**LONG | {"validity": 600.0, "renew": 60.0}).acquire(60) as lease:
        thief = place.puppet(**LONG)
        thief.ask("step_clock", HOUR_S)
        thief.ask("acquire", 60)
        assert thief.ask("publish", "state/1", "thief") == "published"
        lease.check()  # nobody has told it yet ...
        with pytest.raises(LeaseLost):
            lease.publish("state/2", b"holder")  # ... and no clock is needed
    assert (place.look("state/1"), place.look("state/2")) == (b"thief", None)
