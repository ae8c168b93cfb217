"""Breadth-first search through every state that a model can reach; the first broken promise comes with its shortest story."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

S = TypeVar("S", bound=Hashable)
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


def explore(initial: S, steps: Steps[S], *, at_most: int = 5_000_000) -> Found:
    """Search all states from `initial`; `steps` raises BrokenPromise."""
    gc.disable()  # nothing here is garbage, and looking for it takes half of the time
    try:
        return _explore(initial, steps, at_most)
    finally:
        gc.enable()


def _explore(initial: S, steps: Steps[S], at_most: int) -> Found:
    came_from: dict[S, tuple[S, str] | None] = {initial: None}
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
        except BrokenPromise as broken:
            story = (*_story(came_from, state), broken.doing)
            return Found(len(came_from), taken, broken.why, story)
        assert len(came_from) <= at_most, "the model is larger than meant"
    return Found(len(came_from), taken)


def _story(came_from: dict[S, tuple[S, str] | None], state: S) -> Iterator[str]:
    labels: list[str] = []
    before = came_from[state]
    while before is not None:
        labels.append(before[1])
        before = came_from[before[0]]
    return reversed(labels)
