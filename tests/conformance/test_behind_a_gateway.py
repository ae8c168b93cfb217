"""Verbs behind a gateway, on each kind of store."""

from __future__ import annotations

import pytest
from budgets import VERBS
from servers.more_s3 import Moto
from servers.over_obstore import OverObstore

from conformance.wrong_answers import WrongAnswers, answered_inside, behind_gateway
from fsspec_cas import ObjectNotFound, Unknown
from fsspec_cas.testing import Gateway


class TestS3(WrongAnswers):
    @pytest.fixture
    def gatewayed(self, seaweedfs):
        with behind_gateway(seaweedfs) as here:
            yield here


class TestLeanS3(WrongAnswers):
    @pytest.fixture
    def gatewayed(self, over_obstore):
        with behind_gateway(over_obstore) as here:
            yield here


class TestAzure(WrongAnswers):
    @pytest.fixture
    def gatewayed(self, azurite):
        with behind_gateway(azurite) as here:
            yield here


class TestGcs(WrongAnswers):
    @pytest.fixture
    def gatewayed(self, gcs_double):
        with behind_gateway(gcs_double) as here:
            yield here


@pytest.mark.soak
class TestGcsWithoutIds(WrongAnswers):
    @pytest.fixture
    def gatewayed(self, fake_gcs):
        with behind_gateway(fake_gcs) as here:
            yield here


class TestInsideTheClient(WrongAnswers):
    """As `test_live` asks a store of the user's own."""

    @pytest.fixture(params=["seaweedfs", "over_obstore"])
    def gatewayed(self, request):
        server = request.getfixturevalue(request.param)
        with answered_inside(server.new_prefix(), server.storage_options) as here:
            yield here


@pytest.mark.parametrize("name", ["seaweedfs", "over_obstore", "azurite", "gcs_double"])
def test_verbs_behind_a_gateway_make_no_extra_requests(request, name):
    with behind_gateway(request.getfixturevalue(name)) as (store, gateway, _):
        store.list("")
        assert counted(gateway, lambda: store.put_if_absent("a", b"1")) == VERBS["create"]
        assert counted(gateway, lambda: store.put_if_absent("a", b"2")) == VERBS["create refused"]
        version = store.head("a").version
        assert counted(gateway, lambda: store.put_if_match("a", b"3", version)) == VERBS["replace"]
        assert counted(gateway, lambda: store.put_if_match("a", b"4", version)) == VERBS["replace refused"]
        version = store.head("a").version
        for verb, ask in (
            ("read", lambda: store.read("a")),
            ("head", lambda: store.head("a")),
            ("list a page", lambda: store.list("")),
            ("read what is not there", lambda: store.read_or_none("never")),
            ("read if changed", lambda: store.read_if_changed("a", version)),
            ("delete", lambda: store.delete("never")),
        ):
            assert counted(gateway, ask) == VERBS[verb]
        store.put_if_absent("b", b"1")
        proof = counted(gateway, lambda: store.delete_if_match("b", store.head("b").version)) - 3
        assert proof == (0 if name in ("azurite", "gcs_double") else 4)  # the endpoint is new, and nobody documents it
        assert counted(gateway, lambda: store.delete_if_match("a", version)) == VERBS["delete at a version refused"]


@pytest.mark.soak
@pytest.mark.parametrize("client", ["s3fs", "lean"])
def test_requests_of_each_verb_are_counted_on_a_store_without_request_ids(client):
    with Moto() as moto, behind_gateway(moto if client == "s3fs" else OverObstore(moto)) as (store, gateway, _):
        assert counted(gateway, lambda: store.list("")) == 1
        assert counted(gateway, lambda: store.put_if_absent("a", b"1")) == 1
        assert counted(gateway, lambda: store.put_if_absent("a", b"2")) == 2
        version = store.head("a").version
        assert counted(gateway, lambda: store.put_if_match("a", b"3", version)) == 1
        version = store.head("a").version
        for ask, requests in (
            (lambda: store.read("a"), 1),
            (lambda: store.head("a"), 1),
            (lambda: store.read_or_none("never"), 1),
            (lambda: store.read_if_changed("a", version), 1),
            (lambda: store.delete("never"), 1),
        ):
            assert counted(gateway, ask) == requests
        with pytest.raises(ObjectNotFound):
            store.head("never")
        assert isinstance(store.delete_if_match("a", version, timeout=5), Unknown)
        assert store.read_or_none("a") is None


def counted(gateway: Gateway, call) -> int:
    before = len(gateway.requests)
    call()
    return len(gateway.requests) - before
