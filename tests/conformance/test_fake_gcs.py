"""fake-gcs-server enforces preconditions on multipart uploads and on nothing else."""

from __future__ import annotations

import pytest

from conformance.suite import Conformance, ManyObjects, OverTheNetwork, Target


class TestFakeGcs(Conformance, ManyObjects, OverTheNetwork):
    holes = {}

    @pytest.fixture
    def target(self, fake_gcs):
        options = fake_gcs.storage_options
        wrong = {
            "credentials": (fake_gcs.new_prefix(), {**options, "token": "wrong"}),
            "bucket": ("gs://no-such-bucket-here/x", options),
            "endpoint": (fake_gcs.new_prefix(), fake_gcs.options_for("http://127.0.0.1:1")),
        }
        return Target(fake_gcs.new_prefix(), options, wrong)
