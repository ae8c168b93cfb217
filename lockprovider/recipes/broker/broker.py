"""`Broker`: a client that writes for others where it wrote last, and lets another write for it where that did."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as NotYet
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from fsspec_cas import InvalidInput, World
from fsspec_cas.bridge.background import Later
from lockprovider.recipes.broker.frames import BrokenLink, NoFrame, has_hung_up, receive_frame, send_frame
from lockprovider.recipes.broker.handing import (
    Bundle,
    Foreign,
    Handed,
    NotHere,
    Offer,
    after_answer,
    heard,
    offers_of,
    said_of,
    whom_to_ask,
    with_offer,
)
from lockprovider.recipes.broker.service import SILENCE_S, Link, Service
from lockprovider.recipes.errors import CoordinationError

T = TypeVar("T")
_LOG = logging.getLogger("lockprovider")
_ANYWHERE = ("0.0.0.0", "::")  # noqa: S104 - refused: nobody could be told where that is
_AVOIDED_S = 5.0  # one who did not answer
_SIGN_S = 0.5  # between two signs of life to who waits
_SEND_S = 5.0
_ERRORS = (ValueError, KeyError, TypeError, IndexError, AttributeError)


class WireCodec(Protocol[T]):
    """How a recipe's operations and their results are told as JSON."""

    def may_hand_over(self, operation: T) -> bool:
        """Whether another may carry it out; else all that goes with it is carried out here."""

    def say(self, operation: T) -> list[Any]:
        """An operation, as JSON."""

    def understand(self, said: list[Any]) -> T:
        """The operation. Raises ValueError, KeyError, TypeError: it is none."""

    def say_result(self, operation: T, result: Any) -> Any:
        """What it came to, as JSON."""

    def understand_result(self, operation: T, said: Any) -> Any:
        """What it came to. Raises ValueError, KeyError, TypeError: it is none."""


def check_broker(given: bool | str) -> str | None:  # noqa: FBT001 - it is what callers give
    """Where a broker is to listen: "" for a Unix socket; None: there is to be none.

    Raises:
        InvalidInput: it is neither a bool nor the name of an interface.
    """
    if given is False:
        return None
    if given is True:
        return "" if hasattr(socket, "AF_UNIX") else "127.0.0.1"
    if not isinstance(given, str) or not given or given in _ANYWHERE:
        raise InvalidInput(f"broker={given!r} must be True (on this host), or an address of it, e.g. '127.0.0.1'")
    return given


class Broker(Generic[T]):
    """For one client of a queue or a log. Nothing is opened before its first write.

    Args:
        host: the interface to listen at; "": a Unix socket.
        codec: of the operations.
        submit: takes a bundle of another, to be carried out with what is carried out next.
        world: its clock and its ids.
    """

    def __init__(self, host: str, codec: WireCodec[T], submit: Callable[[Bundle[T]], Later[Any]], world: World) -> None:
        self._host = host
        self._place = "network" if host else socket.gethostname()
        self._codec = codec
        self._submit = submit
        self._world = world
        self._service: Service | None = None
        self._link: Link | None = None
        self.be_new()

    def be_new(self) -> None:
        """In a forked child: with a key of its own, and nobody who asks."""
        if self._service is not None:
            self._service.abandon()
        if self._link is not None:
            self._link.close()
        self._service, self._link = None, None
        self._guard = threading.Lock()
        self._avoided: dict[str, float] = {}
        self._closed = self._is_mute = False
        self._mine: Offer | None = None

    def offers(self, there: object) -> object:
        """Who offers to write, for an object that is about to be written here: this one, unless there is another."""
        offer = offers_of(there).get(self._place)
        if offer is not None and not self._is_avoided(offer[0]):
            return there
        mine = self._listening()
        return there if mine is None or offer == mine else with_offer(there, self._place, mine)

    def hand_over(
        self, there: object, operations: Sequence[T | Foreign[T]], sent: Sequence[bool], asked: set[str]
    ) -> Handed | None:
        """Let the one carry them out whom the object names; None: carry them out here.

        `sent` says of each whether it may have been carried out, `asked` whom to ask no more. Those of others are not
        handed on: they are told that it is not here.
        """
        offer = whom_to_ask(there, self._place, self._mine, lambda one: one in asked or self._is_avoided(one))
        mine = [(one, was) for one, was in zip(operations, sent, strict=True) if not isinstance(one, Foreign)]
        if offer is None or not all(self._codec.may_hand_over(one) for one, _ in mine):
            return None
        asked.add(offer[0])
        answers = self._answers(offer, mine) if mine else []
        if answers is None:
            return None
        told = after_answer(answers, [was for _, was in mine])
        if told.results is None:
            flags = iter(told.sent)
            now = zip(operations, sent, strict=True)
            return Handed(None, tuple(was if isinstance(one, Foreign) else next(flags) for one, was in now))
        results = iter(told.results)
        merged = [
            NotHere("another is the broker", sent=was) if isinstance(one, Foreign) else next(results)
            for one, was in zip(operations, sent, strict=True)
        ]
        return Handed(merged, tuple(sent))

    def close(self) -> None:
        """Hang up, and answer nobody more."""
        with self._guard:
            self._closed = True
            service, self._service = self._service, None
        if service is not None:
            service.close()
        if self._link is not None:
            self._link.close()

    def _answers(self, offer: Offer, operations: Sequence[tuple[T, bool]]) -> list[Any] | None:
        """Of each; None: there is too much for a frame, and nobody was asked."""
        said = [[self._codec.say(one), was] for one, was in operations]
        try:
            if self._link is None or self._link.address != offer[0]:
                if self._link is not None:
                    self._link.close()
                self._link = None
                self._link = Link(*offer)
        except BrokenLink as error:
            self._avoid(offer[0])
            return [NotHere(str(error)) for _ in operations]
        try:
            told = self._link.ask(said)
            answers = zip(operations, told, strict=True)
            return [heard(answer, partial(self._codec.understand_result, one)) for (one, _), answer in answers]
        except NoFrame:
            return None
        except (BrokenLink, *_ERRORS) as error:
            self._link.close()
            self._link = None
            self._avoid(offer[0])
            return [NotHere(str(error), sent=True) for _ in operations]

    def _avoid(self, address: str) -> None:
        now_s = self._world.monotonic_s()
        self._avoided = {one: until_s for one, until_s in self._avoided.items() if until_s > now_s}
        self._avoided[address] = now_s + _AVOIDED_S

    def _is_avoided(self, address: str) -> bool:
        return self._avoided.get(address, 0.0) > self._world.monotonic_s()

    def _listening(self) -> Offer | None:
        with self._guard:
            if self._mine is None and not self._closed and not self._is_mute:
                key = self._world.new_id()
                try:
                    self._service = Service(self._host or None, key, self._serve)
                    self._mine = (self._service.address, key)
                except OSError as error:
                    self._is_mute = True
                    place = self._host or "a Unix socket"
                    _LOG.warning("no broker at %s: %s; this process writes for itself alone", place, error)
            return None if self._closed else self._mine

    def _serve(self, peer: socket.socket) -> None:
        while True:
            said = receive_frame(peer, None)
            try:
                number = int(said["ask"])
                bundle = Bundle(
                    tuple(self._codec.understand(one) for one, _ in said["operations"]),
                    tuple(was is not False for _, was in said["operations"]),
                    lambda: not has_hung_up(peer),
                )
            except _ERRORS as error:
                raise BrokenLink(f"not understood: {error!r}") from error
            try:
                send_frame(peer, {"ask": number, "results": self._results(peer, number, bundle)}, _SEND_S)
            except NoFrame as error:  # whoever asked finds what was done when it does it again
                raise BrokenLink(str(error)) from error

    def _results(self, peer: socket.socket, number: int, bundle: Bundle[T]) -> list[Any]:
        try:
            answer = self._submit(bundle)
        except CoordinationError:  # too much waits, or it was closed
            return [said_of(NotHere("it takes no more"), str) for _ in bundle.operations]
        try:
            while True:
                with contextlib.suppress(NotYet):
                    results = answer.result(_SIGN_S)
                    break
                send_frame(peer, {"ask": number}, SILENCE_S)
        except BrokenLink:
            raise
        except (Exception, CancelledError) as error:  # noqa: BLE001 - of this process's store: the other asks its own
            results = [NotHere(str(error), sent=True)] * len(bundle.operations)
        finally:
            answer.cancel()  # of one that is done: nothing
        told = zip(bundle.operations, results, strict=True)
        return [said_of(one, partial(self._codec.say_result, of)) for of, one in told]
