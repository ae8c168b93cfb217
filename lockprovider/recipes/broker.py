"""Broker: a process that writes a queue or log for its host (Unix socket), or all hosts (TCP).

See `broker_rules`.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import os
import secrets
import selectors
import shutil
import socket
import struct
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as NotYet
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from fsspec_cas import InvalidInput, Machine, World
from fsspec_cas.bridge.threads import Later
from fsspec_cas.machine import Signal, Worker
from lockprovider.bounded import check_fits, parse_object, undecodable_as
from lockprovider.recipes import broker_rules
from lockprovider.recipes.broker_rules import Bundle, Foreign, HandedOver, NotHere, Offer, offers_of, without_bundle
from lockprovider.recipes.errors import CoordinationError

# Frames: JSON behind its length. After the proofs they are neither signed nor encrypted.
_LENGTH = struct.Struct(">I")
_HELLO_BYTES = 1024  # before the proof
FRAME_BYTES = 8 << 20
_HELLO_S = 2.0
_VERSION = 2
CLOCK = Machine()


class BrokenLink(Exception):
    """The peer is gone, lacks the key, or sent invalid data."""


class NoFrame(Exception):
    """The content makes no frame; nothing was sent."""


def send_frame(link: socket.socket, content: dict[str, Any], timeout_s: float) -> None:
    """Send JSON behind its length; changes `link`'s timeout.

    NoFrame, nothing sent: no JSON, or above 8 MiB. BrokenLink: a failure, or `timeout_s`; a part may be sent.
    """
    with undecodable_as(NoFrame, "the content makes no frame"):
        data = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
        check_fits(data, most=FRAME_BYTES)
    try:
        link.settimeout(timeout_s)
        link.sendall(_LENGTH.pack(len(data)) + data)
    except OSError as error:
        raise BrokenLink(str(error)) from error


def receive_frame(link: socket.socket, timeout_s: float | None, most: int = FRAME_BYTES) -> dict[str, Any]:
    """Receive a JSON object; changes `link`'s timeout.

    Raises BrokenLink for others, above `most` bytes, at a hang-up, or after `timeout_s` (None: never).
    """
    end_s = None if timeout_s is None else CLOCK.monotonic_s() + timeout_s
    size = _LENGTH.unpack(_exactly(link, _LENGTH.size, end_s))[0]
    if size > most:
        raise BrokenLink(f"a frame of {size} bytes")
    data = _exactly(link, size, end_s)
    with undecodable_as(BrokenLink, "a frame is not understood"):
        return parse_object(data, most=most)


def _exactly(link: socket.socket, size: int, end_s: float | None) -> bytes:
    """Receive `size` bytes; changes the socket's timeout.

    Raises BrokenLink at a hang-up, or at `end_s` (monotonic).
    """
    parts: list[bytes] = []
    while size > 0:
        left_s = None if end_s is None else end_s - CLOCK.monotonic_s()
        if left_s is not None and left_s <= 0:
            raise BrokenLink("silence")
        try:
            link.settimeout(left_s)
            part = link.recv(min(size, 1 << 20))
        except OSError as error:
            raise BrokenLink(str(error)) from error
        if not part:
            raise BrokenLink("the other process closed the connection")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def prove(link: socket.socket, key: str, *, asks: bool) -> None:
    """Exchange proofs that each side knows `key`; changes `link`'s timeout, never closes it.

    `asks`: this side sends the requests. Raises BrokenLink for a wrong proof, another version, or 2 s of silence.
    """
    own = secrets.token_hex(16)
    send_frame(link, {"v": _VERSION, "nonce": own}, _HELLO_S)
    hello = receive_frame(link, _HELLO_S, _HELLO_BYTES)
    nonce = hello.get("nonce")
    if hello.get("v") != _VERSION or not isinstance(nonce, str):
        raise BrokenLink("the other process has another version")
    nonces = f"{own} {nonce}" if asks else f"{nonce} {own}"
    own_side, other_side = ("asks", "answers") if asks else ("answers", "asks")
    send_frame(link, {"proof": _proof(key, own_side, nonces)}, _HELLO_S)
    proof = receive_frame(link, _HELLO_S, _HELLO_BYTES).get("proof")
    if not isinstance(proof, str) or not hmac.compare_digest(proof.encode(), _proof(key, other_side, nonces).encode()):
        raise BrokenLink("the other process does not know the key")


def _proof(key: str, side: str, nonces: str) -> str:
    return hmac.new(key.encode(), f"{side} {nonces}".encode(), "sha256").hexdigest()


def has_hung_up(link: socket.socket) -> bool:
    try:
        with selectors.DefaultSelector() as ready:
            ready.register(link, selectors.EVENT_READ)
            return bool(ready.select(0))  # a waiting peer sends nothing
    except (OSError, ValueError):
        return True


UNIX = "unix:"
TCP = "tcp:"
_PEERS = 1000
_BACKLOG = 128
_CONNECT_S = 1.0
_AGAIN_S = 1.0
SILENCE_S = 3.0  # of a dead broker
_ANSWER_S = 20.0  # of a broker whose store is silent


class Service:
    """Listens once created; calls `serve` on a thread for each peer that proves the key.

    `host` None: Unix socket in a private folder.
    """

    def __init__(self, host: str | None, key: str, serve: Callable[[socket.socket], None]) -> None:
        self._key = key
        self._serve = serve
        self._guard = threading.Lock()
        self._peers: set[socket.socket] = set()
        self._over = Signal()
        self._folder: weakref.finalize[..., Any] | None = None
        if host is None:
            folder = tempfile.mkdtemp(prefix="lockprovider-")
            self._folder = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            path = os.path.join(folder, "s")  # noqa: PTH118 - a socket's name is text
            self._socket.bind(path)
            self.address = UNIX + path
        else:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._socket = socket.create_server((host, 0), family=family)
            self.address = f"{TCP}{host}:{self._socket.getsockname()[1]}"
        self._socket.listen(_BACKLOG)
        Worker(self._accept, "broker").start()

    def close(self) -> None:
        """Stop listening, close all connections, and remove a Unix socket's folder. Waits for no thread."""
        with self._guard:
            self._over.set()
            peers = [*self._peers]
        for open_socket in (self._socket, *peers):
            with contextlib.suppress(OSError):
                open_socket.shutdown(socket.SHUT_RDWR)
        for open_socket in (self._socket, *peers):
            open_socket.close()
        if self._folder is not None:
            self._folder()

    def abandon(self) -> None:
        if self._folder is not None:
            self._folder.detach()
        for open_socket in (self._socket, *self._peers):
            open_socket.close()

    def _accept(self) -> None:
        """Accept connections and admit each peer, until closed.

        A failure waits a second; the first of several is logged.
        """
        is_failing = False
        while True:
            try:
                self._admit(self._socket.accept()[0])
                is_failing = False
            except (OSError, RuntimeError) as error:
                if not is_failing and not self._over.is_set():
                    _LOG.warning("the broker at %s takes no client now, and tries again: %s", self.address, error)
                is_failing = True
                if self._over.wait(_AGAIN_S):
                    return

    def _admit(self, peer: socket.socket) -> None:
        """Answer the peer on a new thread; hang up once closed, or beyond 1000 peers.

        If no thread starts, hangs up and raises RuntimeError.
        """
        with self._guard:
            is_welcome = not self._over.is_set() and len(self._peers) < _PEERS
            if is_welcome:
                self._peers.add(peer)
        if not is_welcome:
            peer.close()
            return
        try:
            Worker(partial(self._answer, peer), "broker-peer").start()
        except RuntimeError:
            self._hang_up(peer)
            raise

    def _hang_up(self, peer: socket.socket) -> None:
        with self._guard:
            self._peers.discard(peer)
        peer.close()

    def _answer(self, peer: socket.socket) -> None:
        try:
            with contextlib.suppress(BrokenLink):
                prove(peer, self._key, asks=False)
                self._serve(peer)
        finally:
            self._hang_up(peer)


class Link:
    """Connects to a broker when created, and exchanges proofs; may raise BrokenLink."""

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
                raise BrokenLink(f"{address!r} is not an address")  # noqa: TRY301
            prove(self._socket, key, asks=True)
        except (BrokenLink, OSError, OverflowError, ValueError, AttributeError) as error:
            self.close()
            raise BrokenLink(f"{address}: {error}") from error

    def ask(self, encoded: list[Any]) -> list[Any]:
        """Send encoded operations; return the encoded results in order. NoFrame: nothing was sent.

        After 3 s of silence, 20 s in all, or a wrong answer, closes the link and raises BrokenLink: they may be done.
        """
        self._asked += 1
        end_s = CLOCK.monotonic_s() + _ANSWER_S
        try:
            send_frame(self._socket, {"ask": self._asked, "operations": encoded}, SILENCE_S)
            while CLOCK.monotonic_s() < end_s:
                answer = receive_frame(self._socket, SILENCE_S)
                results = answer.get("results")
                if answer.get("ask") == self._asked and isinstance(results, list) and len(results) == len(encoded):
                    return results
                if answer.get("ask") != self._asked or results is not None:
                    raise BrokenLink("an answer to something else, or not for each operation")  # noqa: TRY301
            raise BrokenLink(f"no answer in {_ANSWER_S:g} s")  # noqa: TRY301
        except BrokenLink:
            self.close()
            raise

    def close(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            self._socket.close()


T = TypeVar("T")
_LOG = logging.getLogger("lockprovider")
_ANYWHERE = ("0.0.0.0", "::")  # noqa: S104 - no other process could find that address
_AVOIDED_S = 5.0
_SIGN_S = 0.5
_SEND_S = 5.0


class WireCodec(Protocol[T]):
    def may_hand_over(self, operation: T) -> bool:
        """Whether a broker may carry it out."""

    def encode(self, operation: T) -> list[Any]: ...

    def decode(self, encoded: list[Any]) -> T: ...

    def encode_result(self, result: Any) -> Any: ...

    def decode_result(self, operation: T, encoded: Any) -> Any: ...


def check_broker(broker: bool | str) -> str | None:  # noqa: FBT001 - the value of a public argument
    """Return the interface of a `broker=` argument: None for False, an address as it is, "" (a Unix socket) for True.

    Without such sockets 127.0.0.1. Raises InvalidInput for other values, 0.0.0.0 and ::.
    """
    if broker is False:
        return None
    if broker is True:
        return "" if hasattr(socket, "AF_UNIX") else "127.0.0.1"
    if not isinstance(broker, str) or not broker or broker in _ANYWHERE:
        raise InvalidInput(
            f"broker={broker!r} must be True (on this host) or an address of this host, e.g. '127.0.0.1'"
        )
    return broker


class Broker(Generic[T]):
    """Hands a client's batches to the broker that the object names, or offers to be it.

    `host`: TCP interface, "" for a Unix socket, or None: does neither.
    """

    def __init__(
        self, host: str | None, codec: WireCodec[T], submit: Callable[[Bundle[T]], Later[Any]], world: World
    ) -> None:
        self._host = host
        self._host_name = "network" if host else socket.gethostname()
        self._codec = codec
        self._submit = submit
        self._world = world
        self._service: Service | None = None
        self._link: Link | None = None
        self.reset()

    def reset(self) -> None:
        """Close a forked child's copies of the sockets, and forget the own offer, avoided brokers, and `close`."""
        if self._service is not None:
            self._service.abandon()
        self._service = None
        self._guard = threading.Lock()
        self._hang_up()
        self._avoided: dict[str, float] = {}
        self._closed = self._is_mute = False
        self._own_offer: Offer | None = None

    def offers(self, named: object) -> object:
        """Return the object's next brokers: `named` ({host: [address, key]}), or a copy with this process.

        This process is added, and starts to listen, if its host (by TCP: the network) has no broker, or its broker
        failed within 5 s. Never with `host` None. The new broker may displace the oldest of 8.
        """
        if self._host is None:
            return named
        offer = offers_of(named).get(self._host_name)
        if offer is not None and not self._is_avoided(offer[0]):
            return named
        own_offer = self._listening()
        if own_offer is None or offer == own_offer:
            return named
        return broker_rules.with_offer(named, self._host_name, own_offer)

    def hand_over(
        self, named: object, operations: Sequence[T | Foreign[T]], sent: Sequence[bool], asked_addresses: set[str]
    ) -> HandedOver | None:
        """Ask this host's (TCP: network's) broker in `named` to do this process's operations, and wait.

        None: this process must do them. `sent` marks operations that may be done, also in the result; its `results`
        (maybe errors) are None if any operation remains. Other processes' operations get `NotHere`. Skips
        `asked_addresses`, and adds the asked one.
        """
        if self._host is None:
            return None

        def is_out(address: str) -> bool:
            return address in asked_addresses or self._is_avoided(address)

        offer = broker_rules.broker_to_ask(named, self._host_name, self._own_offer, is_out)
        own = {index: operation for index, operation in enumerate(operations) if not isinstance(operation, Foreign)}
        if offer is None or not all(map(self._codec.may_hand_over, own.values())):
            return None
        asked_addresses.add(offer[0])
        own_sent = [sent[index] for index in own]
        answers = self._answers(offer, [*zip(own.values(), own_sent, strict=True)]) if own else []
        if answers is None:
            return None
        outcome = broker_rules.combine_answers(answers, own_sent)
        if outcome.results is None:
            flags = dict(zip(own, outcome.sent, strict=True))
            return HandedOver(None, tuple(flags.get(index, was) for index, was in enumerate(sent)))
        results = dict(zip(own, outcome.results, strict=True))
        gone = "another process is the broker"
        merged = [results[index] if index in own else NotHere(gone, sent=was) for index, was in enumerate(sent)]
        return HandedOver(merged, tuple(sent))

    def close(self) -> None:
        """Stop this process's broker and close its link to another; no broker starts again."""
        with self._guard:
            self._closed = True
            service, self._service = self._service, None
        if service is not None:
            service.close()
        self._hang_up()

    def _answers(self, offer: Offer, operations: Sequence[tuple[T, bool]]) -> list[Any] | None:
        """Ask the broker in `offer`, connecting if needed; return each operation's result or error.

        The flags mark operations that may be done. None: they make no frame. If connecting or asking fails, each gets
        `NotHere`, `sent` after asking, and the broker is avoided for 5 s.
        """
        encoded = [[self._codec.encode(operation), was] for operation, was in operations]
        is_sent = False
        try:
            link = self._linked(offer)
            is_sent = True
            answers = zip(operations, link.ask(encoded), strict=True)
            with undecodable_as(BrokenLink, "an answer is not understood"):
                return [
                    broker_rules.decode_result(answer, partial(self._codec.decode_result, operation))
                    for (operation, _), answer in answers
                ]
        except NoFrame:
            return None
        except BrokenLink as error:
            self._hang_up()
            now_s = self._world.monotonic_s()
            self._avoided = {address: until_s for address, until_s in self._avoided.items() if until_s > now_s}
            self._avoided[offer[0]] = now_s + _AVOIDED_S
            return [NotHere(str(error), sent=is_sent) for _ in operations]

    def _linked(self, offer: Offer) -> Link:
        """Return the link to the broker in `offer`, else close another's and connect.

        May raise BrokenLink, as once closed.
        """
        link = self._link
        if link is None or link.address != offer[0]:
            self._hang_up()
            link = Link(*offer)
            with self._guard:  # A batch may outlast `close`, which has a timeout.
                is_closed = self._closed
                self._link = None if is_closed else link
            if is_closed:
                link.close()
                raise BrokenLink("this client was closed")
        return link

    def _hang_up(self) -> None:
        with self._guard:
            link, self._link = self._link, None
        if link is not None:
            link.close()

    def _is_avoided(self, address: str) -> bool:
        return self._avoided.get(address, 0.0) > self._world.monotonic_s()

    def _listening(self) -> Offer | None:
        """Start this process's broker on the first call; return its address and key.

        None: closed, or not started, which is logged, and not retried.
        """
        with self._guard:
            if self._own_offer is None and not self._closed and not self._is_mute:
                key = self._world.new_id()
                try:
                    self._service = Service(self._host or None, key, self._serve)
                    self._own_offer = (self._service.address, key)
                except (OSError, RuntimeError) as error:
                    self._is_mute = True
                    interface = self._host or "a Unix socket"
                    _LOG.warning("no broker at %s: %s; this process writes for itself", interface, error)
            return None if self._closed else self._own_offer

    def _serve(self, peer: socket.socket) -> None:
        """Answer the peer's requests in turn, until it raises BrokenLink.

        Cause: a hang-up, a malformed request, or an unsent answer.
        """
        while True:
            request = receive_frame(peer, None)
            with undecodable_as(BrokenLink, "operations are not understood"):
                number = int(request["ask"])
                bundle = Bundle(
                    tuple(self._codec.decode(encoded) for encoded, _ in request["operations"]),
                    tuple(was is not False for _, was in request["operations"]),
                    lambda: not has_hung_up(peer),
                )
            try:
                send_frame(peer, {"ask": number, "results": self._results(peer, number, bundle)}, _SEND_S)
            except NoFrame as error:  # the asker repeats its operations
                raise BrokenLink(str(error)) from error

    def _results(self, peer: socket.socket, number: int, bundle: Bundle[T]) -> list[Any]:
        """Submit a bundle to this process's batcher; return its encoded results.

        Sends the peer a sign of life each 0.5 s. After an error each is `NotHere`; BrokenLink cancels the bundle,
        unless a write took it, and is raised.
        """
        try:
            answer = self._submit(bundle)
        except CoordinationError:
            return [broker_rules.encode_result(NotHere("it takes no more"), str) for _ in bundle.operations]
        try:
            while True:
                with contextlib.suppress(NotYet):
                    answer.exception(_SIGN_S)
                    break
                send_frame(peer, {"ask": number}, SILENCE_S)
            results = answer.result()  # or a TimeoutError
        except BrokenLink:
            raise
        except (Exception, CancelledError) as error:  # noqa: BLE001 - the asker tries its own store
            results = [NotHere(str(error), sent=True)] * len(bundle.operations)
        finally:
            answer.cancel()
        return [broker_rules.encode_result(result, self._codec.encode_result) for result in results]


class Handover(Generic[T]):
    """Batch for a broker; `handed` marks operations that another process may do or have done."""

    def __init__(self, operations: Sequence[T | Foreign[T]], broker: Broker[T]) -> None:
        self.handed = tuple(isinstance(operation, Foreign) and operation.sent for operation in operations)
        self._operations = operations
        self._broker = broker
        self._asked: set[str] = set()
        self._left_out: dict[int, NotHere] = {}

    def ask(self, named: object, sent: Sequence[bool]) -> HandedOver | None:
        handed = self._broker.hand_over(named, self._operations, sent, self._asked)
        if handed is not None:
            self.handed = handed.sent
        return handed

    def to_carry_out(self, sent: Sequence[bool], nothing: T, adds_a_name: Callable[[T], bool]) -> list[T]:
        """Return the operations to write here, unwrapped, with `nothing` for those left out.

        Remembers these as `NotHere`, flagged by `sent` (may be done). Left out are foreign operations of closed
        connections, or for which `adds_a_name` is True.
        """
        self._left_out = {}
        hung_up: dict[int, bool] = {}
        for index, operation in enumerate(self._operations):
            if isinstance(operation, Foreign) and (
                hung_up.setdefault(id(operation.bundle), not operation.bundle.is_connected())
                or adds_a_name(operation.operation)
            ):
                not_here = NotHere("its name is to be added by its own client", sent=sent[index])
                self._left_out[index] = not_here
        return [
            nothing if index in self._left_out else without_bundle(operation)
            for index, operation in enumerate(self._operations)
        ]

    def with_left_out(self, results: Sequence[Any]) -> list[Any]:
        return [self._left_out.get(index, result) for index, result in enumerate(results)]

    def outcomes(self, results: Sequence[Any], unknown: Callable[[str], Exception]) -> list[Any]:
        answers = zip(results, self.handed, strict=True)
        return [
            unknown(str(result)) if broker_rules.is_unknown(result, handed=handed) else result
            for result, handed in answers
        ]
