"""Every order of puts, claims, heartbeats, acks, lapses, crashes, lost, late and doubled requests around one queue.

The clients run the real operations, and settle their writes as `QueueWriter` does: by the identity of the write, else
each operation is sent again and answers for itself. What is true of a message is taken down at the write that makes it
so: who put it, whose claim ended it. Anybody may take any claim for lapsed at any time. Where messages wait in segments,
each request for one of them is a step of its own, after which its client may die.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest

from lockprovider.recipes.errors import ClaimLost, SequenceGap
from lockprovider.recipes.queue import contents as stored
from lockprovider.recipes.queue import operations
from lockprovider.recipes.queue.contents import (
    Claim,
    Contents,
    SegmentWanted,
    decode_queue,
    decode_segment,
    with_messages,
)
from lockprovider.recipes.queue.operations import (
    Beat,
    End,
    Lapse,
    New,
    NothingReady,
    Put,
    QueueOperation,
    Take,
    Touch,
    carry_out_all,
    results_of,
)
from model.search import BrokenPromise, Steps, explore

Do = Callable[..., list[Any]]
AGAIN = 10  # what a client that was started again has counted at least


@dataclass(frozen=True)
class Client:
    """`todo`: puts, then, if it works, takes and ends so many messages."""

    name: str
    todo: tuple[Put, ...] = ()
    works: int = 0
    beats: int = 0
    claim: tuple[int, str, str] | None = None  # number, token, body
    operation: QueueOperation | None = None
    base: bytes = b""  # what its write replaces
    tries: tuple[tuple[str, tuple[Any, ...]], ...] = ()  # writes of this operation, and what they would come to
    draft: bytes = b""
    phase: str = "idle"
    count: int = 0
    loaded: tuple[tuple[str, bytes], ...] = ()  # segments that it has read for this try
    wanted: str = ""
    making: tuple[tuple[str, bytes], ...] = ()  # those that its write will name
    touched: frozenset[str] = frozenset()  # by any try of this operation
    missing: bytes = b""  # what named one that was not there
    doomed: tuple[str, ...] = ()  # to be removed before it is told
    heard: Any = None


@dataclass(frozen=True)
class World:
    clients: tuple[Client, ...]
    there: bytes
    late: frozenset[tuple[bytes, bytes]] = frozenset()
    put: frozenset[str] = frozenset()  # bodies that were acknowledged
    ended: frozenset[tuple[str, str]] = frozenset()  # bodies that are gone, with the token under which they went
    lost: int = 0
    delays: int = 0
    crashes: int = 0
    lapses: int = 0
    segments: frozenset[tuple[str, bytes]] = frozenset()
    cleans: int = 0
    listed: frozenset[str] | None = None  # by one who cleans
    touched: bool = False


@cache
def decoded(data: bytes) -> Contents:
    return decode_queue(data, "q")


def read(data: bytes) -> Contents:
    return decoded(data).copy()


@cache
def bodies(there: bytes, segments: frozenset[tuple[str, bytes]]) -> list[str]:
    """All that is in the queue."""
    contents, made = read(there), dict(segments)
    waiting = [*contents.ready]
    for one in contents.segments:
        if one.name not in made:
            raise BrokenPromise("a write", f"it names {one.name}, which is not there")
        waiting += decode_segment(made[one.name], "q", one.name)
    claims, dead = contents.claims.values(), contents.dead.values()
    return [one.body for one in (*waiting, *(one.message for one in (*claims, *dead)))]


def names(data: bytes) -> frozenset[str]:
    return frozenset(one.name for one in decoded(data).segments)


def new_segments(contents: Contents, before: bytes) -> tuple[tuple[str, bytes], ...]:
    return tuple((one.name, one.encode("q")) for one in contents.segments if one.name not in names(before))


def write(world: World, data: bytes, doing: str) -> World:
    """The object is replaced: what is true from now on, and whether it may be."""
    contents = read(world.there)
    now = bodies(data, world.segments)
    gone = {claim.message.body: claim.token for claim in contents.claims.values() if claim.message.body not in now}
    ended = world.ended | {*gone.items()}
    twice = [body for body, count in Counter([*now, *(body for body, _ in ended)]).items() if count > 1]
    if twice:
        raise BrokenPromise(doing, f"{twice} is there twice, or again after it was acked")
    if lost := {*bodies(world.there, world.segments)} - {*now} - gone.keys():
        raise BrokenPromise(doing, f"{lost} was lost")
    return replace(world, there=data, ended=ended)


def removed(world: World, name: str, doing: str) -> World:
    if name in names(world.there):
        raise BrokenPromise(doing, f"the object names {name}")
    return replace(world, segments=frozenset(one for one in world.segments if one[0] != name))


def cleaned(world: World, *, looks_only: bool) -> Iterator[tuple[str, World]]:
    """What `Queue.clean` does, a request a step; its write is settled before it goes on."""
    if world.cleans:
        listed = frozenset(name for name, _ in world.segments)
        yield "a cleaner lists", replace(world, cleans=world.cleans - 1, listed=listed, touched=False)
    elif world.listed is not None and not world.touched and not looks_only:
        contents = read(world.there)
        carry_out_all(contents, [Touch()], 0, "cleaner")
        made = world.segments | {*new_segments(contents, world.there)}
        after = write(replace(world, segments=made), contents.encode(), "a cleaner writes")
        yield "a cleaner writes", replace(after, touched=True)
    elif world.listed is not None:
        for name in world.listed - names(world.there):
            world = removed(world, name, "a cleaner removes")
        yield "a cleaner removes what nothing names", replace(world, listed=None)


def steps(do: Do = carry_out_all, *, believes: bool = False, wrong: str = "") -> Steps[World]:  # noqa: PLR0915 - all that can happen
    def step(world: World) -> Iterator[tuple[str, World]]:
        for n, client in enumerate(world.clients):
            yield from one(world, n, client)
        for expected, data in world.late:
            left = replace(world, late=world.late - {(expected, data)})
            yield "a late write lands", write(left, data, "late") if left.there == expected else left
        if world.lapses:
            contents = read(world.there)
            for claim in [*contents.claims.values()]:
                lapsed = contents.copy()
                do(lapsed, [Lapse(claim.message.n, claim.token, claim.beat)], 0, f"lapse-{world.lapses}")
                made = world.segments | {*new_segments(lapsed, world.there)}
                on = replace(world, lapses=world.lapses - 1, segments=made)
                yield f"{claim.token} is taken for lapsed", write(on, lapsed.encode(), "lapse")
        yield from cleaned(world, looks_only=wrong == "a cleaner that writes nothing")

    def one(world: World, n: int, client: Client) -> Iterator[tuple[str, World]]:
        def then(client: Client, on: World | None = None, **more: Any) -> World:
            on = on or world
            return replace(on, clients=(*on.clients[:n], client, *on.clients[n + 1 :]), **more)

        name = client.name
        if world.crashes and client.phase != "idle":
            again = Client(name, client.todo, 0 if client.claim else client.works, count=client.count + AGAIN)
            yield f"{name} dies and is started again", then(again, crashes=world.crashes - 1)
        match client.phase:
            case "idle":
                for wanted in chosen(client):
                    operation = wanted
                    if isinstance(wanted, Put):  # what it finds when it opens the queue
                        known = read(world.there).producers.get(wanted.producer, (0, 0, ""))[0]
                        me = f"{name}{client.count // AGAIN}"
                        operation = replace(wanted, known=known if client.count >= AGAIN else 0, client=me)
                    begun = replace(client, operation=operation, tries=(), phase="read", count=client.count + 1)
                    yield f"{name} wants {told(operation)}", then(begun)
            case "read":
                contents = read(world.there)
                settled = results_of(contents, {batch: list(results) for batch, results in client.tries})
                if settled is not None:
                    yield from over(world, client, then, settled[0], names(world.there), f"{name} looks")
                    return
                begun = replace(client, base=world.there, loaded=(), phase="draft")
                yield from drafted(world, begun, then)
            case "fetch" | "make" | "early" | "drop" | "sweep":
                yield from of_segments(world, client, then)
            case "send":
                landed = world.there == client.base
                on = write(world, client.draft, f"{name} writes") if landed else world
                if landed:
                    heard = client.tries[-1][1][0]
                    yield from over(on, client, then, heard, names(client.draft), f"{name} writes")
                else:
                    yield f"{name} is refused", then(doubtful(client))
                if world.lost and landed:
                    yield f"{name} writes; no answer", then(doubtful(client), on, lost=world.lost - 1)
                if world.delays:
                    late = world.late | {(client.base, client.draft)}
                    yield f"{name} sends, which is late", then(doubtful(client), late=late, delays=world.delays - 1)

    def of_segments(world: World, client: Client, then: Callable[..., World]) -> Iterator[tuple[str, World]]:
        """Requests for segments."""
        name = client.name
        match client.phase:
            case "fetch":
                found = dict(world.segments).get(client.wanted)
                if found is not None:
                    loaded = replace(client, loaded=(*client.loaded, (client.wanted, found)))
                    yield from drafted(world, loaded, then)
                elif client.missing == client.base:
                    raise BrokenPromise(f"{name} reads {client.wanted}", "it is not there, and the object names it")
                else:
                    yield f"{name} misses {client.wanted}", then(replace(client, missing=client.base, phase="read"))
            case "make":
                made, *rest = client.making
                there = made[0] in dict(world.segments)  # a copy of this write, it is thought
                on = replace(world, segments=world.segments if there else world.segments | {made})
                yield f"{name} makes {made[0]}", then(replace(client, making=tuple(rest), phase=after_make(rest)), on)
            case "early":
                on = world
                for gone in names(client.base) - names(client.draft):
                    on = replace(on, segments=frozenset(one for one in on.segments if one[0] != gone))
                yield f"{name} removes what it brought back", then(replace(client, phase="send"), on)
            case "drop":
                on = world
                for name_of in client.doomed:
                    on = removed(on, name_of, f"{name} removes {name_of}")
                yield f"{name} removes what it made", then(replace(client, doomed=(), phase="read"), on)
            case "sweep":
                if client.doomed:
                    on = removed(world, client.doomed[0], f"{name} removes {client.doomed[0]}")
                    swept = replace(client, doomed=client.doomed[1:])
                    yield f"{name} removes {client.doomed[0]}", then(swept, on)
                else:
                    yield from answered(world, client, then, client.heard)

    def drafted(world: World, client: Client, then: Callable[..., World]) -> Iterator[tuple[str, World]]:
        """With the segments that it has."""
        found = {name: decode_segment(data, "q", name) for name, data in client.loaded}
        contents = with_messages(read(client.base), found)
        batch = f"{client.name}{client.count}.{len(client.tries)}"
        try:
            results = do(contents, [client.operation], 0, batch, sent=(bool(client.tries),))
        except SegmentWanted as wanted:
            yield f"{client.name} wants {wanted.name}", then(replace(client, wanted=wanted.name, phase="fetch"))
            return
        if not contents.changed:
            may_come = client.base in {base for base, _ in world.late}  # its last write, though it is late
            named = client.touched if may_come else names(client.base)
            yield from over(world, client, then, results[0], named, f"{client.name} need not write")
            return
        draft, making = contents.encode(), new_segments(contents, client.base)
        touched = client.touched | (names(draft) ^ names(client.base))
        tries = (*client.tries, (batch, tuple(results)))
        phase = "make" if making and wrong != "named before it is made" else after_make(())
        sends = replace(client, draft=draft, tries=tries, making=making, touched=touched, phase=phase)
        yield f"{client.name} reads, and decides", then(sends)

    def after_make(rest: Any) -> str:
        if rest:
            return "make"
        return "early" if wrong == "removed before it is named no more" else "send"

    def over(
        world: World, client: Client, then: Callable[..., World], heard: Any, named: frozenset[str], label: str
    ) -> Iterator[tuple[str, World]]:
        """What nothing names is removed, then the client is told."""
        if doomed := tuple(sorted(client.touched - named)):
            swept = replace(client, doomed=doomed, heard=heard, touched=frozenset(), loaded=(), phase="sweep")
            yield label, then(swept, world)
        else:
            for told_so, after in answered(world, client, lambda c, w=None, **more: then(c, w or world, **more), heard):
                yield f"{label}; {told_so}", after

    def doubtful(client: Client) -> Client:
        if believes:  # a lost answer, or a refusal, is a no: begin again, as if it were new
            operation = client.operation
            if isinstance(operation, Put):
                operation = replace(operation, producer=f"{operation.producer}'")
            return replace(client, operation=operation, tries=(), phase="read")
        if wrong == "removed though it may have been done":
            made = tuple(sorted(names(client.draft) - names(client.base)))
            return replace(client, doomed=made, phase="drop")
        return replace(client, phase="read")

    return step


def chosen(client: Client) -> Iterator[QueueOperation]:
    if client.todo:
        yield client.todo[0]
    elif client.claim is not None:
        n, token, body = client.claim
        yield End(n, token, "ack", (New(f"{body}+"),) if len(body) < 2 else ())
        if client.beats:
            yield Beat(((n, token),))
    elif client.works:
        yield Take(f"{client.name}:{client.count}", client.name, 1000)


def told(operation: QueueOperation) -> str:
    match operation:
        case Put(message, producer, seq):
            return f"to put {message.body} as {producer} {seq}"
        case Take(token):
            return f"a message, as {token}"
        case End(n, token):
            return f"to ack {n} under {token}"
        case _:
            return f"to beat for {operation}"


def answered(world: World, client: Client, then: Callable[..., World], result: Any) -> Iterator[tuple[str, World]]:
    """The client learns what its operation came to; what it is told must be so."""
    operation, name = client.operation, client.name
    idle = Client(client.name, client.todo, client.works, client.beats, client.claim, count=client.count)
    there = bodies(world.there, world.segments)
    match operation, result:
        case Put(_, producer), SequenceGap() | operations.Forgotten() if producer == "shared":
            yield f"{name} is told of a gap", then(replace(idle, todo=idle.todo[1:]))
        case Put(message, producer, seq), _ if not isinstance(result, Exception):
            if message.body not in there and message.body not in {body for body, _ in world.ended}:
                raise BrokenPromise(f"{name} is told that {message.body} was put ({producer} {seq})", "it is nowhere")
            yield f"{name} is told that {message.body} was put", then(replace(idle, todo=idle.todo[1:]))
        case Take(), Claim():
            claim = (result.message.n, result.token, result.message.body)
            yield f"{name} has {claim[2]}", then(replace(idle, claim=claim))
        case Take(), NothingReady():
            yield f"{name} finds nothing", then(replace(idle, works=idle.works - 1))
        case End(_, token), None | ClaimLost():
            assert client.claim is not None
            mine = (client.claim[2], token) in world.ended
            if mine is not (result is None):
                raise BrokenPromise(
                    f"{name} is told {'yes' if result is None else 'no'}", f"that {token} ended it is {mine}"
                )
            yield (
                f"{name} is told {result or 'that it is acked'}",
                then(replace(idle, claim=None, works=idle.works - 1)),
            )
        case Beat(), tuple():
            yield f"{name} has beaten", then(replace(idle, beats=idle.beats - 1))
        case _:
            raise BrokenPromise(f"{name} is told {result!r}", "nobody could tell, though little has happened since")


def world(*clients: Client, ready: str = "", **more: Any) -> World:
    contents = Contents("q")
    for n, body in enumerate(ready, 1):
        carry_out_all(contents, [Put(New(body), "given", n, "")], 0, "")
    return World(clients, contents.encode(), **more)


def puts(*texts: str, producer: str = "p") -> tuple[Put, ...]:
    return tuple(Put(New(text), producer, n, "") for n, text in enumerate(texts, 1))


WORLDS: dict[str, World] = {
    "a producer that dies, a worker": world(
        Client("p", puts("a", "b")), Client("w", works=1), lost=1, delays=1, crashes=1
    ),
    "two workers, lapses": world(Client("v", works=1), Client("w", works=2), ready="a", lost=1, delays=1, lapses=1),
    "two workers that die": world(Client("v", works=1), Client("w", works=1), ready="a", lost=1, crashes=1, lapses=1),
    "two producers, a worker": world(
        Client("p", puts("a")), Client("o", puts("b", producer="o")), Client("w", works=1), lost=1, delays=1
    ),
    "heartbeats": world(
        Client("v", works=1, beats=1), Client("w", works=1, beats=1), ready="a", lost=1, delays=1, lapses=1
    ),
    "one name, two threads": world(
        Client("p", (Put(New("a"), "shared", 1, ""),)),
        Client("o", (Put(New("b"), "shared", 2, ""),)),
        Client("w", works=1),
        lost=1,
        delays=1,
    ),
}


@pytest.mark.parametrize("name", WORLDS)
def test_each_message_is_put_once_and_acked_once_by_its_claim(name: str) -> None:
    found = explore(WORLDS[name], steps())
    print(found)
    assert not found.story, str(found)
    assert found.states > 1000


@pytest.fixture
def forgetful(monkeypatch) -> None:
    """A queue that remembers the last write alone, so that each operation must answer for itself."""
    monkeypatch.setattr(operations, "RECENT", 1)


@pytest.mark.parametrize("name", WORLDS)
def test_each_message_is_put_and_acked_once_without_shared_writes(name: str, forgetful) -> None:
    found = explore(WORLDS[name], steps())
    print(found)
    assert not found.story, str(found)


def without_identity(
    contents: Contents, operations: list[Any], now_ms: int, batch: str, *, sent: tuple[bool, ...] = ()
) -> list[Any]:
    named = [replace(one, producer=batch, seq=1) if isinstance(one, Put) else one for one in operations]
    return carry_out_all(contents, named, now_ms, batch, sent=sent)


def ack_by_message(
    contents: Contents, operations: list[Any], now_ms: int, batch: str, *, sent: tuple[bool, ...] = ()
) -> list[Any]:
    def freely(one: Any) -> Any:
        claim = contents.claims.get(one.n) if isinstance(one, End) else None
        return one if claim is None else replace(one, token=claim.token)

    return carry_out_all(contents, [freely(one) for one in operations], now_ms, batch, sent=sent)


def does_not_remember_acks(
    contents: Contents, operations: list[Any], now_ms: int, batch: str, *, sent: tuple[bool, ...] = ()
) -> list[Any]:
    contents.settled.clear()
    results = carry_out_all(contents, operations, now_ms, batch)
    contents.settled.clear()
    return results


def a_lower_number_is_a_repeat(
    contents: Contents, operations: list[Any], now_ms: int, batch: str, *, sent: tuple[bool, ...] = ()
) -> list[Any]:
    del sent
    known = [replace(one, known=99) if isinstance(one, Put) else one for one in operations]
    return carry_out_all(contents, known, now_ms, batch, sent=(True,))


def follow_ups_with_each_yes(
    contents: Contents, operations: list[Any], now_ms: int, batch: str, *, sent: tuple[bool, ...] = ()
) -> list[Any]:
    results = carry_out_all(contents, operations, now_ms, batch, sent=sent)
    for one, result in zip(operations, results, strict=True):
        if isinstance(one, End) and result is None and any(sent) and not contents.changed:
            carry_out_all(contents, [Put(new, batch, 1, "") for new in one.then], now_ms, batch)
    return results


TWINS: dict[str, tuple[str, Do]] = {
    "put without identity": ("a producer that dies, a worker", without_identity),
    "ack by message": ("two workers, lapses", ack_by_message),
    "acked tokens are not remembered": ("two workers, lapses", does_not_remember_acks),
    "a lower number is a repeat": ("one name, two threads", a_lower_number_is_a_repeat),
    "follow-ups with each yes": ("two workers, lapses", follow_ups_with_each_yes),
}


@pytest.mark.parametrize("name", TWINS)
def test_mutant_is_caught(name: str, forgetful) -> None:
    where, do = TWINS[name]
    found = explore(WORLDS[where], steps(do))
    print(found)
    assert found.story


def test_mutant_producer_that_takes_lost_answer_for_refusal_is_caught() -> None:
    found = explore(WORLDS["a producer that dies, a worker"], steps(believes=True))
    print(found)
    assert found.story


def test_stale_heartbeat_prolongs_no_claim_of_another_worker() -> None:
    """DotNetWorkQueue #335: a heartbeat by message refreshed the claim of another worker."""
    contents = Contents("q")
    carry_out_all(contents, [Put(New("a"), "p", 1, ""), Take("old", "v", 1000)], 0, "1")
    carry_out_all(contents, [Lapse(1, "old", 0), Take("new", "w", 1000)], 0, "2")
    before = contents.claims[1]
    (lost,) = carry_out_all(contents, [Beat(((1, "old"),))], 500, "3")
    assert (lost, contents.claims[1]) == ((1,), before)


def test_producer_dropped_from_the_table_gets_unknown_outcome(monkeypatch) -> None:
    monkeypatch.setattr(operations, "SETTLED", 0)
    contents = Contents("q")
    carry_out_all(contents, [Put(New("a"), "p", 1, ""), Take("t", "w", 1000), End(1, "t", "ack")], 0, "1")
    carry_out_all(contents, [Put(New("b"), "p", 2, "")], 0, "2")
    (again,) = carry_out_all(contents, [End(1, "t", "ack")], 0, "3", sent=(True,))
    assert isinstance(again, operations.Forgotten)
    (again,) = carry_out_all(contents, [End(1, "t", "ack")], 0, "3")
    assert isinstance(again, ClaimLost)
    assert stored.SETTLED > stored.RECENT


def test_write_remembers_all_ends_of_its_claims() -> None:
    contents, count = Contents("q"), stored.SETTLED + 1
    carry_out_all(contents, [Put(New(n), "p", n, "") for n in range(1, count + 1)], 0, "1")
    carry_out_all(contents, [Take(f"t{n}", "w", 1000) for n in range(1, count + 1)], 0, "2")
    acks = [End(n, f"t{n}", "ack") for n in range(1, count + 1)]
    assert carry_out_all(contents, acks, 0, "3") == [None] * count
    assert carry_out_all(contents, acks, 0, "4", sent=(True,) * count) == [None] * count
    carry_out_all(contents, [Put(New(0), "p", count + 1, "")], 0, "5")
    assert len(contents.settled) == stored.SETTLED


@pytest.fixture
def small(monkeypatch) -> None:
    """One message stays in the object, and one is in each segment."""
    monkeypatch.setattr(stored, "IN_OBJECT", 1)
    monkeypatch.setattr(stored, "SEGMENT", 1)


SPILLED: dict[str, World] = {
    "a producer that dies, a worker": world(
        Client("p", puts("b")), Client("w", works=1), ready="a", lost=1, delays=1, crashes=1
    ),
    "two workers that die": world(Client("v", works=2), Client("w", works=1), ready="ab", lost=1, crashes=1),
    "two workers, lapses": world(Client("v", works=1), Client("w", works=1), ready="ab", lost=1, lapses=1),
    "a cleaner": world(Client("p", puts("b")), Client("w", works=1), ready="a", crashes=1, cleans=1),
}


@pytest.mark.parametrize(
    ("name", "remembered"),
    [
        *((name, operations.RECENT) for name in SPILLED),
        ("a producer that dies, a worker", 1),
        ("two workers, lapses", 1),
    ],
)
def test_messages_in_segments_are_neither_lost_nor_doubled_at_any_crash(
    name: str, remembered: int, small, monkeypatch
) -> None:
    monkeypatch.setattr(operations, "RECENT", remembered)
    found = explore(SPILLED[name], steps())
    print(found)
    assert not found.story, str(found)
    assert found.states > 1000


WRONG_ORDERS = {
    "named before it is made": "a producer that dies, a worker",
    "removed before it is named no more": "two workers that die",
    "removed though it may have been done": "a producer that dies, a worker",
    "a cleaner that writes nothing": "a cleaner",
}


@pytest.mark.parametrize("wrong", WRONG_ORDERS)
def test_mutant_with_wrong_order_of_segment_requests_is_caught(wrong: str, small) -> None:
    found = explore(SPILLED[WRONG_ORDERS[wrong]], steps(wrong=wrong))
    print(found)
    assert found.story


def test_mutant_with_reusable_segment_names_is_caught(small, monkeypatch) -> None:
    monkeypatch.setattr(operations, "spill", lambda contents, now_ms, stem: stored.spill(contents, now_ms, ""))
    found = explore(SPILLED["two workers, lapses"], steps())
    print(found)
    assert found.story
