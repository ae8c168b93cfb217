"""Stores that are wrong on purpose: the suite must fail on each, or it proves nothing."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace

import fsspec
import pytest

from conformance.facade import Facade
from conformance.suite import Conformance
from fsspec_cas import Store
from fsspec_cas.answer import Applied, ConditionFailed, Missing, ObjectState, Page
from fsspec_cas.backends.memory import MemoryBackend
from fsspec_cas.outcome import ABSENT, Version


class IgnoresConditions(MemoryBackend):
    """Answers 200 and overwrites, as many stores that call themselves compatible."""

    async def put(self, write, data, *, timeout_s):
        condition = write.condition
        now = await self.head(write.path, timeout_s=timeout_s)
        condition = now.version if isinstance(now, ObjectState) else ABSENT
        return await super().put(replace(write, condition=condition), data, timeout_s=timeout_s)


class IgnoresMatch(IgnoresConditions):
    """Knows If-None-Match only."""

    async def put(self, write, data, *, timeout_s):
        kind = MemoryBackend if write.condition == ABSENT else IgnoresConditions
        return await kind.put(self, write, data, timeout_s=timeout_s)


class ChecksThenWrites(IgnoresConditions):
    """Compares first and writes later, with room for others in between."""

    blocking = False

    async def put(self, write, data, *, timeout_s):
        now = await self.head(write.path, timeout_s=timeout_s)
        if (now.version if isinstance(now, ObjectState) else ABSENT) != write.condition:
            return ConditionFailed()
        await asyncio.sleep(0.01)
        return await super().put(write, data, timeout_s=timeout_s)


class DeletesAlways(MemoryBackend):
    async def delete(self, path, condition, *, timeout_s):
        return await super().delete(path, None, timeout_s=timeout_s)


class GivesTheVersionOfAnEarlierLook(MemoryBackend):
    """HEAD, then GET: the bytes may be newer than their version."""

    blocking = False

    async def put(self, write, data, *, timeout_s):
        await asyncio.sleep(0.002)  # so that the writer is not done before a reader comes
        return await super().put(write, data, timeout_s=timeout_s)

    async def get(self, path, unless, *, timeout_s):
        head = await self.head(path, timeout_s=timeout_s)
        for _ in range(20):
            if head != await self.head(path, timeout_s=timeout_s):
                break
            await asyncio.sleep(0.001)
        got = await super().get(path, unless, timeout_s=timeout_s)
        return (
            replace(got, version=head.version)
            if isinstance(got, ObjectState) and isinstance(head, ObjectState)
            else got
        )


class HasHashesForVersions(MemoryBackend):
    """Claims that versions are unique, and they are not."""

    async def put(self, write, data, *, timeout_s):
        now = await self.head(write.path, timeout_s=timeout_s)
        if isinstance(now, Missing) != (write.condition == ABSENT) or (
            isinstance(now, ObjectState) and now.version != write.condition
        ):
            return ConditionFailed()
        fixed = ABSENT if isinstance(now, Missing) else MemoryBackend._version(self, write.path)
        await super().put(replace(write, condition=fixed), data, timeout_s=timeout_s)
        return Applied(self._hash(data))

    async def head(self, path, *, timeout_s):
        got = await self.get(path, None, timeout_s=timeout_s)
        return replace(got, data=None) if isinstance(got, ObjectState) else got

    async def get(self, path, unless, *, timeout_s):
        got = await super().get(path, None, timeout_s=timeout_s)
        return replace(got, version=self._hash(got.data)) if isinstance(got, ObjectState) else got

    def _hash(self, data) -> Version:
        return Version(self.name, f"h{hash(data)}")


class ForgetsTheSecondPage(MemoryBackend):
    async def list_page(self, prefix, start_after, token, *, timeout_s):
        page = await super().list_page(prefix, start_after, token, timeout_s=timeout_s)
        return Page(page.entries[:4])


class ListsFromInclusive(MemoryBackend):
    async def list_page(self, prefix, start_after, token, *, timeout_s):
        before = None if start_after is None else start_after[:-1] + chr(ord(start_after[-1]) - 1) + "\U0010ffff"
        return await super().list_page(prefix, before, token, timeout_s=timeout_s)


class GivesNoIdentity(MemoryBackend):
    async def put(self, write, data, *, timeout_s):
        return await super().put(replace(write, write_id=None), data, timeout_s=timeout_s)


CAUGHT = [
    (IgnoresConditions, "test_create_loses_to_existing_object_and_changes_nothing"),
    (IgnoresConditions, "test_exactly_one_of_many_concurrent_creates_wins"),
    (IgnoresMatch, "test_match_at_a_stale_version_loses_and_changes_nothing"),
    (IgnoresMatch, "test_match_loses_and_creates_nothing_when_no_object_exists"),
    (IgnoresMatch, "test_exactly_one_of_many_concurrent_replaces_wins"),
    (ChecksThenWrites, "test_exactly_one_of_many_concurrent_creates_wins"),
    (ChecksThenWrites, "test_exactly_one_of_many_concurrent_replaces_wins"),
    (ChecksThenWrites, "test_concurrent_updates_are_all_applied"),
    (DeletesAlways, "test_backend_refuses_a_delete_at_a_stale_version"),
    (GivesTheVersionOfAnEarlierLook, "test_read_returns_bytes_and_version_of_the_same_write"),
    (HasHashesForVersions, "test_object_changed_back_has_old_version_only_where_versions_repeat"),
    (ForgetsTheSecondPage, "test_listing_is_complete_ordered_and_relative"),
    (ListsFromInclusive, "test_listing_starts_after_given_name_whether_it_exists_or_not"),
    (GivesNoIdentity, "test_head_shows_size_time_and_identity"),
]


@pytest.mark.parametrize(("kind", "check"), CAUGHT, ids=lambda value: getattr(value, "__name__", value))
async def test_broken_store_fails_the_suite(kind, check):
    store = Store(kind(fsspec.filesystem("memory")), f"/broken/{uuid.uuid4()}")
    with pytest.raises(AssertionError):
        await getattr(Conformance(), check)(Facade(store))
