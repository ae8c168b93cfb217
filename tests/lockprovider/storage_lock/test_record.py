"""The lock record: ours, JVM Hudi's, and what is neither."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockprovider import Holder, LockRecord, Log, MalformedRecord, Pending
from lockprovider.settings import GRACE_MS

text = st.text(max_size=20)
paths = st.text("az09 ._-%é🙂", max_size=20).map("state/-{}/7".format)
numbers = st.integers(min_value=0, max_value=(1 << 63) - 1)
records = st.builds(
    LockRecord,
    owner=text,
    valid_until_ms=numbers,
    expired=st.booleans(),
    epoch=st.integers(min_value=0, max_value=2**53 - 1),
    nonce=text,
    pending=st.none() | st.builds(Pending, paths, st.just("") | paths, text),
    holder=st.none() | st.builds(Holder, text, st.integers(min_value=0, max_value=2**53 - 1), numbers),
    waiters=st.lists(text, max_size=4).map(tuple),
    turn_ms=st.integers(min_value=0, max_value=2**31),
    freed_ms=st.integers(min_value=0, max_value=(1 << 63) - 1),
    foreign_seen_ms=st.integers(min_value=0, max_value=(1 << 63) - 1),
    yield_until_ms=st.integers(min_value=0, max_value=(1 << 63) - 1),
)


@given(records)
def test_record_reads_back_as_it_was_written(record: LockRecord) -> None:
    assert LockRecord.decode(record.encode()) == record


@given(records)
def test_jvm_reader_finds_its_three_fields_and_jvm_writer_drops_the_rest(record: LockRecord) -> None:
    fields = json.loads(record.encode())
    jvm = {name: fields[name] for name in ("owner", "validUntil", "expired")}
    read = LockRecord.decode(json.dumps(jvm).encode())
    assert (read.owner, read.valid_until_ms, read.expired) == (record.owner, record.valid_until_ms, record.expired)
    assert (read.epoch, read.nonce, read.pending, read.holder) == (0, "", None, None)
    assert (read.waiters, read.turn_ms, read.freed_ms) == ((), 0, 0)


firsts = st.none() | st.builds(Pending, paths, st.just(""), text, st.binary(max_size=50), st.just(value=True))
small = st.builds(Pending, paths, st.just(""), text, st.binary(max_size=50), st.booleans(), firsts)


@given(st.lists(small, min_size=1, max_size=5), st.integers(min_value=0, max_value=5), st.booleans())
def test_unapplied_publish_reads_back_with_its_bytes(publishes: list[Pending], unapplied: int, staged: bool) -> None:
    if staged:
        publishes[-1] = replace(publishes[-1], staged="staged/1", data=None)
    log = Log("a")
    for pending in publishes:
        log = log.plus(pending)
    *earlier, last = publishes[-unapplied:]
    for kept in (log, None):
        record = LockRecord("a", 5, expired=False, pending=last, pending_before=tuple(earlier), log=kept)
        assert LockRecord.decode(record.encode()) == record


def test_unknown_fields_are_ignored() -> None:
    data = b'{"owner":"a","validUntil":5,"expired":false,"color":"blue"}'
    assert LockRecord.decode(data) == LockRecord("a", 5, expired=False)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not json",
        b"\xff\xfe",
        b"[]",
        b'"text"',
        b"null",
        b"{}",
        b'{"owner":"a","validUntil":5}',
        b'{"owner":"a","validUntil":"5","expired":false}',
        b'{"owner":"a","validUntil":5.5,"expired":false}',
        b'{"owner":"a","validUntil":true,"expired":false}',
        b'{"owner":"a","validUntil":5,"expired":0}',
        b'{"owner":1,"validUntil":5,"expired":false}',
        b'{"owner":"a","validUntil":5,"expired":false,"epoch":"7"}',
        b'{"owner":"a","validUntil":5,"expired":false,"pending":{}}',
        b'{"owner":"a","validUntil":5,"expired":false,"pending":"x"}',
        b'{"owner":"a","validUntil":5,"expired":false,"pending":{"path":5,"staged":null,"digest":[]}}',
        b'{"owner":"a","validUntil":5,"expired":false,"holder":{"host":"h","pid":"1","since_ms":2}}',
        b"[" * 100_000,
        b'{"owner":"a","validUntil":' + b"9" * 5000 + b',"expired":false}',
    ],
    ids=lambda data: repr(data[:60]),
)
def test_invalid_record_is_refused_with_the_next_step(data: bytes) -> None:
    with pytest.raises(
        MalformedRecord, match="not a lock record, .*lock another path .*if it was .*remove the object by hand"
    ):
        LockRecord.decode(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_record_or_refused(data: bytes) -> None:
    with contextlib.suppress(MalformedRecord):
        assert isinstance(LockRecord.decode(data), LockRecord)


def test_lease_has_lapsed_once_validity_and_grace_have_passed() -> None:
    record = LockRecord("a", 1_000, expired=False)
    assert not record.lapsed_at(1_000 + GRACE_MS)
    assert record.lapsed_at(record.lapses_ms)
    assert record.lapses_ms == 1_000 + GRACE_MS + 1
