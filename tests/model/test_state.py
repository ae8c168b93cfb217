"""Every order of writes, crashes, lost, late and doubled requests and trims around one state; and of edits under a lease.

Each client adds its tags to the value, which is a tuple. What was the state is a list, so each promise is about it: a tag is
there once if its writer was told so, at most once in any case, and no serial is nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from lockprovider.recipes.errors import Fenced, StateConflict, StateLocked
from lockprovider.recipes.state.changes import (
    BeginEdit,
    EndEdit,
    Stamp,
    StateChange,
    StateWrite,
    Update,
    WriteStep,
    apply_all,
    following,
)
from lockprovider.recipes.state.document import Document
from model.search import BrokenPromise, explore


@dataclass(frozen=True)
class Doc(Document):
    """To be told from others by its write alone, which is quick."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Doc) and self.write == other.write

    def __hash__(self) -> int:
        return hash(self.write)


def doc_of(made: Document) -> Doc:
    return Doc(**{name: getattr(made, name) for name in Document.__slots__})


def stamp(client: int, tries: int) -> Stamp:
    return Stamp(f"{client}.{tries}", str(client), 0, "")


@dataclass(frozen=True)
class Rules:
    """The code under test, or a twin of it."""

    turn: type[StateWrite] = StateWrite
    following: Callable[..., Document] = following


@dataclass(frozen=True)
class Client:
    todo: tuple[str, ...]
    turn: StateWrite | None = None
    tries: int = 0


@dataclass(frozen=True)
class World:
    clients: tuple[Client, ...]
    chain: tuple[Doc, ...] = ()  # all that ever was at the path; the last is there
    history: frozenset[Doc] = frozenset()
    late: frozenset[tuple[str, Doc]] = frozenset()  # copies on their way, with the write that they would replace
    yes: frozenset[str] = frozenset()
    lost: int = 0  # answers that may be lost
    delays: int = 0  # requests that may be late
    crashes: int = 0
    trims: int = 0
    keep: int = 9

    @property
    def now(self) -> Doc | None:
        return self.chain[-1] if self.chain else None


def name_of(doc: Document | None) -> str:
    return "nothing" if doc is None else f"serial {doc.serial} {doc.value}"


def write(world: World, doc: Doc) -> World:
    return must_hold(replace(world, chain=(*world.chain, doc)), f"{name_of(doc)} is written")


def must_hold(world: World, doing: str) -> World:
    now = world.now
    if now is None:
        return world
    if len(set(now.value)) < len(now.value):
        raise BrokenPromise(doing, f"{now.value}: something is there twice")
    if not world.yes <= {*now.value}:
        raise BrokenPromise(
            doing, f"{now.value}: {sorted(world.yes - {*now.value})} was acknowledged, and is not there"
        )
    if [doc.serial for doc in world.chain] != [*range(1, len(world.chain) + 1)]:
        raise BrokenPromise(doing, f"serials {[doc.serial for doc in world.chain]}: one was given twice")
    for doc in world.chain[:-1]:
        if doc not in world.history and doc.serial >= now.serial - world.keep:
            raise BrokenPromise(doing, f"serial {doc.serial} is nowhere")
    return world


def history_steps(rules: Rules) -> Callable[[World], Iterator[tuple[str, World]]]:  # noqa: PLR0915 - all that can happen
    def steps(world: World) -> Iterator[tuple[str, World]]:
        for n, client in enumerate(world.clients):
            yield from one(world, n, client)
        for wanted, doc in world.late:
            left = replace(world, late=world.late - {(wanted, doc)})
            there = "" if world.now is None else world.now.write
            yield f"late: {name_of(doc)}", write(left, doc) if there == wanted else left
        if world.trims and world.now is not None:
            kept = frozenset(doc for doc in world.history if doc.serial >= world.now.serial - world.keep)
            yield "trim", replace(world, history=kept, trims=world.trims - 1)

    def one(world: World, n: int, client: Client) -> Iterator[tuple[str, World]]:  # noqa: PLR0912 - likewise
        def then(client: Client, on: World | None = None, **more: Any) -> World:
            on = on or world
            return replace(on, clients=(*on.clients[:n], client, *on.clients[n + 1 :]), **more)

        turn = client.turn
        if world.crashes and turn is not None:
            yield f"{n} dies", then(Client(()), crashes=world.crashes - 1)
        if turn is None:
            if client.todo:
                tag = client.todo[0]
                done = apply_all(world.now, [Update(lambda value: (*(value or ()), tag))], stamp(n, client.tries))
                mine = doc_of(rules.following(done.draft, stamp(n, client.tries)))
                begun = replace(client, turn=rules.turn.begin(world.now, mine), tries=client.tries + 1)
                yield f"{n} reads {name_of(world.now)}", then(begun)
            return
        mine = turn.document
        assert isinstance(mine, Doc)
        match turn.next:
            case WriteStep.ARCHIVE:
                assert isinstance(turn.base, Doc)
                after = then(replace(client, turn=turn.archived()), history=world.history | {turn.base})
                yield f"{n} archives {name_of(turn.base)}", must_hold(after, f"{n} archives")
            case WriteStep.REPLACE:
                there = "" if world.now is None else world.now.write
                wanted = "" if turn.base is None else turn.base.write
                sent = turn.sending()
                landed = write(world, mine) if there == wanted else None
                if landed is None:
                    yield f"{n} is refused", then(replace(client, turn=sent.not_won()))
                else:
                    yield f"{n} writes {name_of(mine)}", then(replace(client, turn=sent.won()), landed)
                if world.lost and landed is not None:
                    unheard = then(replace(client, turn=sent.not_won()), landed, lost=world.lost - 1)
                    yield f"{n} writes {name_of(mine)}; no answer, or that to a second copy", unheard
                if world.delays:
                    late = world.late | {(wanted, mine)}
                    unheard = then(replace(client, turn=sent.not_won()), delays=world.delays - 1, late=late)
                    yield f"{n} sends {name_of(mine)}, which is late", unheard
            case WriteStep.LOOK:
                yield f"{n} looks: {name_of(world.now)}", then(replace(client, turn=turn.looked(world.now)))
            case WriteStep.LOOK_BACK:
                then_there = next((doc for doc in world.history if doc.serial == mine.serial), None)
                looked = replace(client, turn=turn.looked_back(then_there))
                yield f"{n} looks back: {name_of(then_there)}", then(looked)
            case WriteStep.DONE if turn.verdict == "mine":
                after = then(replace(client, todo=client.todo[1:], turn=None), yes=world.yes | {client.todo[0]})
                yield f"{n} is told yes", must_hold(after, f"{n} is told that {client.todo[0]} is there")
            case WriteStep.DONE if turn.verdict == "never":
                yield f"{n} begins again", then(replace(client, turn=None))
            case WriteStep.DONE:
                if world.now is None or mine.serial >= world.now.serial - world.keep:
                    raise BrokenPromise(f"{n} is told that nobody knows", "there were few writes since")
                yield f"{n} is told that nobody knows", then(Client(()))

    return steps


def world(todo: tuple[tuple[str, ...], ...] = (("a",), ("b",)), **more: Any) -> World:
    return World(tuple(map(Client, todo)), **more)


WORLDS: dict[str, dict[str, Any]] = {
    "two clients, everything": {"todo": (("a", "b"), ("c",)), "lost": 1, "delays": 1, "crashes": 1},
    "two clients, two of each": {"lost": 2, "delays": 2, "crashes": 1},
    "three clients": {"todo": (("a",), ("b",), ("c",)), "lost": 1, "delays": 1},
    "three clients, crashes": {"todo": (("a",), ("b",), ("c",)), "lost": 1, "crashes": 2},
    "one overtaken by many": {"todo": (("a",), ("b", "c", "d", "e")), "lost": 1, "delays": 1},
    "trimmed": {"todo": (("a",), ("b", "c", "d")), "lost": 1, "delays": 1, "trims": 2, "keep": 1},
}


@pytest.mark.parametrize("name", WORLDS)
def test_acknowledged_updates_exist_once_and_no_serial_is_missing(name: str) -> None:
    found = explore(world(**WORLDS[name]), history_steps(Rules()))
    print(found)
    assert not found.story, str(found)
    assert found.states > 1000


class ArchivesAfterwards(StateWrite):
    @classmethod
    def begin(cls, base: Document | None, mine: Document) -> StateWrite:
        return cls(base, mine, WriteStep.REPLACE)

    def won(self) -> StateWrite:
        done = StateWrite.won(self)
        return done if self.base is None else replace(self, next=WriteStep.ARCHIVE)

    def archived(self) -> StateWrite:
        return StateWrite.won(self)


class DoesNotArchive(StateWrite):
    @classmethod
    def begin(cls, base: Document | None, mine: Document) -> StateWrite:
        return cls(base, mine, WriteStep.REPLACE)


class TakesAnothersForItsOwnDefeat(StateWrite):
    def looked(self, now: Document | None) -> StateWrite:
        if now is not None and now.serial > self.document.serial:
            return self._done("never", now)
        return StateWrite.looked(self, now)


class BelievesARefusal(StateWrite):
    def not_won(self) -> StateWrite:
        return self._done("never", None)


class TakesNotYetForNever(StateWrite):
    def looked(self, now: Document | None) -> StateWrite:
        if now is None or now.serial < self.document.serial:
            return self._done("never", now)
        return StateWrite.looked(self, now)


class TakesSilenceForSuccess(StateWrite):
    def not_won(self) -> StateWrite:
        return self.won()


def uses_a_serial_again(draft: Document, stamp: Stamp) -> Document:
    """As a rollback would that puts an old revision back as it was."""
    made = following(draft, stamp)
    return made if draft.serial < 2 else replace(made, serial=draft.serial)


TWINS: dict[str, tuple[Rules, dict[str, Any]]] = {
    **{
        twin.__name__: (Rules(twin), {"todo": (("a",), ("b", "c")), "lost": 1, "delays": 1, "crashes": 1})
        for twin in (
            ArchivesAfterwards,
            DoesNotArchive,
            TakesAnothersForItsOwnDefeat,
            BelievesARefusal,
            TakesNotYetForNever,
            TakesSilenceForSuccess,
        )
    },
    "a rollback that uses a serial again": (Rules(following=uses_a_serial_again), {"todo": (("a", "b", "c"),)}),
}


@pytest.mark.parametrize("name", TWINS)
def test_mutant_is_caught(name: str) -> None:
    rules, given = TWINS[name]
    found = explore(world(**given), history_steps(rules))
    print(found)
    assert found.story


# Edits under a lease. The lock is what it may do at its worst: whoever asks gets it, with the next epoch.


@dataclass(frozen=True)
class Editor:
    """One that edits once: the lease, the mark, the read, the write; or, with `epoch` 0, one that updates."""

    tag: str
    phase: str = "idle"
    epoch: int = 0
    base: Doc | None = None  # what it has read and is about to replace
    begun: Doc | None = None  # with its mark
    tries: int = 0


@dataclass(frozen=True)
class Editing:
    editors: tuple[Editor, ...]
    now: Doc | None = None
    epoch: int = 0
    yes: frozenset[str] = frozenset()
    writes: int = 0


def edit_steps(
    change: Callable[..., Any] = apply_all, *, conditional: bool = True, exclusive: bool = True
) -> Callable[[Editing], Iterator[tuple[str, Editing]]]:
    def steps(world: Editing) -> Iterator[tuple[str, Editing]]:
        for n, editor in enumerate(world.editors):
            yield from one(world, n, editor)

    def one(world: Editing, n: int, editor: Editor) -> Iterator[tuple[str, Editing]]:
        def then(editor: Editor, **more: Any) -> Editing:
            return replace(world, editors=(*world.editors[:n], editor, *world.editors[n + 1 :]), **more)

        def attempt(what: StateChange, phase: str, over: int = 0) -> tuple[str, Editing]:
            """Make the change on what was read, and write it if that is still there; else read again."""
            done = change(editor.base, [what], stamp(n, editor.tries), over, exclusive=exclusive)
            if isinstance(done.errors[0], (Fenced, StateConflict)):
                newest = editor.epoch == world.epoch
                alone = all(other.epoch or other.phase == "idle" for other in world.editors)
                if newest and alone and editor.epoch:
                    raise BrokenPromise(f"{editor.tag} is refused", f"it is the newest holder: {done.errors[0]}")
                return f"{editor.tag} is refused: {done.errors[0]}", then(replace(editor, phase="refused"))
            if isinstance(done.errors[0], StateLocked):
                return f"{editor.tag} is told to wait", then(replace(editor, phase="read", base=world.now))
            doc = doc_of(following(done.draft, stamp(n, editor.tries)))
            if world.now != editor.base and conditional:
                return f"{editor.tag} reads again", then(replace(editor, base=world.now))
            yes = world.yes | {editor.tag} if phase == "done" else world.yes
            if not yes <= {*(doc.value or ())}:
                lost = sorted(yes - {*(doc.value or ())})
                raise BrokenPromise(f"{editor.tag} writes {doc.value}", f"{lost} was acknowledged and is overwritten")
            after = replace(editor, phase=phase, base=doc, begun=doc, tries=editor.tries + 1)
            return f"{editor.tag} writes {doc.value}", then(after, now=doc, yes=yes)

        match editor.phase:
            case "idle" if editor.tag.isupper():
                epoch = world.epoch + 1
                yield (
                    f"{editor.tag} gets the lease {epoch}",
                    then(replace(editor, phase="held", epoch=epoch), epoch=epoch),
                )
            case "held":
                yield (
                    f"{editor.tag} reads, to put its mark there",
                    then(replace(editor, phase="marking", base=world.now)),
                )
            case "marking":
                yield attempt(BeginEdit(editor.epoch, ()), "edits")
            case "edits":
                assert editor.begun is not None
                value = (*(editor.begun.value or ()), editor.tag)
                yield attempt(EndEdit(editor.epoch, editor.begun.serial, value), "done")
            case "idle":
                yield f"{editor.tag} reads", then(replace(editor, phase="read", base=world.now))
            case "read":
                updated = Update(lambda value: (*(value or ()), editor.tag))
                yield attempt(updated, "done")
                yield attempt(updated, "done", over=world.epoch)  # it takes the edits for over: a wrong clock

    return steps


EDITS = {"two editors": "AB", "three editors": "ABC", "editors and updates": "ABu", "one editor, two updates": "Auv"}


@pytest.mark.parametrize("exclusive", [True, False], ids=["exclusive", "advisory"])
@pytest.mark.parametrize("name", EDITS)
def test_edit_overwrites_nothing_and_the_newest_holder_is_never_refused(name: str, exclusive: bool) -> None:
    found = explore(Editing(tuple(map(Editor, EDITS[name]))), edit_steps(exclusive=exclusive))
    print(found)
    assert not found.story, str(found)
    assert found.states > 30


def without_epochs(base: Document | None, changes: list[StateChange], mine: Stamp, *rest: Any, **more: Any) -> Any:
    bare = None if base is None else replace(base, edit=base.edit and replace(base.edit, epoch=0))
    return apply_all(bare, [replace(one, epoch=0) if not isinstance(one, Update) else one for one in changes], mine)


EDIT_TWINS = {
    "no epoch in the state": edit_steps(without_epochs),
    "Terraform's unconditional write": edit_steps(conditional=False),
}


@pytest.mark.parametrize("name", EDIT_TWINS)
def test_wrong_way_to_edit_is_caught(name: str) -> None:
    found = explore(Editing(tuple(map(Editor, "AB"))), EDIT_TWINS[name])
    print(found)
    assert found.story
