"""A writer that dies before or after any of its requests to the store leaves a table that others go on with.

With a bucket index too: there its insert into a file group that is there, and the first file of a bucket, which the
next writer makes as well, are among what is left halfway.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from patience import until
from table.bucket_tables import bucket, groups, in_their_buckets
from table.tables import SETTINGS, SPEC, by_hudi_rs, content, let_beat_age, orphans, rows, upsert

from fsspec_cas import Store, Unavailable
from fsspec_cas.backends.local import LocalBackend
from lockprovider import HUDI_LOCK_PATH, PublishUnknown
from lockprovider.table import Table, TableSpec
from lockprovider.table.engines import arrow as engine
from lockprovider.table.transaction.transaction import Transaction

BEFORE = {(1, "a", 1), (2, "b", 2), (3, "b", 3)}
AFTER = {(1, "a", 10), (5, "a", 5), (3, "b", 3), (4, "c", 4)}
NEXT = (8, "c", 8)
BUCKETS = replace(SPEC, buckets=2)
FAR_TOO_MANY = 200


# Who dies before the next request leaves the objects that one leaves who dies before the answer to this one.
AT_EACH_REQUEST = pytest.mark.parametrize(
    "applied", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["not sent", "answer lost"]
)


def deaths(*, applied: bool, every: int = 5, first: int = 1) -> range:
    """The requests to die at: by default some, as each takes a table of its own; with `-m soak` all."""
    return range(first, FAR_TOO_MANY, 1 if applied else every)


class Died(BaseException):
    """The process is gone."""


class DiesAtStep:
    """A local backend whose `step`-th request is the last one: it is not sent, or its answer is not seen."""

    name, capabilities, blocking = LocalBackend.name, LocalBackend.capabilities, True

    def __init__(self, step: int, *, applied: bool) -> None:
        self.inner = LocalBackend()
        self.left, self.applied, self.dead = step, applied, False
        self.asked: list[str] = []
        self.died_in = threading.main_thread()

    def __getattr__(self, name: str) -> Any:
        request = getattr(self.inner, name)
        if name in ("adapt", "close"):
            return request

        async def send(*args: Any, **kwargs: Any) -> Any:
            return await self._send(f"{name} {getattr(args[0], 'path', args[0])}", request(*args, **kwargs))

        return send

    async def _send(self, what: str, request: Awaitable[Any]) -> Any:
        if self.dead:  # threads of a dead process: none of their requests arrives
            request.close()
            raise Unavailable("the process is dead")
        self.asked.append(what)
        self.left -= 1
        if self.left > 0:
            return await request
        self.dead, self.died_in = True, threading.current_thread()
        if self.applied:
            await request
        else:
            request.close()
        raise Died(what)


def attempt(url: str, backend: DiesAtStep) -> bool:
    """One transaction that updates, deletes and inserts; False if its process died."""
    table = Table(Store(backend, url), url, settings=SETTINGS)
    txn = None
    try:
        txn = Transaction(table)
        changes = rows((1, "a", 10), (5, "a", 5), (4, "c", 4))
        engine.write(txn, upserts=changes, deletes=rows((2, "b", 0)).drop(["value"]))
        txn.commit()
    except (Died, Unavailable, PublishUnknown):  # the last two where another of its threads died
        assert backend.dead
        if txn is not None and txn.heartbeat is not None:
            txn.heartbeat._stop.set()
        end_of(table)
        return False
    until(lambda: backend.dead or is_at_rest(Path(url)))  # nobody waits for what comes after the commit
    end_of(table)
    return not backend.dead


def end_of(table: Table) -> None:
    """The end of its process: whatever becomes of the thread that decides does so in this test."""
    table.lock._client.committer._at_exit()
    died_in = getattr(table.store.backend, "died_in", threading.current_thread())
    if died_in.name == "group-commit":
        died_in.join()  # it is not the committer's any more, and may have its end before it


def is_at_rest(folder: Path) -> bool:
    """Whether a writer that is alive has nothing left to do."""
    record = json.loads((folder / HUDI_LOCK_PATH).read_text())
    return record["expired"] and not list((folder / ".hoodie" / ".heartbeat").glob("*"))


def let_the_lease_lapse(folder: Path) -> None:
    """As if its holder had not renewed it for long."""
    lock = folder / ".hoodie" / ".locks" / "table_lock.json"
    if lock.exists():
        lock.write_text(json.dumps(json.loads(lock.read_text()) | {"validUntil": 0}))


def let_time_pass(folder: Path) -> None:
    """As if hours had gone by: the dead process's lease has lapsed and its heartbeats are old."""
    let_the_lease_lapse(folder)
    for beat in (folder / ".hoodie" / ".heartbeat").glob("*"):
        let_beat_age(beat)


def test_bucket_table_of_the_crash_test_has_rows_in_the_changed_buckets() -> None:
    assert bucket(1, 2) == bucket(5, 2), "an insert into a file group that is there"
    assert bucket(2, 2) != bucket(3, 2), "a file group all of whose rows are deleted"
    assert bucket(4, 2) == bucket(8, 2), "a bucket whose first file the next writer makes, too"


@pytest.mark.parametrize("spec", [SPEC, BUCKETS], ids=["plain", "buckets"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@AT_EACH_REQUEST
def test_table_is_complete_after_a_death_at_any_request(tmp_path: Path, applied: bool, spec: TableSpec) -> None:
    seen = {"old": 0, "new": 0}
    template = Table.create(str(tmp_path / "template"), spec, settings=SETTINGS)
    upsert(template, *sorted(BEFORE))
    until(lambda: is_at_rest(Path(template.url)))
    for step in deaths(applied=applied):
        folder = tmp_path / str(step)
        shutil.copytree(template.url, folder)
        table = Table.open(str(folder), settings=SETTINGS)
        backend = DiesAtStep(step, applied=applied)
        if attempt(str(folder), backend):
            break
        now = by_hudi_rs(str(folder))
        assert now in (BEFORE, AFTER), f"a torn table after {backend.asked[-1]}"
        let_time_pass(folder)
        # Two transactions: the first takes the lock over (and rolls a decided commit forward) and cleans.
        upsert(Table.open(str(folder), settings=SETTINGS), NEXT, retries=3)
        later = by_hudi_rs(str(folder))
        assert later in (BEFORE | {NEXT}, AFTER | {NEXT}), f"not whole after {backend.asked[-1]} and the next writer"
        assert later >= now - {(2, "b", 2)} or now == BEFORE, f"a committed row went away after {backend.asked[-1]}"
        assert not (now == AFTER and later != AFTER | {NEXT}), "a visible commit went away"
        assert content(Table.open(str(folder))) == later
        upsert(Table.open(str(folder), settings=SETTINGS), (8, "c", 9))
        if spec.buckets:
            groups(table)
            in_their_buckets(table, spec.buckets)
        assert table.timeline().pending_writes == ()
        assert table.timeline().pending_rollbacks == ()
        assert orphans(folder) == set(), f"orphans after {backend.asked[-1]}"
        seen["new" if (4, "c", 4) in later else "old"] += 1
    else:
        pytest.fail("the transaction never ended")
    assert seen["old"] > 3, seen
    assert seen["new"] >= 1, "no crash after the commit point was tried"
