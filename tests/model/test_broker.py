"""Every order of asks, answers, deaths, stale views and late carrying out around a queue whose clients share a broker.

The clients decide with the product's rules (`broker_rules.py`), operations are carried out by the queue's own
(`carry_out_all`), and writes settle as `QueueWriter` does. A client may give up at any time: it hangs up, and goes on by
itself. What it had asked may lie with the broker still, and is carried out by it whenever that is not seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest

from lockprovider.recipes.broker_rules import Forgotten, NotHere, broker_to_ask, combine_answers, offers_of, with_offer
from lockprovider.recipes.queue import operations
from lockprovider.recipes.queue.contents import Claim, Contents, decode_queue
from lockprovider.recipes.queue.operations import (
    End,
    New,
    NothingReady,
    Put,
    PutBefore,
    QueueCodec,
    QueueOperation,
    Take,
    carry_out_all,
    results_of,
    sent_of,
)
from lockprovider.recipes.queue.writer import _adds_forgettable
from model.search import BrokenPromise, Steps, explore

PLACE = "host"


LATE = ("a late claim is a new one", "it adds a name that is forgotten")  # and nobody looks who has hung up


@dataclass(frozen=True)
class Try:
    """A batch that one client carries out: one operation, its own or of another's ask."""

    operation: QueueOperation
    asker: int  # whose; -1: the client's own
    number: int  # of the ask
    sent: bool
    phase: str = "look"
    base: bytes = b""
    draft: bytes = b""
    result: Any = None
    batch: str = ""
    tries: tuple[tuple[str, Any], ...] = ()
    asked: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Client:
    """`todo`: bodies to be put, then, if it works, a message to take and to ack."""

    todo: tuple[str, ...] = ()
    works: int = 0
    seq: int = 0
    token: int = 0
    claim: tuple[int, str] | None = None
    view: bytes = b""
    own: Try | None = None
    asks: tuple[str, int] | None = None  # whom, and which ask
    asked: int = 0
    serves: tuple[Try, ...] = ()  # what others have asked of it
    alive: bool = True
    avoided: frozenset[str] = frozenset()


@dataclass(frozen=True)
class World:
    clients: tuple[Client, ...]
    there: bytes
    answers: frozenset[tuple[int, int, Any]] = frozenset()  # to whom, of which ask, what
    put: frozenset[str] = frozenset()
    acked: frozenset[str] = frozenset()  # told so
    gone: frozenset[str] = frozenset()  # bodies that an ack took
    deaths: int = 0
    given_up: int = 0
    lost: int = 0


def name_of(n: int) -> str:
    return "abc"[n]


ERRORS: dict[tuple[type, str], Any] = {}


def once(result: Any) -> Any:
    """Two errors that say the same are one, else two states that are alike would be two."""
    return ERRORS.setdefault((type(result), str(result)), result) if isinstance(result, Exception) else result


@cache
def not_here(sent: bool) -> NotHere:
    return NotHere("", sent=sent)


@cache
def decoded(data: bytes) -> Contents:
    return decode_queue(data, "q")


def bodies(contents: Contents) -> list[str]:
    return [one.body for one in (*contents.ready, *(claim.message for claim in contents.claims.values()))]


def write(world: World, data: bytes, doing: str) -> World:
    before, now = bodies(decoded(world.there)), bodies(decoded(data))
    acked = {claim.message.body for claim in decoded(world.there).claims.values()} - {*now}
    gone = world.gone | acked
    if twice := [body for body, count in Counter([*now, *gone]).items() if count > 1]:
        raise BrokenPromise(doing, f"{twice} is there twice, or again after it was acked")
    if lost := {*before} - {*now} - acked:
        raise BrokenPromise(doing, f"{lost} is lost")
    for token in {one.token for one in decoded(data).claims.values()} - {*tokens(world.there)}:
        client = world.clients["abc".index(token[0])]
        wanted = client.own is not None and client.own.operation
        if client.alive and not (isinstance(wanted, Take) and wanted.token == token):
            raise BrokenPromise(doing, f"{token} is claimed, and its client waits for it no more")
    return replace(world, there=data, gone=frozenset(gone))


def tokens(data: bytes) -> Iterator[str]:
    return (one.token for one in decoded(data).claims.values())


def steps(wrong: str = "") -> Steps[World]:  # noqa: PLR0915 - all that can happen
    def step(world: World) -> Iterator[tuple[str, World]]:
        for n, client in enumerate(world.clients):
            if not client.alive:
                continue
            if world.deaths:
                dead = replace(client, alive=False, own=None, asks=None, serves=())
                yield f"{name_of(n)} dies", changed(world, n, dead, deaths=world.deaths - 1)
            if client.own is None:
                yield from begins(world, n, client)
            elif client.asks is None:
                for label, after in carries_out(world, n, client, client.own):
                    yield f"{name_of(n)} {label}", after
            else:
                yield from waits(world, n, client)
            for one in client.serves[:1]:
                if client.own is None or client.asks is not None:  # one write at a time
                    for label, after in carries_out(world, n, client, one):
                        yield f"{name_of(n)}, for {name_of(one.asker)}, {label}", after

    def begins(world: World, n: int, client: Client) -> Iterator[tuple[str, World]]:
        me = name_of(n)
        if client.todo:
            seq = client.seq + 1
            name = f"~{me}" if "unnamed" in client.todo[0] else me
            operation: QueueOperation = Put(New(client.todo[0]), name, seq, me)
            on = replace(client, todo=client.todo[1:], seq=seq)
        elif client.claim is not None:
            operation = End(*client.claim, "ack")
            on = replace(client, claim=None, works=client.works - 1)
        elif client.works:
            operation = Take(f"{me}{client.token}", me, 1000)
            on = replace(client, token=client.token + 1)
        else:
            return
        yield f"{me} begins", changed(world, n, replace(on, own=Try(operation, -1, 0, sent=False)))

    def carries_out(world: World, n: int, client: Client, one: Try) -> Iterator[tuple[str, World]]:
        is_own = one.asker < 0

        def on(after: Try | None, on_world: World = world, **more: Any) -> World:
            left = on_world.clients[n]
            if is_own:
                return changed(on_world, n, replace(left, own=after, **more))
            rest = left.serves[1:]
            return changed(on_world, n, replace(left, serves=rest if after is None else (after, *rest), **more))

        match one.phase:
            case "look":  # with what it knows, or with what is there
                for data in {client.view or world.there, world.there} if not one.tries else {world.there}:
                    yield from decides(world, n, client, one, data, on)
            case "send":
                batch = (one.batch, one.result)
                if world.there == one.base:
                    landed = write(world, one.draft, f"{name_of(n)} writes")
                    seen = on(one, landed, view=one.draft)
                    yield "writes", finished(seen, n, one, one.result)
                    if world.lost:
                        doubtful = replace(one, phase="look", tries=(*one.tries, batch))
                        yield (
                            "writes; no answer",
                            on(doubtful, landed, view=b"")
                            if is_own
                            else replace(on(doubtful, landed, view=b""), lost=world.lost - 1),
                        )
                else:
                    yield "is refused", on(replace(one, phase="look", tries=(*one.tries, batch)), view=b"")
                if wrong == "it answers before its write" and not is_own:
                    answered = replace(world, answers=world.answers | {(one.asker, one.number, one.result)})
                    yield "answers before it has written", answered

    def decides(world: World, n: int, client: Client, one: Try, data: bytes, on: Any) -> Iterator[tuple[str, World]]:
        me, is_own = name_of(n), one.asker < 0
        contents = decoded(data).copy()
        sent = one.sent or any(sent_of({batch: [result]}, 1)[0] for batch, result in one.tries)
        settled = results_of(contents, {batch: [result] for batch, result in one.tries})
        if settled is not None:
            yield "finds its write", finished(on(one, view=data), n, one, settled[0])
            return
        there = contents.more.get("broker")
        offer = broker_to_ask(there, PLACE, (me, me), lambda other: other in client.avoided or other in one.asked)
        if offer is not None and QueueCodec.may_hand_over(one.operation):
            if not is_own:
                yield "is the broker no more", finished(on(one, view=data), n, one, not_here(sent))
                return
            yield from asks(world, n, replace(client, view=data), replace(one, sent=sent), offer[0])
            return
        operation = one.operation
        if not is_own:
            asker = world.clients[one.asker]
            wants = asker.asks == (me, one.number) and asker.alive
            if not wants and wrong not in LATE:
                yield "drops it", on(None)
                return
            if _adds_forgettable(operation, contents) and wrong != "it adds a name that is forgotten":
                yield "leaves the name to its client", finished(on(one, view=data), n, one, not_here(sent))
                return
        batch = f"{me}{world.there.count(b',')}.{len(one.tries)}.{one.number}.{one.asker}.{contents.rev}"
        was = sent or (isinstance(operation, Take) and not is_own and wrong != "a late claim is a new one")
        (result,) = map(once, carry_out_all(contents, [operation], 0, batch, sent=(was,)))
        if not contents.changed:
            if data == world.there:
                yield "need not write", finished(on(one, view=data), n, one, result)
            return
        if offers_of(there).get(PLACE, ("",))[0] in ("", *client.avoided):
            contents.more = {**contents.more, "broker": with_offer(there, PLACE, (me, me))}
        drafted = replace(one, phase="send", base=data, draft=contents.encode(), result=result, batch=batch, sent=sent)
        yield "decides", on(drafted, view=data)

    def asks(world: World, n: int, client: Client, one: Try, other: str) -> Iterator[tuple[str, World]]:
        m = "abc".index(other)
        number = client.asked + 1
        asked = replace(one, asked=one.asked | {other})
        if not world.clients[m].alive:
            avoids = replace(client, avoided=client.avoided | {other}, own=asked, view=b"")
            yield f"finds {other} dead", changed(world, n, avoids)
            return
        waiting = replace(client, own=asked, asks=(other, number), asked=number)
        operation = one.operation
        if wrong == "another ask is another message" and isinstance(operation, Put) and one.sent:
            operation = replace(operation, seq=operation.seq + 10)
        served = Try(operation, n, number, sent=one.sent)
        on = changed(world, n, waiting)
        yield f"asks {other}", changed(on, m, replace(on.clients[m], serves=(*on.clients[m].serves, served)))

    def waits(world: World, n: int, client: Client) -> Iterator[tuple[str, World]]:
        me, one = name_of(n), client.own
        assert one is not None
        assert client.asks is not None
        other, number = client.asks
        for to, of, result in world.answers:
            if to == n and (of == number or wrong == "an answer counts for whatever is asked"):
                left = replace(world, answers=world.answers - {(to, of, result)})
                handed = combine_answers([result], [one.sent])
                if handed.results is not None:
                    yield f"{me} is answered", finished(changed(left, n, replace(client, asks=None)), n, one, result)
                else:
                    again = replace(client, asks=None, own=replace(one, sent=handed.sent[0], tries=()), view=b"")
                    yield f"{me} is told that it is not there", changed(left, n, again)
        gone = not world.clients["abc".index(other)].alive
        if gone or world.given_up:
            again = replace(one, sent=True)
            if wrong == "another ask is another message" and isinstance(again.operation, Put):
                again = replace(again, operation=replace(again.operation, seq=again.operation.seq + 10))
            hung_up = replace(client, asks=None, own=again, avoided=client.avoided | {other}, view=b"")
            yield f"{me} gives up", changed(world, n, hung_up, given_up=world.given_up - (not gone))

    def finished(world: World, n: int, one: Try, result: Any) -> World:
        """The client is told, or another is answered."""
        client = world.clients[n]
        if one.asker >= 0:
            on = changed(world, n, replace(client, serves=client.serves[1:]))
            return replace(on, answers=on.answers | {(one.asker, one.number, result)})
        now = decoded(world.there)
        on = changed(world, n, replace(client, own=None, avoided=frozenset()))
        if isinstance(result, NothingReady):
            return changed(on, n, replace(on.clients[n], works=client.works - 1))
        if isinstance(result, Exception):
            if isinstance(one.operation, Put) and not isinstance(result, Forgotten):
                raise BrokenPromise(f"{name_of(n)} is told", f"of {one.operation.message.body}: {result!r}")
            return on
        match one.operation:
            case Put(message):
                if not isinstance(result, (int, PutBefore)):
                    raise BrokenPromise(f"{name_of(n)} is told", f"{result!r} of a put")
                if message.body not in (*bodies(now), *on.gone):
                    raise BrokenPromise(f"{name_of(n)} is told", f"{message.body} is there, and it is not")
                return replace(on, put=on.put | {message.body})
            case Take(token):
                if not isinstance(result, Claim) or result.token != token:
                    raise BrokenPromise(f"{name_of(n)} is told", f"{result!r} of a claim by {token}")
                return changed(on, n, replace(on.clients[n], claim=(result.message.n, token)))
            case End(number):
                there = [one.n for one in now.ready] + [*now.claims]
                if number in there:
                    raise BrokenPromise(f"{name_of(n)} is told", f"{number} is acked, and it is there")
        return on

    return step


def changed(world: World, n: int, client: Client, **more: Any) -> World:
    return replace(world, clients=(*world.clients[:n], client, *world.clients[n + 1 :]), **more)


def world(*clients: Client, ready: str = "", names: str = "abc", **faults: int) -> World:
    """The first client is the broker; all have put before."""
    contents = Contents("q")
    puts = [Put(New(body), "before", n, "before") for n, body in enumerate(ready, 1)]
    named = [Put(New("x"), f"~{name}", 1, name) for name in names]
    carry_out_all(contents, puts, 0, "before")
    for put in named:
        contents.producers[put.producer] = (1, 0, put.client)
    contents.more = {"broker": with_offer(None, PLACE, ("a", "a"))}
    return World(tuple(replace(one, seq=1) for one in clients), contents.encode(), **faults)


WORLDS = {
    "two put, the broker dies": world(Client(("1",)), Client(("2", "3")), deaths=1, lost=1),
    "two put without a name": world(Client(("unnamed 1",)), Client(("unnamed 2", "unnamed 3")), given_up=1, deaths=1),
    "two of three give up": world(Client(), Client(("1",)), Client(("2",)), given_up=2),
    "one puts twice and gives up": world(Client(), Client(("1", "2")), given_up=1),
    "two work, answers are lost": world(Client(works=1), Client(works=1), ready="xy", given_up=1, lost=1),
    "the broker is one again": world(Client(("1",)), Client(works=1), ready="xy", given_up=2),
    "one puts, one works, one is the broker": world(
        Client(), Client(("1",)), Client(works=1), ready="x", given_up=1, deaths=1
    ),
}


@pytest.mark.parametrize("name", WORLDS)
def test_operation_sent_to_the_broker_is_done_once_or_its_client_knows(name: str) -> None:
    found = explore(WORLDS[name], steps())
    print(found)
    assert not found.story, str(found)
    assert found.states > 50


TWINS = {
    "it answers before its write": "two put, the broker dies",
    "another ask is another message": "two put, the broker dies",
    "an answer counts for whatever is asked": "one puts twice and gives up",
    "a late claim is a new one": "the broker is one again",
}


@pytest.mark.parametrize("wrong", TWINS)
def test_mutant_is_caught(wrong: str) -> None:
    found = explore(WORLDS[TWINS[wrong]], steps(wrong))
    print(found)
    assert found.story


def test_name_dropped_from_the_table_is_not_added_again(monkeypatch) -> None:
    """One name is remembered: what the broker carries out late would be done again."""
    monkeypatch.setattr(operations, "PRODUCERS", 1)
    start = world(Client(("unnamed 1", "unnamed 3")), Client(("unnamed 2",)), names="b", given_up=2)
    right, twin = (explore(start, steps(wrong)) for wrong in ("", "it adds a name that is forgotten"))
    print(right, twin)
    assert not right.story, str(right)
    assert twin.story
