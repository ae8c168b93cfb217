"""`Service` answers other processes on a socket, each on a thread of its own; `Link` is their side of it."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from fsspec_cas.waiting import Worker
from lockprovider.recipes.broker.frames import (
    CLOCK,
    BrokenLink,
    prove_as_answerer,
    prove_as_asker,
    receive_frame,
    send_frame,
)

UNIX = "unix:"
TCP = "tcp:"
_PEERS = 1000
_BACKLOG = 128
_CONNECT_S = 1.0
SILENCE_S = 3.0  # a broker says twice a second that it is there
_ANSWER_S = 20.0  # a broker whose store is silent is left


class Service:
    """Listens, and calls `serve` with each peer that knows the key; `address` is where.

    A Unix socket is in a folder of its own that only this user may enter, and is removed with it by `close`; of a
    process that is killed it stays. `host`: an interface to listen at with TCP; None: a Unix socket.

    Raises:
        OSError: it cannot listen.
    """

    def __init__(self, host: str | None, key: str, serve: Callable[[socket.socket], None]) -> None:
        self._key = key
        self._serve = serve
        self._guard = threading.Lock()
        self._peers: set[socket.socket] = set()
        self._closed = False
        self._remove: Callable[[], object] = lambda: None
        self._keep: Callable[[], object] = lambda: None
        if host is None:
            folder = tempfile.mkdtemp(prefix="lockprovider-")  # nobody else may enter it
            remove = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            self._remove, self._keep = remove, remove.detach
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            path = os.path.join(folder, "s")  # noqa: PTH118 - a socket's name is text
            self._socket.bind(path)
            self.address = UNIX + path
        else:
            self._socket = socket.create_server((host, 0))
            self.address = f"{TCP}{host}:{self._socket.getsockname()[1]}"
        self._socket.listen(_BACKLOG)
        Worker(self._accept, "broker").start()

    def close(self) -> None:
        """Hang up, and listen no more."""
        with self._guard:
            self._closed = True
            peers = [*self._peers]
        for one in (self._socket, *peers):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for one in (self._socket, *peers):
            one.close()
        self._remove()

    def abandon(self) -> None:
        """In a forked child: its copies of the sockets are closed; the parent goes on with its own."""
        self._keep()
        for one in (self._socket, *self._peers):
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return
            with self._guard:
                is_welcome = not self._closed and len(self._peers) < _PEERS
                if is_welcome:
                    self._peers.add(peer)
            if is_welcome:
                Worker(partial(self._answer, peer), "broker-peer").start()
            else:
                peer.close()

    def _answer(self, peer: socket.socket) -> None:
        try:
            with contextlib.suppress(BrokenLink):
                prove_as_answerer(peer, self._key)
                self._serve(peer)
        finally:
            with self._guard:
                self._peers.discard(peer)
            peer.close()


class Link:
    """To the broker at an address, which has proved that it knows the key.

    Raises:
        BrokenLink: there is none.
    """

    def __init__(self, address: str, key: str) -> None:
        self.address = address
        self._asked = 0
        try:
            if address.startswith(UNIX):
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                self._socket.settimeout(_CONNECT_S)
                self._socket.connect(address.removeprefix(UNIX))
            elif address.startswith(TCP):
                host, _, port = address.removeprefix(TCP).rpartition(":")
                self._socket = socket.create_connection((host, int(port)), _CONNECT_S)
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            else:
                raise BrokenLink(f"{address!r} is no address")  # noqa: TRY301
            prove_as_asker(self._socket, key)
        except (OSError, ValueError, AttributeError) as error:
            self.close()
            raise BrokenLink(f"{address}: {error}") from error
        except BrokenLink:
            self.close()
            raise

    def ask(self, said: list[Any]) -> list[Any]:
        """The answers to these, one for each. After a BrokenLink it is closed, and is not to be used again.

        Raises:
            BrokenLink: nobody knows what became of them.
            NoFrame: nothing was asked.
        """
        self._asked += 1
        end_s = CLOCK.monotonic_s() + _ANSWER_S
        try:
            send_frame(self._socket, {"ask": self._asked, "operations": said}, SILENCE_S)
            while CLOCK.monotonic_s() < end_s:
                answer = receive_frame(self._socket, SILENCE_S)
                if answer.get("ask") != self._asked:
                    raise BrokenLink("an answer to something else")  # noqa: TRY301
                results = answer.get("results")
                if isinstance(results, list) and len(results) == len(said):
                    return results
                if results is not None:
                    raise BrokenLink("not an answer for each")  # noqa: TRY301
            raise BrokenLink(f"no answer in {_ANSWER_S:g} s")  # noqa: TRY301
        except BrokenLink:
            self.close()
            raise

    def close(self) -> None:
        """Hang up."""
        with contextlib.suppress(OSError, AttributeError):
            self._socket.close()
