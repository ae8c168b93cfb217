"""An S3 server that stands many contenders at once."""

from __future__ import annotations

import pytest

from conformance.suite import Conformance, ManyObjects, OverTheNetwork, Target


class TestMinistack(Conformance, ManyObjects, OverTheNetwork):
    holes = {
        "test_wrong_credentials_are_access_denied": "signatures in headers are not verified",
        "test_missing_bucket_is_bucket_not_found[head]": "a HEAD has no body that could name the bucket",
    }

    @pytest.fixture
    def target(self, ministack):
        options = ministack.storage_options
        wrong = {
            "credentials": (ministack.new_prefix(), {**options, "secret": "wrong"}),
            "bucket": ("s3://no-such-bucket-here/x", options),
            "endpoint": (ministack.new_prefix(), ministack.options_for("http://127.0.0.1:1")),
        }
        return Target(ministack.new_prefix(), options, wrong)
