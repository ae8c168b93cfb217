"""Every order of appends, reads, trims, crashes, lost, late and doubled requests around one log in a small ring.

The clients run the real `Appending`, and go round it as `LogWriter` does. What is true of the log is taken down at the
write that makes it so: which slot was written, with which records, by whom. A search for the end is one look here: it
says what was so at some moment, and everything may happen before the write that follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from lockprovider.recipes.errors import Fenced, Sealed, SequenceGap
from lockprovider.recipes.wal import appending
from lockprovider.recipes.wal.appending import Append, Appended, Appending, AppendStep, Lead, LogOperation, Seal
from lockprovider.recipes.wal.contents import Head, LogManifest, Position
from model.search import BrokenPromise, explore

NONE = Head("log")
REPEATED, DRAFT = appending._repeated, appending.draft


@dataclass(frozen=True)
class Client:
    """Who appends batches, one after the other. `dies`: it may, and begins again from the first, under its name."""

    name: str
    todo: tuple[tuple[LogOperation, ...], ...]
    dies: int = 0
    life: int = 0
    at: int = 0  # which batch of `todo`
    end: Head | None = None  # as it knows it
    since: int | None = None
    took: int = 0
    epoch: int = 0  # under which it leads
    turn: Appending | None = None
    place: Head | None = None  # what it saw in the place of its draft
    looked: bool = False

    @property
    def me(self) -> str:
        return f"{self.name}{self.life}"


@dataclass(frozen=True)
class Written:
    """A slot, as it was written."""

    head: Head
    by: tuple[tuple[str, str], ...]  # producer and client of each record
    records: tuple[bytes, ...]


@dataclass(frozen=True)
class World:
    clients: tuple[Client, ...]
    slots: int
    places: tuple[Head | None, ...]
    log: tuple[Written, ...] = ()
    late: frozenset[tuple[Head | None, Appending, int]] = frozenset()
    floor: int = 0
    reader: int | None = None  # where it goes on; None: nobody reads
    waits: bool = True  # for the reader
    trims: int = 0
    refused: frozenset[tuple[str, bytes]] = frozenset()  # batches and records that were told no
    lost: int = 0
    delays: int = 0


@dataclass(frozen=True)
class Wrong:
    """What a twin does otherwise."""

    believes: bool = False  # a refusal, or silence, is a no
    floorless: bool = False  # it does not look at the floor
    blind: bool = False  # it writes over whatever is there
    deletes: bool = False  # a trim removes, and a place is free when it is empty
    looks_after: bool = False  # and a look at the floor after the write says whether it counts
    skips: bool = False  # a reader takes what is in the place


def place_of(world: World, slot: int) -> int:
    return slot % world.slots


def may_be_written(turn: Appending, since: int, last: Head, doing: str) -> None:
    """By what is promised of epochs, leaders and the seal."""
    assert turn.drafted is not None
    if last.sealed is not None:
        raise BrokenPromise(doing, "it is written behind the seal")
    for one, is_in in zip(turn.operations, turn.drafted.carried, strict=True):
        if is_in and isinstance(one, Append | Seal):
            if (one.epoch or since) < last.epoch:
                raise BrokenPromise(doing, f"{one} of epoch {one.epoch or since} after {last.epoch} led")
            if last.led and not one.epoch:
                raise BrokenPromise(doing, f"{one} while {last.epoch} leads")


def land(world: World, expected: Head | None, turn: Appending, since: int, doing: str, wrong: Wrong) -> World | None:
    """The write arrives; None: its condition is false."""
    drafted, batch = turn.drafted, turn.batch
    assert drafted is not None
    head = drafted.head
    there = world.places[place_of(world, head.slot)]
    if there != expected and not wrong.blind:
        return None
    places = list(world.places)
    places[place_of(world, head.slot)] = head
    if wrong.looks_after and head.slot < world.floor:
        return replace(world, places=tuple(places))  # it does not count, and its look will say so
    if head.slot != len(world.log):
        raise BrokenPromise(doing, f"slot {head.slot} is written, and {len(world.log)} are there")
    kept = world.reader if world.waits and not wrong.deletes else None
    if there is not None and kept is not None and there.slot >= kept:
        raise BrokenPromise(doing, f"slot {there.slot} was not read, and is gone")
    before = [record for one in world.log for record in one.records]
    if twice := [record for record in drafted.records if record in before]:
        raise BrokenPromise(doing, f"{twice} is in the log twice")
    if no := [record for record in drafted.records if (batch, record) in world.refused]:
        raise BrokenPromise(doing, f"{no} was refused, and now is there")
    last = world.log[-1].head if world.log else NONE
    may_be_written(turn, since, last, doing)
    by = tuple((name, one.client) for name, one in head.producers.items() if one.slot == head.slot)
    for name, client in by:
        had = [who for one in world.log for producer, who in one.by if producer == name]
        if client in had and had[-1] != client:
            raise BrokenPromise(doing, f"{client} appends as {name} after {had[-1]} took the name")
    return replace(world, places=tuple(places), log=(*world.log, Written(head, by, drafted.records)))


def steps(wrong: Wrong = Wrong()) -> Callable[[World], Iterator[tuple[str, World]]]:  # noqa: PLR0915 - all that can happen
    def step(world: World) -> Iterator[tuple[str, World]]:
        for n, client in enumerate(world.clients):
            yield from one(world, n, client)
        for expected, turn, since in world.late:
            left, label = replace(world, late=world.late - {(expected, turn, since)}), f"{turn.batch} arrives late"
            yield label, land(left, expected, turn, since, label, wrong) or left
        if world.reader is not None and world.reader < len(world.log):
            yield from reads(world, world.reader)
        bound = world.reader if world.waits and world.reader is not None else len(world.log)
        if world.trims and world.floor < bound:
            places = world.places
            if wrong.deletes:
                places = tuple(None if one is not None and one.slot < bound else one for one in places)
            yield f"the floor is raised to {bound}", replace(world, floor=bound, places=places, trims=world.trims - 1)

    def reads(world: World, slot: int) -> Iterator[tuple[str, World]]:
        there = world.places[place_of(world, slot)]
        if there is None or (there.slot > slot and not wrong.skips):  # Trimmed: it goes on at the floor
            if world.waits and not wrong.deletes:
                raise BrokenPromise(f"slot {slot} is read", "it is gone, though the log waits for its reader")
            if world.floor > slot:
                yield f"slot {slot} is trimmed", replace(world, reader=world.floor)
            return
        if there.slot != slot:
            raise BrokenPromise(f"slot {slot} is read", f"what is told is slot {there.slot}")
        yield f"slot {slot} is read, and committed", replace(world, reader=slot + 1)

    def one(world: World, n: int, client: Client) -> Iterator[tuple[str, World]]:
        def then(client: Client, on: World | None = None, **more: Any) -> World:
            on = on or world
            return replace(on, clients=(*on.clients[:n], client, *on.clients[n + 1 :]), **more)

        if client.dies and client.turn is not None:
            again = replace(client, life=client.life + 1, dies=client.dies - 1, at=0, end=None, since=None, took=0)
            again = replace(again, turn=None, epoch=0, looked=False, place=None)
            yield f"{client.me} dies and is started again", then(again)
        if client.turn is None:
            if client.at < len(client.todo):
                turn = Appending(
                    tuple(mine(client, each) for each in client.todo[client.at]), f"{client.me}.{client.at}"
                )
                if client.end is not None:
                    turn = turn.draft_after(client.end, 0, client.since or 0)
                yield from on_with(f"{client.me} begins {client.at}", world, client, turn, then)
            return
        turn = client.turn
        match turn.need:
            case AppendStep.END:
                last = world.log[-1].head if world.log else NONE
                since = last.epoch if client.since is None else client.since
                known = replace(client, end=last, since=since)
                yield from on_with(f"{client.me} finds the end", world, known, turn.draft_after(last, 0, since), then)
            case AppendStep.LOOK:
                there = world.places[place_of(world, turn.slot)]
                seen = replace(client, place=there, looked=True)
                yield from on_with(f"{client.me} looks", world, seen, turn.looked(there), then)
            case AppendStep.SEND:
                yield from sends(world, client, turn, then)

    def sends(world: World, client: Client, turn: Appending, then: Callable[..., World]) -> Iterator[tuple[str, World]]:
        manifest = LogManifest("log", None if wrong.deletes else world.slots, floor=world.floor)
        if not manifest.has_room(turn.slot) and not wrong.floorless:
            return  # it waits; a trim may come
        if turn.slot >= world.slots and not client.looked and not wrong.deletes:
            there = world.places[place_of(world, turn.slot)]
            seen = replace(client, place=there, looked=True)
            yield from on_with(f"{client.me} looks at the place", world, seen, turn.looked(there), then)
            return
        expected = client.place if client.looked and not wrong.deletes else None
        drafted, sent, label = turn.drafted, turn.sending(), f"{client.me} writes slot {turn.slot}"
        assert drafted is not None
        on = land(world, expected, turn, client.since or 0, label, wrong)
        doubt = replace(sent, need=AppendStep.END, drafted=None, doubt=False) if wrong.believes else sent.not_won()
        if on is None:
            yield from on_with(f"{label}; refused", world, client, doubt, then)
        else:
            after = sent.won()
            if wrong.looks_after and turn.slot < on.floor:
                after = replace(sent, need=AppendStep.END, drafted=None, doubt=False)
            yield from on_with(label, on, replace(client, end=drafted.head), after, then)
            if world.lost:
                yield from on_with(f"{label}; no answer", replace(on, lost=on.lost - 1), client, doubt, then)
        if world.delays:
            late = replace(world, late=world.late | {(expected, turn, client.since or 0)}, delays=world.delays - 1)
            yield from on_with(f"{label}; it is late", late, client, doubt, then)

    def on_with(
        label: str, world: World, client: Client, turn: Appending, then: Callable[..., World]
    ) -> Iterator[tuple[str, World]]:
        """To the next step of the turn; at its end, what is told must be so."""
        if turn.need is not AppendStep.DONE:
            before = client.turn
            same = before is not None and before.drafted is not None and before.drafted == turn.drafted
            kept = client if same else replace(client, looked=False, place=None)
            yield label, then(replace(kept, turn=turn), world)
            return
        refused: set[tuple[str, bytes]] = set()
        there = {record: part for part in world.log for record in part.records}
        for operation, result in zip(turn.operations, turn.results, strict=True):
            match operation, result:
                case Append(data=data), Appended():
                    if data not in there:
                        raise BrokenPromise(f"{label}; told that {data!r} is there", "it is nowhere")
                case Append(data=data), SequenceGap() | Fenced() | Sealed():
                    if data in there and there[data].head.batch == turn.batch:
                        raise BrokenPromise(f"{label}; told {result}", f"{data!r} is there")
                    refused.add((turn.batch, data))
                case Lead(), int() as epoch:
                    client = replace(client, epoch=epoch)
                case Seal(), Position() as end:
                    last = world.log[-1].head
                    if last.sealed is None or end != Position(last.slot, last.end):
                        raise BrokenPromise(f"{label}; told that it ends at {end}", f"the last slot is {last}")
                case (Lead() | Seal(), Fenced() | Sealed()):
                    pass
                case _:
                    raise BrokenPromise(f"{label}; told {result!r}", "nobody could tell, though little has happened")
        took = turn.taken().get(client.me, client.took)
        idle = replace(client, at=client.at + 1, turn=None, took=took, looked=False, place=None)
        yield f"{label}: {turn.results}", then(idle, world, refused=world.refused | refused)

    return step


def mine(client: Client, operation: LogOperation) -> LogOperation:
    if isinstance(operation, Seal):
        return replace(operation, epoch=client.epoch)
    if not isinstance(operation, Append):
        return operation
    name = operation.producer or f"{appending.UNNAMED}{client.me}"
    return replace(operation, producer=name, client=client.me, took=client.took, epoch=client.epoch)


def record(text: str, seq: int, producer: str = "") -> Append:
    return Append(text.encode(), producer, seq, "")


def client(name: str, *batches: str, dies: int = 0, producer: str | None = None) -> Client:
    """Each text is a batch, each letter a record; the numbers count up."""
    letters = [(at, letter) for at, batch in enumerate(batches) for letter in batch]
    numbered = [(at, record(letter, n, producer or name)) for n, (at, letter) in enumerate(letters, 1)]
    todo = tuple(tuple(one for where, one in numbered if where == at) for at in range(len(batches)))
    return Client(name, todo, dies)


def world(*clients: Client, slots: int, **more: Any) -> World:
    return World(clients, slots, (None,) * slots, **more)


def wraps(*clients: Client, slots: int = 1, **more: Any) -> World:
    """Nobody waits for a reader, and the floor goes with the end."""
    return world(*clients, slots=slots, waits=False, trims=9, **more)


A_NAME_THAT_IS_TAKEN = (client("old", "a", "b", producer="p"), client("new", "a", "b", "c", producer="p"))
THREADS = Client("t", ((record("b", 2, "t"), record("a", 1, "t")), (record("c", 3, "t"),)))

WORLDS: dict[str, World] = {
    "a ring of two, a reader": world(
        client("x", "a", "b"), client("y", "c"), slots=2, reader=0, trims=2, lost=1, delays=1
    ),
    "a wide ring, a reader": world(
        client("x", "a", "b"), client("y", "c"), slots=9, reader=0, trims=2, lost=1, delays=1
    ),
    "a ring of two, a reader, one dies": world(
        client("x", "a", "b", dies=1), client("y", "c"), slots=2, reader=0, trims=2, delays=1
    ),
    "a ring of one": wraps(client("x", "a", "b"), client("y", "c", "d"), lost=1, delays=1),
    "a ring of one, a reader that nobody waits for": wraps(
        client("x", "a", "b"), client("y", "c"), reader=0, lost=1, delays=1
    ),
    "three": wraps(client("x", "a"), client("y", "b"), client("z", "c"), slots=2, lost=1),
    "a name that is taken": wraps(*A_NAME_THAT_IS_TAKEN, slots=2, lost=1, delays=1),
    "a name that is taken, a ring of one": wraps(*A_NAME_THAT_IS_TAKEN, lost=1, delays=1),
    "two threads in the wrong order": wraps(THREADS, client("y", "d"), lost=1, delays=1),
    "two that lead": wraps(
        Client("x", ((Lead(),), (record("a", 1, "x"),), (record("b", 2, "x"),))),
        Client("y", ((Lead(),), (record("c", 1, "y"),))),
        slots=2,
        lost=1,
    ),
    "one leads, one does not": wraps(
        Client("x", ((Lead(),), (record("a", 1, "x"),))), client("y", "b", "c"), slots=2, lost=1, delays=1
    ),
    "one seals, one appends": wraps(
        Client("x", ((record("a", 1, "x"),), (Seal(successor="next"),))),
        client("y", "b", "c"),
        slots=2,
        lost=1,
        delays=1,
    ),
    "two that seal, in a ring of one": wraps(
        Client("x", ((Seal(successor="next"),),), dies=1),
        Client("y", ((record("b", 1, "y"),), (Seal(successor="other"),))),
        lost=1,
        delays=1,
    ),
    "a leader that is followed seals": wraps(
        Client("x", ((Lead(),), (Seal(),))), Client("y", ((Lead(),), (record("b", 1, "y"),))), slots=2, lost=1, delays=1
    ),
}


@pytest.mark.parametrize("name", WORLDS)
def test_each_record_exists_once_and_no_slot_is_written_twice(name: str) -> None:
    found = explore(WORLDS[name], steps())
    print(found)
    assert not found.story, str(found)
    assert found.states > 500


def never_refuses_a_number(table: Any, append: Append, *, sent: bool) -> Appended | None:
    try:
        return REPEATED(table, append, sent=sent)
    except SequenceGap:
        return Appended(None, again=True)


def without_a_table(table: Any, append: Append, *, sent: bool) -> Appended | None:
    return None


def names_have_no_epoch(table: Any, append: Append, *, sent: bool) -> Appended | None:
    return REPEATED(table, replace(append, took=0), sent=sent)


def all_of_a_batch_was_sent(
    last: Head, operations: Any, batch: str, *, sent: tuple[bool, ...] = (), **more: Any
) -> Any:
    return DRAFT(last, operations, batch, sent=(any(sent),) * len(operations), **more)


def nobody_is_over(head: Head, leads: int, since: int) -> None:
    return


def seals_at_once(head: Head, epoch: int, since: int, successor: str | None) -> Head:
    return replace(head, led=False, sealed=successor or "")


TWINS: dict[str, tuple[str, Wrong, dict[str, Any]]] = {
    "trimmed by delete": ("a wide ring, a reader", Wrong(deletes=True), {}),
    "delete and look, but no table": (
        "a wide ring, a reader",
        Wrong(deletes=True, looks_after=True),
        {"_repeated": without_a_table},
    ),
    "a ring of one without the table": ("a ring of one", Wrong(), {"_repeated": without_a_table}),
    "a ring of two without the table": ("three", Wrong(), {"_repeated": without_a_table}),
    "a refusal is believed without a look": (
        "a ring of one",
        Wrong(believes=True),
        {"_repeated": without_a_table},
    ),
    "no look at the floor": ("a ring of two, a reader", Wrong(floorless=True), {}),
    "a reader takes what is in the place": ("a ring of one, a reader that nobody waits for", Wrong(skips=True), {}),
    "written over whatever is there": ("a ring of two, a reader", Wrong(blind=True), {}),
    "names have no epoch": ("a name that is taken", Wrong(), {"_repeated": names_have_no_epoch}),
    "a lower number is a repeat": ("two threads in the wrong order", Wrong(), {"_repeated": never_refuses_a_number}),
    "what a batch did not carry was sent": (
        "two threads in the wrong order",
        Wrong(),
        {"draft": all_of_a_batch_was_sent},
    ),
    "the seal is looked for before the write": ("one seals, one appends", Wrong(), {"_must_be_open": lambda _: None}),
    "another seals a sealed log": ("two that seal, in a ring of one", Wrong(), {"_sealed": seals_at_once}),
    "a seal without its epoch": ("a leader that is followed seals", Wrong(), {"_sealed": seals_at_once}),
    "the epoch is not compared in the write": ("two that lead", Wrong(), {"_must_not_be_over": nobody_is_over}),
}


@pytest.mark.parametrize("name", TWINS)
def test_mutant_is_caught(name: str, monkeypatch) -> None:
    where, wrong, parts = TWINS[name]
    for part, twin in parts.items():
        monkeypatch.setattr(appending, part, twin)
    found = explore(WORLDS[where], steps(wrong))
    print(found)
    assert found.story
