"""Readers of a table whose commits appear in any order, in every order of their requests and those of writers.

What a reader takes of its listing is decided by the product's own function. A listing takes two pages; between any two
requests commits are decided and appear, a holder ends the log, a JVM writer takes the lock and drops what is not there,
or commits without the lock.

    prefix  with a commit a reader takes all that were decided before it
    seen    it takes all that was acknowledged when its look began
    miss    no commit has a smaller completion time than a consumer's checkpoint that was not given to it
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from lockprovider.table.format.layout import Action, Instant, InstantState
from lockprovider.table.timeline.timeline import Decisions, Timeline, visible_part
from lockprovider.table.timeline.versions import Order, window
from model.search import BrokenPromise

PROMISES = frozenset({"prefix", "seen", "miss"})
_OF_US, _JVM, _ALONE = "abc", "j", "k"  # who begins in this order; `k` takes no lock
_SECOND_PAGE = "b"  # begins there
Take = Callable[[Timeline, Decisions, Decisions | None], Timeline | None]


class Look(NamedTuple):
    """A reader in the middle of a look. `pages`: how many it has. `must`: what it has to take."""

    before: Decisions | None = None
    names: frozenset[str] = frozenset()
    pages: int = 0
    must: frozenset[str] = frozenset()


class World(NamedTuple):
    """`decided`: what was decided and not dropped, in its order; `times`: of all that ever completed, by name."""

    record: int = 0
    log: str = "1"  # its name
    entries: tuple[str, ...] = ()  # in it, all that there ever were
    unapplied: tuple[str, ...] = ()
    decided: tuple[str, ...] = ()
    there: frozenset[str] = frozenset()
    times: tuple[tuple[str, str], ...] = ()
    ends: int = 1  # how often a holder may end the log
    look: Look | None = None
    checkpoint: str = ""
    given: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rules:
    """What a reader goes by; a twin has one that is wrong."""

    take: Take = visible_part
    lists_first: bool = False
    checkpoint: Callable[[Timeline, Timeline], Timeline] = lambda found, listed: found


@dataclass(frozen=True)
class Appearance:
    """A table with these writers, and one reader, who is a consumer of its changes."""

    names: str = _OF_US
    rules: Rules = field(default_factory=Rules)
    short: bool = False  # the log goes back only as far as it must
    watch: frozenset[str] = PROMISES
    reached: set[str] = field(default_factory=set)

    def initial(self) -> World:
        return World()

    def ended(self, world: World) -> bool:
        """All is there, and the consumer was given it."""
        return world.look is None and {*world.decided} <= world.there & {*world.given}

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        yield from self._writers(world)
        yield from self._others(world)
        yield from self._reader(world)

    # -- writers -------------------------------------------------------------------------------------------------------

    def _writers(self, world: World) -> Iterator[tuple[str, World]]:
        for name in self.names:
            if name in world.decided or self._completion(world, name):
                continue
            if name in _OF_US and world.log:
                # Whoever writes the record may know what is there by now, or not.
                for known in {self._missing(world), world.unapplied}:
                    yield f"{name} is decided, after {known}", self._decide(world, name, known)
        for name in world.unapplied:
            if name not in world.there:
                yield f"{name} appears", world._replace(there=world.there | {name})

    def _decide(self, world: World, name: str, known: tuple[str, ...]) -> World:
        time = _time(1, len(world.times))
        return world._replace(
            record=world.record + 1,
            entries=(*world.entries, name),
            unapplied=(*known, name),
            decided=(*world.decided, name),
            times=(*world.times, (name, time)),
        )

    def _others(self, world: World) -> Iterator[tuple[str, World]]:
        missing = self._missing(world)
        written = world._replace(record=world.record + 1)
        ended = written._replace(log="", entries=(), unapplied=())
        if not world.log:
            yield "a holder begins a log", written._replace(log=str(written.record))
        elif world.ends and not missing:
            yield "a holder ends the log", ended._replace(ends=world.ends - 1)
        if _JVM in self.names and not self._completion(world, _JVM):
            stands = tuple(name for name in world.decided if name in world.there)
            if stands != world.decided:
                self.reached.add("dropped")
            yield "a JVM writer takes the lock, and commits", self._appears(ended._replace(decided=stands), _JVM)
        if _ALONE in self.names and not missing and not self._completion(world, _ALONE):
            yield "a JVM writer commits without the lock", self._appears(world, _ALONE)

    def _appears(self, world: World, name: str) -> World:
        """Of one who is alone: decided by being there."""
        times = (*world.times, (name, _time(1, len(world.times))))
        return world._replace(decided=(*world.decided, name), there=world.there | {name}, times=times)

    # -- the reader ----------------------------------------------------------------------------------------------------

    def _reader(self, world: World) -> Iterator[tuple[str, World]]:
        look = world.look
        if look is None:
            first = len(self._acknowledged(world))
            begun = Look(None, must=frozenset(world.decided[:first]))
            look = begun if self.rules.lists_first else begun._replace(before=self._said(world))
            yield "the reader begins", world._replace(look=look)
        elif look.pages < 2:
            page = {name for name in world.there if (name >= _SECOND_PAGE) == bool(look.pages)}
            yield (
                f"it lists {sorted(page)}",
                world._replace(look=look._replace(names=look.names | page, pages=look.pages + 1)),
            )
        elif look.before is None:
            yield from self._concludes("it looks at the record", world, look._replace(before=self._said(world)), None)
        else:
            yield from self._concludes("it is done", world, look, None)

    def _concludes(self, label: str, world: World, look: Look, now: Decisions | None) -> Iterator[tuple[str, World]]:
        assert look.before is not None
        listed = Timeline.of(self._instant(world, name).file_name for name in look.names)
        found = self.rules.take(listed, look.before, now)
        if found is not None:
            yield label, self._takes(label, world, look, listed, found)
        elif now is None:
            self.reached.add("a second look")
            yield from self._concludes("it looks again at the record", world, look, self._said(world))
        else:
            self.reached.add("begins again")
            yield "it begins again", world._replace(look=None)

    def _takes(self, label: str, world: World, look: Look, listed: Timeline, found: Timeline) -> World:
        names = {name for name, time in world.times if time in found.completions.values()}
        if found != listed:
            self.reached.add("left out")
        for n, name in enumerate(world.decided):
            before = set(world.decided[:n]) - names
            if name in names and before and "prefix" in self.watch:
                raise BrokenPromise(label, f"prefix: it takes {name}, and not {before}")
        if (lost := look.must - names) and "seen" in self.watch:
            raise BrokenPromise(label, f"seen: {lost} was there when it began")
        reached = max((i.completion or "" for i in self.rules.checkpoint(found, listed).writes), default="")
        new = window(found, world.checkpoint, reached, Order.COMPLETION)
        given = (*world.given, *(name for i in new.commits for name, time in world.times if time == i.completion))
        checkpoint = max(world.checkpoint, reached)
        passed = {name for name in world.decided if self._completion(world, name) <= checkpoint}
        if passed - {*given} and "miss" in self.watch:
            raise BrokenPromise(label, f"miss: it goes on after {checkpoint}, and {passed - {*given}} was never given")
        return world._replace(look=None, checkpoint=checkpoint, given=given)

    # -- what there is -------------------------------------------------------------------------------------------------

    def _said(self, world: World) -> Decisions:
        kept = world.entries[-max(1, len(world.unapplied)) :] if self.short else world.entries
        entries, unapplied = ([self._instant(world, name) for name in names] for names in (kept, world.unapplied))
        return Decisions(str(world.record), world.log, len(world.entries), tuple(entries), tuple(unapplied))

    def _missing(self, world: World) -> tuple[str, ...]:
        """What is unapplied, from the first on that is not there."""
        at = next((n for n, name in enumerate(world.unapplied) if name not in world.there), len(world.unapplied))
        return world.unapplied[at:]

    def _acknowledged(self, world: World) -> tuple[str, ...]:
        at = next((n for n, name in enumerate(world.decided) if name not in world.there), len(world.decided))
        return world.decided[:at]

    def _completion(self, world: World, name: str) -> str:
        return dict(world.times).get(name, "")

    def _instant(self, world: World, name: str) -> Instant:
        begin = _time(0, ord(name) - ord("a"))
        return Instant(begin, Action.COMMIT, InstantState.COMPLETED, self._completion(world, name))


def _time(minute: int, ms: int) -> str:
    return f"2026010100{minute:02}00{ms:03}"
