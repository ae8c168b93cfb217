"""`cas` as its users meet it: exclusive where it says so, the target everywhere else."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import pickle
import subprocess
import sys
import weakref
from pathlib import PurePath

import fsspec
import pytest
from fsspec.callbacks import Callback
from fsspec.implementations.memory import MemoryFileSystem

from filesystem.places import STORES, place
from fsspec_cas import (
    AlreadyExists,
    InvalidInput,
    InvalidVersion,
    NotSupported,
    ObjectNotFound,
    OutcomeUnknown,
    Store,
    Version,
    VersionMismatch,
    Won,
)
from fsspec_cas.backends.memory import MemoryBackend
from fsspec_cas.exclusive import PART_BYTES
from fsspec_cas.filesystem import CasFileSystem
from fsspec_cas.testing import Faulty, LoseAnswer, LoseRequest

MIB = 1 << 20


@pytest.fixture(params=STORES)
def at(request):
    return place(request, request.param)


@pytest.fixture
def fs(at):
    return at.cas()


@pytest.fixture
def path(at):
    return f"{at.folder}/a"


def test_create_is_made_once(fs, path, at):
    version = fs.put_if_absent(path, b"mine")
    with pytest.raises(FileExistsError) as lost:
        fs.put_if_absent(path, b"theirs")
    assert lost.value.current == version
    assert at.plain.cat_file(path) == b"mine"


def test_match_writes_only_at_its_version(fs, path):
    first = fs.put_if_absent(path, b"1")
    second = fs.put_if_match(path, b"2", first)
    with pytest.raises(VersionMismatch) as lost:
        fs.put_if_match(path, b"3", first)
    assert not isinstance(lost.value, FileExistsError)
    assert lost.value.current == second
    assert fs.read_with_version(path).data == b"2"


def test_version_text_of_info_is_accepted_by_put_if_match(fs, path):
    made = fs.put_if_absent(path, b"1")
    assert fs.info(path)["version"] == str(made)
    assert fs.stat(path)["version"] == str(made)
    fs.put_if_match(path, b"2", fs.info(path)["version"])
    assert json.loads(json.dumps(fs.info(path)["version"])) != str(made)
    with pytest.raises(InvalidVersion):
        fs.put_if_match(path, b"3", "no version")


@pytest.mark.parametrize("token", ["*", '"*"', "0"])
def test_wildcard_is_refused_as_a_version(fs, path, token):
    """If-Match: * matches whatever is there, and generation 0 stands for nothing."""
    kind = fs.store.kind
    if token == "0" and kind != "gcs":  # noqa: S105 (no secret)
        pytest.skip("only a generation is zero")
    fs.put_if_absent(path, b"1")
    for absent in (path, f"{path}-absent"):
        with pytest.raises(InvalidVersion, match="wildcard"):
            fs.put_if_match(absent, b"2", f"{kind}:{token}")
        with pytest.raises(InvalidVersion, match="wildcard"):
            fs.delete_if_match(absent, f"{kind}:{token}")
    assert fs.cat_file(path) == b"1"


def test_info_is_fresh_when_a_listing_is_cached(fs, path, at):
    version = fs.put_if_absent(path, b"1")
    assert [entry["size"] for entry in fs.ls(at.folder, detail=True)] == [1]
    version = fs.put_if_match(path, b"22", version)
    assert [entry["size"] for entry in fs.ls(at.folder, detail=True)] == [2]
    assert fs.info(path)["version"] == str(version)
    fs.put_if_absent(f"{at.folder}/b", b"")
    assert sorted(PurePath(p).name for p in fs.ls(at.folder, detail=False)) == ["a", "b"]


def test_plain_write_changes_the_version(fs, path):
    version = fs.put_if_absent(path, b"1")
    fs.pipe_file(path, b"plain")
    with pytest.raises(VersionMismatch):
        fs.put_if_match(path, b"2", version)
    assert fs.cat_file(path) == b"plain"


def test_read_if_changed_returns_none_until_the_file_changes(fs, path):
    version = fs.put_if_absent(path, b"1")
    assert fs.read_if_changed(path, version) is None
    assert fs.read_if_changed(path, str(version)) is None
    fs.put_if_match(path, b"2", version)
    assert fs.read_if_changed(path, version).data == b"2"


def test_conditional_delete_removes_only_the_given_version(fs, path, at):
    first = fs.put_if_absent(path, b"1")
    second = fs.put_if_match(path, b"2", first)
    with pytest.raises(VersionMismatch):
        fs.delete_if_match(path, first)
    assert fs.exists(path)
    with at.deletes():
        fs.delete_if_match(path, second)
    assert not fs.exists(path)


def test_update_applies_each_increment_once(fs, path):
    for _ in range(3):
        fs.update(path, lambda old: str(int(old or b"0") + 1).encode())
    assert fs.cat_file(path) == b"3"


def test_missing_object_is_not_found(fs, path):
    with pytest.raises(FileNotFoundError):
        fs.info(path)
    with pytest.raises(ObjectNotFound):
        fs.read_with_version(path)


# The ways in which fsspec's own calls create.


def by_pipe_file(fs, path, _local):
    fs.pipe_file(path, b"mine", mode="create")


def by_pipe(fs, path, _local):
    fs.pipe({path: b"mine"}, mode="create")


def by_write_bytes(fs, path, _local):
    fs.write_bytes(path, b"mine", mode="create")


def by_put_file(fs, path, local):
    fs.put_file(local, path, mode="create")


def by_put(fs, path, local):
    fs.put(local, path, mode="create")


def by_open(fs, path, _local):
    with fs.open(path, "xb") as file:
        file.write(b"mine")


def by_open_text(fs, path, _local):
    with fs.open(path, "x", encoding="utf8") as file:
        file.write("mine")


WAYS = [by_pipe_file, by_pipe, by_write_bytes, by_put_file, by_put, by_open, by_open_text]


@pytest.mark.parametrize("create", WAYS)
def test_every_way_to_create_is_exclusive(fs, path, at, tmp_path_factory, create):
    local = tmp_path_factory.mktemp("local") / "mine"
    local.write_bytes(b"mine")
    create(fs, path, str(local))
    assert at.plain.cat_file(path) == b"mine"
    at.plain.pipe_file(path, b"theirs")
    with pytest.raises(AlreadyExists, match=r"already exists \(.*\); it was not written"):
        create(fs, path, str(local))
    assert at.plain.cat_file(path) == b"theirs"


def test_exclusive_file_exists_once_it_is_closed(fs, path, at):
    file = fs.open(path, "xb")
    assert file.writable()
    assert file.write(b"x" * 9 * MIB) == file.tell() == 9 * MIB
    assert not at.plain.exists(path)
    file.close()
    assert at.plain.size(path) == 9 * MIB
    assert fs.info(path)["version"] == str(file.version)
    with pytest.raises(ValueError, match="closed"):
        file.write(b"more")


def test_race_lost_after_opening_is_raised_on_close(fs, path, at):
    file = fs.open(path, "xb")
    file.write(b"mine")
    at.plain.pipe_file(path, b"theirs")
    with pytest.raises(AlreadyExists):
        file.close()
    assert file.closed
    assert at.plain.cat_file(path) == b"theirs"


@pytest.mark.parametrize("mode", ["xb", "x"])
def test_unclosed_file_leaves_nothing(fs, path, mode):
    file = fs.open(path, mode)
    file.write(b"mine" if mode == "xb" else "mine")
    del file
    gc.collect()
    assert not fs.exists(path)


@pytest.mark.parametrize("mode", ["xb", "x"])
@pytest.mark.parametrize("opener", ["fs.open", "fsspec.open"])
def test_exception_in_block_leaves_nothing_however_the_file_was_opened(fs, at, path, mode, opener):
    """The OpenFile of fsspec closes its files when an exception passes, too."""
    file = fs.open(path, mode) if opener == "fs.open" else fsspec.open(f"{at.url}/a", mode, **at.storage_options)
    with pytest.raises(ZeroDivisionError), file as target:  # noqa: PT012
        target.write(b"half" if mode == "xb" else "half")
        raise ZeroDivisionError
    assert not fs.exists(path)


def test_file_written_while_an_error_is_being_handled_is_stored(fs, path):
    try:
        raise ZeroDivisionError  # noqa: TRY301
    except ZeroDivisionError:
        with fs.open(path, "xb") as file:
            file.write(b"report")
    assert fs.cat_file(path) == b"report"


def test_compressed_file_is_written_through_fsspec_open(at, fs):
    with fsspec.open(f"{at.url}/a.gz", "xb", compression="gzip", **at.storage_options) as file:
        file.write(b"long " * 1000)
    with fsspec.open(f"{at.url}/a.gz", "rb", compression="gzip", **at.storage_options) as file:
        assert file.read() == b"long " * 1000
    with pytest.raises(NotSupported, match=r"fsspec\.open"):
        fs.open(f"{at.folder}/b", "xb", compression="gzip")


def test_transaction_commits_or_discards(fs, path):
    with pytest.raises(ZeroDivisionError), fs.transaction:  # noqa: PT012
        with fs.open(path, "xb") as file:
            file.write(b"1")
        raise ZeroDivisionError
    assert not fs.exists(path)
    with fs.transaction:
        with fs.open(path, "xb") as file:
            file.write(b"2")
        assert not fs.exists(path)
    assert fs.cat_file(path) == b"2"


def test_transaction_commits_other_files_when_one_was_discarded(fs, path):
    with fs.transaction:
        with pytest.raises(ZeroDivisionError), fs.open(f"{path}-bad", "xb"):
            raise ZeroDivisionError
        with fs.open(path, "xb") as file:
            file.write(b"1")
    assert fs.cat_file(path) == b"1"
    assert not fs.exists(f"{path}-bad")


def test_large_put_is_streamed_with_its_callback(fs, path, tmp_path_factory):
    local = tmp_path_factory.mktemp("local") / "large"
    local.write_bytes(os.urandom(9 * MIB))
    seen = Callback()
    fs.put_file(str(local), path, mode="create", callback=seen)
    assert (seen.size, seen.value) == (9 * MIB, 9 * MIB)
    assert fs.cat_file(path) == local.read_bytes()


# Everything else is the target's.


def test_other_calls_go_to_the_target(fs, at, tmp_path_factory):
    fs.makedirs(f"{at.folder}/d", exist_ok=True)
    fs.pipe({f"{at.folder}/d/1": b"one", f"{at.folder}/d/2": b"two"})
    fs.copy(f"{at.folder}/d/1", f"{at.folder}/d/3")
    fs.mv(f"{at.folder}/d/2", f"{at.folder}/d/4")
    assert sorted(PurePath(p).name for p in fs.find(at.folder)) == ["1", "3", "4"]
    assert sorted(PurePath(p).name for p in fs.glob(f"{at.folder}/d/*")) == ["1", "3", "4"]
    assert [(sorted(files), dirs) for _, dirs, files in fs.walk(f"{at.folder}/d")] == [(["1", "3", "4"], [])]
    assert fs.du(at.folder) == 9
    assert fs.isdir(f"{at.folder}/d")
    assert fs.isfile(f"{at.folder}/d/1")
    assert fs.cat_ranges([f"{at.folder}/d/1"], [1], [3]) == [b"ne"]
    assert fs.read_text(f"{at.folder}/d/1") == "one"
    target = tmp_path_factory.mktemp("got")
    fs.get(f"{at.folder}/d", str(target / "d"), recursive=True)
    assert (target / "d" / "4").read_bytes() == b"two"
    with fs.open(f"{at.folder}/d/5", "wb") as file:
        file.write(b"plain")
    with fs.open(f"{at.folder}/d/5", "rb") as file:
        assert file.read() == b"plain"
    fs.rm(f"{at.folder}/d", recursive=True)
    assert not fs.exists(f"{at.folder}/d/5")


@pytest.mark.parametrize("prefix", ["cas://", "cas::", "protocol", "both"])
def test_path_may_have_any_of_its_prefixes(fs, at, path, prefix):
    own = f"{at.protocol}://{path}"
    asked = {"protocol": own, "both": f"cas::{own}"}.get(prefix, f"{prefix}{path}")
    fs.put_if_absent(asked, b"1")
    assert fs.cat_file(asked) == b"1"
    assert fs.info(asked)["size"] == 1
    assert fs.exists(asked)
    with fs.open(asked, "rb") as file:
        assert file.read() == b"1"
    assert Version.parse(fs.info(asked)["version"])


def test_chained_url_opens_the_filesystem(at, path):
    fs, plain = fsspec.url_to_fs(f"{at.url}/a", **at.storage_options)
    assert isinstance(fs, CasFileSystem)
    assert plain == path
    again, _ = fsspec.url_to_fs(f"{at.url}/b", **at.storage_options)
    assert again is fs  # one client for all paths
    fs.put_if_absent(plain, b"1")
    with fsspec.open(f"{at.url}/a", "rb", **at.storage_options) as file:
        assert file.read() == b"1"
    with pytest.raises(AlreadyExists):
        fsspec.open(f"{at.url}/a", "xb", **at.storage_options).open()
    assert fs.unstrip_protocol(plain) == f"cas::{at.plain.unstrip_protocol(path)}"


def test_filesystem_survives_pickle_and_json(fs, path):
    version = fs.put_if_absent(path, b"1")
    for copy in (pickle.loads(pickle.dumps(fs)), fsspec.AbstractFileSystem.from_json(fs.to_json())):
        assert isinstance(copy, CasFileSystem)
        assert copy.info(path)["version"] == str(version)
    given = CasFileSystem(fs=fs.fs)
    for copy in (pickle.loads(pickle.dumps(given)), fsspec.AbstractFileSystem.from_json(given.to_json())):
        assert copy.info(path)["version"] == str(version)


def test_pickled_filesystem_works_in_another_process(at, fs, path):
    if at.protocol == "memory":
        pytest.skip("memory is not shared")
    code = "import pickle, sys; fs, p = pickle.load(sys.stdin.buffer); fs.pipe_file(p, b'theirs', mode='create')"
    sent = pickle.dumps((fs, path))
    subprocess.run([sys.executable, "-c", code], input=sent, check=True, timeout=60, capture_output=True)
    with pytest.raises(AlreadyExists):
        fs.pipe_file(path, b"mine", mode="create")


@pytest.mark.parametrize("form", ["cas::", "cas://"])
def test_pandas_writes_and_reads_through_the_filesystem(at, form):
    pandas = pytest.importorskip("pandas")
    if form == "cas::" and pandas.__version__ < "3":
        pytest.skip("pandas 2 takes no chained URL for a URL")
    url, options = at.url, at.storage_options
    if form == "cas://":
        url, options = f"cas://{at.folder}", {"target_protocol": at.protocol, "target_options": at.options}
    frame = pandas.DataFrame({"id": range(1000), "name": [f"n{n}" for n in range(1000)]})
    frame.to_parquet(f"{url}/t.parquet", storage_options=options)
    back = pandas.read_parquet(f"{url}/t.parquet", storage_options=options)
    pandas.testing.assert_frame_equal(back, frame)
    frame.to_csv(f"{url}/t.csv", mode="x", index=False, storage_options=options)
    with pytest.raises(FileExistsError):
        frame.to_csv(f"{url}/t.csv", mode="x", index=False, storage_options=options)
    assert len(pandas.read_csv(f"{url}/t.csv", storage_options=options)) == 1000
    named = {} if form == "cas://" else {"compression": "gzip"}  # pandas 3 infers none from a chained URL
    frame.to_csv(f"{url}/t.csv.gz", mode="x", index=False, storage_options=options, **named)
    assert at.plain.cat_file(f"{at.folder}/t.csv.gz").startswith(b"\x1f\x8b")


def test_arrow_writes_a_dataset_through_the_filesystem(at, fs):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import dataset

    table = pa.table({"id": [1, 2], "city": ["ulm", "bonn"]})
    dataset.write_dataset(table, f"{at.folder}/d", filesystem=fs, format="parquet", partitioning=["city"])
    assert dataset.dataset(f"{at.folder}/d", filesystem=fs, partitioning=["city"]).count_rows() == 2


def test_store_is_opened_from_the_filesystem(fs, at):
    store = Store.from_filesystem(fs, at.folder)
    assert isinstance(store.put_if_absent("a", b"1"), Won)
    assert fs.cat_file(f"{at.folder}/a") == b"1"


def test_mapper_writes_through_the_filesystem(fs, at):
    mapper = fs.get_mapper(at.folder)
    mapper["x"] = b"1"
    assert mapper.fs is fs
    assert fs.cat_file(f"{at.folder}/x") == b"1"


# Async callers.

ASYNC = [name for name in STORES if name not in ("memory", "local")]


@pytest.mark.parametrize("name", ASYNC)
async def test_async_callers_have_the_same_verbs(request, name):
    at = place(request, name)
    fs = at.cas_of_this_loop()
    session = await fs.set_session() if hasattr(fs.fs, "set_session") else None
    path = f"{at.folder}/a"
    try:
        first = await fs._put_if_absent(path, b"1")
        with pytest.raises(AlreadyExists):
            await fs._pipe_file(path, b"theirs", mode="create")
        with pytest.raises(AlreadyExists):
            await fs._pipe({path: b"theirs"}, mode="create")
        assert (await fs._info(path))["version"] == str(first)
        second = await fs._put_if_match(path, b"2", str(first))
        with pytest.raises(VersionMismatch):
            await fs._put_if_match(path, b"3", first)
        assert await fs._read_if_changed(path, second) is None
        assert (await fs._read_with_version(path)).data == b"2"
        await fs._update(path, lambda old: old + b"!")
        assert await fs._cat_file(path) == b"2!"
        assert [PurePath(p).name for p in await fs._find(at.folder)] == ["a"]
        won = await asyncio.gather(
            *(fs._pipe_file(f"{at.folder}/r", bytes([n]), mode="create") for n in range(6)), return_exceptions=True
        )
        assert sum(isinstance(one, Version) for one in won) == 1
    finally:
        await fs._async_store.backend.close()
        if session is not None and hasattr(session, "close"):
            await session.close()
        for left in list(weakref.finalize._registry):  # adlfs would wait at exit for a loop that is not there
            if name == "azurite" and left.peek() and left.peek()[0] is fs.fs:
                left.detach()


async def test_coroutines_of_a_blocking_target_do_not_block(tmp_path):
    fs = fsspec.filesystem("cas", target_protocol="file")
    assert not fs.async_impl
    version = await fs._put_if_absent(str(tmp_path / "a"), b"1")
    assert (await fs._read_with_version(str(tmp_path / "a"))).version == version


def test_target_without_conditional_writes_is_refused_by_name():
    with pytest.raises(NotSupported, match="data"):
        fsspec.filesystem("cas", target_protocol="data")


def test_missing_target_is_refused_with_the_next_step():
    with pytest.raises(InvalidInput, match="cas::s3://"):
        fsspec.filesystem("cas")


# Lost answers reach fsspec's users as an error they can resolve.


class Faults(CasFileSystem):
    """`cas` over memory, through a network that loses what it is told."""

    cachable = False

    def lose(self, plan):
        self.store = Store(Faulty(MemoryBackend(self.fs), plan))
        return self


def test_lost_answer_is_settled_before_the_caller_sees_it():
    fs = Faults(target_protocol="memory").lose({"put": [LoseAnswer()]})
    version = fs.pipe_file("/lost/1", b"mine", mode="create")
    assert fs.cat_file("/lost/1") == b"mine"
    assert version == fs.store.head("/lost/1").version
    fs.rm("/lost", recursive=True)


class MakesEarly(MemoryBackend):
    """Makes the object of the first part."""

    async def add(self, upload, data, *, timeout_s):
        await self.put(upload.write, data, timeout_s=timeout_s)
        raise OutcomeUnknown("the object was created from the parts so far", path=upload.write.path)


@pytest.mark.parametrize(
    "write",
    [
        lambda fs, data: fs.cp_file("/early/from", "/early/to", if_absent=True),
        lambda fs, data: fs.open("/early/to", "xb").write(data),
    ],
    ids=["copy", "file"],
)
def test_cached_listings_are_dropped_when_a_part_makes_the_object(write):
    dropped = []

    class Cached(MemoryFileSystem):
        cachable = False

        def invalidate_cache(self, path=None):
            dropped.append(path)

    fs, data = CasFileSystem(Cached()), bytes(PART_BYTES + 1)
    fs.pipe_file("/early/from", data)
    fs.store = Store(MakesEarly(fs.fs))
    with pytest.raises(OutcomeUnknown, match="parts so far"):
        write(fs, data)
    assert dropped == ["/early/to", "/early"]
    fs.rm("/early", recursive=True)


def test_unsettled_write_is_unknown_and_can_be_resolved_later():
    fs = Faults(target_protocol="memory").lose({"put": [LoseAnswer()], "head": [LoseRequest()] * 50})
    with pytest.raises(OutcomeUnknown) as unknown:
        fs.put_if_absent("/lost/2", b"mine", timeout=0.2)
    fs.store._async.backend._plan["head"].clear()
    assert unknown.value.resolve() == fs.store.head("/lost/2").version
    fs.rm("/lost", recursive=True)
