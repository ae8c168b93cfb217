"""Streamed creates through a faulty network: the outcome reported is what the server really holds."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest
from faults import actions as do
from faults.actions import Ending
from faults.proxy import FaultProxy
from patience import once_sent

from fsspec_cas import AsyncStore, Lost, OutcomeUnknown, Store, StoreError, Unknown, Won

PART = {"seaweedfs": 5 << 20, "azurite": 64 << 10, "gcs_double": 256 << 10}
TIMEOUT_S = 20.0


class Bench:
    """A writer behind a proxy that has sent its parts; `finishing` tells the request that makes the object."""

    def __init__(self, name, server, proxy):
        self.name, self.server, self.proxy = name, server, proxy
        self.part = PART[name]
        self.body = b"m" * (self.part + 1)
        prefix = server.new_prefix()
        through = dict(server.storage_options)
        if name == "azurite":
            through = server.options_for(proxy.endpoint)
        else:
            through["endpoint_url"] = proxy.endpoint
        self.store = Store.from_url(prefix, through)
        self.rival = Store.from_url(prefix, server.storage_options)
        self.seen = []
        self.proxy.rule(match=self._record, action=None, times=None)

    def _record(self, request):
        self.seen.append(request)
        return False

    def finishing(self, request):
        if self.name == "seaweedfs":
            return request.method == "POST" and "uploadId" in request.query
        if self.name == "azurite":
            return request.query.get("comp") == "blocklist"
        return request.method == "PUT" and not request.headers["content-range"].endswith("/*")

    def part_of_it(self, request):
        if self.name == "seaweedfs":
            return request.method == "PUT" and "uploadId" in request.query
        if self.name == "azurite":
            return request.query.get("comp") == "block"
        return request.method == "PUT" and request.headers["content-range"].endswith("/*")

    def is_look(self, request):
        return request.method in ("HEAD", "GET")

    def writer(self, **options):
        writer = self.store.open_exclusive("a", part_size=self.part, **{"timeout": TIMEOUT_S, **options})
        writer.write(self.body)
        return writer

    def closed_in_a_hurry(self):
        """Its end has a short time only; its parts had a long one, since a busy machine may need it."""
        writer = self.writer()
        writer._async._timeout = 3.0
        return writer.close()

    def held(self):
        """What the server has, without the proxy."""
        with contextlib.suppress(FileNotFoundError):
            return self.rival.read("a")
        return None


@pytest.fixture(params=["seaweedfs", "azurite", "gcs_double"])
def bench(request):
    server = request.getfixturevalue(request.param)
    dialect = {"seaweedfs": "s3", "azurite": "az", "gcs_double": "gs"}[request.param]
    with FaultProxy("127.0.0.1", server.port, dialect=dialect) as proxy:
        yield Bench(request.param, server, proxy)


APPLIED = {
    "dropped": do.lose_answer(),
    "reset": do.lose_answer(Ending.RESET),
    "500": do.replace_answer(500),
    "503": do.replace_answer(503, "SlowDown"),
    "twice": do.deliver_twice(),
}


@pytest.mark.parametrize("fault", APPLIED)
def test_completion_with_lost_answer_is_won(bench, fault):
    rule = bench.proxy.rule(match=bench.finishing, action=APPLIED[fault])
    outcome = bench.writer().close()
    assert rule.fired == 1
    held = bench.held()
    assert outcome == Won(held.version)
    assert held.data == bench.body


def test_t09_error_inside_a_200_is_settled_by_identity(bench):
    if bench.name != "seaweedfs":
        pytest.skip("only S3 answers 200 before it is done")
    rule = bench.proxy.rule(match=bench.finishing, action=do.ok_with_error())
    outcome = bench.writer().close()
    assert rule.fired == 1
    assert outcome == Won(bench.held().version)


NOT_APPLIED = {
    "503": do.slow_down(),
    "429": do.too_many(),
    "reset": do.never_deliver(),
}


@pytest.mark.parametrize("fault", NOT_APPLIED)
def test_completion_that_never_arrived_is_sent_again_with_its_condition(bench, fault):
    rule = bench.proxy.rule(match=bench.finishing, action=NOT_APPLIED[fault])
    outcome = bench.writer().close()
    assert rule.fired == 1
    assert outcome == Won(bench.held().version)
    sends = [request for request in bench.seen if bench.finishing(request)]
    assert len(sends) == 2
    if bench.name != "gcs_double":
        assert [request.headers.get("if-none-match") for request in sends] == ["*", "*"]


def test_t14_409_on_the_completion_is_neither_exists_nor_the_end(bench):
    if bench.name != "seaweedfs":
        pytest.skip("S3's own answer")
    rule = bench.proxy.rule(match=bench.finishing, action=do.conflict())
    outcome = bench.writer().close()
    assert rule.fired == 1
    assert outcome == Won(bench.held().version)


def test_t14_409_while_another_won_is_lost(bench):
    if bench.name != "seaweedfs":
        pytest.skip("S3's own answer")
    writer = bench.writer()
    theirs = bench.rival.put_if_absent("a", b"theirs").unwrap()
    bench.proxy.rule(match=bench.finishing, action=do.conflict())
    outcome = writer.close()
    assert outcome == Lost(writer.path, outcome.expected, theirs)
    assert bench.held().data == b"theirs"


def test_t14_no_such_upload_after_own_completion_is_won(bench):
    """The answer is lost, the first look comes too early to see it, so the completion is sent again: it is spent."""
    lost = bench.proxy.rule(match=bench.finishing, action=do.lose_answer())
    missing = {"azurite": "BlobNotFound", "gcs_double": "notFound"}.get(bench.name, "NoSuchKey")
    blind = bench.proxy.rule(match=bench.is_look, action=do.refuse(404, missing))
    outcome = bench.writer().close()
    assert (lost.fired, blind.fired) == (1, 1)
    assert len([request for request in bench.seen if bench.finishing(request)]) == 2
    assert outcome == Won(bench.held().version)


@pytest.mark.parametrize("once", [False, True])
def test_t14_no_such_upload_does_not_claim_a_foreign_object(bench, once):
    """Mine never arrived, its parts are gone, another's object is there: not won; lost only if nobody overwrites."""
    writer = bench.writer(create_once=once)
    inner = writer._async

    def meanwhile():
        bench.rival._drive.run(bench.rival._async.backend.abort(inner._upload, timeout_s=5))
        with bench.rival.open_exclusive("a", part_size=bench.part) as theirs:
            theirs.write(b"t" * (bench.part + 1))

    async def lose(_hop):
        await asyncio.to_thread(meanwhile)
        return Ending.RESET

    rule = bench.proxy.rule(match=bench.finishing, action=lose)
    outcome = writer.close()
    assert rule.fired == 1
    assert isinstance(outcome, Lost if once else Unknown)
    assert set(bench.held().data) == set(b"t")


def test_parts_dropped_by_the_store_never_look_like_a_win(bench):
    if bench.name == "azurite":
        pytest.skip("staged blocks cannot be dropped")
    writer = bench.writer()
    bench.store._drive.run(writer._async._backend.abort(writer._async._upload, timeout_s=5))
    if bench.name == "seaweedfs":  # said of the last part already: certainly not written
        with pytest.raises(StoreError, match="NoSuchUpload"):
            writer.close()
    else:
        assert isinstance(writer.close(), Unknown)
    assert bench.held() is None


def test_t15_parts_carry_no_condition(bench):
    if bench.name == "gcs_double":
        pytest.skip("here the session has the condition, and the chunks nothing at all")
    bench.writer().close()
    parts = [request for request in bench.seen if bench.part_of_it(request)]
    assert parts
    assert all("if-none-match" not in request.headers for request in parts)


@pytest.mark.parametrize("action", [do.lose_answer(), do.replace_answer(500), do.never_deliver(), do.slow_down()])
def test_part_with_lost_answer_is_stored_once(bench, action):
    rule = bench.proxy.rule(match=bench.part_of_it, action=action)
    outcome = bench.writer().close()
    assert rule.fired == 1
    held = bench.held()
    assert held.data == bench.body
    assert outcome == Won(held.version)


def test_completion_that_hangs_is_unknown_and_resolve_finds_it(bench):
    bench.proxy.rule(match=bench.finishing, action=do.lose_answer(Ending.HANG))
    outcome = bench.closed_in_a_hurry()
    assert isinstance(outcome, Unknown)
    assert outcome.data is None
    assert bench.store.resolve(outcome) == Won(bench.held().version)


def test_resolving_a_stream_that_never_arrived_writes_nothing(bench):
    """What was streamed is gone; an empty object under its name would be a lie."""
    rule = bench.proxy.rule(match=bench.finishing, action=do.never_deliver(Ending.HANG), times=None)
    outcome = bench.closed_in_a_hurry()
    assert rule.fired == 1
    assert isinstance(outcome, Unknown)
    assert isinstance(bench.store.resolve(outcome), Unknown)
    assert bench.held() is None


def test_resolving_a_delete_does_not_write(bench):
    version = bench.rival.put_if_absent("a", b"kept").unwrap()
    bench.store.delete_if_match("b", bench.store.put_if_absent("b", b"").unwrap()).unwrap()  # the proof of deletes
    rule = bench.proxy.rule(match=lambda request: request.method == "DELETE", action=do.never_deliver(), times=None)
    outcome = once_sent(lambda timeout_s: bench.store.delete_if_match("a", version, timeout=timeout_s))
    assert rule.fired >= 1
    assert isinstance(outcome, Unknown)
    assert isinstance(bench.store.resolve(outcome, timeout=1.0), Unknown)
    assert bench.held().data == b"kept"


def test_ctrl_c_during_completion_is_unknown(bench):
    """Cancelled in flight: the object may be there, so no success and no plain failure is reported."""
    arrived = threading.Event()

    async def hold(hop):
        await hop.deliver()
        arrived.set()
        return Ending.HANG

    bench.proxy.rule(match=bench.finishing, action=hold)

    async def run():
        async with AsyncStore(bench.store._async.backend, bench.store.root) as store:
            writer = store.open_exclusive("a", part_size=bench.part)
            await writer.write(bench.body)
            task = asyncio.create_task(writer.close())
            await asyncio.to_thread(arrived.wait, 30)
            task.cancel()
            try:
                await task
            except asyncio.CancelledError as stop:
                return writer.outcome, stop
        raise AssertionError("it was not cancelled")

    outcome, stop = asyncio.run(run())
    assert outcome is None
    cause = stop.__cause__
    while cause is not None and not isinstance(cause, OutcomeUnknown):
        cause = cause.__cause__ or cause.__context__
    assert isinstance(cause, OutcomeUnknown)
    assert bench.held().data == bench.body
