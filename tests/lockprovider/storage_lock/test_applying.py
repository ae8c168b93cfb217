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
from lockprovider.storage_lock.commit_writes import Applying

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


def test_decided_publishes_are_applied_in_order_and_each_is_reported(store: Store, backend: Slow) -> None:
    known: list[object] = []
    one, clock = applying(store, lambda: known.append(one.last_applied))
    one.apply((A, B, C), (A, B, C), clock.now_s + 5)
    until(lambda: len(known) == 4)
    assert backend.asked == ["put a", "put b", "put c"]
    assert known == [A, B, C, C]
    assert (one.busy, one.failed) == (False, None)


def test_publish_applied_by_another_client_is_not_written_again(store: Store, backend: Slow) -> None:
    store.put_if_absent("a", b"a").unwrap()
    backend.asked.clear()
    one, clock = applying(store)
    one.apply((A, B), (B,), clock.now_s + 5)
    over(one)
    assert backend.asked == ["head a", "put b"]


def test_publish_known_to_be_applied_takes_no_request(store: Store, backend: Slow) -> None:
    one, clock = applying(store)
    one.apply((A,), (A,), clock.now_s + 5)
    over(one)
    store.delete("a")
    backend.asked.clear()
    one.apply((A, B), (B,), clock.now_s + 5)
    over(one)
    assert backend.asked == ["put b"], "it may have been removed since"


@pytest.mark.parametrize("backend", [False], indirect=True, ids=[""])
def test_publish_decided_during_an_apply_is_applied_after_it(store: Store, backend: Slow) -> None:
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


def test_publish_decided_as_the_applier_ends_is_applied(store: Store, backend: Slow) -> None:
    one, clock = applying(store, lambda: None)
    more = iter(((A, B), (A, B, C)))

    def told() -> None:
        if todo := next(more, None):
            one.apply(todo, todo, clock.now_s + 5)

    one._notify = told
    one.apply((A,), (A,), clock.now_s + 5)
    until(lambda: one.last_applied == C)
    over(one)
    assert backend.asked == ["put a", "put b", "put c"]


def test_failed_publish_blocks_the_later_ones(store: Store, backend: Slow) -> None:
    one, clock = applying(store)
    backend.down = True
    one.apply((A, B), (A, B), clock.now_s + 5)
    over(one)
    assert isinstance(one.failed, Unavailable)
    assert one.last_applied is None
    backend.down = False
    one.apply((A, B), (), clock.now_s + 5)
    over(one)
    assert (one.failed, one.last_applied) == (None, B)
    assert [store.read(name).data for name in "ab"] == [b"a", b"b"]


def test_foreign_bytes_at_the_path_of_a_publish_are_detected(store: Store) -> None:
    store.put_if_absent("a", b"foreign").unwrap()
    one, clock = applying(store)
    one.apply((A, B), (A, B), clock.now_s + 5)
    over(one)
    assert isinstance(one.failed, Unappliable)
    assert (one.last_applied, [entry.path for entry in store.list("")]) == (None, ["a"])


def test_nothing_is_written_after_the_deadline(store: Store, backend: Slow) -> None:
    one, clock = applying(store)
    one.apply((A,), (A,), clock.now_s)
    over(one)
    assert isinstance(one.failed, Unavailable)
    assert backend.asked == []


def test_publish_written_after_the_deadline_is_not_taken_for_applied(store: Store, backend: Slow) -> None:
    """As by a process that was stopped in the moment of sending: a JVM writer may have had the lock before."""
    one, clock = applying(store)
    backend.before = lambda _: clock.advance(6)  # type: ignore[method-assign]
    one.apply((A, B), (A, B), clock.now_s + 5)
    over(one)
    assert isinstance(one.failed, Unavailable)
    assert one.last_applied is None
    assert backend.asked == ["put a"]


def test_unordered_publish_after_a_slow_one_is_reported_after_it(store: Store, backend: Slow) -> None:
    if backend.blocking:
        pytest.skip("one thread puts one after the other")
    go, begun = threading.Event(), threading.Event()

    def before(name: str) -> None:
        if name == "a":
            begun.set()
            go.wait()

    one, clock = applying(store)
    one.unordered, backend.before = True, before
    one.apply((A, B, C), (A, B, C), clock.now_s + 5)
    begun.wait()
    go.set()
    over(one)
    assert one.last_applied == C
    assert sorted(backend.asked) == ["put a", "put b", "put c"]


def test_unordered_apply_repeats_only_the_missing_publish(store: Store, backend: Slow) -> None:
    def before(name: str) -> None:
        if name == "b":
            raise Unavailable("not now")

    one, clock = applying(store)
    one.unordered, backend.before = True, before
    one.apply((A, B, C), (A, B, C), clock.now_s + 5)
    over(one)
    assert one.last_applied == A
    assert isinstance(one.failed, Unavailable)
    backend.before = lambda _: None
    backend.asked.clear()
    one.apply((B, C), (), clock.now_s + 5)
    over(one)
    assert backend.asked == ["put b"]
    assert (one.last_applied, one.failed) == (C, None)


def test_unordered_publish_counts_as_applied_once_all_earlier_ones_are(store: Store) -> None:
    store.put_if_absent("b", b"b").unwrap()
    one, _ = applying(store)
    assert not one.check_applied(B, (A,))
    store.put_if_absent("a", b"a").unwrap()
    assert one.check_applied(B, (A,))
    assert one.last_applied == B
