"""Every order of reads, writes, failures and interrupts around one `ReadState`; and wrong twins that must break a promise.

What the object was is a list, so each promise is about places in it: a `get` gives one that was current since its call;
what is served by age is no older than anything that was told here before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from fsspec_cas.cached import Failed, ReadResult, ReadState, SharedRead
from model.search import BrokenPromise, explore

BROKEN = OSError("the store did not answer")
FOREVER = float("inf")


@dataclass(frozen=True)
class Reader:
    calls: int
    since: int | None = None  # where the object was when it called
    number: int = 0
    read: SharedRead[Any] | None = None
    answered: bool = False
    content: Any = None


@dataclass(frozen=True)
class Writer:
    writes: tuple[Any, ...]  # what it writes, one after the other; None deletes
    after: int | None = None  # of a write under way
    expects: Any = None
    sent: bool = False
    won: int | None = None  # where it put the object
    current: int = 0  # where the object was at its refusal


@dataclass(frozen=True)
class World:
    state: ReadState[Any]
    readers: tuple[Reader, ...]
    writers: tuple[Writer, ...]
    rivals: tuple[Any, ...]  # what others write, one after the other
    failures: int = 0
    interrupts: int = 0
    lost_answers: int = 0
    history: tuple[Any, ...] = (None,)
    told: int = 0  # the latest place that somebody here was told of
    own: int = -1  # where the write that ended last here put the object


def place(world: World, content: Any, since: int, doing: str) -> int:
    """The first place since then at which the object was this."""
    if content not in world.history[since:]:
        raise BrokenPromise(doing, f"{content} was not current since {world.history[since]}, but before")
    return world.history.index(content, since)


def steps(world: World) -> Iterator[tuple[str, World]]:
    if world.state.is_recent(0, FOREVER):
        place(world, world.state.known, world.told, f"a read by age gives {world.state.known}")
    before = len(world.history) - 1
    taken = 0
    for label, after in moves(world):
        taken += 1
        yield label, after
    if not taken and any(reader.since is not None for reader in world.readers):
        raise BrokenPromise("nothing more happens", f"a caller waits for ever (the object is {world.history[before]})")


def moves(world: World) -> Iterator[tuple[str, World]]:
    for n, reader in enumerate(world.readers):
        yield from reading(world, n, reader)
    for n, writer in enumerate(world.writers):
        yield from writing(world, n, writer)
    if world.rivals:
        first, *rest = world.rivals
        yield f"another program writes {first}", replace(world, history=(*world.history, first), rivals=(*rest,))


def reading(world: World, n: int, reader: Reader) -> Iterator[tuple[str, World]]:
    state = world.state
    if reader.since is None:
        if reader.calls:
            called, number = state.with_caller()
            yield f"{n} calls", read(world, n, called, Reader(reader.calls - 1, len(world.history) - 1, number))
        return
    idle = Reader(reader.calls)
    if world.interrupts:
        gone = (state.without_read() if reader.read is not None else state).without_caller()
        yield f"{n} is interrupted", replace(read(world, n, gone, idle), interrupts=world.interrupts - 1)
    if reader.read is None:
        if not state.must_wait(reader.number):
            yield from served(world, n, reader, state.answer(reader.number))
    elif reader.answered:
        saw = state.with_answer(reader.read, reader.content)
        yield from served(replace(world, state=saw), n, reader, ReadResult(reader.read.number, reader.content))
    else:
        content = world.history[-1]
        yield f"the store tells {n} {content}", read(world, n, state, replace(reader, answered=True, content=content))
        if world.failures:
            failed = read(world, n, state.with_failure(reader.read, BROKEN).without_caller(), idle)
            yield f"{n} gets no answer", replace(failed, failures=world.failures - 1)


def served(
    world: World, n: int, reader: Reader, answer: ReadResult[Any] | Failed | None
) -> Iterator[tuple[str, World]]:
    if answer is None:
        state, look = world.state.with_read_begun(n, 0)
        if world.own == len(world.history) - 1 and look.known != world.history[-1]:
            raise BrokenPromise(f"{n} asks", f"{world.history[-1]} was written here, and its body is moved")
        if any(other.read is not None for other in world.readers):
            raise BrokenPromise(f"{n} asks", "two requests are under way")
        yield f"{n} asks whether it is still {look.known}", read(world, n, state, replace(reader, read=look))
        return
    after = read(world, n, world.state.without_caller(), Reader(reader.calls))
    if isinstance(answer, Failed):
        yield f"{n} shares the failure", after
    else:
        assert reader.since is not None
        at = place(world, answer.content, reader.since, f"{n} returns {answer.content}")
        yield f"{n} returns {answer.content}", replace(after, told=max(world.told, at))


def read(world: World, n: int, state: ReadState[Any], reader: Reader) -> World:
    return replace(world, state=state, readers=(*world.readers[:n], reader, *world.readers[n + 1 :]))


def writing(world: World, n: int, writer: Writer) -> Iterator[tuple[str, World]]:
    def then(writer: Writer, **changes: Any) -> World:
        return replace(world, writers=(*world.writers[:n], writer, *world.writers[n + 1 :]), **changes)

    if writer.after is None:
        if writer.writes:
            begun = replace(writer, after=world.state.events_ended, expects=world.history[-1])
            yield f"writer {n} means to replace {begun.expects}", then(begun)
        return
    idle, written = Writer(writer.writes[1:]), writer.writes[0]
    if not writer.sent:
        place_now = len(world.history) - 1
        if world.history[-1] == writer.expects:
            won = replace(writer, sent=True, won=place_now + 1)
            yield f"the store takes {written} of writer {n}", then(won, history=(*world.history, written))
        else:
            yield f"the store refuses writer {n}", then(replace(writer, sent=True, current=place_now))
        return
    if world.lost_answers:
        state = world.state.with_other_write()
        yield f"writer {n} gets no answer", then(idle, state=state, lost_answers=world.lost_answers - 1)
    if writer.won is None:
        told = max(world.told, writer.current)
        yield f"writer {n} has lost", then(idle, state=world.state.with_other_write(), told=told)
    else:
        state = world.state.with_won_write(writer.after, 0, written)
        yield f"writer {n} has won", then(idle, state=state, told=max(world.told, writer.won), own=writer.won)


def world(
    state: ReadState[Any] | None = None, calls: tuple[int, ...] = (1, 1), writes: tuple[Any, ...] = (), **more: Any
) -> World:
    given: dict[str, Any] = {"rivals": ("a", "b")} | more
    return World(state or ReadState(), tuple(map(Reader, calls)), tuple(map(Writer, writes)), **given)


WORLDS: dict[str, dict[str, Any]] = {
    "three callers": {"calls": (2, 1, 1)},
    "two callers, an object that is removed": {"calls": (2, 2), "rivals": ("a", None, "b")},
    "two callers, equal bytes come back": {"calls": (2, 1), "rivals": ("a", "b", "a")},
    "three callers, a failure and an interrupt": {"calls": (2, 1, 1), "failures": 1, "interrupts": 1, "rivals": ("a",)},
    "two callers, a writer": {"calls": (2, 1), "writes": (("x",),), "rivals": ("a",)},
    "two callers, two writers": {"writes": (("x",), ("y",)), "rivals": ()},
    "two writers and a rival": {"calls": (2,), "writes": (("x",), ("y",)), "rivals": ("a",)},
    "two callers, a writer that deletes": {"writes": (("x", None),), "rivals": ("a",)},
    "a write whose answer is lost": {"calls": (2,), "writes": (("x", "y"),), "rivals": ("a",), "lost_answers": 1},
    "a writer, a failure and an interrupt": {"writes": (("x",),), "rivals": ("a",), "failures": 1, "interrupts": 1},
}


@pytest.mark.parametrize("name", WORLDS)
def test_read_is_current_since_its_call_and_no_caller_waits_forever(name: str) -> None:
    found = explore(world(**WORLDS[name]), steps)
    assert not found.story, str(found)
    assert found.states > 300


class JoinsTheLookUnderWay(ReadState[Any]):
    def with_caller(self) -> tuple[ReadState[Any], int]:
        after, number = ReadState.with_caller(self)
        return after, number if self.read is None else self.read.number


class ForgetsOwnWrites(ReadState[Any]):
    def with_won_write(self, after: int, began_s: float, content: Any) -> ReadState[Any]:
        del after, began_s, content
        return self


class ServesWhatItHadOnAnError(ReadState[Any]):
    def with_failure(self, look: SharedRead[Any], error: Exception) -> ReadState[Any]:
        del error
        return replace(self, read=None, last_result=ReadResult(look.number, self.known))


class LeavesAnInterruptedLookUnderWay(ReadState[Any]):
    def without_read(self) -> ReadState[Any]:
        return self


class AsksSeveralTimesAtOnce(ReadState[Any]):
    def must_wait(self, number: int) -> bool:
        del number
        return False


class GivesAnyCallerTheLastAnswer(ReadState[Any]):
    def answer(self, number: int) -> ReadResult[Any] | Failed | None:
        del number
        return self.last_result


class TakesTheAnswerThatCameLastForTheNewest(ReadState[Any]):
    def with_answer(self, look: SharedRead[Any], content: Any) -> ReadState[Any]:
        return ReadState.with_answer(self, replace(look, after=self.events_ended), content)


class TakesTheWriteThatEndedLastForTheNewest(ReadState[Any]):
    def with_won_write(self, after: int, began_s: float, content: Any) -> ReadState[Any]:
        del after
        return ReadState.with_won_write(self, self.events_ended, began_s, content)


class KeepsItsAgeAfterARefusal(ReadState[Any]):
    def with_other_write(self) -> ReadState[Any]:
        return self


TWINS: dict[type[ReadState[Any]], dict[str, Any]] = {
    JoinsTheLookUnderWay: {},
    ForgetsOwnWrites: {"writes": (("x",),), "rivals": ()},
    ServesWhatItHadOnAnError: {"calls": (1, 1, 1), "failures": 1},
    LeavesAnInterruptedLookUnderWay: {"interrupts": 1},
    AsksSeveralTimesAtOnce: {},
    GivesAnyCallerTheLastAnswer: {"calls": (1, 1, 1, 1)},
    TakesTheAnswerThatCameLastForTheNewest: {"writes": (("x",),), "rivals": ()},
    TakesTheWriteThatEndedLastForTheNewest: {"writes": (("x",), ("y",)), "rivals": ()},
    KeepsItsAgeAfterARefusal: {"writes": (("x",),)},
}


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.__name__)
def test_mutant_is_caught(twin: type[ReadState[Any]]) -> None:
    found = explore(world(twin(), **TWINS[twin]), steps)
    print(found)
    assert found.story
