"""What every store promises. A test file for a store gives a `target` and inherits.

Where a server is known not to keep a promise, its class says so in `holes`, by the name of the test (with or without
its parameter), with the reason. Such a test runs and must fail: a hole that was mended is an error as well. Where it
takes a race to fall into the hole, it stands in `chance_holes`.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import fsspec
import pytest
from patience import PATIENCE_S

from conformance.facade import Facade
from fsspec_cas import (
    ABSENT,
    AccessDenied,
    AsyncStore,
    BucketNotFound,
    InvalidInput,
    InvalidVersion,
    Lost,
    NotSupported,
    ObjectNotFound,
    Store,
    Unavailable,
    Unknown,
    Version,
    Won,
)

NAMES = (
    "plain",
    "with space",
    "Grüße/日本語/🙂",
    "e\u0301 is not \u00e9",  # combining accent
    "100%",
    "%2F%20",
    "a+b=c&d;e,f",
    "what?#fragment",
    "quote'\"quote",
    "(brackets)[and]{more}",
    "dots...in.it",
    "~tilde!star*at@colon:",
    "deep/" * 20 + "end",
    "-",
)
MEGABYTES_5 = bytes(range(256)) * 4096 * 5


@dataclass
class Target:
    """A place that is empty, and how to open it. `wrong` are the same with one thing wrong."""

    url: str
    options: dict[str, Any] = field(default_factory=dict)
    wrong: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)


class Conformance:
    """The promises of `fsspec_cas.store`."""

    contenders: ClassVar[int] = 32
    rounds: ClassVar[int] = 5
    increments: ClassVar[tuple[int, int]] = (8, 5)
    holes: ClassVar[Mapping[str, str]] = {}
    chance_holes: ClassVar[Mapping[str, str]] = {}

    @pytest.fixture(autouse=True)
    def _known_hole(self, request: pytest.FixtureRequest) -> None:
        for holes, strict in ((self.holes, True), (self.chance_holes, False)):
            reason = holes.get(request.node.name) or holes.get(request.node.originalname)
            if reason:
                request.applymarker(pytest.mark.xfail(reason=reason, strict=strict))

    @pytest.fixture(params=["sync", "async"])
    async def store(self, request: pytest.FixtureRequest, target: Target) -> AsyncIterator[Facade]:
        if request.param == "sync":
            yield Facade(Store.from_url(target.url, target.options))
        else:
            async with AsyncStore.from_url(target.url, target.options) as store:
                yield Facade(store)

    async def test_create_wins_when_no_object_exists(self, store):
        outcome = await store.put_if_absent("a", b"mine")
        assert isinstance(outcome, Won)
        content = await store.read("a")
        assert (content.data, content.version) == (b"mine", outcome.version)

    async def test_plain_fsspec_reads_what_was_written(self, store, target):
        await store.put_if_absent("folder/a", b"mine")
        fs, root = fsspec.url_to_fs(target.url, skip_instance_cache=True, **target.options)
        assert fs.cat_file(f"{root}/folder/a") == b"mine"

    async def test_create_loses_to_existing_object_and_changes_nothing(self, store):
        first = await store.put_if_absent("a", b"theirs")
        outcome = await store.put_if_absent("a", b"mine")
        assert isinstance(outcome, Lost)
        assert (outcome.expected, outcome.current) == (ABSENT, first.version)
        content = await store.read("a")
        assert (content.data, content.version) == (b"theirs", first.version)

    async def test_match_at_current_version_wins_and_returns_new_version(self, store):
        first = await store.put_if_absent("a", b"one")
        second = await store.put_if_match("a", b"two", first.version)
        assert isinstance(second, Won)
        assert second.version != first.version
        content = await store.read("a")
        assert (content.data, content.version) == (b"two", second.version)

    async def test_match_at_a_stale_version_loses_and_changes_nothing(self, store):
        first = await store.put_if_absent("a", b"one")
        second = await store.put_if_match("a", b"two", first.version)
        outcome = await store.put_if_match("a", b"three", first.version)
        assert isinstance(outcome, Lost)
        assert (outcome.expected, outcome.current) == (first.version, second.version)
        assert (await store.read("a")).data == b"two"

    async def test_match_loses_and_creates_nothing_when_no_object_exists(self, store):
        gone = await store.put_if_absent("a", b"one")
        await store.delete("a")
        outcome = await store.put_if_match("a", b"two", gone.version)
        assert isinstance(outcome, Lost)
        assert outcome.current == ABSENT
        with pytest.raises(ObjectNotFound):
            await store.read("a")

    async def test_write_read_and_head_return_the_same_version(self, store):
        won = await store.put_if_absent("a", b"one")
        seen = [(await store.read("a")).version, (await store.head("a")).version, (await store.read("a")).version]
        assert seen == [won.version] * 3

    async def test_read_returns_bytes_and_version_of_the_same_write(self, store):
        """While a writer goes on, every pair that is read was written as a pair."""
        written = {(await store.put_if_absent("a", b"0")).version: b"0"}

        async def write() -> None:
            version = next(iter(written))
            for n in range(1, 21):
                won = await store.put_if_match("a", str(n).encode(), version)
                version = won.unwrap()
                written[version] = str(n).encode()

        writer = asyncio.create_task(asyncio.to_thread(asyncio.run, write()) if self._is_sync(store) else write())
        seen = []
        while not writer.done():
            seen.append(await store.read("a"))
            await asyncio.sleep(0)
        await writer
        assert seen
        assert all(written[content.version] == content.data for content in seen)

    async def test_read_if_changed_returns_none_for_an_unchanged_object(self, store):
        first = await store.put_if_absent("a", b"one")
        assert await store.read_if_changed("a", first.version) is None
        second = await store.put_if_match("a", b"two", first.version)
        content = await store.read_if_changed("a", first.version)
        assert (content.data, content.version) == (b"two", second.version)

    async def test_backend_answers_unchanged_without_a_body(self, store):
        """The 304 itself: the store's own answer, not what `read_if_changed` makes of it."""
        won = await store.put_if_absent("a", b"one")
        inner = store.store if isinstance(store.store, AsyncStore) else store.store._async
        asked = inner.backend.get(inner._full_path("a"), won.version, timeout_s=20.0)
        answer = store.store._drive.run(asked) if self._is_sync(store) else await asked
        assert type(answer).__name__ == "Unchanged"

    async def test_head_shows_size_time_and_identity(self, store):
        before_ms = time.time() * 1000
        won = await store.put_if_absent("a", b"12345")
        info = await store.head("a")
        assert (info.version, info.size) == (won.version, 5)
        assert abs(info.modified_ms - before_ms) < 60_000
        if store.capabilities.own_clock or info.version.backend == "local":  # the servers run on this machine, too
            assert abs(info.answered_ms - before_ms) < 60_000
        else:
            assert info.answered_ms is None
        assert (info.write_id is not None) is store.capabilities.keeps_write_id

    async def test_attributes_of_write_are_kept_until_next_write(self, store):
        inner = store.store if isinstance(store.store, AsyncStore) else store.store._async
        kept = inner.backend.attribute_rules.keeps
        given = {"content_type": "text/x-mine", "metadata": {"made_by": "me, myself", "n": "1"}}
        if not kept:
            for call in (
                lambda: store.put_if_absent("a", b"1", content_type="text/plain"),
                lambda: store.open_exclusive("a", metadata={"made_by": "me"}),
            ):
                with pytest.raises(NotSupported, match="bytes alone"):
                    await call()
            assert await store.list("") == []
            return
        first = await store.put_if_absent("a", b"1", **given)
        seen = await store.head("a")
        assert (seen.content_type, seen.metadata) == (given["content_type"], given["metadata"])
        assert (seen.write_id is not None) is store.capabilities.keeps_write_id
        second = await store.put_if_match("a", b"2", first.version, metadata={"n": "2"})
        assert (await store.head("a")).metadata == {"n": "2"}
        await store.put_if_match("a", b"3", second.version)
        seen = await store.head("a")
        assert seen.metadata == {}
        assert seen.content_type != given["content_type"]

    async def test_attributes_of_multipart_object_are_kept(self, target):
        async with AsyncStore.from_url(target.url, target.options) as store:
            if not store.backend.attribute_rules.keeps:
                return
            given = {"content_type": "text/x-mine", "metadata": {"made_by": "me"}}
            async with store.open_exclusive("a", part_size=len(MEGABYTES_5), **given) as writer:
                await writer.write(MEGABYTES_5 + b"and more")
            seen = await store.head("a")
            assert (seen.content_type, seen.metadata) == (given["content_type"], given["metadata"]), seen
            assert (seen.write_id is not None) is store.capabilities.keeps_write_id

    async def test_unsupported_argument_is_refused_and_nothing_is_written(self, store):
        for name in ("contenttype", "timeout_s", "Acl", "SSECustomerKey", "cpk"):
            for call in (
                lambda name=name: store.put_if_absent("a", b"1", **{name: "x"}),
                lambda name=name: store.open_exclusive("a", **{name: "x"}),
            ):
                with pytest.raises((InvalidInput, NotSupported), match=name):
                    await call()
        assert await store.list("") == []

    async def test_listing_shows_the_version_of_each_object(self, store):
        written = {name: (await store.put_if_absent(name, name.encode())).version for name in ("a", "b/c d", "b/é")}
        assert {entry.path: entry.version for entry in await store.list("")} == written

    async def test_every_write_has_its_own_identity(self, store):
        won = await store.put_if_absent("a", b"1")
        first = (await store.head("a")).write_id
        await store.put_if_match("a", b"2", won.version)
        second = (await store.head("a")).write_id
        assert (first != second) is store.capabilities.keeps_write_id

    async def test_missing_object_is_not_found(self, store):
        won = await store.put_if_absent("there", b"")
        for asked in (store.read("a"), store.head("a"), store.read_if_changed("a", won.version)):
            with pytest.raises(ObjectNotFound):
                await asked

    async def test_bulk_delete_removes_many_objects_and_ignores_missing_ones(self, store):
        for name in ("a", "b/c d", "b/&<é>", "kept"):
            (await store.put_if_absent(name, name.encode())).unwrap()
        await store.delete_all(["a", "b/c d", "b/&<é>", "never"])
        await store.delete_all(["a"])
        await store.delete_all([])
        assert [entry.path for entry in await store.list("")] == ["kept"]

    async def test_listing_is_complete_ordered_and_relative(self, store):
        for name in ("b", "a/2", "a/1", "a-", "c/1/x", "other"):
            await store.put_if_absent(name, name.encode())
        entries = await store.list("")
        assert [(e.path, e.size) for e in entries] == [
            (name, len(name)) for name in ("a-", "a/1", "a/2", "b", "c/1/x", "other")
        ]
        assert all(abs(e.modified_ms - time.time() * 1000) < 60_000 for e in entries)

    async def test_listing_takes_prefix_that_does_not_end_at_a_slash(self, store):
        for name in ("log.1", "log.2", "logs/1", "lo", "x"):
            await store.put_if_absent(name, b"")
        assert [e.path for e in await store.list("log")] == ["log.1", "log.2", "logs/1"]
        assert [e.path for e in await store.list("log.")] == ["log.1", "log.2"]
        assert [e.path for e in await store.list("logs/")] == ["logs/1"]
        assert await store.list("nothing") == []

    async def test_listing_starts_after_given_name_whether_it_exists_or_not(self, store):
        for n in range(1, 6):
            await store.put_if_absent(f"d/{n}", b"")
        assert [e.path for e in await store.list("d/", start_after="d/2")] == ["d/3", "d/4", "d/5"]
        assert [e.path for e in await store.list("d/", start_after="d/25")] == ["d/3", "d/4", "d/5"]
        assert await store.list("d/", start_after="d/5") == []
        assert len(await store.list("d/", start_after="a")) == 5

    async def test_deleted_object_is_gone_and_deleting_nothing_is_fine(self, store):
        await store.put_if_absent("a", b"")
        await store.delete("a")
        await store.delete("a")
        with pytest.raises(ObjectNotFound):
            await store.head("a")
        assert await store.list("") == []
        assert isinstance(await store.put_if_absent("a", b"again"), Won)

    async def test_delete_at_the_right_version_wins(self, store):
        won = await store.put_if_absent("a", b"one")
        if not store.capabilities.delete_match:
            with pytest.raises(NotSupported):
                await store.delete_if_match("a", won.version)
            return
        assert await store.delete_if_match("a", won.version) == won
        with pytest.raises(ObjectNotFound):
            await store.head("a")

    async def test_delete_at_a_stale_version_loses_and_removes_nothing(self, store):
        first = await store.put_if_absent("a", b"one")
        second = await store.put_if_match("a", b"two", first.version)
        outcome = await store.delete_if_match("a", first.version)
        assert isinstance(outcome, Lost)
        assert outcome.current == second.version
        assert (await store.read("a")).data == b"two"

    async def test_backend_refuses_a_delete_at_a_stale_version(self, store):
        """The store's own answer: `delete_if_match` looks first, and would not ask."""
        first = await store.put_if_absent("a", b"one")
        await store.put_if_match("a", b"two", first.version)
        inner = store.store if isinstance(store.store, AsyncStore) else store.store._async
        asked = inner.backend.delete(inner._full_path("a"), first.version, timeout_s=20.0)
        answer = store.store._drive.run(asked) if self._is_sync(store) else await asked
        assert type(answer).__name__ == "ConditionFailed"
        assert (await store.read("a")).data == b"two"

    async def test_conditional_delete_loses_when_no_object_exists(self, store):
        won = await store.put_if_absent("a", b"one")
        await store.delete("a")
        outcome = await store.delete_if_match("a", won.version)
        assert isinstance(outcome, Lost)
        assert outcome.current == ABSENT

    async def test_version_still_matches_after_text_or_pickle_round_trip(self, store):
        first = await store.put_if_absent("a", b"one")
        second = await store.put_if_match("a", b"two", Version.parse(str(first.version)))
        third = await store.put_if_match("a", b"three", pickle.loads(pickle.dumps(second.version)))
        assert isinstance(third, Won)
        assert await store.read_if_changed("a", Version.parse(str(third.version))) is None

    async def test_version_of_another_kind_of_store_is_refused(self, store):
        await store.put_if_absent("a", b"one")
        with pytest.raises(InvalidVersion):
            await store.put_if_match("a", b"two", Version("elsewhere", "1"))

    async def test_concurrent_updates_are_all_applied(self, store):
        writers, each = self.increments
        for _ in range(each):
            await store.together("update", [("counter", count)] * writers)
        assert (await store.read("counter")).data == str(writers * each).encode()

    async def test_every_name_is_kept_as_it_is(self, store):
        for name in NAMES:
            won = await store.put_if_absent(name, name.encode())
            assert isinstance(won, Won), name
            content = await store.read(name)
            assert (content.data, content.version) == (name.encode(), won.version)
            assert isinstance(await store.put_if_absent(name, b""), Lost)
            assert (await store.head(name)).version == won.version
        assert [e.path for e in await store.list("")] == sorted(NAMES)
        for name in NAMES:
            await store.delete(name)
        assert await store.list("") == []

    async def test_empty_object_is_an_object(self, store):
        won = await store.put_if_absent("a", b"")
        content = await store.read("a")
        assert (content.data, content.version) == (b"", won.version)
        assert (await store.head("a")).size == 0
        assert isinstance(await store.put_if_absent("a", b"x"), Lost)
        assert isinstance(await store.put_if_match("a", b"", won.version), Won)

    async def test_five_megabytes_are_one_write_and_one_read(self, store):
        won = await store.put_if_absent("a", MEGABYTES_5)
        content = await store.read("a")
        assert content.data == MEGABYTES_5
        assert content.version == won.version
        assert isinstance(await store.put_if_match("a", MEGABYTES_5[::-1], won.version), Won)
        assert (await store.read("a")).data == MEGABYTES_5[::-1]

    async def test_bytes_that_look_like_a_protocol_are_kept(self, store):
        data = b"\r\n--\r\n\r\n--cas--\r\n0\r\n\r\n" + bytes(range(256))
        await store.put_if_absent("a", data)
        assert (await store.read("a")).data == data

    async def test_object_changed_back_has_old_version_only_where_versions_repeat(self, store):
        first = await store.put_if_absent("a", b"A")
        second = await store.put_if_match("a", b"B", first.version)
        third = await store.put_if_match("a", b"A", second.version)
        assert (third.version != first.version) is store.capabilities.unique_versions
        outcome = await store.put_if_match("a", b"C", first.version)
        assert isinstance(outcome, Lost) is store.capabilities.unique_versions

    async def test_exactly_one_of_many_concurrent_creates_wins(self, store):
        for n in range(self.rounds):
            await self._race(store, "put_if_absent", f"race/{n}", [(b"by %d" % i,) for i in range(self.contenders)])

    async def test_exactly_one_of_many_concurrent_replaces_wins(self, store):
        won = await store.put_if_absent("a", b"start")
        version = won.version
        for n in range(self.rounds):
            calls = [(b"round %d by %d" % (n, i), version) for i in range(self.contenders)]
            version = await self._race(store, "put_if_match", "a", calls)

    async def test_exactly_one_of_concurrent_delete_and_replace_wins(self, store):
        for n in range(self.rounds):
            won = await store.put_if_absent(f"a{n}", b"start")
            deleted, replaced = await asyncio.gather(
                self._apart(store, "delete_if_match", f"a{n}", won.version),
                self._apart(store, "put_if_match", f"a{n}", b"new", won.version),
            )
            assert isinstance(deleted, Won) != isinstance(replaced, Won)
            names = [e.path for e in await store.list(f"a{n}")]
            assert names == ([] if isinstance(deleted, Won) else [f"a{n}"])

    def test_async_store_can_be_used_on_one_loop_after_another(self, target):
        store = AsyncStore.from_url(target.url, target.options)

        async def use(name: str) -> bool:
            async with store:
                return isinstance(await store.put_if_absent(name, b""), Won)

        assert asyncio.run(use("first"))
        assert asyncio.run(use("second"))

    async def _race(self, store: Facade, method: str, path: str, calls: list[tuple[Any, ...]]) -> Version:
        outcomes = await store.together(method, [(path, *call) for call in calls])
        winners = [
            (outcome, call[0]) for outcome, call in zip(outcomes, calls, strict=True) if isinstance(outcome, Won)
        ]
        assert len(winners) == 1, outcomes
        content = await store.read(path)
        assert (content.version, content.data) == (winners[0][0].version, winners[0][1])
        assert all(isinstance(o, (Won, Lost)) for o in outcomes), outcomes
        assert all(o.current == content.version for o in outcomes if isinstance(o, Lost))
        return content.version

    async def _apart(self, store: Facade, method: str, *args: Any) -> Any:
        call = getattr(store.store, method)
        return await (asyncio.to_thread(call, *args) if self._is_sync(store) else call(*args))

    @staticmethod
    def _is_sync(store: Facade) -> bool:
        return isinstance(store.store, Store)


def count(old: bytes | None) -> bytes:
    return str(int(old or b"0") + 1).encode()


class ManyObjects:
    """For stores on which a thousand writes are quick."""

    many: ClassVar[int] = 1005

    async def test_more_than_a_page_of_objects_is_listed(self, target):
        names = [f"n/{n:05}" for n in range(self.many)]
        async with AsyncStore.from_url(target.url, target.options) as store:
            for first in range(0, self.many, 100):
                await asyncio.gather(*(store.put_if_absent(name, b"") for name in names[first : first + 100]))
            assert [e.path for e in await store.list("n/")] == names
            assert [e.path for e in await store.list("n/", start_after=names[2])] == names[3:]


PROCESS = """
import json, sys
from fsspec_cas import Store, Won
store = Store.from_url(sys.argv[1], json.loads(sys.argv[2]))
print("ready", flush=True)
sys.stdin.read()
won = [n for n in range(int(sys.argv[3])) if isinstance(store.put_if_absent(f"race/{n}", sys.argv[4].encode()), Won)]
print(json.dumps(won))
"""


class AmongProcesses:
    """For stores that several processes can reach."""

    processes: ClassVar[int] = 4
    prizes: ClassVar[int] = 10

    def test_exactly_one_of_many_creating_processes_wins(self, target):
        options = json.dumps(target.options)
        command = [sys.executable, "-c", PROCESS, target.url, options, str(self.prizes)]
        children = [
            subprocess.Popen([*command, str(n)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for n in range(self.processes)
        ]
        assert [child.stdout.readline() for child in children] == [b"ready\n"] * self.processes
        for child in children:
            child.stdin.close()
        won = [json.loads(child.stdout.read()) for child in children]
        assert [child.wait(60) for child in children] == [0] * self.processes
        assert sorted(prize for prizes in won for prize in prizes) == list(range(self.prizes))
        store = Store.from_url(target.url, target.options)
        for n, prizes in enumerate(won):
            assert all(store.read(f"race/{prize}").data == str(n).encode() for prize in prizes)


class OverTheNetwork:
    """What goes wrong on the way to a server comes out as one typed error. Each needs an entry in `target.wrong`."""

    @pytest.fixture(params=["read", "head", "list", "put_if_absent", "put_if_match", "delete", "delete_if_match"])
    def call(self, request, target):
        version = Store.from_url(target.url, target.options).put_if_absent("probe", b"").unwrap()
        rest = {"put_if_absent": (b"",), "put_if_match": (b"", version), "delete_if_match": (version,)}

        def run(wrong: str, timeout_s: float = PATIENCE_S) -> Any:
            url, options = target.wrong[wrong]
            call = getattr(Store.from_url(url, options), request.param)
            return call("x", *rest.get(request.param, ()), timeout=timeout_s)

        return run

    def test_wrong_credentials_are_access_denied(self, call):
        with pytest.raises(AccessDenied) as caught:
            call("credentials")
        assert isinstance(caught.value, PermissionError)

    def test_missing_bucket_is_bucket_not_found(self, call):
        with pytest.raises(BucketNotFound) as caught:
            call("bucket")
        assert isinstance(caught.value, FileNotFoundError)

    def test_endpoint_without_a_listener_is_unavailable(self, call):
        def is_told(timeout_s: float) -> bool:
            try:
                outcome = call("endpoint", timeout_s)
            except Unavailable as error:
                return "connect" in str(error).lower()
            assert isinstance(outcome, Unknown), "its time was over while it was being sent"
            return False

        assert any(map(is_told, (0.3, 3.0, PATIENCE_S))), "a busy machine needs more time to find nobody"
