from __future__ import annotations

import functools

import pytest
from azure.storage.blob.aio import ContainerClient
from servers.azurite import KEY

from conformance.suite import Conformance, ManyObjects, OverTheNetwork, Target
from fsspec_cas import Store


class TestAzurite(Conformance, ManyObjects, OverTheNetwork):
    @pytest.fixture
    def target(self, azurite):
        options = azurite.storage_options
        signed_wrong = options["connection_string"].replace(KEY, "d3Jvbmc=")
        wrong = {
            "credentials": (azurite.new_prefix(), {**options, "connection_string": signed_wrong}),
            "bucket": ("az://no-such-container-here/x", options),
            "endpoint": (azurite.new_prefix(), azurite.options_for("http://127.0.0.1:1")),
        }
        return Target(azurite.new_prefix(), options, wrong)

    def test_listing_follows_its_pages(self, target, monkeypatch):
        """Azure's pages hold 5000; here three."""
        small = functools.partialmethod(ContainerClient.list_blobs, results_per_page=3)
        monkeypatch.setattr(ContainerClient, "list_blobs", small)
        store = Store.from_url(target.url, target.options)
        for n in range(8):
            store.put_if_absent(f"n/{n}", b"")
        assert [e.path for e in store.list("n/")] == [f"n/{n}" for n in range(8)]
        assert [e.path for e in store.list("n/", start_after="n/4")] == ["n/5", "n/6", "n/7"]
