"""Every order of judging, posting and deciding of commits with epochs: none follows one of a newer epoch.

What is decided by is the real `choose`, `verdict` and `Proposal`. A write of the lock record is one step, as it is done at
the version that was read or not at all; it decides any of the intents that are posted, its own or others'.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import pytest

from lockprovider.recipes.errors import Fenced
from lockprovider.storage_lock import commit_rules as group
from lockprovider.storage_lock.commit_rules import Intent
from lockprovider.storage_lock.record import Entry, Log, Pending
from lockprovider.table.format.layout import Action, parse_instant
from lockprovider.table.format.metadata import CommitMetadata, batches_by_stream, decode_commit, encode_commit
from lockprovider.table.timeline.conflict import Fence, fences_in, refuse_repeated_or_fenced, with_fence
from lockprovider.table.transaction.decision import Proposal, decode, encode, refuse
from model.group_twins import _judges_each_by_the_log_alone
from model.search import BrokenPromise, explore

FOLDER = ".hoodie/timeline/"
Chooses = Callable[..., tuple[Pending, ...]]


class Judge:
    """As a table's, but for what that asks of the table."""

    unordered = False
    sample = b""

    def refresh(self, seen_s: float) -> None:
        del seen_s

    def refuse(self, intent: Intent, since: Sequence[Entry]) -> None:
        refuse(wanted_of(intent.body), [known_of(entry) for entry in since])

    def pending(self, intent: Intent, log: Log, now_ms: int) -> Pending | None:
        del now_ms
        wanted = wanted_of(intent.body)
        return Pending.of_bytes(FOLDER + wanted.completed(f"{10**16 + log.next}").file_name, wanted.data)


JUDGE = Judge()
wanted_of = functools.cache(decode)


@functools.cache
def known_of(entry: Entry) -> tuple[Any, CommitMetadata]:
    return parse_instant(entry.path.removeprefix(FOLDER)), decode_commit(entry.data or b"", "")


@functools.cache
def body(n: int, epoch: int) -> bytes:
    """Of writer n, which has a fence or not."""
    extra = with_fence({}, Fence(epoch) if epoch else None)
    metadata = CommitMetadata({}, "UPSERT", None, extra)
    data, begin = encode_commit(metadata), f"{10**16 + n}"
    return encode(Proposal(begin, Action.COMMIT, "by_file_group", False, "", "", None, False, data, metadata))


class World(NamedTuple):
    """`intents`: None where a writer has not judged itself yet; `ended`: of those that were refused, or told."""

    epochs: tuple[int, ...]
    intents: tuple[Intent | None, ...]
    log: Log
    ended: frozenset[int] = frozenset()


def said(entry: Entry) -> int:
    fences = fences_in(known_of(entry)[1].extra)
    return fences[0].epoch if fences else 0


def steps(choose: Chooses = group.choose) -> Callable[[World], Iterator[tuple[str, World]]]:
    def step(world: World) -> Iterator[tuple[str, World]]:
        for n, intent in enumerate(world.intents):
            if n in world.ended:
                continue
            if intent is None:
                yield judges(world, n)
                continue
            told = group.verdict(world.log, intent, JUDGE)
            if isinstance(told, group.Decided | group.Refused):
                if isinstance(told, group.Refused) and not isinstance(told.error, Fenced):
                    raise BrokenPromise(f"{n} looks", f"it is refused for {told.error!r}")
                yield f"{n} is told {told}", world._replace(ended=world.ended | {n})
        posted = [one for n, one in enumerate(world.intents) if one is not None and n not in world.ended]
        for count in range(1, len(posted) + 1):
            for some in combinations(posted, count):
                yield from decides(world, some)

    def decides(world: World, some: Sequence[Intent]) -> Iterator[tuple[str, World]]:
        log = world.log
        for pending in choose(world.log, (), some, JUDGE, 0):
            log = log.plus(pending)
        label = f"{[one.stem for one in some]} are to be decided: {log.next - world.log.next} are"
        epochs = [epoch for entry in log.entries if (epoch := said(entry))]
        if epochs != sorted(epochs):
            raise BrokenPromise(label, f"the epochs are decided in the order {epochs}")
        if log != world.log:
            yield label, world._replace(log=log)

    def judges(world: World, n: int) -> tuple[str, World]:
        wanted = body(n, world.epochs[n])
        try:
            notes = [(i, batches_by_stream(known.extra)) for i, known in map(known_of, reversed(world.log.entries))]
            fence = Fence(world.epochs[n]) if world.epochs[n] else None
            refuse_repeated_or_fenced(fences_in(with_fence({}, fence)), None, lambda: notes)
        except Fenced:
            return f"{n} is refused at once", world._replace(ended=world.ended | {n})
        intent = Intent(world.log.name, world.log.next, wanted_of(wanted).stem, wanted)
        return f"{n} has judged itself", world._replace(intents=(*world.intents[:n], intent, *world.intents[n + 1 :]))

    return step


def world(*epochs: int) -> World:
    return World(epochs, (None,) * len(epochs), Log("1"))


@pytest.mark.parametrize("epochs", [(2, 1, 0), (1, 2, 1), (2, 1, 2), (0, 1, 2)])
def test_no_commit_follows_one_of_a_newer_epoch(epochs: tuple[int, ...]) -> None:
    found = explore(world(*epochs), steps())
    print(found)
    assert not found.story, str(found)
    assert found.states > 10


def test_mutant_that_checks_the_fence_only_in_the_writer_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockprovider.table.timeline.conflict.refuse_repeated_or_fenced", lambda *_: None)
    found = explore(world(2, 1), steps())
    print(found)
    assert found.story


def test_mutant_that_checks_each_commit_of_a_batch_by_the_log_is_caught() -> None:
    found = explore(world(2, 1), steps(_judges_each_by_the_log_alone))
    print(found)
    assert found.story


def test_mutant_that_checks_no_other_commits_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a commit would be judged before its write, and not in it."""
    monkeypatch.setattr(JUDGE, "refuse", lambda *_: None)
    found: Any = explore(world(0, 2, 1), steps())
    print(found)
    assert found.story
