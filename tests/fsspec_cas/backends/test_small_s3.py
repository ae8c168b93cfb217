"""Faults of S3 servers that stand between a user and a lock, by both clients, on a small server that has them."""

from __future__ import annotations

import uuid

import budgets
import pytest
from servers.small_s3 import SmallS3

from fsspec_cas import NotSupported, Store, Won, require_safe_for_locks

CLIENTS = ["s3fs", "lean"]


def store_of(server: SmallS3, client: str) -> Store:
    return Store.from_url(f"s3://bucket-{uuid.uuid4().hex}/f", server.options(client))


@pytest.mark.parametrize("client", CLIENTS)
def test_store_that_checks_before_the_body_arrives_fails_the_races(client):
    for _ in range(3):
        both_won = pytest.raises(NotSupported, match="at once were both reported as won")
        with SmallS3(looks_first=True) as server, both_won:
            require_safe_for_locks(store_of(server, client))


@pytest.mark.parametrize("client", CLIENTS)
def test_proof_before_a_lock_takes_fifty_six_requests(client):
    with SmallS3() as server:
        require_safe_for_locks(store_of(server, client))
        asked = [method for method, _ in server.requests]
        # This server removes objects one by one.
        assert {verb: asked.count(verb.upper()) for verb in budgets.PROOF} == budgets.PROOF


@pytest.mark.parametrize("client", CLIENTS)
def test_store_that_requires_signed_bodies_is_proved_with_signed_bodies(client):
    with SmallS3(any_body=False) as server:
        require_safe_for_locks(store_of(server, client))


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("form", ["quoted", "unquoted"])
def test_client_learns_the_form_in_which_store_takes_a_version(client, form):
    with SmallS3(quoted=form == "quoted", unquoted=form == "unquoted") as server:
        store = store_of(server, client)
        first = store.put_if_absent("a", b"1").unwrap()
        second = store.put_if_match("a", b"2", first)
        assert isinstance(second, Won)
        server.requests.clear()
        assert isinstance(store.put_if_match("a", b"3", second.version), Won)
        assert [method for method, _ in server.requests] == ["PUT"]
        require_safe_for_locks(store)


def test_store_without_checksum_headers_is_refused_with_the_option_to_set():
    with SmallS3(checksums=False) as server:
        with pytest.raises(NotSupported, match=r"x-amz-checksum-crc32.*request_checksum_calculation"):
            store_of(server, "s3fs").put_if_absent("a", b"1")
        options = {**server.options("s3fs"), "config_kwargs": {"request_checksum_calculation": "when_required"}}
        assert isinstance(Store.from_url("s3://bucket/f", options).put_if_absent("a", b"1"), Won)
        assert isinstance(store_of(server, "lean").put_if_absent("a", b"1"), Won)
