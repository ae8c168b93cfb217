"""What goes over a socket: JSON behind its length, at most 8 MiB, and a proof of both sides that they know the key.

The answering side sends a nonce; who asks sends one of its own, and the HMAC of both; then the other sends its HMAC.
After that frames are neither signed nor encrypted: over a network this is for trusted ones.
"""

from __future__ import annotations

import hmac
import json
import secrets
import selectors
import socket
import struct
from typing import Any

from fsspec_cas import Machine

_LENGTH = struct.Struct(">I")
_HELLO_BYTES = 1024  # before the key is proved
FRAME_BYTES = 8 << 20
_HELLO_S = 2.0
_VERSION = 1
CLOCK = Machine()  # sockets know no other


class BrokenLink(Exception):
    """The other side hung up, was silent, does not know the key, or sent what cannot be understood."""


class NoFrame(Exception):
    """It is larger than a frame may be, or JSON cannot say it; nothing was sent."""


def send_frame(link: socket.socket, said: dict[str, Any], timeout_s: float) -> None:
    """Send it.

    Raises:
        NoFrame: see there.
        BrokenLink: the other side does not take it.
    """
    try:
        data = json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise NoFrame(str(error)) from error
    if len(data) > FRAME_BYTES:
        raise NoFrame(f"a frame of {len(data)} bytes")
    try:
        link.settimeout(timeout_s)
        link.sendall(_LENGTH.pack(len(data)) + data)
    except OSError as error:
        raise BrokenLink(str(error)) from error


def receive_frame(link: socket.socket, timeout_s: float | None, most: int = FRAME_BYTES) -> dict[str, Any]:
    """The next one, of which all comes within so many seconds (None: whenever).

    Raises:
        BrokenLink: none came.
    """
    end_s = None if timeout_s is None else CLOCK.monotonic_s() + timeout_s
    size = _LENGTH.unpack(_exactly(link, _LENGTH.size, end_s))[0]
    if size > most:
        raise BrokenLink(f"a frame of {size} bytes")
    try:
        data = _exactly(link, size, end_s)
        said = json.loads(data)
        if b"\\u" in data:  # half of a pair would spoil the object's bytes
            json.dumps(said, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise BrokenLink(f"no JSON: {error}") from error
    if not isinstance(said, dict):
        raise BrokenLink("no JSON object")
    return said


def _exactly(link: socket.socket, size: int, end_s: float | None) -> bytes:
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
            raise BrokenLink("the other side hung up")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def prove_as_asker(link: socket.socket, key: str) -> None:
    """Raises BrokenLink: the other side does not know the key."""
    nonce = _nonce(receive_frame(link, _HELLO_S, _HELLO_BYTES))
    own = secrets.token_hex(16)
    send_frame(link, {"v": _VERSION, "nonce": own, "proof": _proof(key, "asks", nonce, own)}, _HELLO_S)
    _check(receive_frame(link, _HELLO_S, _HELLO_BYTES), _proof(key, "answers", nonce, own))


def prove_as_answerer(link: socket.socket, key: str) -> None:
    """Raises BrokenLink: the other side does not know the key."""
    own = secrets.token_hex(16)
    send_frame(link, {"v": _VERSION, "nonce": own}, _HELLO_S)
    said = receive_frame(link, _HELLO_S, _HELLO_BYTES)
    nonce = _nonce(said)
    _check(said, _proof(key, "asks", own, nonce))
    send_frame(link, {"proof": _proof(key, "answers", own, nonce)}, _HELLO_S)


def _nonce(said: dict[str, Any]) -> str:
    nonce = said.get("nonce")
    if said.get("v") != _VERSION or not isinstance(nonce, str):
        raise BrokenLink("another version")
    return nonce


def _proof(key: str, side: str, first: str, second: str) -> str:
    return hmac.new(key.encode(), f"{side} {first} {second}".encode(), "sha256").hexdigest()


def _check(said: dict[str, Any], proof: str) -> None:
    given = said.get("proof")
    if not isinstance(given, str) or not hmac.compare_digest(given.encode(), proof.encode()):
        raise BrokenLink("it does not know the key")


def has_hung_up(link: socket.socket) -> bool:
    """Whether the other side, which says nothing now, is gone; without waiting, and beside one who sends."""
    try:
        with selectors.DefaultSelector() as ready:
            ready.register(link, selectors.EVENT_READ)
            return bool(ready.select(0))  # it is silent while it waits for an answer
    except (OSError, ValueError):
        return True
