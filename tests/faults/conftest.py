"""A bench: a store opened through a faulty proxy, and the roads past it by which the truth is found out."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from conformance.facade import Facade

from faults.proxy import FaultProxy
from fsspec_cas import AsyncStore, Store, Unknown, Version, Won

if TYPE_CHECKING:
    from servers.base import Server

    from faults.wire import Request
    from fsspec_cas import Outcome

SERVERS = ("seaweedfs", "fake_gcs", "azurite")
CONDITIONS = ("if-match", "if-none-match", "ifGenerationMatch")


def is_of_proof(request: Request) -> bool:
    """Whether an undocumented store is asked what it does with conditions, before it is trusted."""
    return "cas-probe" in request.target


def is_write(request: Request) -> bool:
    return request.method in {"PUT", "POST"} and not is_of_proof(request)


def is_look(request: Request) -> bool:
    return request.method in {"HEAD", "GET"} and not is_of_proof(request)


def is_delete(request: Request) -> bool:
    return request.method == "DELETE" and not is_of_proof(request)


def conditions(request: Request) -> dict[str, str]:
    """The conditions of a request, whatever the vendor calls them."""
    said = request.headers | request.query
    return {name: said[name] for name in CONDITIONS if name in said}


def identity(request: Request) -> str:
    """The identity of a write, wherever the vendor keeps metadata."""
    headers = request.headers
    given = headers.get("x-amz-meta-cas-id") or headers.get("x-ms-meta-cas_id")
    return given or request.body.partition(b'"cas-id": "')[2][:36].decode()


@dataclass
class Bench:
    """One key on one real server, seen through a proxy (`store`), beside it (`rival`) and by raw HTTP (`truth`)."""

    server: Server
    proxy: FaultProxy
    prefix: str
    store: Store
    rival: Store
    key: str = ""
    asked: list[Request] = field(default_factory=list)  # every write that the client sent, faulty or not

    @property
    def path(self) -> str:
        return f"{self.prefix}/{self.key}"

    def fresh(self) -> Bench:
        """Another key, no rules, nothing seen yet."""
        self.key = uuid.uuid4().hex
        self.proxy.rules.clear()
        self.proxy.delivered.clear()
        self.asked = []
        self.proxy.rule(match=self._record, action=_nothing)
        return self

    def _record(self, request: Request) -> bool:
        if is_write(request):
            self.asked.append(request)
        return False

    def another_store(self) -> Store:
        """Through the proxy as well, with nothing learned about the server's dialect."""
        return Store.from_url(self.prefix, self.server.options_for(self.proxy.endpoint))

    def truth(self) -> tuple[bytes | None, str | None]:
        """Bytes and version that the server holds; None and None where it holds nothing."""
        got = self.server.raw_get(self.path)
        return (got.body, self.server.raw_head(self.path).version) if got.ok else (None, None)

    def applied(self) -> int:
        """How many of the client's writes the server says that it did; a block that Azure stages is none yet."""
        return sum(
            200 <= status < 300
            for method, target, status in self.proxy.delivered
            if method in {"PUT", "POST"} and "comp=block&" not in f"{target}&"
        )

    def rival_writes(self, data: bytes = b"theirs") -> Version:
        """Somebody else's write, under its own identity, past the proxy."""
        try:
            return self.rival.put_if_match(self.key, data, self.rival.head(self.key).version).unwrap()
        except FileNotFoundError:
            return self.rival.put_if_absent(self.key, data).unwrap()

    def won(self, outcome: Outcome, data: bytes) -> bool:
        """A win is in the store at its version, and was applied once."""
        assert isinstance(outcome, Won), outcome
        assert self.truth() == (data, outcome.version.token)
        assert self.applied() == 1
        return True

    def unknown(self, outcome: Outcome) -> Unknown:
        assert isinstance(outcome, Unknown), outcome
        assert outcome.why
        return outcome


async def _nothing(_hop: object) -> None:
    raise AssertionError("a rule that only records was taken")


@pytest.fixture(scope="session")
def benches(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Bench]]:
    """A function that gives a fresh bench on the server of a fixture; proxy and clients are opened once."""
    made: dict[str, Bench] = {}
    with ExitStack() as opened:

        def bench_on(name: str) -> Bench:
            if name not in made:
                server = request.getfixturevalue(name)
                proxy = opened.enter_context(FaultProxy("127.0.0.1", server.port, dialect=server.protocol))
                prefix = server.new_prefix()
                store = Store.from_url(prefix, server.options_for(proxy.endpoint))
                made[name] = Bench(server, proxy, prefix, store, Store.from_url(prefix, server.storage_options))
            return made[name].fresh()

        yield bench_on


@pytest.fixture(params=SERVERS)
def bench(request: pytest.FixtureRequest, benches: Callable[[str], Bench]) -> Bench:
    """On each server in turn."""
    return benches(request.param)


@pytest.fixture
def s3(benches: Callable[[str], Bench]) -> Bench:
    return benches("seaweedfs")


@pytest.fixture
def gcs(benches: Callable[[str], Bench]) -> Bench:
    return benches("fake_gcs")


@pytest.fixture
def azure(benches: Callable[[str], Bench]) -> Bench:
    return benches("azurite")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def async_stores() -> AsyncIterator[Callable[[Bench], Facade]]:
    """A function that gives the async store of a bench, opened once on the loop of the session."""
    made: dict[int, Facade] = {}
    async with AsyncExitStack() as opened:

        def store_of(bench: Bench) -> Facade:
            if bench.proxy.port not in made:
                store = AsyncStore.from_url(bench.prefix, bench.server.options_for(bench.proxy.endpoint))
                opened.push_async_exit(store)
                made[bench.proxy.port] = Facade(store)
            return made[bench.proxy.port]

        yield store_of


@pytest.fixture(params=["sync", "async"])
def store(request: pytest.FixtureRequest, bench: Bench, async_stores: Callable[[Bench], Facade]) -> Facade:
    """The bench's store in either form; for tests on the loop of the session."""
    return Facade(bench.store) if request.param == "sync" else async_stores(bench)
