"""A double of the JSON API written from its documentation: the preconditions that no emulator enforces."""

from __future__ import annotations

import pytest
from servers.gcs_double import GcsDouble

from conformance.suite import Conformance, ManyObjects, OverTheNetwork, Target
from fsspec_cas import AccessDenied, Store


@pytest.fixture(scope="module")
def server():
    with GcsDouble() as double:
        yield double


class TestGcsDouble(Conformance, ManyObjects, OverTheNetwork):
    @pytest.fixture
    def target(self, server):
        options = server.storage_options
        wrong = {
            "credentials": (server.new_prefix(), server.options_for(server.endpoint, "wrong")),
            "bucket": ("gs://no-such-bucket-here/x", options),
            "endpoint": (server.new_prefix(), {**options, "endpoint_url": "http://127.0.0.1:1"}),
        }
        return Target(server.new_prefix(), options, wrong)

    def test_bucket_of_another_owner_is_access_denied(self, server):
        with pytest.raises(AccessDenied, match="403"):
            Store.from_url("gs://forbidden/x", server.storage_options).put_if_absent("a", b"")
