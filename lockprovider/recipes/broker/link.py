"""`Link`: the connection to a broker. One who asks at a time."""

from __future__ import annotations

import contextlib
import socket
from typing import Any

from lockprovider.recipes.broker.frames import CLOCK, BrokenLink, prove_as_asker, receive_frame, send_frame
from lockprovider.recipes.broker.service import TCP, UNIX

_CONNECT_S = 1.0
SILENCE_S = 3.0  # a broker says twice a second that it is there
_ANSWER_S = 20.0  # a broker whose store is silent is left


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
