"""Each row of the table in `fsspec_cas.answer`, for a create, a create-once and a match."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fsspec_cas import ABSENT, Lost, Version, Won
from fsspec_cas.answer import Applied, ConditionFailed, Missing, NoAnswer, NotApplied, ObjectState, Unchanged
from fsspec_cas.outcome import Write
from fsspec_cas.settle import (
    Adapt,
    Contradicts,
    Inconclusive,
    ReadHead,
    Send,
    WriteProgress,
    first_step,
    on_head_answer,
    on_write_answer,
)

V1, V2, V3 = (Version("t", str(n)) for n in (1, 2, 3))
CREATE = Write("p", ABSENT, "mine")
ONCE = Write("p", ABSENT, "mine", create_once=True)
MATCH = Write("p", V1, "mine")
DELETE = Write("p", V1, "mine", removes=True)
WRITES = [pytest.param(w, id=i) for w, i in ((CREATE, "create"), (ONCE, "create-once"), (MATCH, "match"))]


def seen(version: Version, write_id: str | None) -> ObjectState:
    return ObjectState(version, 1, None, write_id)


def as_expected(write: Write) -> ObjectState | Missing:
    return seen(V1, "before") if write is MATCH else Missing()


def refused(write: Write, *, doubt: bool = False) -> WriteProgress:
    return WriteProgress(write, doubt=doubt, refused=True)


def in_doubt(write: Write) -> WriteProgress:
    return WriteProgress(write, doubt=True, failures=1, why="500")


@pytest.mark.parametrize("write", WRITES)
class TestAfterASend:
    def test_applied_with_a_version_is_won(self, write: Write) -> None:
        for attempt in (WriteProgress(write), in_doubt(write)):
            assert on_write_answer(attempt, Applied(V2))[1] == Won(V2)

    def test_won_reports_whether_another_copy_may_be_applied(self, write: Write) -> None:
        once = on_write_answer(WriteProgress(write), Applied(V2))[1]
        silent = on_write_answer(WriteProgress(write), NoAnswer("500"))[0]
        again = on_write_answer(silent, Applied(V2))[1]
        silent_twice = on_write_answer(silent, NoAnswer("500"))[0]
        seen_then = [on_head_answer(attempt, seen(V2, "mine"))[1] for attempt in (silent, silent_twice)]
        refused_then = on_head_answer(on_write_answer(silent, ConditionFailed())[0], seen(V2, "mine"))[1]
        turned_away = on_write_answer(on_write_answer(WriteProgress(write), NotApplied("429"))[0], Applied(V2))[1]
        wins = (once, again, *seen_then, refused_then, turned_away)
        assert [win.resent for win in wins] == [False, True, False, True, False, False]

    def test_applied_without_version_is_read_back_and_never_lost(self, write: Write) -> None:
        after, step = on_write_answer(WriteProgress(write), Applied(None))
        assert step == ReadHead()
        assert (after.doubt, after.refused) == (True, False)
        assert isinstance(on_head_answer(after, seen(V3, None))[1], Inconclusive)

    def test_refusal_is_read_back_and_makes_no_doubt(self, write: Write) -> None:
        assert on_write_answer(WriteProgress(write), ConditionFailed()) == (refused(write), ReadHead())
        assert on_write_answer(in_doubt(write), ConditionFailed())[0].doubt

    def test_not_applied_is_read_back_after_retry_after(self, write: Write) -> None:
        after, step = on_write_answer(WriteProgress(write, failures=2), NotApplied("409", 3.0))
        assert step == ReadHead(3, 3.0)
        assert (after.doubt, after.failures, after.why) == (False, 3, "409")

    def test_refusal_followed_by_not_applied_is_settled_except_for_a_delete(self, write: Write) -> None:
        after, _ = on_write_answer(refused(write), NotApplied("429"))
        assert (after.refused, after.doubt) == (False, write.removes)

    def test_timeout_makes_doubt_and_is_read_back_at_once(self, write: Write) -> None:
        after, step = on_write_answer(WriteProgress(write), NoAnswer("503", 2.0))
        assert step == ReadHead(0, 2.0)
        assert (after.doubt, after.refused, after.why) == (True, False, "503")

    def test_timeout_after_refusal_makes_outcome_unknown(self, write: Write) -> None:
        assert not on_write_answer(refused(write), NoAnswer("reset"))[0].refused


@pytest.mark.parametrize("write", WRITES)
class TestAfterALook:
    def test_own_identity_in_the_object_is_won_after_any_history(self, write: Write) -> None:
        for attempt in (refused(write), in_doubt(write), refused(write, doubt=True)):
            assert on_head_answer(attempt, seen(V2, "mine"))[1] == Won(V2)

    def test_refusal_at_expected_version_blames_dialect_four_times_then_store(self, write: Write) -> None:
        attempt, steps = refused(write), []
        for _ in range(5):
            attempt, step = on_head_answer(attempt, as_expected(write))
            steps.append(step)
        assert steps[:4] == [Adapt(0), Adapt(1), Adapt(2), Adapt(3)]
        assert isinstance(steps[4], Contradicts)

    def test_write_of_another_after_refusal_without_doubt_is_lost(self, write: Write) -> None:
        for other in (seen(V2, "other"), seen(V2, None)):
            assert on_head_answer(refused(write), other)[1] == Lost("p", write.condition, V2)

    def test_unchanged_object_after_timeout_makes_write_be_sent_again(self, write: Write) -> None:
        after, step = on_head_answer(in_doubt(write), as_expected(write))
        assert step == Send(1)
        assert after.doubt

    def test_failed_read_back_is_repeated(self, write: Write) -> None:
        for attempt in (refused(write), in_doubt(write)):
            for answer in (NoAnswer("500", 1.0), NotApplied("429", 1.0)):
                after, step = on_head_answer(attempt, answer)
                assert step == ReadHead(attempt.failures + 1, 1.0)
                assert (after.doubt, after.refused) == (attempt.doubt, attempt.refused)


def test_match_on_absent_object_is_lost_or_in_doubt_unknown() -> None:
    assert on_head_answer(refused(MATCH), Missing())[1] == Lost("p", V1, ABSENT)
    assert on_head_answer(refused(MATCH), Unchanged())[1] == Lost("p", V1, ABSENT)
    assert isinstance(on_head_answer(in_doubt(MATCH), Missing())[1], Inconclusive)


ELSEWHERE = [Missing(), seen(V2, "other"), seen(V2, None)]


class TestADelete:
    def test_delete_begins_with_a_head(self) -> None:
        assert first_step(DELETE) == ReadHead()
        assert [first_step(write) for write in (CREATE, ONCE, MATCH)] == [Send()] * 3

    @pytest.mark.parametrize("look", ELSEWHERE)
    def test_delete_is_lost_when_object_is_at_another_version_before_sending(self, look) -> None:
        current = look.version if isinstance(look, ObjectState) else ABSENT
        assert on_head_answer(WriteProgress(DELETE), look)[1] == Lost("p", V1, current)

    def test_delete_at_its_version_is_sent_at_once_and_again_after_timeout(self) -> None:
        assert on_head_answer(WriteProgress(DELETE), seen(V1, "x"))[1] == Send()
        assert on_head_answer(in_doubt(DELETE), seen(V1, "x"))[1] == Send(1)

    @pytest.mark.parametrize("look", ELSEWHERE)
    def test_delete_once_sent_is_never_lost(self, look) -> None:
        for attempt in (refused(DELETE), in_doubt(DELETE), refused(DELETE, doubt=True)):
            assert isinstance(on_head_answer(attempt, look)[1], Inconclusive)

    def test_repeated_refusal_of_delete_at_its_version_blames_the_store(self) -> None:
        attempt, steps = refused(DELETE), []
        for _ in range(5):
            attempt, step = on_head_answer(attempt, seen(V1, "x"))
            steps.append(step)
        assert steps[:4] == [Adapt(0), Adapt(1), Adapt(2), Adapt(3)]
        assert isinstance(steps[4], Contradicts)


@pytest.mark.parametrize("attempt_of", [in_doubt, lambda write: refused(write, doubt=True)])
class TestAnothersWriteInDoubt:
    def test_write_of_another_on_create_once_path_proves_own_write_never_landed(self, attempt_of) -> None:
        assert on_head_answer(attempt_of(ONCE), seen(V2, "other"))[1] == Lost("p", ABSENT, V2)

    def test_write_of_another_without_identity_proves_nothing(self, attempt_of) -> None:
        assert isinstance(on_head_answer(attempt_of(ONCE), seen(V2, None))[1], Inconclusive)

    @pytest.mark.parametrize("write", [CREATE, MATCH])
    def test_own_write_on_other_paths_may_have_been_applied_and_replaced(self, attempt_of, write: Write) -> None:
        step = on_head_answer(attempt_of(write), seen(V2, "other"))[1]
        assert isinstance(step, Inconclusive)
        assert str(V2) in step.why

    def test_create_once_does_not_settle_a_match(self, attempt_of) -> None:
        step = on_head_answer(attempt_of(replace(MATCH, create_once=True)), seen(V2, "other"))[1]
        assert isinstance(step, Inconclusive)


def test_no_answer_clears_a_doubt() -> None:
    answers = [ConditionFailed(), NotApplied("409"), NoAnswer("500")]
    looks = [seen(V2, "other"), Missing(), NoAnswer("500"), NotApplied("429")]
    for write in (CREATE, ONCE, MATCH):
        for attempt in (in_doubt(write), refused(write, doubt=True)):
            assert all(on_write_answer(attempt, answer)[0].doubt for answer in answers)
            assert all(on_head_answer(attempt, look)[0].doubt for look in looks)


def test_write_in_doubt_on_overwritten_path_is_never_reported_lost() -> None:
    for write in (CREATE, MATCH):
        for look in (seen(V1, "x"), seen(V2, "x"), seen(V3, None), Missing(), Unchanged()):
            for attempt in (in_doubt(write), refused(write, doubt=True)):
                assert not isinstance(on_head_answer(attempt, look)[1], Lost)
