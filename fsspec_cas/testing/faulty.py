"""A clock that advances only by command, and a backend with planned faults."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args

from fsspec_cas.answer import (
    NoAnswer,
    NotApplied,
)
from fsspec_cas.backends import Backend, Relay
from fsspec_cas.clock import World
from fsspec_cas.errors import InvalidInput

A = TypeVar("A")
Ask = Callable[[], Coroutine[Any, Any, A]]
Operation = Literal["put", "head", "get", "delete", "list_page", "begin", "add", "finish"]


@dataclass(slots=True)
class ManualClock:
    """A deterministic `World`: time advances only by `advance()` or `sleep()`; ids count up from 1.

    `sleeps` records the pauses, in seconds. `random()` returns `draw`.

    >>> clock = ManualClock(now_s=1000.0, draw=0.25)
    """

    now_s: float = 1_700_000_000.0
    draw: float = 0.5
    sleeps: list[float] = field(default_factory=list)
    _ids: int = 0

    def now_ms(self) -> int:
        """The clock in epoch ms."""
        return int(self.now_s * 1000)

    def monotonic_s(self) -> float:
        """The same clock, in seconds."""
        return self.now_s

    def new_id(self) -> str:
        """The next id, in the form of a UUID."""
        self._ids += 1
        return f"00000000-0000-0000-0000-{self._ids:012x}"

    def random(self) -> float:
        """The constant `draw`."""
        return self.draw

    def sleep(self, seconds: float) -> None:
        """Advance the clock without waiting, and record the pause."""
        self.sleeps.append(seconds)
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Advance the clock.

        >>> clock.advance(5)
        >>> clock.now_s
        1005.0
        """
        self.now_s += seconds


@dataclass(frozen=True, slots=True)
class Pass:
    """No fault: the request passes.

    >>> backend = Store.from_url("memory://docs/store").backend
    >>> faulty = Faulty(backend, {"put": [Pass(), LoseAnswer()]})
    >>> first = Store(faulty, "/docs").put_if_absent("a", b"1").unwrap()
    >>> faulty.fired
    []
    """


@dataclass(frozen=True, slots=True)
class LoseRequest:
    """The request never arrives, and the caller gets no answer.

    >>> backend = Store.from_url("memory://docs/store").backend
    >>> faulty = Faulty(backend, {"put": [LoseRequest()]})
    >>> Store(faulty, "/docs").put_if_absent("a", b"1").resent
    True
    """


@dataclass(frozen=True, slots=True)
class LoseAnswer:
    """The request is performed, and its answer is lost.

    >>> backend = Store.from_url("memory://docs/store").backend
    >>> faulty = Faulty(backend, {"put": [LoseAnswer()]})
    >>> isinstance(Store(faulty, "/docs").put_if_absent("a", b"1"), Won), faulty.calls
    (True, ['put', 'head'])
    """


@dataclass(frozen=True, slots=True)
class Refuse:
    """The store rejects the request, certainly unapplied: 429, 409 "conflict", no connection.

    >>> backend = Store.from_url("memory://docs/store").backend
    >>> faulty = Faulty(backend, {"put": [Refuse()]})
    >>> isinstance(Store(faulty, "/docs", world=ManualClock()).put_if_absent("a", b"1"), Won), faulty.calls
    (True, ['put', 'head', 'put'])
    """

    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Delay:
    """Time passes, then the request is performed.

    >>> backend, clock = Store.from_url("memory://docs/store").backend, ManualClock()
    >>> faulty = Faulty(backend, {"put": [Delay(3)]}, world=clock)
    >>> done = Store(faulty, "/docs", world=clock).put_if_absent("a", b"1")
    >>> clock.sleeps
    [3]
    """

    seconds: float


@dataclass(frozen=True, slots=True)
class DeliverTwice:
    """A proxy sends the request twice and returns the second answer.

    >>> backend = Store.from_url("memory://docs/store").backend
    >>> faulty = Faulty(backend, {"put": [DeliverTwice()]})
    >>> isinstance(Store(faulty, "/docs").put_if_absent("a", b"1"), Won)  # the second answer was a refusal
    True
    """


@dataclass(frozen=True, slots=True)
class DeliverLate:
    """The caller gets no answer; the request arrives before the call that comes `calls` later.

    >>> backend = Store.from_url("memory://docs/store").backend
    >>> faulty = Faulty(backend, {"put": [DeliverLate(calls=2)]})
    >>> isinstance(Store(faulty, "/docs", world=ManualClock()).put_if_absent("a", b"1"), Won)
    True
    """

    calls: int = 1


@dataclass(frozen=True, slots=True)
class Interrupt:
    """A Ctrl-C or the task's cancellation, after the request was performed (or before, if not `done`).

    `with_error` is the exception raised.

    >>> backend = Store.from_url("memory://docs/store").backend
    >>> faulty = Faulty(backend, {"put": [Interrupt()]})
    >>> try:
    ...     Store(faulty, "/docs").put_if_absent("a", b"1")
    ... except KeyboardInterrupt as stop:
    ...     print(stop.__cause__)
    the call for '/docs/a' may have been applied: ...
    """

    done: bool = True
    with_error: type[BaseException] = KeyboardInterrupt


Fault = Pass | LoseRequest | LoseAnswer | Refuse | Delay | DeliverTwice | DeliverLate | Interrupt


@dataclass(slots=True)
class _Late:
    calls_left: int
    ask: Ask[Any]


class Faulty(Relay):
    """A backend with faults: `plan` lists, for each operation, the faults of its calls in turn; later calls pass.

    Attributes:
        fired: the faults that happened, in order, each with its operation.
        calls: all operations called, in order.

    Raises:
        InvalidInput: the plan names an unknown operation.

    >>> backend = Store.from_url("memory://docs/store").backend
    >>> faulty = Faulty(backend, {"put": [LoseAnswer()]}, world=ManualClock())
    >>> version = Store(faulty, "/docs").put_if_absent("a", b"1").unwrap()
    >>> faulty.fired, faulty.left
    ([('put', LoseAnswer())], {})
    """

    def __init__(
        self, inner: Backend, plan: Mapping[Operation, Sequence[Fault]], *, world: World | None = None
    ) -> None:
        operations = get_args(Operation)
        if strange := [name for name in plan if name not in operations]:
            raise InvalidInput(
                f"the plan names {strange}, which are no operations: name some of {', '.join(operations)}"
            )
        super().__init__(inner, blocking=inner.blocking)
        self.fired: list[tuple[Operation, Fault]] = []
        self.calls: list[Operation] = []
        self._plan = {operation: deque(faults) for operation, faults in plan.items()}
        self._world = world or ManualClock()
        self._late: list[_Late] = []

    def __repr__(self) -> str:
        return f"<Faulty {self.name}, {len(self.fired)} of its faults fired>"

    @property
    def left(self) -> dict[Operation, list[Fault]]:
        """The faults of the plan that have not happened."""
        return {operation: list(faults) for operation, faults in self._plan.items() if faults}

    async def close(self) -> None:
        """Close the inner backend; late requests never arrive."""
        self._late.clear()
        await self.inner.close()

    async def deliver_late(self) -> None:
        """Deliver all late requests now.

        >>> late = Faulty(backend, {"put": [DeliverLate(calls=99)]})
        >>> sent_again = Store(late, "/docs").put_if_absent("b", b"1").unwrap()
        >>> Store(backend, "/docs").delete("b")
        >>> await late.deliver_late(), Store(backend, "/docs").read("b").data
        (None, b'1')
        """
        late, self._late = self._late, []
        for late_request in late:
            await late_request.ask()

    async def relay(self, name: str, ask: Ask[Any]) -> Any:
        """Deliver the late requests that are due, record the call, and send it with its planned fault.

        An abort is only passed on.
        """
        if name == "abort":
            return await ask()
        operation: Operation = name  # type: ignore[assignment] # no other names exist
        await self._deliver_due()
        self.calls.append(operation)
        planned = self._plan.get(operation)
        fault = planned.popleft() if planned else Pass()
        if not isinstance(fault, Pass):
            self.fired.append((operation, fault))
        return await self._suffer(fault, ask)

    async def _suffer(self, fault: Fault, ask: Ask[A]) -> A | NotApplied | NoAnswer:
        """Send the request with this fault."""
        match fault:
            case Pass():
                return await ask()
            case Delay(seconds):
                self._world.sleep(seconds)
                return await ask()
            case DeliverTwice():
                await ask()
                return await ask()
            case Refuse(retry_after_s):
                return NotApplied("refused by plan", retry_after_s)
            case Interrupt(done, with_error):
                if done:
                    await ask()
                raise with_error
            case LoseRequest() | LoseAnswer() | DeliverLate():
                return await self._lose(fault, ask)

    async def _lose(self, fault: LoseRequest | LoseAnswer | DeliverLate, ask: Ask[Any]) -> NoAnswer:
        match fault:
            case LoseRequest():
                return NoAnswer("the request was lost by plan")
            case LoseAnswer():
                await ask()
                return NoAnswer("the answer was lost by plan")
            case DeliverLate(calls):
                self._late.append(_Late(calls, ask))
                return NoAnswer("the request is late by plan")

    async def _deliver_due(self) -> None:
        for late_request in list(self._late):
            late_request.calls_left -= 1
            if late_request.calls_left <= 0:
                self._late.remove(late_request)
                await late_request.ask()
