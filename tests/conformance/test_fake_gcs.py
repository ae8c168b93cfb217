"""fake-gcs-server enforces preconditions on multipart uploads and on nothing else."""

from __future__ import annotations

import pytest

from conformance.suite import Conformance, ManyObjects, OverTheNetwork, Target

DELETE = "DELETE ignores ifGenerationMatch"


class TestFakeGcs(Conformance, ManyObjects, OverTheNetwork):
    holes = {
        "test_wrong_credentials_are_access_denied": "there is no authorization",
        "test_attributes_of_multipart_object_are_kept": "a resumable upload's content type is dropped",
        "test_backend_answers_unchanged_without_a_body": "GET ignores ifGenerationNotMatch",
        "test_backend_refuses_a_delete_at_a_stale_version": DELETE,
        "test_delete_at_the_right_version_wins": "its answers carry no id, so nothing shows who deleted: Unknown",
        **{
            f"test_missing_bucket_is_bucket_not_found[{call}]": "a missing bucket and a missing object look the same"
            for call in ("read", "head", "put_if_match", "delete", "delete_if_match")
        },
    }
    chance_holes = {"test_exactly_one_of_concurrent_delete_and_replace_wins": DELETE}

    @pytest.fixture
    def target(self, fake_gcs):
        options = fake_gcs.storage_options
        wrong = {
            "credentials": (fake_gcs.new_prefix(), {**options, "token": "wrong"}),
            "bucket": ("gs://no-such-bucket-here/x", options),
            "endpoint": (fake_gcs.new_prefix(), fake_gcs.options_for("http://127.0.0.1:1")),
        }
        return Target(fake_gcs.new_prefix(), options, wrong)
