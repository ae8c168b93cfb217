"""What each verb comes to behind a gateway that answers in the store's place, once or for good; files inherit.

Allowed results, by verb, for a wrong answer that comes once / for good:

    read, head, list           the truth                     Unavailable
    create, match              Won                           Unknown, Unavailable where nothing can have been sent
    create, match that lose    Lost or Unknown               Unknown
    delete                     done, and the object is gone  Unavailable; still there, unless it reached the store
    delete at a version        Won or Unknown                Unknown or Unavailable

A store of your own: `pytest -m live --store URL` asks the same, with wrong answers put in place of the store's inside
the client (`answered_inside`). Or inherit with a `gatewayed` fixture, which gives (store through the gateway, the
gateway, and the same store without it).
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPResponse
from typing import Any, Literal

import pytest

from fsspec_cas import Lost, Store, Unavailable, Unknown, Won
from fsspec_cas.backends.reply import HttpReply, StoreRequest
from fsspec_cas.testing import WRONG_ANSWERS, Gateway, Rule

ANSWERS = ("404 text", "200 html etag", "200 empty etag", "204", "302 redirect", "304", "412 page", "403 page")
Mode = Literal["instead", "after"]


@contextmanager
def behind_gateway(server: Any) -> Iterator[tuple[Store, Gateway, Store]]:
    """A store of this server's through a gateway, the gateway, and the same store without it."""
    url = server.new_prefix()
    with Gateway("127.0.0.1", server.port) as gateway:
        yield (
            Store.from_url(url, server.options_for(gateway.endpoint)),
            gateway,
            Store.from_url(url, server.storage_options),
        )


class InsideTheClient:
    """Gives a client the answers of `rules` in place of its store's. No proxy has to carry TLS or a signed `Host`."""

    def __init__(self, store: Store) -> None:
        self.rules: list[Rule] = []
        listener = store.backend
        self._exchange = listener._exchange
        listener._exchange = self._answer

    async def _answer(self, asked: StoreRequest, timeout_s: float) -> Any:
        rule = next((rule for rule in self.rules if rule.takes(asked.verb.value, asked.path)), None)
        if rule is not None and rule.mode == "instead":
            return parsed(rule.answer)
        reply = await self._exchange(asked, timeout_s)
        return reply if rule is None else parsed(rule.answer)


def parsed(answer: bytes) -> HttpReply:
    """The raw bytes of an answer as a transport gives them to a dialect."""
    here, there = socket.socketpair()
    with here, there:
        here.sendall(answer)
        here.shutdown(socket.SHUT_WR)
        response = HTTPResponse(there)
        response.begin()
        return HttpReply(response.status, response.getheaders(), response.read())


@contextmanager
def answered_inside(url: str, options: dict[str, Any]) -> Iterator[tuple[Store, InsideTheClient, Store]]:
    """A store that hears wrong answers, the rules of them, and the same store without them."""
    store, truth = (Store.from_url(url, {**options, "skip_instance_cache": True}) for _ in range(2))
    assert store.backend is not truth.backend
    yield store, InsideTheClient(store), truth


class WrongAnswers:
    """No verb says what is not so. `loses_at_once`: a conditional delete is enforced by this server."""

    @pytest.fixture(params=["instead", "after"])
    def mode(self, request: pytest.FixtureRequest) -> Mode:
        return request.param

    def test_single_wrong_answer_changes_no_outcome(self, gatewayed, mode):
        store, gateway, truth = gatewayed
        for number, name in enumerate(ANSWERS):
            path = f"once/{number}"
            version = truth.put_if_absent(path, b"1").unwrap()

            def once() -> None:
                gateway.rules[:] = [Rule(WRONG_ANSWERS[name], mode)]  # noqa: B023 - called in this round

            once()
            assert store.read(path).data == b"1", name
            once()
            assert store.head(path).version == version, name
            once()
            assert [entry.path for entry in store.list(path)] == [path], name
            once()
            assert isinstance(store.put_if_absent(f"{path}-new", b"new"), Won), name
            assert truth.read(f"{path}-new").data == b"new"
            once()
            assert isinstance(store.put_if_absent(path, b"other"), (Lost, Unknown)), name
            assert truth.read(path).data == b"1"
            once()
            second = store.put_if_match(path, b"2", version)
            assert isinstance(second, Won), name
            assert truth.read(path).data == b"2"
            once()
            assert isinstance(store.put_if_match(path, b"3", version), (Lost, Unknown)), name
            once()
            store.delete(path)
            assert truth.read_or_none(path) is None, name
            gateway.rules.clear()

    def test_permanent_wrong_answer_is_never_a_result(self, gatewayed, mode):
        store, gateway, truth = gatewayed
        store.list("")  # so that the store is known
        timeout = 0.1 if mode == "instead" else 0.3  # until then it is asked again; "after", the store must hear it
        for number, name in enumerate(ANSWERS):
            path = f"good/{number}"
            version = truth.put_if_absent(path, b"1").unwrap()
            gateway.rules[:] = [Rule(WRONG_ANSWERS[name], mode, times=None)]
            for ask in (store.read, store.head, store.list):
                with pytest.raises(Unavailable):
                    ask(path, timeout=timeout)
            created = outcome_of(store.put_if_absent, f"{path}-new", b"new", timeout=timeout)
            replaced = outcome_of(store.put_if_match, path, b"2", version, timeout=timeout)
            assert isinstance(created, (Unknown, Unavailable)), name
            assert isinstance(replaced, (Unknown, Unavailable)), name
            assert (truth.read_or_none(f"{path}-new") is None) is (mode == "instead"), name
            with pytest.raises(Unavailable):
                store.delete(path, timeout=timeout)
            if mode == "instead":
                assert truth.read(path).data == b"1", name
            gateway.rules.clear()


def outcome_of(write: Any, *args: object, timeout: float) -> object:
    """The outcome, or the error in its place."""
    try:
        return write(*args, timeout=timeout)
    except Unavailable as error:
        return error
