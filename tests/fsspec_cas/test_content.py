"""What may be written, at every entry that takes bytes."""

from __future__ import annotations

import array
import io
import pickle

import fsspec
import pytest

from fsspec_cas import AsyncStore, NotBytes, Store, Won
from lockprovider import Intent, async_lock, lock

NO_BYTES = [5, 0, True, None, "text", [1, 2], (1,), 1.5, io.BytesIO(b"1"), array.array("B", b"1"), range(3)]
URL = "memory://unit-content"


@pytest.fixture
def url(request):
    return f"{URL}/{request.node.name}"


@pytest.fixture
def store(url):
    return Store.from_url(url)


@pytest.mark.parametrize("wrong", NO_BYTES, ids=lambda value: type(value).__name__)
def test_value_that_is_not_bytes_is_refused_and_nothing_is_written(store, wrong):
    version = store.put_if_absent("a", b"kept").unwrap()
    for call in (
        lambda: store.put_if_absent("new", wrong),
        lambda: store.put_if_match("a", wrong, version),
        lambda: store.update("a", lambda _: wrong),
        lambda: store.update("new", lambda _: wrong),
    ):
        with pytest.raises(NotBytes, match=type(wrong).__name__) as caught:
            call()
        assert isinstance(caught.value, TypeError | ValueError)
        assert pickle.loads(pickle.dumps(caught.value)).path == caught.value.path != ""
    assert [(entry.path, entry.size) for entry in store.list("")] == [("a", 4)]


async def test_async_store_refuses_value_that_is_not_bytes(url):
    store = AsyncStore.from_url(url)
    with pytest.raises(NotBytes, match="encode"):
        await store.put_if_absent("a", "text")
    with pytest.raises(NotBytes, match="int"):
        await store.update("a", lambda b: int(b or 0) + 1)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_bytearray_and_memoryview_are_copied_at_the_call(store, kind):
    source = bytearray(b"abcabc")
    given = kind(source)
    version = store.put_if_absent("a", given).unwrap()
    assert isinstance(store.put_if_match("a", memoryview(b"a.b.c.")[::2], version), Won)
    assert store.read("a").data == b"abc"


@pytest.mark.parametrize("wrong", [5, "text", None, [1]], ids=lambda value: type(value).__name__)
def test_stream_takes_buffers_and_nothing_else(store, wrong):
    with pytest.raises(NotBytes), store.open_exclusive("a") as writer:
        writer.write(wrong)
    with store.open_exclusive("b") as writer:
        for good in (b"1", bytearray(b"2"), memoryview(b"3.4.")[::2], array.array("H", [0x3535]), b""):
            writer.write(good)
    assert store.read("b").data == b"123455"
    assert [entry.path for entry in store.list("")] == ["b"]


def test_filesystem_refuses_value_that_is_not_bytes(url):
    fs = fsspec.filesystem("cas", target_protocol="memory")
    path = url.removeprefix("memory:/")
    with pytest.raises(NotBytes):
        fs.pipe_file(f"{path}/a", "text", mode="create")
    with pytest.raises(NotBytes), fs.open(f"{path}/b", "xb") as file:
        file.write("text")
    assert not fs.exists(path)


@pytest.mark.parametrize("wrong", [5, "text", None, [1]], ids=lambda value: type(value).__name__)
def test_lock_publishes_bytes_only(url, wrong):
    held, inside = lock(url), Store.from_url(url)
    right = held.stage("state/right", b"right")
    with held.acquire(keeps_log=True) as lease:
        before = inside.list("")
        for call in (
            lambda: lease.publish("state/1", wrong),
            lambda: held.stage("state/1", wrong),
            *([lambda: lease.publish(right, wrong, new=True)] if wrong is not None else []),  # None: those of `right`
        ):
            with pytest.raises(NotBytes):
                call()
        assert inside.list("") == before
        lease.publish(right, b"right", new=True)
    with pytest.raises(NotBytes):
        held.commit(Intent("log", 0, "state/1", wrong), None)  # refused before anybody is asked


async def test_async_lease_publishes_bytes_only(url):
    async with async_lock(url) as lease:
        with pytest.raises(NotBytes):
            await lease.publish("state/1", "text")
