"""Breadth-first search through every state that a model can reach; the first broken promise comes with its shortest story."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

S = TypeVar("S", bound=Hashable)
FAULT = "(fault)"  # what the label of a step begins with that nobody can rely on
Steps = Callable[[S], Iterable[tuple[str, S]]]


class BrokenPromise(Exception):
    """A step broke an invariant; `doing` is what the step was."""

    def __init__(self, doing: str, why: str) -> None:
        super().__init__(f"{doing}: {why}")
        self.doing = doing
        self.why = why


@dataclass(frozen=True)
class Found:
    """What a search came to. `story` is empty if no promise was broken."""

    states: int
    steps: int
    why: str = ""
    story: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.story:
            return f"{self.states} states, {self.steps} steps: every promise held"
        told = "\n".join(f"  {n:2}. {line}" for n, line in enumerate(self.story, 1))
        return f"broken after {len(self.story)} steps ({self.states} states searched): {self.why}\n{told}"


def explore(
    initial: S, steps: Steps[S], *, at_most: int = 5_000_000, ended: Callable[[S], bool] | None = None
) -> Found:
    """Search all states from `initial`; `steps` raises BrokenPromise.

    With `ended`: from each of them one can be reached of which that is true, without a step that is a "(fault)".
    """
    gc.disable()  # nothing here is garbage, and looking for it takes half of the time
    try:
        return _explore(initial, steps, at_most, ended)
    finally:
        gc.enable()


def _explore(initial: S, steps: Steps[S], at_most: int, ended: Callable[[S], bool] | None) -> Found:
    came_from: dict[S, tuple[S, str] | None] = {initial: None}
    leads_to: dict[S, list[S]] = {}  # the other way round
    todo = deque([initial])
    taken = 0
    while todo:
        state = todo.popleft()
        try:
            for label, after in steps(state):
                taken += 1
                way = (state, label)
                if came_from.setdefault(after, way) is way:  # hashed once: that is most of the work
                    todo.append(after)
                if ended is not None and not label.startswith(FAULT):
                    leads_to.setdefault(after, []).append(state)
        except BrokenPromise as broken:
            story = (*_story(came_from, state), broken.doing)
            return Found(len(came_from), taken, broken.why, story)
        assert len(came_from) <= at_most, "the model is larger than meant"
    stuck = None if ended is None else _stuck(came_from, leads_to, ended)
    if stuck is not None:
        return Found(len(came_from), taken, "finish: no step leads to an end any more", (*_story(came_from, stuck),))
    return Found(len(came_from), taken)


def _stuck(came_from: Iterable[S], leads_to: dict[S, list[S]], ended: Callable[[S], bool]) -> S | None:
    """The first state from which no end can be reached."""
    todo = [state for state in came_from if ended(state)]
    ends = set(todo)
    while todo:
        for before in leads_to.get(todo.pop(), ()):
            if before not in ends:
                ends.add(before)
                todo.append(before)
    return next((state for state in came_from if state not in ends), None)


def _story(came_from: dict[S, tuple[S, str] | None], state: S) -> Iterator[str]:
    labels: list[str] = []
    before = came_from[state]
    while before is not None:
        labels.append(before[1])
        before = came_from[before[0]]
    return reversed(labels)
