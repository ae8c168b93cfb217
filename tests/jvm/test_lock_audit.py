"""JVM Hudi's released lock provider and ours keep one audit: the bytes, the places, and what they tell together."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from patience import until

from fsspec_cas import Machine, Store
from lockprovider import HUDI_LOCK_PATH, Lock, LockSettings
from lockprovider.storage_lock.audit import Audit, AuditRecord, analyse, places
from lockprovider.storage_lock.audit_log import AuditLog, read_files, set_enabled

if TYPE_CHECKING:
    from servers.seaweedfs import SeaweedFS

    from jvm.clients import JvmLocks

pytestmark = pytest.mark.jvm
AT = places(HUDI_LOCK_PATH)
SETTINGS = LockSettings(validity=60, renew=5)


class Audited:
    """A table whose users want an audit."""

    def __init__(self, server: SeaweedFS) -> None:
        self.server, self.url = server, server.new_prefix()
        self.store = Store.from_url(self.url, server.storage_options)
        set_enabled(self.store, AT.switch, enabled=True, timeout_s=60)

    def hold_ours(self) -> str:
        log = AuditLog(self.store)
        with Lock(self.store, settings=SETTINGS, audit=log).acquire() as lease:
            assert lease.renew()
        assert log.flush(60)
        return lease.owner

    def files(self) -> dict[str, bytes]:
        return read_files(self.store, AT.folder, timeout_s=60)

    def audit(self) -> Audit:
        return analyse(self.files(), Machine().now_ms())


@pytest.fixture
def table(seaweedfs: SeaweedFS) -> Audited:
    return Audited(seaweedfs)


def test_audit_records_and_paths_of_jvm_and_python_are_equal(jvm: JvmLocks, table: Audited) -> None:
    theirs = jvm.open(table.url, 10, 1)
    assert theirs.try_lock()
    until(lambda: b"RENEW" in b"".join(table.files().values()), "they renew it")
    owner = theirs.held().split()[2]
    theirs.unlock()
    ((name, data),) = table.files().items()
    records = [AuditRecord.decode(line) for line in data.splitlines()]
    assert b"".join(record.encode() for record in records) == data
    assert f"{AT.folder}/{name}" == AT.file(records[0].began_ms, owner)
    steps = [record.step for record in records]
    assert (steps[0], set(steps[1:-1]), steps[-1]) == ("START", {"RENEW"}, "END")
    assert all(record.valid_until_ms == record.at_ms + 10_000 for record in records)


def test_audit_lists_jvm_and_python_holders_in_order(jvm: JvmLocks, table: Audited) -> None:
    theirs = jvm.open(table.url)
    assert theirs.try_lock()
    owner = theirs.held().split()[2]
    theirs.unlock()
    ours = table.hold_ours()
    assert theirs.try_lock()
    theirs.unlock()
    again = table.hold_ours()
    audit = table.audit()
    assert [tenure.owner for tenure in audit.tenures] == [owner, ours, owner, again]
    assert {tenure.how for tenure in audit.tenures} == {"released"}
    assert (audit.overlaps, audit.files) == ((), 3), "theirs is one file for all that a provider acquires"


def test_jvm_holder_that_was_overtaken_has_no_end_in_the_audit(jvm: JvmLocks, table: Audited) -> None:
    theirs = jvm.open(table.url)
    assert theirs.try_lock()
    record = json.loads(table.store.read(HUDI_LOCK_PATH).data)
    taken_ms = record["validUntil"] - 60_000
    until(lambda: Machine().now_ms() > taken_ms + 600, "clocks cannot explain it")
    table.store.update(HUDI_LOCK_PATH, lambda _: json.dumps(record | {"expired": True}).encode())
    ours = table.hold_ours()
    audit = table.audit()
    assert [(tenure.owner, tenure.how) for tenure in audit.tenures] == [(record["owner"], "held"), (ours, "released")]
    assert audit.overlaps == (), "theirs told no end, which may have been before ours began"


def test_jvm_writes_audit_only_when_the_python_switch_is_on(jvm: JvmLocks, table: Audited) -> None:
    set_enabled(table.store, AT.switch, enabled=False, timeout_s=60)
    theirs = jvm.open(table.url)
    assert theirs.try_lock()
    theirs.unlock()
    assert table.files() == {}
    set_enabled(table.store, AT.switch, enabled=True, timeout_s=60)
    assert theirs.try_lock()
    theirs.unlock()
    assert len(table.files()) == 1
