"""The probe says of each server what the server is known to do; broken ones, real and made up, are caught."""

from __future__ import annotations

import asyncio
import json
import uuid
from dataclasses import replace

import fsspec
import pytest
from patience import PATIENCE_S
from servers.more_s3 import LocalBucket

from fsspec_cas import (
    ABSENT,
    AccessDenied,
    AsyncStore,
    BucketNotFound,
    InvalidInput,
    NotSupported,
    Store,
    Unavailable,
    require_safe_for_locks,
)
from fsspec_cas.answer import Applied, ConditionFailed, NoAnswer, NotApplied
from fsspec_cas.backends import off_thread
from fsspec_cas.backends.memory import MemoryBackend
from fsspec_cas.bridge.drive import OnLoop
from fsspec_cas.probe.checks import CHECKS, THOROUGH, retry_while_not_applied
from fsspec_cas.probe.probe import async_probe, probe
from fsspec_cas.probe.proof import require_conditions
from fsspec_cas.testing import Faulty, LoseAnswer, LoseRequest, Pass

ALL = {check.name for check in CHECKS}
FACTS = {"match form", "equal bytes"}


def states(report):
    return {finding.name: finding.state for finding in report.findings}


def but(report, *expected):
    """The checks that neither hold nor are mere facts."""
    return {name: state for name, state in states(report).items() if state not in ("yes", "known")} == dict(expected)


def facts(report):
    return {name: report[name].evidence for name in FACTS}


S3_FACTS = {
    "match form": "accepted: quoted and unquoted",
    "equal bytes": "the same version",
}
OTHER_FACTS = {"match form": "one form", "equal bytes": "another version"}


@pytest.mark.parametrize("name", ["memory", "local"])
def test_memory_and_local_files_keep_every_promise(name, tmp_path):
    url = str(tmp_path) if name == "local" else f"memory://probe/{uuid.uuid4().hex}"
    report = probe(url)
    assert but(report)
    assert facts(report) == OTHER_FACTS
    assert str(report.verdict) == "safe for locks and create-once"
    assert (report.kind, report.left_behind) == (name, ())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["ministack", "azurite", "gcs_double"])
def test_correct_server_is_safe_for_everything(request, name):
    server = request.getfixturevalue(name)
    report = probe(server.new_prefix(), server.storage_options, racers=4)
    assert but(report)
    assert facts(report) == (S3_FACTS if name == "ministack" else OTHER_FACTS)
    assert (report.verdict.create_once, report.verdict.locks, report.verdict.streams) == (True, True, True)


def test_seaweedfs_is_safe_except_for_racing_completions(seaweedfs):
    """Several of many completions at once may succeed there, but not every time: then there is nothing to find."""
    report = probe(seaweedfs.new_prefix(), seaweedfs.storage_options)
    assert but(report) or but(report, ("upload race", "no"))
    assert facts(report) == S3_FACTS
    assert report.verdict.locks
    assert report.verdict.streams == (report["upload race"].state == "yes")


def test_t29_fake_gcs_enforces_plain_uploads_and_nothing_else(fake_gcs):
    report = probe(fake_gcs.new_prefix(), fake_gcs.storage_options)
    # Its answers carry no id, so nothing shows who removed what a delete at a version was to remove.
    expected = ("not modified", "delete refused", "upload refused")
    skipped = ("upload race", "delete nothing")
    assert but(report, *((name, "no") for name in expected), *((name, "skipped") for name in skipped))
    assert str(report.verdict) == "safe for locks and create-once, not for multipart creates"


def test_rclone_is_caught_ignoring_conditions(negative_s3):
    tried = [check for check in CHECKS if "create" in check.needed_for or "locks" in check.needed_for]
    report = probe(negative_s3.url, negative_s3.storage_options, checks=tried, timeout=20)
    found = states(report)
    assert {found[n] for n in ("create refused", "match stale", "match foreign", "match absent")} == {"no"}
    assert not report.verdict.create_once
    assert not report.verdict.locks
    assert str(report.verdict).startswith("not safe: create refused: it was not refused")


def test_localbucket_is_safe_for_creates_and_unsafe_for_locks():
    with LocalBucket() as server:
        report = probe(server.new_prefix(), server.storage_options)
    assert report.verdict.create_once
    assert not report.verdict.locks
    assert report["match stale"].state == "no"


def test_gcs_emulator_with_foreign_answers_is_no_store(negative_gcs):
    """It ignores conditions, and its refusals carry neither an id nor Google's JSON."""
    with pytest.raises(Unavailable, match="not an object store"):
        probe(negative_gcs.new_prefix(), negative_gcs.storage_options)


@pytest.mark.parametrize("name", ["seaweedfs", "ministack", "fake_gcs", "azurite", "gcs_double"])
def test_probe_leaves_nothing_behind(request, name):
    server = request.getfixturevalue(name)
    url = server.new_prefix()
    report = probe(url, server.storage_options, racers=2)
    assert report.left_behind == ()
    assert Store.from_url(url, server.storage_options).list("") == []


@pytest.mark.parametrize("racers", [0, 1, True, 2.5])
def test_race_of_fewer_than_two_writers_proves_nothing_and_is_refused(racers):
    with pytest.raises(InvalidInput, match="racers="):
        probe("memory://races/x", racers=racers)


def test_probe_does_not_touch_existing_objects(gcs_double):
    url = gcs_double.new_prefix()
    store = Store.from_url(url, gcs_double.storage_options)
    store.put_if_absent("mine", b"kept")
    probe(url, gcs_double.storage_options, racers=2)
    assert [entry.path for entry in store.list("")] == ["mine"]
    assert store.read("mine").data == b"kept"


def test_report_is_json_and_progress_is_reported(tmp_path):
    told = []
    report = probe(str(tmp_path), progress=lambda finding, n, of: told.append((finding.name, n, of)))
    read = json.loads(report.to_json())
    assert read["verdict"]["locks"] is True
    assert read["verdict"]["text"] == str(report.verdict)
    assert [finding["name"] for finding in read["findings"]] == [name for name, _, _ in told]
    assert {name for name, _, _ in told} == ALL
    assert [(n, of) for _, n, of in told] == [(n, len(CHECKS)) for n in range(1, len(CHECKS) + 1)]


def test_store_or_a_filesystem_that_is_open_already_can_be_probed(ministack):
    fs = fsspec.filesystem("cas", target_protocol="s3", target_options=ministack.storage_options)
    assert probe(Store.from_filesystem(fs, f"{ministack.bucket}/{uuid.uuid4().hex}"), racers=2).verdict.locks


async def test_probe_runs_on_the_event_loop_of_the_caller(gcs_double):
    async with AsyncStore.from_url(gcs_double.new_prefix(), gcs_double.storage_options) as store:
        assert (await async_probe(store, racers=2)).verdict.locks


async def test_probe_runs_inside_a_running_event_loop(tmp_path):
    assert probe(str(tmp_path), racers=2).verdict.locks  # as in a notebook


@pytest.mark.parametrize(
    ("what", "error", "timeout_s"),
    [("bucket", BucketNotFound, PATIENCE_S), ("credentials", AccessDenied, PATIENCE_S), ("endpoint", Unavailable, 1)],
)
def test_unusable_store_is_an_error_and_no_verdict(azurite, what, error, timeout_s):
    options, url = azurite.storage_options, azurite.new_prefix()
    if what == "bucket":
        url = "az://no-such-container-here/x"
    elif what == "credentials":
        signed = options["connection_string"]
        key = signed.partition("AccountKey=")[2].partition(";")[0]
        options = {**options, "connection_string": signed.replace(key, "d3Jvbmc=")}
    else:
        options = azurite.options_for("http://127.0.0.1:1")
    with pytest.raises(error):
        probe(url, options, timeout=timeout_s)


# Stores that are wrong in one way each: the check that is there for it must find it.


class Wrong(MemoryBackend):
    """A right store until a method is replaced."""

    def __init__(self):
        super().__init__(fsspec.filesystem("memory", skip_instance_cache=True))


class CreateOverwrites(Wrong):
    async def put(self, write, data, *, timeout_s):
        condition = write.condition
        if condition == ABSENT and self._version(write.path) is not None:
            condition = self._version(write.path)
        return await super().put(replace(write, condition=condition), data, timeout_s=timeout_s)


class StaleMatches(Wrong):
    async def put(self, write, data, *, timeout_s):
        condition = write.condition
        if condition != ABSENT and self._version(write.path) is not None:
            condition = self._version(write.path)
        return await super().put(replace(write, condition=condition), data, timeout_s=timeout_s)


class MatchCreates(Wrong):
    async def put(self, write, data, *, timeout_s):
        condition = write.condition
        if self._version(write.path) is None:
            condition = ABSENT
        return await super().put(replace(write, condition=condition), data, timeout_s=timeout_s)


class LooksThenWrites(Wrong):
    """Right for one writer at a time: a condition that is checked a moment before the write."""

    blocking = False

    async def put(self, write, data, *, timeout_s):
        if self._version(write.path) != (None if write.condition == ABSENT else write.condition):
            return ConditionFailed()
        await asyncio.sleep(0)
        now = self._version(write.path)
        return await super().put(replace(write, condition=ABSENT if now is None else now), data, timeout_s=timeout_s)


class CreatesAtomicMatchesNot(Wrong):
    blocking = False

    async def put(self, write, data, *, timeout_s):
        if write.condition == ABSENT:
            return await super().put(write, data, timeout_s=timeout_s)
        if self._version(write.path) != write.condition:
            return ConditionFailed()
        await asyncio.sleep(0)
        return await super().put(replace(write, condition=self._version(write.path)), data, timeout_s=timeout_s)


class DeleteMarkersArePresent(Wrong):
    def __init__(self):
        super().__init__()
        self.deleted = set()

    async def delete(self, path, condition, *, timeout_s):
        self.deleted.add(path)
        return await super().delete(path, condition, timeout_s=timeout_s)

    async def put(self, write, data, *, timeout_s):
        if write.path in self.deleted and write.condition == ABSENT:
            return ConditionFailed()
        return await super().put(write, data, timeout_s=timeout_s)


class ForgetsIdentities(Wrong):
    async def put(self, write, data, *, timeout_s):
        return await super().put(replace(write, write_id="another"), data, timeout_s=timeout_s)


class DeletesWhatChanged(Wrong):
    async def delete(self, path, condition, *, timeout_s):
        return await super().delete(path, None, timeout_s=timeout_s)


class HidesChanges(Wrong):
    async def get(self, path, unless, *, timeout_s):
        current = self._version(path)
        return await super().get(path, current if unless is not None else None, timeout_s=timeout_s)


class TornReads(Wrong):
    """The version of one state with the bytes of the one before."""

    blocking = False

    def __init__(self):
        super().__init__()
        self.last = {}

    async def put(self, write, data, *, timeout_s):
        old = await super().get(write.path, None, timeout_s=timeout_s)
        done = await super().put(write, data, timeout_s=timeout_s)
        if isinstance(done, Applied):
            self.last[write.path] = getattr(old, "data", None)
        await asyncio.sleep(0)
        self.last.pop(write.path, None)
        return done

    async def get(self, path, unless, *, timeout_s):
        seen = await super().get(path, unless, timeout_s=timeout_s)
        old = self.last.get(path)
        await asyncio.sleep(0)
        return replace(seen, data=old) if old is not None else seen


class TornWrites(Wrong):
    """Who loses is refused, and its bytes are there."""

    async def put(self, write, data, *, timeout_s):
        done = await super().put(write, data, timeout_s=timeout_s)
        if write.condition != ABSENT and isinstance(done, ConditionFailed) and write.path[-2] == "-":
            await super().put(replace(write, condition=self._version(write.path)), data, timeout_s=timeout_s)
        return done


class AbortRemoves(Wrong):
    async def abort(self, upload, *, timeout_s):
        await super().abort(upload, timeout_s=timeout_s)
        await self.delete(upload.write.path, None, timeout_s=timeout_s)


class PagesEnd(Wrong):
    """Two pages at most."""

    async def list_page(self, prefix, start_after, token, *, timeout_s):
        page = await super().list_page(prefix, start_after, token, timeout_s=timeout_s)
        return replace(page, entries=page.entries[:2000])


class ListsLate(Wrong):
    async def list_page(self, prefix, start_after, token, *, timeout_s):
        page = await super().list_page(prefix, start_after, token, timeout_s=timeout_s)
        return replace(page, entries=page.entries[:-1])


WRONG = {
    CreateOverwrites: ("create refused", "create"),
    StaleMatches: ("match stale", "locks"),
    MatchCreates: ("match absent", "locks"),
    LooksThenWrites: ("create race", "create"),
    CreatesAtomicMatchesNot: ("match race", "locks"),
    DeleteMarkersArePresent: ("create after delete", "create"),
    HidesChanges: ("modified", "locks"),
    TornReads: ("whole reads", "locks"),
    ForgetsIdentities: ("identity", None),
    DeletesWhatChanged: ("delete refused", None),
    ListsLate: ("listing", None),
    AbortRemoves: ("upload aborted", None),
    PagesEnd: ("paging", None),
}


@pytest.mark.parametrize("kind", WRONG)
def test_broken_store_is_caught_by_the_check_for_its_fault(kind):
    backend = kind()
    root = f"/wrong/{uuid.uuid4().hex}"
    report = probe(Store(backend, root), checks=THOROUGH if kind is PagesEnd else CHECKS)
    check, spoiled = WRONG[kind]
    assert report[check].state == "no", report[check]
    assert report.verdict.create_once == (spoiled != "create")
    assert report.verdict.locks == (spoiled is None)


def test_t24_condition_ignored_in_versioned_bucket_is_caught_by_the_probe():
    """Tencent COS forbids overwriting in a plain bucket and not in a versioned one: no list of vendors can know."""

    class Bucket(CreateOverwrites):
        versioning = False

        async def put(self, write, data, *, timeout_s):
            kind = CreateOverwrites if self.versioning else Wrong
            return await kind.put(self, write, data, timeout_s=timeout_s)

    bucket = Bucket()
    assert probe(Store(bucket, f"/wrong/{uuid.uuid4().hex}")).verdict.create_once
    bucket.versioning = True
    assert not probe(Store(bucket, f"/wrong/{uuid.uuid4().hex}")).verdict.create_once


def test_t28_store_that_fails_only_under_concurrency_is_caught_by_races():
    """Moto was reported to be such a one; the release that is probed here is not."""
    report = probe(Store(LooksThenWrites(), f"/wrong/{uuid.uuid4().hex}"))
    assert report["create refused"].state == "yes"
    assert report["create race"].state == "no"
    assert not report.verdict.create_once


def test_every_answer_of_a_busy_store_is_heard():
    """The thirteenth was asked for, and not looked at."""
    answers = [NotApplied("429")] * 12 + [Applied(None)]

    async def ask():
        return answers.pop(0)

    assert OnLoop().run(retry_while_not_applied(ask)) == Applied(None)
    assert not answers


# A check, and the operation whose answers are lost, after how many others.
UNANSWERED = [
    ("create refused", "put", 2),
    ("create after delete", "put", 2),
    ("create race", "put", 1),
    ("match form", "put", 2),
    ("match", "put", 2),
    ("match stale", "put", 3),
    ("match absent", "put", 2),
    ("match race", "put", 2),
    ("modified", "put", 2),
    ("not modified", "get", 1),
    ("delete refused", "delete", 0),
    ("delete match", "delete", 0),
    ("delete nothing", "delete", 1),
    ("upload", "finish", 0),
    ("upload refused", "finish", 0),
    ("upload race", "finish", 0),
]


@pytest.mark.parametrize(("check", "operation", "after"), UNANSWERED)
def test_check_without_an_answer_proves_nothing(check, operation, after):
    lost = LoseRequest() if check == "delete match" else LoseAnswer()
    backend = Faulty(ForgetsIdentities(), {operation: [*[Pass()] * after, *[lost] * 8]})
    report = probe(Store(backend, f"/probe/{uuid.uuid4().hex}"), checks=[c for c in CHECKS if c.name == check])
    assert (operation, lost) in backend.fired
    assert report[check].state == "failed", report[check]


class Finishless(Wrong):
    async def finish(self, upload, tail, *, timeout_s):
        raise Unavailable("the completion is refused")


class BeginsOne(Wrong):
    """Begins no upload of a race after the first."""

    async def begin(self, write, *, timeout_s):
        if self._parts:
            return NoAnswer("it did not begin")
        return await super().begin(write, timeout_s=timeout_s)


@pytest.mark.parametrize(("kind", "check"), [(Finishless, "upload"), (BeginsOne, "upload race")])
def test_upload_that_could_not_be_finished_is_aborted(kind, check):
    backend = kind()
    report = probe(Store(backend, f"/probe/{uuid.uuid4().hex}"))
    assert report[check].state == "failed"
    assert backend._parts == {}


def require_safe(store: Store) -> None:
    """Of any store, documented or not."""
    OnLoop().run(require_conditions(AsyncStore(off_thread(store.backend), store.root)))


REFUSED = {
    CreateOverwrites: "two creates of one object at once were both reported as won",
    StaleMatches: "a match at a stale version was not refused",
    LooksThenWrites: "two creates of one object at once were both reported as won",
    CreatesAtomicMatchesNot: "two matches at one version at once were both reported as won",
    TornWrites: "the object is not the one|both refused",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_lock_refuses_a_store_whose_conditions_fail_under_concurrency(kind):
    store = Store(kind(), f"/wrong/{uuid.uuid4().hex}")
    with pytest.raises(NotSupported, match=REFUSED[kind]):
        require_safe(store)
    assert store.list("") == []


def test_lock_reports_no_refusal_when_an_answer_is_lost():
    backend = Faulty(ForgetsIdentities(), {"put": [Pass(), LoseAnswer()]})
    with pytest.raises(Unavailable, match="the answer was lost by plan"):
        require_safe(Store(backend, f"/probe/{uuid.uuid4().hex}"))


class SlowClient(Wrong):
    name = "s3"
    blocking = False

    async def endpoint(self):
        await asyncio.sleep(0.25)
        return "http://127.0.0.1:1"

    async def put(self, write, data, *, timeout_s):
        assert timeout_s <= 29.8
        raise AccessDenied("the client was made")


def test_lock_counts_the_time_that_the_client_took():
    with pytest.raises(AccessDenied, match="the client was made"):
        require_safe_for_locks(Store(SlowClient(), f"probe/{uuid.uuid4().hex}"), timeout=30)


@pytest.mark.parametrize("name", ["seaweedfs", "ministack", "fake_gcs", "azurite", "gcs_double"])
def test_lock_accepts_a_correct_store_and_leaves_nothing_behind(request, name):
    server = request.getfixturevalue(name)
    store = Store.from_url(server.new_prefix(), server.storage_options)
    require_safe(store)
    assert store.list("") == []


@pytest.mark.parametrize("name", ["negative_s3", "negative_gcs"])
def test_lock_refuses_the_servers_that_ignore_conditions(request, name):
    server = request.getfixturevalue(name)
    with pytest.raises(NotSupported, match="not refused|right version was refused"):
        require_safe(Store.from_url(server.url, server.storage_options))
