"""An upload that is open, was aborted or was left behind by a crash is in nobody's way: on every store.

Azurite takes the staged blocks of an upload for the blob itself when somebody creates it.
"""

from __future__ import annotations

import os
import uuid
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import pytest
from faults import actions as do
from faults.actions import Ending
from faults.proxy import FaultProxy

from fsspec_cas import Lost, NotSupported, ObjectNotFound, Store, StoreError, Won

PART = {"seaweedfs": 5 << 20, "ministack": 5 << 20, "fake_gcs": 256 * 1024, "azurite": 64 * 1024}


@pytest.fixture(params=PART)
def server(request):
    return request.getfixturevalue(request.param)


def fresh(server) -> Store:
    return Store.from_url(server.new_prefix(), server.storage_options)


def begun(server, store: Store):
    """A writer that has sent a part."""
    part = PART[server.name.replace("-", "_")]
    writer = store.open_exclusive("a", part_size=part)
    writer.write(b"x" * part + b"more")
    return writer


def test_create_wins_over_an_open_upload(server):
    store = fresh(server)
    writer = begun(server, store)
    won = store.put_if_absent("a", b"mine")
    assert isinstance(won, Won)
    assert (store.read("a").data, store.head("a").version) == (b"mine", won.version)
    if server.name != "fake-gcs":  # it ignores the condition of a completion
        assert isinstance(writer.close(), Lost)
        assert store.read("a").data == b"mine"


def test_create_wins_after_an_aborted_or_abandoned_upload(server):
    for leave in (lambda writer: writer.abort(), lambda writer: setattr(writer._async, "_upload", None)):
        store = fresh(server)
        leave(begun(server, store))
        with pytest.raises(ObjectNotFound):
            store.read("a")
        won = store.put_if_absent("a", b"mine")
        assert isinstance(won, Won)
        assert isinstance(store.put_if_absent("a", b"second"), Lost)
        assert isinstance(store.put_if_match("a", b"next", won.version), Won)
        assert store.read("a").data == b"next"


def test_exactly_one_of_many_creates_wins_during_an_open_upload(azurite):
    store = fresh(azurite)
    for _ in range(3):
        path = uuid.uuid4().hex
        writer = store.open_exclusive(path, part_size=PART["azurite"])
        writer.write(os.urandom(PART["azurite"] + 1))
        with ThreadPoolExecutor(8) as pool:
            begun_all = [pool.submit(store.put_if_absent, path, b"%d" % n) for n in range(8)]
        outcomes = [one.result() for one in begun_all]
        winners = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, Won)]
        assert len(winners) == 1
        assert all(isinstance(outcome, Won | Lost) for outcome in outcomes)
        assert store.read(path).data == b"%d" % winners[0]
        assert isinstance(writer.close(), Lost)


@pytest.mark.parametrize("action", [do.lose_answer(Ending.RESET), do.never_deliver(), do.slow_down(), do.too_many()])
@pytest.mark.parametrize("step", ["block", "blocklist"])
def test_create_during_an_open_upload_is_settled_after_every_fault(azurite, action, step):
    with FaultProxy("127.0.0.1", azurite.port, dialect="az") as proxy:
        prefix = azurite.new_prefix()
        store, rival = (
            Store.from_url(prefix, azurite.options_for(proxy.endpoint)),
            Store.from_url(prefix, azurite.storage_options),
        )
        begun(azurite, rival)
        rule = proxy.rule(match=lambda request: request.query.get("comp") == step, action=action)
        won = store.put_if_absent("a", b"mine", timeout=15.0)
        assert rule.fired == 1
        assert isinstance(won, Won), won
        assert (rival.read("a").data, rival.head("a").version) == (b"mine", won.version)


def test_create_during_an_open_upload_outlasts_many_refusals_of_its_block(azurite):
    with FaultProxy("127.0.0.1", azurite.port, dialect="az") as proxy:
        prefix = azurite.new_prefix()
        store = Store.from_url(prefix, azurite.options_for(proxy.endpoint))
        begun(azurite, Store.from_url(prefix, azurite.storage_options))
        rule = proxy.rule(match=lambda r: r.query.get("comp") == "block", action=do.slow_down(), times=5)
        assert isinstance(store.put_if_absent("a", b"mine", timeout=60.0), Won)
        assert rule.fired == 5


def test_unfinished_upload_of_another_program_is_named_with_the_next_step(azurite):
    """Azure wants all block ids at one name to have the same length, and theirs have another."""
    store = fresh(azurite)
    path = f"{store.root}/a"
    assert azurite.raw("PUT", path, query=f"blockid={quote('c2hvcnQ=', safe='')}&comp=block", body=b"theirs").ok
    for call in (lambda: store.put_if_absent("a", b"mine"), lambda: begun(azurite, store)):
        with pytest.raises(StoreError, match="another program has an unfinished upload"):
            call()
    assert azurite.raw("PUT", path, headers={"x-ms-blob-type": "BlockBlob"}, body=b"").ok  # what the error advises
    assert azurite.raw_delete(path).ok
    assert isinstance(store.put_if_absent("a", b"mine"), Won)


def test_store_that_refuses_every_create_is_still_named(azurite):
    with FaultProxy("127.0.0.1", azurite.port, dialect="az") as proxy:
        store = Store.from_url(azurite.new_prefix(), azurite.options_for(proxy.endpoint))
        proxy.rule(match=lambda r: r.method == "PUT", action=do.refuse(409, "BlobAlreadyExists"), times=None)
        with pytest.raises(NotSupported, match="probe"):
            store.put_if_absent("a", b"mine", timeout=15.0)
