"""What was decided is put there in its order, on a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from noting import Noting
from patience import until

from fsspec_cas import Store, Unavailable
from fsspec_cas.outcome import Write
from fsspec_cas.testing import ManualClock
from lockprovider import Pending, Unappliable
from lockprovider.storage_lock.record_writer import Applying

A, B, C = (Pending.of_bytes(name, name.encode()) for name in "abc")


class Slow(Noting):
    """Calls `before` with the name of what is about to be written."""

    before: Callable[[str], None] = staticmethod(lambda _: None)

    async def put(self, write: Write, *args: Any, **kwargs: Any) -> Any:
        self.before(Path(write.path).name)
        return await super().put(write, *args, **kwargs)


@pytest.fixture(params=[True, False], ids=["", "as behind a network"])
def backend(request: pytest.FixtureRequest) -> Slow:
    return Slow(blocking=request.param)


@pytest.fixture
def store(backend: Slow, tmp_path: Path) -> Store:
    return Store(backend, str(tmp_path))


def applying(store: Store, told: Callable[[], None] = lambda: None) -> tuple[Applying, ManualClock]:
    clock = ManualClock()
    return Applying(store, clock, told), clock


def over(one: Applying) -> None:
    until(lambda: not one.busy)


def test_all_of_it_is_there_in_its_order_and_each_is_told_of(store: Store, backend: Slow) -> None:
    known: list[object] = []
    one, clock = applying(store, lambda: known.append(one.there))
    one.apply((A, B, C), (A, B, C), clock.now_s + 5)
    until(lambda: len(known) == 4)
    assert backend.asked == ["put a", "put b", "put c"]
    assert known == [A, B, C, C]
    assert (one.busy, one.failed) == (False, None)


def test_what_others_have_decided_may_be_there_and_is_not_written_again(store: Store, backend: Slow) -> None:
    store.put_if_absent("a", b"a").unwrap()
    backend.asked.clear()
    one, clock = applying(store)
    one.apply((A, B), (B,), clock.now_s + 5)
    over(one)
    assert backend.asked == ["head a", "put b"]


def test_what_is_known_to_be_there_is_not_asked_for(store: Store, backend: Slow) -> None:
    one, clock = applying(store)
    one.apply((A,), (A,), clock.now_s + 5)
    over(one)
    store.delete("a")
    backend.asked.clear()
    one.apply((A, B), (B,), clock.now_s + 5)
    over(one)
    assert backend.asked == ["put b"], "it may have been removed since"


@pytest.mark.parametrize("backend", [False], indirect=True, ids=[""])
def test_what_is_decided_meanwhile_is_applied_after_it(store: Store, backend: Slow) -> None:
    go, begun = threading.Event(), threading.Event()

    def before(name: str) -> None:
        if name == "a":
            begun.set()
            assert go.wait(60)

    backend.before = before  # type: ignore[method-assign]
    one, clock = applying(store)
    one.apply((A,), (A,), clock.now_s + 5)
    assert begun.wait(60)
    one.apply((A, B), (B,), clock.now_s + 5)
    one.apply((A, B, C), (C,), clock.now_s + 5)
    go.set()
    over(one)
    assert backend.asked == ["put a", "put b", "put c"]


def test_what_is_decided_in_the_very_moment_of_its_end_is_not_left(store: Store, backend: Slow) -> None:
    one, clock = applying(store, lambda: None)
    more = iter(((A, B), (A, B, C)))

    def told() -> None:
        if todo := next(more, None):
            one.apply(todo, todo, clock.now_s + 5)

    one._told = told
    one.apply((A,), (A,), clock.now_s + 5)
    until(lambda: one.there == C)
    over(one)
    assert backend.asked == ["put a", "put b", "put c"]


def test_one_that_fails_keeps_those_after_it_from_being_there_first(store: Store, backend: Slow) -> None:
    one, clock = applying(store)
    backend.down = True
    one.apply((A, B), (A, B), clock.now_s + 5)
    over(one)
    assert isinstance(one.failed, Unavailable)
    assert one.there is None
    backend.down = False
    one.apply((A, B), (), clock.now_s + 5)
    over(one)
    assert (one.failed, one.there) == (None, B)
    assert [store.read(name).data for name in "ab"] == [b"a", b"b"]


def test_other_bytes_at_the_path_of_ones_own_publish_are_found(store: Store) -> None:
    store.put_if_absent("a", b"foreign").unwrap()
    one, clock = applying(store)
    one.apply((A, B), (A, B), clock.now_s + 5)
    over(one)
    assert isinstance(one.failed, Unappliable)
    assert (one.there, [entry.path for entry in store.list("")]) == (None, ["a"])


def test_nothing_is_written_after_its_time(store: Store, backend: Slow) -> None:
    one, clock = applying(store)
    one.apply((A,), (A,), clock.now_s)
    over(one)
    assert isinstance(one.failed, Unavailable)
    assert backend.asked == []


def test_what_was_written_after_its_time_is_not_taken_to_be_there(store: Store, backend: Slow) -> None:
    """As by a process that was stopped in the moment of sending: a JVM writer may have had the lock before."""
    one, clock = applying(store)
    backend.before = lambda _: clock.advance(6)  # type: ignore[method-assign]
    one.apply((A, B), (A, B), clock.now_s + 5)
    over(one)
    assert isinstance(one.failed, Unavailable)
    assert one.there is None
    assert backend.asked == ["put a"]


def test_at_once_what_comes_after_one_that_is_slow_is_there_and_told_when_that_is(store: Store, backend: Slow) -> None:
    if backend.blocking:
        pytest.skip("one thread puts one after the other")
    go, begun = threading.Event(), threading.Event()

    def before(name: str) -> None:
        if name == "a":
            begun.set()
            go.wait()

    one, clock = applying(store)
    one.at_once, backend.before = True, before
    one.apply((A, B, C), (A, B, C), clock.now_s + 5)
    begun.wait()
    go.set()
    over(one)
    assert one.there == C
    assert sorted(backend.asked) == ["put a", "put b", "put c"]


def test_at_once_a_gap_is_put_there_again_and_nothing_else(store: Store, backend: Slow) -> None:
    def before(name: str) -> None:
        if name == "b":
            raise Unavailable("not now")

    one, clock = applying(store)
    one.at_once, backend.before = True, before
    one.apply((A, B, C), (A, B, C), clock.now_s + 5)
    over(one)
    assert one.there == A
    assert isinstance(one.failed, Unavailable)
    backend.before = lambda _: None
    backend.asked.clear()
    one.apply((B, C), (), clock.now_s + 5)
    over(one)
    assert backend.asked == ["put b"]
    assert (one.there, one.failed) == (C, None)


def test_at_once_mine_is_there_when_all_before_it_are(store: Store) -> None:
    store.put_if_absent("b", b"b").unwrap()
    one, _ = applying(store)
    assert not one.finds(B, (A,))
    store.put_if_absent("a", b"a").unwrap()
    assert one.finds(B, (A,))
    assert one.there == B
