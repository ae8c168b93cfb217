"""A real S3 server that verifies signatures."""

from __future__ import annotations

import uuid

import pytest

from conformance.suite import AmongProcesses, Conformance, ManyObjects, OverTheNetwork, Target


class TestSeaweedFS(Conformance, ManyObjects, AmongProcesses, OverTheNetwork):
    contenders = 8  # contended conditional writes move in steps of one second here
    rounds = 2
    increments = (4, 2)
    prizes = 4
    holes = {
        "test_missing_bucket_is_bucket_not_found[head]": "a HEAD has no body that could name the bucket",
        **{
            f"test_missing_bucket_is_bucket_not_found[{call}]": "it makes the bucket, or takes it for empty"
            for call in ("put_if_absent", "put_if_match", "delete_if_match")
        },
    }

    @pytest.fixture
    def target(self, seaweedfs):
        options = seaweedfs.storage_options
        wrong = {
            "credentials": (seaweedfs.new_prefix(), {**options, "secret": "wrong"}),
            "bucket": (f"s3://no-such-{uuid.uuid4().hex[:12]}/x", options),  # a write makes the bucket
            "endpoint": (seaweedfs.new_prefix(), seaweedfs.options_for("http://127.0.0.1:1")),
        }
        return Target(seaweedfs.new_prefix(), options, wrong)
