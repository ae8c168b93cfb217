"""The log in the lock record: what it tells, and when it tells nothing."""

from __future__ import annotations

import pickle
import random
import zlib
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from lockprovider import Log, LogEntry, Pending
from lockprovider.storage_lock.record import digest, fits_log, pack, unpack

EMPTY = zlib.compress(b"")


def publish(name: str, data: bytes) -> Pending:
    return Pending(name, "", digest(data), data)


@given(st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=40)), max_size=6))
def test_entries_are_unpacked_as_they_were_packed(made: list[tuple[str, bytes | None]]) -> None:
    entries = tuple(LogEntry(path, "d", data) for path, data in made)
    assert unpack(pack(entries)) == entries


@settings(max_examples=30)
@given(st.lists(st.integers(0, 9000), max_size=60), st.integers(0, 2**32))
def test_log_returns_all_entries_after_each_position_it_still_has(sizes: list[int], seed: int) -> None:
    """Bytes that do not deflate, so that old entries have to go."""
    noise, log, made = random.Random(seed), Log("a"), []
    for number, size in enumerate(sizes):
        made.append(publish(str(number), noise.randbytes(size)))
        log = log.plus(made[-1])
    assert log.next == len(made)
    for place in range(len(made) + 1):
        since = log.since(place)
        if since is None:
            assert place < log.first
        else:
            assert [entry.path for entry in since] == [one.path for one in made[place:]]
            assert all(e.data in (None, one.data) for e, one in zip(since, made[place:], strict=True))
    assert len(log.packed) < 17_000, "everybody who waits reads it"
    assert log.since(log.next + 1) is None


def test_log_entry_added_locally_equals_what_others_read() -> None:
    log = Log("a")
    for number in range(200):
        log = log.plus(publish(f"commit/{number}", f"the same each time {number}".encode()))
    assert log.plus(publish("next", b"1")) is log.plus(publish("next", b"1")), "it is packed once"
    read = replace(log, packed=bytes([*log.packed]))
    assert read == log
    assert read.entries == log.entries
    assert pickle.loads(pickle.dumps(log)).entries == log.entries


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=8), st.integers(0, 8), st.integers(0, 8))
def test_incremental_packing_equals_packing_from_scratch(made: list[bytes], end: int, start: int) -> None:
    entries = tuple(LogEntry(str(number), "d", data) for number, data in enumerate(made))
    before = pack(entries[:end])
    for wanted in (entries, entries[start:], entries[:end], entries[::-1]):
        assert zlib.decompress(pack(wanted, before) or EMPTY) == zlib.decompress(pack(wanted) or EMPTY)
        assert zlib.decompress(pack(wanted, bytes(before)) or EMPTY) == zlib.decompress(pack(wanted) or EMPTY)


def test_adding_several_entries_equals_adding_them_one_by_one() -> None:
    log = Log("a").plus(publish("old", b"0"))
    made = [replace(publish(f"commit/{number}", b"same"), first=publish(f"{number}", b"it")) for number in range(20)]
    together, one_by_one = log.plus(*made), log
    for one in made:
        one_by_one = one_by_one.plus(one)
    assert together == one_by_one
    assert together.entries == one_by_one.entries
    assert log.plus() is log


def test_judged_log_has_one_more_entry_and_equals_no_other_log() -> None:
    log = Log("a").plus(publish("old", b"0"))
    one, other = (log.with_candidate(publish(name, name.encode())) for name in ("b", "c"))
    assert one.entries == log.plus(publish("b", b"b")).entries
    assert one.since(log.next) == (LogEntry("b", digest(b"b"), b"b"),)
    assert one != other


def test_log_keeps_bytes_of_many_small_similar_commits() -> None:
    log = Log("a")
    for number in range(40):
        log = log.plus(publish(f"commit/{number}", b"the same schema, each time, " * 150 + str(number).encode()))
    assert log.first <= 8
    assert all(entry.data is not None for entry in log.since(log.first) or ())


def test_large_entry_is_kept_without_its_bytes() -> None:
    large = publish("large", random.Random(1).randbytes(20_000))
    log = Log("a").plus(publish("small", b"1")).plus(large)
    assert log.has(large)
    assert log.last_entry(large) == LogEntry("large", large.digest, None)
    assert not log.ends_with((large,))
    assert [entry.data for entry in log.since(log.first) or ()][-1:] == [None]
    assert log.plus(publish("next", b"2")).since(log.next) == (LogEntry("next", digest(b"2"), b"2"),)


def test_last_entry_is_kept_with_its_bytes() -> None:
    last = publish("last", b"2")
    log = Log("a").plus(publish("first", b"1")).plus(last)
    first = publish("first", b"1")
    assert log.ends_with((last,))
    assert log.ends_with((first, last))
    assert not log.ends_with((first,))
    assert not log.ends_with((publish("zeroth", b"0"), first, last))
    assert log.has(publish("first", b"1"))
    assert not log.has(publish("first", b"other"))


def test_first_part_of_an_entry_is_kept_while_it_may_be_unapplied() -> None:
    made = [replace(publish(f"{n}", b"%d" % n), first=publish(f"first/{n}", b"f%d" % n)) for n in range(40)]
    log = Log("a")
    for number, pending in enumerate(made):
        log = log.plus(pending)
        last = made[max(0, number - 15) : number + 1]
        assert log.ends_with(tuple(last))
        assert [*log.entries[-len(last) :]] == [LogEntry.of(one) for one in last]
    assert [entry.first for entry in log.entries[:-16]] == [None] * 24
    assert not log.ends_with((replace(made[-1], first=None),))


def test_large_first_part_of_an_entry_is_not_kept() -> None:
    large = publish("large", random.Random(1).randbytes(20_000))
    assert not fits_log(replace(publish("small", b"1"), first=large))
    assert not fits_log(replace(publish("small", b"1"), first=Pending("staged", "there", "d")))
