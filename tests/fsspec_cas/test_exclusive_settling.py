"""How a streamed create is settled, without a network: every fault of the completion, in a manual time."""

from __future__ import annotations

import itertools
import uuid

import fsspec
import pytest

from fsspec_cas import ABSENT, Lost, Store, Unavailable, Unknown, Won
from fsspec_cas.answer import ConditionFailed, Missing, NoAnswer, NotApplied, ObjectState, UploadGone
from fsspec_cas.backends.memory import MemoryBackend
from fsspec_cas.outcome import Version, Write
from fsspec_cas.settle import Inconclusive, ReadHead, Send, WriteProgress, on_head_answer, on_write_answer
from fsspec_cas.testing import (
    DeliverLate,
    DeliverTwice,
    Faulty,
    LoseAnswer,
    LoseRequest,
    ManualClock,
    Refuse,
)


@pytest.fixture
def world():
    return ManualClock()


def faulty(world, **plan):
    root = f"/settling/{uuid.uuid4().hex}"
    backend = Faulty(MemoryBackend(fsspec.filesystem("memory")), plan, world=world)
    return Store(backend, root, world=world), Store(backend.inner, root), backend


def stream(store, body=b"mine", **options):
    writer = store.open_exclusive("a", part_size=2, **options)
    writer.write(body)
    return writer


@pytest.mark.parametrize("fault", [LoseAnswer(), LoseRequest(), Refuse(), DeliverTwice(), DeliverLate(2)])
@pytest.mark.parametrize("operation", ["begin", "add", "finish"])
def test_stream_arrives_as_a_whole_despite_one_fault_anywhere(world, operation, fault):
    if (operation, type(fault)) == ("add", DeliverLate):
        pytest.skip("a part that comes after the end is dropped by every store; the memory one has no such guard")
    store, rival, backend = faulty(world, **{operation: [fault]})
    outcome = stream(store).close()
    assert backend.fired == [(operation, fault)]
    assert outcome == Won(rival.head("a").version)
    assert rival.read("a").data == b"mine"


def test_lost_answers_until_the_deadline_are_unknown(world):
    store, rival, _ = faulty(world, finish=[LoseAnswer()], head=[LoseRequest()] * 1000)
    outcome = stream(store, timeout=5.0).close()
    assert isinstance(outcome, Unknown)
    assert outcome.data is None
    assert rival.read("a").data == b"mine"
    assert world.now_s <= 1_700_000_000.0 + 6


def test_refusals_until_the_deadline_are_an_error_and_leave_nothing(world):
    store, rival, _ = faulty(world, finish=[Refuse()] * 1000)
    writer = stream(store, timeout=5.0)
    with pytest.raises(Unavailable):
        writer.close()
    assert rival.list("") == []
    assert writer.outcome is None


def test_stream_with_lost_answer_is_settled_when_another_writer_wins(world):
    """Mine never arrived and another's is there: lost only where nobody ever overwrites."""
    for once, expected in ((True, Lost), (False, Unknown)):
        store, rival, _ = faulty(world, finish=[LoseRequest()])
        writer = stream(store, create_once=once)
        theirs = rival.put_if_absent("a", b"theirs").unwrap()
        outcome = writer.close()
        assert isinstance(outcome, expected)
        if once:
            assert outcome == Lost(writer.path, ABSENT, theirs)


def test_part_that_cannot_be_sent_ends_the_stream(world):
    store, rival, _ = faulty(world, add=[LoseRequest()] * 1000)
    writer = store.open_exclusive("a", part_size=2, timeout=3.0)
    with pytest.raises(Unavailable):
        writer.write(b"12345")
    assert writer.closed
    with pytest.raises(ValueError, match="closed"):
        writer.close()
    assert rival.list("") == []


WRITE = Write("a", ABSENT, "mine")
VERSION = Version("s3", "x")


def test_upload_that_is_gone_is_in_doubt_and_spent():
    attempt, step = on_write_answer(WriteProgress(WRITE), UploadGone("404"))
    assert (attempt.doubt, attempt.spent, step) == (True, True, ReadHead())


@pytest.mark.parametrize(
    ("seen", "once", "expected"),
    [
        (ObjectState(VERSION, 1, None, "mine"), False, Won),
        (ObjectState(VERSION, 1, None, "theirs"), False, Inconclusive),
        (ObjectState(VERSION, 1, None, "theirs"), True, Lost),
        (ObjectState(VERSION, 1, None, None), True, Inconclusive),
        (Missing(), False, Inconclusive),
        (Missing(), True, Inconclusive),
        (NoAnswer("x"), False, ReadHead),
    ],
)
def test_read_back_of_a_spent_write_decides_its_outcome(seen, once, expected):
    attempt = WriteProgress(Write("a", ABSENT, "mine", once), doubt=True, spent=True)
    assert isinstance(on_head_answer(attempt, seen)[1], expected)


def test_spent_write_is_never_sent_again():
    """Through every short history of answers."""
    looks = (Missing(), NotApplied("x"), NoAnswer("x"))
    for history in itertools.product(looks, repeat=4):
        attempt, step = on_write_answer(WriteProgress(WRITE, refused=True), UploadGone("404"))
        for answer in history:
            assert not isinstance(step, Send)
            if not isinstance(step, ReadHead):
                break
            attempt, step = on_head_answer(attempt, answer)


def test_denied_completion_is_read_back_before_it_is_lost():
    attempt, step = on_write_answer(WriteProgress(WRITE), ConditionFailed())
    assert isinstance(step, ReadHead)
    assert isinstance(on_head_answer(attempt, ObjectState(VERSION, 1, None, "mine"))[1], Won)
    assert isinstance(on_head_answer(attempt, ObjectState(VERSION, 1, None, "theirs"))[1], Lost)
