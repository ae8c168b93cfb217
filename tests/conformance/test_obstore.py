"""A real S3 server, asked by the lean client that takes obstore's options."""

from __future__ import annotations

import uuid

import pytest

from conformance.suite import AmongProcesses, Conformance, ManyObjects, OverTheNetwork, Target
from conformance.test_seaweedfs import TestSeaweedFS as OverAiobotocore
from fsspec_cas.backends import split_url


class TestObstore(Conformance, ManyObjects, AmongProcesses, OverTheNetwork):
    contenders = OverAiobotocore.contenders
    rounds = OverAiobotocore.rounds
    increments = OverAiobotocore.increments
    prizes = OverAiobotocore.prizes
    holes = OverAiobotocore.holes

    @pytest.fixture
    def target(self, over_obstore):
        server = over_obstore
        options = server.storage_options
        wrong = {
            "credentials": (server.new_prefix(), {**options, "secret_access_key": "wrong"}),
            "bucket": (f"s3://no-such-{uuid.uuid4().hex[:12]}/x", options),
            "endpoint": (server.new_prefix(), server.options_for("http://127.0.0.1:1")),
        }
        return Target(server.new_prefix(), options, wrong)

    async def test_plain_fsspec_reads_what_was_written(self, store, target):
        await store.put_if_absent("folder/a", b"mine")
        fs, root = split_url(target.url, target.options)
        assert fs.cat_file(f"{root}/folder/a") == b"mine"
