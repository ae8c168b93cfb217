"""A real S3 server, asked by way of obstore."""

from __future__ import annotations

import pytest

from conformance.suite import MEGABYTES_5, AmongProcesses, Conformance, ManyObjects, OverTheNetwork, Target
from conformance.test_seaweedfs import TestSeaweedFS as OverAiobotocore
from fsspec_cas import AsyncStore, NotSupported, ObjectNotFound
from fsspec_cas.backends import split_url

NO_DELETE = "obstore has no conditional delete"
REFUSED = (
    "test_a_delete_at_a_stale_version_loses_and_removes_nothing",
    "test_a_backend_refuses_a_delete_at_a_stale_version",
    "test_a_conditional_delete_where_nothing_is_loses",
    "test_of_a_delete_and_a_replacement_at_once_one_wins",
    "test_wrong_credentials_are_access_denied[delete_if_match]",
    "test_a_missing_bucket_is_bucket_not_found[delete_if_match]",
    "test_an_endpoint_that_nobody_listens_on_is_unavailable[delete_if_match]",
)


class TestObstore(Conformance, ManyObjects, AmongProcesses, OverTheNetwork):
    contenders = OverAiobotocore.contenders
    rounds = OverAiobotocore.rounds
    increments = OverAiobotocore.increments
    prizes = OverAiobotocore.prizes
    holes = {**OverAiobotocore.holes, **dict.fromkeys(REFUSED, NO_DELETE)}

    @pytest.fixture
    def target(self, over_obstore):
        server = over_obstore
        options = server.storage_options
        wrong = {
            "credentials": (server.new_prefix(), {**options, "secret_access_key": "wrong"}),
            "bucket": ("s3://no-such-bucket-over-obstore/x", options),
            "endpoint": (server.new_prefix(), server.options_for("http://127.0.0.1:1")),
        }
        return Target(server.new_prefix(), options, wrong)

    async def test_plain_fsspec_reads_what_was_written(self, store, target):
        await store.put_if_absent("folder/a", b"mine")
        fs, root = split_url(target.url, target.options)
        assert fs.cat_file(f"{root}/folder/a") == b"mine"

    async def test_so_it_is_of_an_object_in_parts(self, target):
        """Which is refused, before anything is sent, with a way out."""
        async with AsyncStore.from_url(target.url, target.options) as store:
            with pytest.raises(NotSupported, match="part_size"):
                async with store.open_exclusive("a", part_size=len(MEGABYTES_5)) as writer:
                    await writer.write(MEGABYTES_5 + b"and more")
            with pytest.raises(ObjectNotFound):
                await store.head("a")
            async with store.open_exclusive("a", part_size=2 * len(MEGABYTES_5)) as writer:
                await writer.write(MEGABYTES_5 + b"and more")
            assert (await store.head("a")).size == len(MEGABYTES_5) + len(b"and more")
