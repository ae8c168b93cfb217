"""`RecordWriter`: what one client of group commit knows of the record, and of its own writes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fsspec_cas import Store, Version
from fsspec_cas.testing import ManualClock
from lockprovider import LockRecord, LockSettings, Log
from lockprovider.storage_lock.commit_writes import Applying, RecordWriter
from lockprovider.storage_lock.record import Me

PATH = "lock.json"
FREE = LockRecord("another", 0, expired=True, epoch=7, nonce="1", log=Log("1"))


def test_read_of_another_client_does_not_settle_a_write_in_doubt(tmp_path: Path) -> None:
    store, clock, me = Store.from_url(str(tmp_path)), ManualClock(), Me("me", LockSettings())
    store.put_if_absent(PATH, FREE.encode()).unwrap()
    applying = Applying(store, clock, lambda: None)
    writer = RecordWriter(store, PATH, me, clock, applying=applying, audit=None)
    known = writer.look()
    assert known is not None
    store.update(PATH, lambda _: replace(FREE, nonce="2").encode())
    assert not writer.put(known, (), leading_s=0.0)
    writer.learn(replace(known, record=replace(FREE, epoch=8), version=Version("local", "of before")))
    assert writer.in_doubt
    assert writer.stale
    assert writer.known == known
    writer.look()
    assert not writer.in_doubt
    assert not writer.stale
