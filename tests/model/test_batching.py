"""Every order of arrivals, writes, failures and answers around one `Line`; and wrong twins that must break a promise.

The store is a list of what was written. Each operation is answered once, by the write that it was in, and a write is
answered before the next one begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from lockprovider.recipes.base import PATIENCE, THROTTLED_PACE_S, Backlog, pace_at
from model.search import BrokenPromise, explore

BAD = 4  # an operation that can only fail, for itself


@dataclass(frozen=True)
class World:
    line: Backlog[int]
    callers: tuple[tuple[int, ...], ...]  # what each asks for, one after the other
    asked: tuple[int, ...]  # what each waits for; 0: nothing
    sent: tuple[tuple[int, ...], ...] = ()  # the writes under way
    failures: int = 0
    written: tuple[int, ...] = ()
    told: frozenset[tuple[int, str]] = frozenset()


def steps(world: World) -> Iterator[tuple[str, World]]:
    taken = 0
    for label, after in moves(world):
        taken += 1
        yield label, after
    if not taken and any(world.asked):
        raise BrokenPromise("nothing more happens", f"{world.asked} wait for ever")


def moves(world: World) -> Iterator[tuple[str, World]]:
    for n, (todo, asked) in enumerate(zip(world.callers, world.asked, strict=True)):
        if todo and not asked:
            callers = (*world.callers[:n], todo[1:], *world.callers[n + 1 :])
            waits = (*world.asked[:n], todo[0], *world.asked[n + 1 :])
            yield (
                f"{n} asks for {todo[0]}",
                replace(world, line=world.line.with_arrived(todo[0]), callers=callers, asked=waits),
            )
    line, batch = world.line.start_write()
    if batch:
        if world.sent:
            raise BrokenPromise(f"{batch} is sent", f"{world.sent} is under way")
        yield f"{batch} is sent", replace(world, line=line, sent=(*world.sent, batch))
    for batch in world.sent:
        good = tuple(one for one in batch if one != BAD)
        yield f"{batch} is answered", told(world, batch, {one: "no" if one == BAD else "yes" for one in batch}, good)
        if world.failures:
            yield (
                f"{batch} fails",
                replace(told(world, batch, dict.fromkeys(batch, "no"), ()), failures=world.failures - 1),
            )


def told(world: World, batch: tuple[int, ...], answers: dict[int, str], written: tuple[int, ...]) -> World:
    """Each of those whom the line takes for having been in the write is told what the write came to."""
    answered = world.line.under_way
    for one in answered:
        if one not in answers:
            raise BrokenPromise(f"{batch} is answered", f"{one} is told of a write that it was not in")
    if set(answered) != set(answers):
        raise BrokenPromise(f"{batch} is answered", f"of {batch} only {answered} are told")
    now = (*world.written, *written)
    if len(set(now)) < len(now):
        raise BrokenPromise(f"{batch} is answered", f"{now}: written twice")
    return replace(
        world,
        line=world.line.end_write(0, 0),
        asked=tuple(0 if one in answered else one for one in world.asked),
        sent=tuple(one for one in world.sent if one != batch),
        written=now,
        told=world.told | {(one, answers[one]) for one in answered},
    )


def world(line: Backlog[int] | None = None, failures: int = 1) -> World:
    return World(line or Backlog(), ((1, 2), (3, BAD), (5, 6)), (0, 0, 0), failures=failures)


def test_each_operation_is_answered_once_and_no_caller_waits_forever() -> None:
    found = explore(world(failures=2), steps)
    assert not found.story, str(found)
    assert found.states > 500


class AnswersAllWhoWait(Backlog[int]):
    def with_arrived(self, *operations: int) -> Backlog[int]:
        line = Backlog.with_arrived(self, *operations)
        return replace(line, under_way=(*line.under_way, *operations)) if line.under_way else line


class SendsWhileAWriteIsUnderWay(Backlog[int]):
    def start_write(self) -> tuple[Backlog[int], tuple[int, ...]]:
        return Backlog.start_write(replace(self, under_way=()))


class ForgetsThoseWhoCameMeanwhile(Backlog[int]):
    def end_write(self, began_s: float, now_s: float) -> Backlog[int]:
        return replace(Backlog.end_write(self, began_s, now_s), waiting=())


class SendsAgainWhatFailed(Backlog[int]):
    def end_write(self, began_s: float, now_s: float) -> Backlog[int]:
        return Backlog.end_write(replace(self, waiting=(*self.under_way[:1], *self.waiting)), began_s, now_s)


@pytest.mark.parametrize(
    "twin",
    [AnswersAllWhoWait, SendsWhileAWriteIsUnderWay, ForgetsThoseWhoCameMeanwhile, SendsAgainWhatFailed],
    ids=lambda twin: twin.__name__,
)
def test_mutant_is_caught(twin: type[Backlog[int]]) -> None:
    found = explore(world(twin()), steps)
    print(found)
    assert found.story


def fresh() -> Backlog[int]:
    return Backlog()


def test_batch_waits_for_more_operations_a_part_of_its_last_write_time() -> None:
    line = fresh().with_arrived(1)
    assert line.gather_s(0) == 0
    line, _ = line.with_arrived(2).start_write()
    line = line.end_write(10, 12).with_arrived(3)
    assert line.gather_s(12) == pytest.approx(2 * PATIENCE)
    assert line.gather_s(12.1) == pytest.approx(2 * PATIENCE - 0.1)
    assert line.with_arrived(4).gather_s(12.1) == 0
    assert line.gather_s(99) == 0


def test_pace_counts_from_the_answer() -> None:
    line = fresh().with_arrived(1)
    assert line.pace_left_s(5, 1.0) == 0
    line, _ = line.start_write()
    line = line.end_write(5, 7.5)
    assert line.pace_left_s(7.5, 1.0) == 1.0
    assert line.pace_left_s(9, 1.0) == 0


def test_pace_is_learned_from_throttling_and_forgotten_after_a_minute() -> None:
    assert pace_at(0, None, 100) == 0
    assert pace_at(0, 100, 159) == THROTTLED_PACE_S
    assert pace_at(0, 100, 161) == 0
    assert pace_at(2, 100, 101) == 2
