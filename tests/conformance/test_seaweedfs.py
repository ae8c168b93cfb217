"""A real S3 server that verifies signatures."""

from __future__ import annotations

import pytest

from conformance.suite import AmongProcesses, Conformance, ManyObjects, OverTheNetwork, Target


class TestSeaweedFS(Conformance, ManyObjects, AmongProcesses, OverTheNetwork):
    contenders = 8  # contended conditional writes move in steps of one second here
    rounds = 2
    increments = (4, 2)

    @pytest.fixture
    def target(self, seaweedfs):
        options = seaweedfs.storage_options
        wrong = {
            "credentials": (seaweedfs.new_prefix(), {**options, "secret": "wrong"}),
            "bucket": ("s3://no-such-bucket-here/x", options),
            "endpoint": (seaweedfs.new_prefix(), seaweedfs.options_for("http://127.0.0.1:1")),
        }
        return Target(seaweedfs.new_prefix(), options, wrong)
