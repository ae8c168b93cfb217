"""`Store` over a backend that answers from a list, in a world that stands still."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import signal
import threading
import uuid
from functools import partial
from types import SimpleNamespace

import fsspec
import pytest
from fsspec.asyn import get_loop

from fsspec_cas import (
    ABSENT,
    AccessDenied,
    AlreadyExists,
    AsyncStore,
    BucketNotFound,
    Capabilities,
    CasError,
    Content,
    InvalidInput,
    InvalidUrl,
    InvalidVersion,
    Lost,
    NotSupported,
    ObjectNotFound,
    OutcomeUnknown,
    Store,
    Unavailable,
    Unknown,
    Version,
    VersionMismatch,
    Won,
)
from fsspec_cas.answer import (
    Applied,
    ConditionFailed,
    Entry,
    Missing,
    NoAnswer,
    NotApplied,
    ObjectState,
    Page,
    Unchanged,
)
from fsspec_cas.backends.memory import MemoryBackend
from fsspec_cas.exclusive import AsyncExclusive, Exclusive
from fsspec_cas.testing import (
    Delay,
    DeliverLate,
    DeliverTwice,
    Faulty,
    Interrupt,
    LoseAnswer,
    LoseRequest,
    ManualClock,
    Refuse,
)

V1, V2, V3 = (Version("script", str(n)) for n in (1, 2, 3))
ME = "00000000-0000-0000-0000-000000000001"  # the first id of a ManualClock


def seen(version: Version, write_id: str | None = None, data: bytes | None = None) -> ObjectState:
    return ObjectState(version, len(data or b""), 5, write_id, data)


class Scripted:
    """Gives its answers in turn; an exception in the list is raised. Keeps what it was asked."""

    name = "script"
    blocking = True

    def __init__(self, *answers, delete_match=True, world=None, seconds=0.0):
        self.capabilities = Capabilities(
            create=True,
            match=True,
            delete_match=delete_match,
            read_changed=True,
            unique_versions=True,
            keeps_write_id=True,
        )
        self.answers = list(answers)
        self.asked = []
        self.adapted = 0
        self._world, self._seconds = world, seconds

    def _next(self, *what):
        self.asked.append(what)
        if self._world is not None:
            self._world.advance(self._seconds)
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def put(self, write, data, *, timeout_s):
        return self._next("put", write.path, data, write.condition, write.write_id, timeout_s)

    async def head(self, path, *, timeout_s):
        return self._next("head", path, timeout_s)

    async def get(self, path, unless, *, timeout_s):
        return self._next("get", path, unless, timeout_s)

    async def delete(self, path, condition, *, timeout_s):
        return self._next("delete", path, condition, timeout_s)

    async def list_page(self, prefix, start_after, token, *, timeout_s):
        return self._next("list_page", prefix, start_after, token, timeout_s)

    def adapt(self, refused=""):
        self.adapted += 1
        return True

    async def close(self):
        self.asked.append(("close",))

    @property
    def verbs(self):
        return [what[0] for what in self.asked]


def scripted(*answers, seconds=0.0, **kwargs):
    clock = ManualClock()
    backend = Scripted(*answers, world=clock, seconds=seconds, **kwargs)
    return Store(backend, "root", world=clock), backend, clock


# A write and what it comes to


def test_write_that_is_applied_at_once_is_one_request():
    store, backend, _ = scripted(Applied(V1))
    assert store.put_if_absent("a", b"data") == Won(V1)
    assert backend.asked == [("put", "root/a", b"data", ABSENT, ME, 60.0)]


def test_every_send_of_a_write_has_the_same_condition_identity_and_bytes():
    store, backend, _ = scripted(
        NotApplied("429"), seen(V1), NoAnswer("500"), seen(V1), NoAnswer("500"), seen(V1), Applied(V2)
    )
    assert store.put_if_match("a", b"data", V1) == Won(V2)
    puts = [what[:5] for what in backend.asked if what[0] == "put"]
    assert puts == [("put", "root/a", b"data", V1, ME)] * 4


def test_two_writes_have_two_identities():
    store, backend, _ = scripted(Applied(V1), Applied(V2))
    store.put_if_absent("a", b"")
    store.put_if_absent("b", b"")
    assert backend.asked[0][4] != backend.asked[1][4]


def test_refusal_is_read_back_and_lost_with_the_current_version():
    store, backend, _ = scripted(ConditionFailed(), seen(V3))
    assert store.put_if_match("a", b"", V1) == Lost("root/a", V1, V3)
    assert backend.verbs == ["put", "head"]


def test_refusal_caused_by_own_earlier_send_is_won():
    store, _, _ = scripted(ConditionFailed(), seen(V2, ME))
    assert store.put_if_absent("a", b"") == Won(V2)


def test_lost_answer_is_won_when_read_back_shows_own_identity():
    store, backend, clock = scripted(NoAnswer("reset"), seen(V2, ME))
    assert store.put_if_absent("a", b"") == Won(V2)
    assert backend.verbs == ["put", "head"]
    assert clock.sleeps == []


def test_dialect_is_tried_before_a_store_is_blamed():
    store, backend, _ = scripted(ConditionFailed(), seen(V1), Applied(V2))
    assert store.put_if_match("a", b"", V1) == Won(V2)
    assert backend.adapted == 1


def test_store_that_refuses_a_true_condition_is_not_supported():
    store, backend, _ = scripted(*[ConditionFailed(), seen(V1)] * 5)
    with pytest.raises(NotSupported, match="probe"):
        store.put_if_match("a", b"", V1)
    assert not backend.answers


def test_store_error_without_doubt_is_raised():
    for error in (AccessDenied("no"), BucketNotFound("none")):
        store, _, _ = scripted(NotApplied("429"), error)
        with pytest.raises(type(error)):
            store.put_if_absent("a", b"")


def test_store_error_in_doubt_is_unknown_with_both_reasons():
    store, _, _ = scripted(NoAnswer("reset by peer"), AccessDenied("the token expired"))
    outcome = store.put_if_absent("a", b"data")
    assert isinstance(outcome, Unknown)
    assert "reset by peer" in outcome.why
    assert "the token expired" in outcome.why
    assert outcome.data == b"data"


def test_refusal_whose_check_is_forbidden_is_unknown():
    """A proxy's second copy may be the refused one, so the store's word alone does not say who won."""
    store, _, _ = scripted(ConditionFailed(), AccessDenied("no permission to read"))
    outcome = store.put_if_absent("a", b"data")
    assert isinstance(outcome, Unknown)
    assert "no permission to read" in outcome.why


def test_unknown_outcome_names_the_call_that_settles_it():
    store, _, _ = scripted(NoAnswer("reset"), seen(V3, "other"))
    with pytest.raises(OutcomeUnknown, match=r"settle it by Store\.resolve") as caught:
        store.put_if_match("a", b"data", V1).unwrap()
    with pytest.raises(OutcomeUnknown):
        caught.value.resolve()  # this error has no store


def test_unknown_outcome_can_be_pickled_and_resolved_by_another_store():
    store, _, _ = scripted(NoAnswer("reset"), seen(V3, "other"))
    unknown = store.put_if_match("a", b"data", V1)
    assert isinstance(unknown, Unknown)
    again = pickle.loads(pickle.dumps(unknown))
    later, backend, _ = scripted(seen(V1), Applied(V2))
    assert later.resolve(again) == Won(V2)
    assert backend.asked[1][:5] == ("put", "root/a", b"data", V1, ME)


# Time


def test_permanent_throttling_is_unavailable_and_writes_nothing():
    store, backend, clock = scripted(*[NotApplied("429", 1.0)] * 100)
    begun = clock.now_s
    with pytest.raises(Unavailable, match="429"):
        store.put_if_absent("a", b"", timeout=10)
    assert clock.now_s - begun <= 10
    assert set(backend.verbs) == {"put", "head"}


def test_throttled_write_is_lost_at_once_when_another_writer_has_written():
    for answers in ([seen(V2)], [seen(V1), NotApplied("429"), seen(V2)]):
        store, backend, _ = scripted(NotApplied("429"), *answers)
        assert store.put_if_match("a", b"", V1) == Lost("root/a", V1, V2)
        assert backend.verbs == ["put", "head"] * (1 + len(answers) // 3)


def test_throttling_callback_is_called_for_nested_and_other_connections():
    for part in (lambda store: store, lambda store: store.below("folder"), lambda store: store.isolated_connections()):
        heard: list[str] = []
        store, _, _ = scripted(NotApplied("429", 0.1), Missing(), Applied(V2))
        told = part(store.on_throttled(partial(heard.append, "429")))
        assert told.put_if_absent("a", b"", timeout=10) == Won(V2)
        assert heard == ["429"]


def test_silent_store_is_unknown_at_the_deadline_and_never_lost():
    store, _, clock = scripted(*[NoAnswer("timeout")] * 100, seconds=1.0)
    begun = clock.now_s
    outcome = store.put_if_absent("a", b"", timeout=10)
    assert isinstance(outcome, Unknown)
    assert clock.now_s - begun <= 11  # the last request may use up its own second


def test_refusal_without_an_answered_read_back_is_unknown():
    store, _, _ = scripted(ConditionFailed(), *[NoAnswer("timeout")] * 100, seconds=1.0)
    assert isinstance(store.put_if_absent("a", b"", timeout=10), Unknown)


def test_each_request_gets_what_is_left_of_the_timeout():
    store, backend, _ = scripted(NoAnswer("1"), Missing(), Applied(V1), seconds=2.0)
    store.put_if_absent("a", b"", timeout=10)
    left = [what[-1] for what in backend.asked]
    assert left[0] == 10
    assert left[1] == 8
    assert 0 < left[2] < 6


def test_pauses_grow_and_obey_retry_after():
    store, _, clock = scripted(
        NotApplied("429"), Missing(), NotApplied("429"), Missing(), NotApplied("429", 7.0), Missing(), Applied(V1)
    )
    store.put_if_absent("a", b"")
    assert clock.sleeps == [0.05, 0.1, 2.0 * 1.125]  # what the server asks for counts up to a cap that grows


def test_timeout_of_zero_sends_nothing():
    store, backend, _ = scripted()
    with pytest.raises(Unavailable):
        store.put_if_absent("a", b"", timeout=0)
    with pytest.raises(Unavailable):
        store.read("a", timeout=0)
    assert backend.asked == []


# Reading


def test_read_is_one_request_that_gives_bytes_and_version():
    store, backend, _ = scripted(seen(V1, None, b"data"))
    assert store.read("a") == Content(b"data", V1)
    assert backend.asked == [("get", "root/a", None, 60.0)]


def test_reads_are_repeated_until_there_is_an_answer():
    store, _, _ = scripted(NoAnswer("500"), NotApplied("429"), seen(V1, None, b"data"))
    assert store.read("a").data == b"data"


def test_read_of_missing_object_raises_file_not_found():
    for call in (lambda s: s.read("a"), lambda s: s.head("a"), lambda s: s.read_if_changed("a", V1)):
        store, _, _ = scripted(Missing())
        with pytest.raises(FileNotFoundError) as caught:
            call(store)
        assert isinstance(caught.value, ObjectNotFound)
        assert caught.value.path == "root/a"


def test_read_or_none_returns_none_for_missing_object():
    store, backend, _ = scripted(Missing())
    assert store.read_or_none("a") is None
    assert backend.asked == [("get", "root/a", None, 60.0)]
    store, _, _ = scripted(seen(V1, None, b"data"))
    assert store.read_or_none("a") == Content(b"data", V1)


def test_read_or_none_returns_known_content_while_object_is_unchanged():
    known = Content(b"data", V1)
    for answer, found in ((Unchanged(), known), (seen(V2, None, b"new"), Content(b"new", V2)), (Missing(), None)):
        store, backend, _ = scripted(answer)
        assert store.read_or_none("a", known) == found
        assert backend.asked == [("get", "root/a", V1, 60.0)]


def test_unchanged_object_is_none_also_when_the_server_sends_its_body():
    for answer in (Unchanged(), seen(V1, None, b"data")):
        store, backend, _ = scripted(answer)
        assert store.read_if_changed("a", V1) is None
        assert backend.asked == [("get", "root/a", V1, 60.0)]


def test_changed_object_comes_with_its_new_version():
    store, _, _ = scripted(seen(V2, None, b"new"))
    assert store.read_if_changed("a", V1) == Content(b"new", V2)


def test_listing_follows_all_pages_and_is_relative_and_ordered():
    pages = (
        Page((Entry("root/b", 1, 5),), "more"),
        NoAnswer("500"),
        Page((Entry("root/a/x", 2, 6), Entry("root/a-", 3, 7))),
    )
    store, backend, _ = scripted(*pages)
    assert [e.path for e in store.list("", start_after="0")] == ["a-", "a/x", "b"]
    assert [what[1:4] for what in backend.asked] == [
        ("root/", "root/0", None),
        ("root/", "root/0", "more"),
        ("root/", "root/0", "more"),
    ]


@pytest.mark.parametrize(
    ("stop_at", "shown", "pages"),
    [("a.", ["a-"], 3), ("a/x", ["a-", "a/w"], 3), ("a", [], 1), ("0", [], 1), ("b", ["a-", "a/w", "a/x"], 3)],
)
def test_listing_of_hierarchical_azure_has_every_path_before_its_end(stop_at, shown, pages):
    names = [["a/w", "a/x"], ["a-"], ["b"], ["c"]]
    store, backend, _ = scripted(*[Page(tuple(Entry(f"root/{n}", 1, 5) for n in page), "more") for page in names])
    backend.name = "azure"
    assert [entry.path for entry in store.list("", stop_at=stop_at)] == shown
    assert len(backend.asked) == pages


@pytest.mark.parametrize("limit", [{"stop_at": 3}, {"start_after": 3}, {"stop_at": b"b"}])
def test_listing_refuses_a_limit_that_is_no_text_before_it_is_sent(limit):
    store, backend, _ = scripted()
    with pytest.raises(InvalidInput, match="is not text"):
        store.list("", **limit)
    assert backend.asked == []


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda store: store.put_if_absent("a", b"", create_once="no"), "create_once='no'"),
        (lambda store: store.open_exclusive("a", create_once=1), "create_once=1"),
        (lambda store: store.read_or_none("a", known="x"), "known='x'"),
        (lambda store: store.read(10**5000), "this int is not text"),
    ],
)
def test_argument_of_another_type_is_refused_before_it_is_sent(call, named):
    store, backend, _ = scripted()
    with pytest.raises(InvalidInput, match=named):
        call(store)
    assert backend.asked == []


@pytest.mark.parametrize(("prefix", "in_range"), [("", ["b", "c"]), ("b", ["b"])])
def test_listing_of_directory_bucket_which_is_unordered_has_every_path_in_range(prefix, in_range):
    """S3 knows neither StartAfter nor a prefix without a final slash there."""
    _, backend, clock = scripted(
        *[
            Page(tuple(Entry(f"b--x-s3/root/{n}", 1, 5) for n in page), more)
            for page, more in (("dc", "more"), ("ab", None))
        ]
    )
    backend.name = "s3"
    store = Store(backend, "b--x-s3/root", world=clock)
    assert [entry.path for entry in store.list(prefix, start_after="a", stop_at="d")] == in_range
    assert [what[1:4] for what in backend.asked] == [("b--x-s3/root/", None, token) for token in (None, "more")]


@pytest.mark.parametrize("call", [lambda s: s.put_if_absent("a", b""), lambda s: s.read("a")], ids=["put", "read"])
@pytest.mark.parametrize("draw", [n / 16 for n in range(16)])
def test_no_attempt_begins_when_too_little_time_is_left_for_its_answer(call, draw):
    """Else the last of many "certainly not" would be "nobody knows"."""
    store, backend, clock = scripted(*[NotApplied("429")] * 2000, seconds=0.04)
    clock.draw = draw
    with pytest.raises(Unavailable, match="429"):
        call(store)
    assert len(backend.asked) > 5
    assert min(what[-1] for what in backend.asked) >= 0.08


# Removing


def test_conditional_delete_is_won_with_the_removed_version():
    store, backend, _ = scripted(seen(V1), NotApplied("409"), seen(V1), Applied(None))
    outcome = store.delete_if_match("a", V1)
    assert outcome == Won(V1)
    assert not outcome.resent
    assert backend.asked[0][:2] == ("head", "root/a")
    assert [what[:3] for what in backend.asked if what[0] == "delete"] == [("delete", "root/a", V1)] * 2


def test_conditional_delete_at_stale_version_is_lost_without_a_request():
    for looks, current in (([seen(V2)], V2), ([Missing(), Missing()], ABSENT)):
        store, backend, _ = scripted(*looks)
        assert store.delete_if_match("a", V1) == Lost("root/a", V1, current)
        assert backend.verbs == ["head", "get"][: len(looks)]


def test_conditional_delete_refused_after_the_head_is_unknown():
    for look in (seen(V2), Missing()):
        store, backend, _ = scripted(seen(V1), ConditionFailed(), look)
        outcome = store.delete_if_match("a", V1)
        assert isinstance(outcome, Unknown)
        with pytest.raises(OutcomeUnknown, match="removed"):
            outcome.unwrap()
        assert backend.verbs == ["head", "delete", "head"]


def test_unanswered_conditional_delete_is_sent_again_while_object_exists():
    store, backend, _ = scripted(seen(V1), NoAnswer("503"), seen(V1), Applied(None))
    outcome = store.delete_if_match("a", V1)
    assert outcome == Won(V1)
    assert outcome.resent
    assert backend.verbs == ["head", "delete", "head", "delete"]


def test_unanswered_conditional_delete_is_unknown_when_object_is_gone():
    store, backend, _ = scripted(seen(V1), NoAnswer("reset"), Missing())
    assert isinstance(store.delete_if_match("a", V1), Unknown)
    assert backend.verbs == ["head", "delete", "head"]


def test_unsent_conditional_delete_is_unavailable_and_not_unknown():
    store, _, _ = scripted(seen(V1), *[NotApplied("429", 20.0)] * 60)
    with pytest.raises(Unavailable, match="not removed"):
        store.delete_if_match("a", V1)


def test_resolve_sends_unknown_delete_again_while_object_exists():
    store, backend, _ = scripted(seen(V1), NoAnswer("hangs"), seen(V1), seen(V1), Applied(None))
    unknown = store.delete_if_match("a", V1, timeout=0.04)  # shorter than the first pause
    assert isinstance(unknown, Unknown)
    assert store.resolve(pickle.loads(pickle.dumps(unknown))) == Won(V1)
    assert backend.verbs == ["head", "delete", "head", "head", "delete"]


def test_conditional_delete_is_refused_without_a_request_when_unsupported():
    store, backend, _ = scripted(delete_match=False)
    with pytest.raises(NotSupported):
        store.delete_if_match("a", V1)
    assert backend.asked == []


def test_plain_delete_is_repeated_until_it_is_done():
    store, backend, _ = scripted(NoAnswer("500"), NotApplied("429"), Applied(None))
    store.delete("a")
    assert backend.asked[-1] == ("delete", "root/a", None, pytest.approx(60, abs=1))


# Read, change, write


def test_update_restarts_from_the_bytes_of_the_winner():
    store, backend, _ = scripted(seen(V1, None, b"1"), ConditionFailed(), seen(V2), seen(V2, None, b"2"), Applied(V3))
    assert store.update("a", lambda old: (old or b"") + b"!") == V3
    assert [(w[2], w[3]) for w in backend.asked if w[0] == "put"] == [(b"1!", V1), (b"2!", V2)]


def test_update_of_missing_object_creates_it():
    store, backend, _ = scripted(Missing(), Applied(V1))
    assert store.update("a", lambda old: b"made" if old is None else b"no") == V1
    assert backend.asked[1][2:4] == (b"made", ABSENT)


def test_update_with_lost_answer_raises_unknown_and_runs_function_once():
    store, backend, _ = scripted(seen(V1, None, b"1"), NoAnswer("reset"), seen(V3, "other"))
    with pytest.raises(OutcomeUnknown):
        store.update("a", lambda old: (old or b"") + b"!")
    assert backend.verbs == ["get", "put", "head"]


def test_update_gives_its_write_what_the_read_has_left():
    store, backend, _ = scripted(seen(V1, None, b"1"), Applied(V2), seconds=4)
    store.update("a", lambda _: b"", timeout=6)
    assert [what[-1] for what in backend.asked] == [6, 2]


def test_update_that_always_loses_is_unavailable_at_the_timeout():
    store, _, _ = scripted(*[seen(V1, None, b"1"), ConditionFailed(), seen(V2)] * 200)
    with pytest.raises(Unavailable, match="changed by other writers"):
        store.update("a", lambda _: b"", timeout=5)


def test_update_without_time_says_that_nothing_was_read():
    store, backend, _ = scripted()
    with pytest.raises(Unavailable, match="'a' was not read in time.*0 s"):
        store.update("a", lambda _: b"", timeout=0)
    assert backend.asked == []


# Outcomes as errors


def test_unwrap_of_lost_raises_file_exists_or_version_mismatch():
    with pytest.raises(FileExistsError) as exists:
        Lost("a", ABSENT, V1).unwrap()
    assert isinstance(exists.value, AlreadyExists)
    assert exists.value.current == V1
    with pytest.raises(VersionMismatch) as mismatch:
        Lost("a", V1, ABSENT).unwrap()
    assert mismatch.value.current == ABSENT
    assert pickle.loads(pickle.dumps(exists.value)).args == exists.value.args


def test_unwrap_of_unknown_raises_picklable_error_that_holds_it():
    store, _, _ = scripted(NoAnswer("reset"), seen(V3, "other"))
    unknown = store.put_if_match("a", b"data", V1)
    with pytest.raises(OutcomeUnknown) as caught:
        unknown.unwrap()
    assert caught.value.outcome == unknown
    assert pickle.loads(pickle.dumps(caught.value)).outcome == unknown


# What is refused before anything is sent


def test_path_cannot_leave_its_root():
    store, backend, _ = scripted()
    for call in (store.read, store.head, store.delete, store.list, lambda p: store.put_if_absent(p, b"")):
        with pytest.raises(InvalidInput, match=r"\.\."):
            call("x/../../other")
    assert backend.asked == []


def test_version_of_another_kind_of_store_is_refused():
    store, backend, _ = scripted()
    other = Version("s3", '"x"')
    for call in (store.read_if_changed, store.delete_if_match, lambda p, v: store.put_if_match(p, b"", v)):
        with pytest.raises(InvalidVersion, match="s3"):
            call("a", other)
    assert backend.asked == []


@pytest.mark.parametrize("url", ["ftp://host/x", "http://host/x", "hdfs://host/x", "zip://x", "nonsense://x"])
def test_protocol_without_conditional_writes_is_named(url):
    with pytest.raises(NotSupported, match=url.split(":", maxsplit=1)[0]):
        Store.from_url(url)


def test_url_without_a_bucket_is_refused():
    for url in ("s3://", "gs://", "memory://", "/"):
        with pytest.raises(InvalidUrl):
            Store.from_url(url, {"token": "anon"} if url == "gs://" else {"anon": True} if url == "s3://" else None)


def test_filesystem_without_conditional_writes_is_named():
    with pytest.raises(NotSupported, match="dir"):
        Store.from_filesystem(fsspec.filesystem("dir", path="/x", fs=fsspec.filesystem("memory")))


# Interrupted


def faulty(plan, *, version_of=None):
    clock = ManualClock()
    backend = Faulty(MemoryBackend(fsspec.filesystem("memory")), plan, world=clock)
    return Store(backend, f"/interrupted-{version_of or uuid.uuid4().hex}", world=clock), backend


def test_faulty_refuses_a_plan_for_an_unknown_operation():
    with pytest.raises(InvalidInput, match=r"\['puts'\], which are no operations: name some of put, head"):
        faulty({"puts": [Interrupt(done=True)]})


@pytest.mark.parametrize("done", [True, False])
def test_ctrl_c_in_a_write_carries_an_unknown_outcome_that_can_be_resolved(done):
    store, backend = faulty({"put": [Interrupt(done=done)]})
    with pytest.raises(KeyboardInterrupt) as caught:
        store.put_if_absent("a", b"mine")
    cause = caught.value.__cause__
    assert isinstance(cause, OutcomeUnknown)
    assert cause.outcome is not None
    assert isinstance(store.resolve(cause.outcome), Won)
    assert store.read("a").data == b"mine"
    assert backend.fired == [("put", Interrupt(done=done))]


def test_ctrl_c_in_a_conditional_delete_carries_an_unknown_outcome():
    store, _ = faulty({"delete": [Interrupt()]})
    version = store.put_if_absent("a", b"mine").unwrap()
    with pytest.raises(KeyboardInterrupt) as caught:
        store.delete_if_match("a", version)
    assert isinstance(caught.value.__cause__, OutcomeUnknown)


class Hanging(Scripted):
    """A put that is on its way until it is cancelled."""

    blocking = False

    def __init__(self):
        super().__init__()
        self.sent = threading.Event()
        self.cancelled = threading.Event()

    async def put(self, *_, **__):
        self.sent.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


async def test_cancelled_task_carries_an_unknown_outcome():
    backend = Hanging()
    task = asyncio.create_task(AsyncStore(backend, "root").put_if_absent("a", b"mine"))
    await asyncio.to_thread(backend.sent.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    seen_errors = []
    error: BaseException | None = caught.value
    while error is not None:  # Python 3.10 wraps it once more
        seen_errors.append(error)
        error = error.__cause__ or error.__context__
    assert any(isinstance(e, OutcomeUnknown) and e.outcome.data == b"mine" for e in seen_errors)


def test_ctrl_c_cancels_write_on_fsspec_loop_and_carries_unknown_outcome():
    backend = Hanging()
    store = Store(backend, "root")
    main = threading.main_thread().ident

    def press() -> None:
        backend.sent.wait(10)
        signal.pthread_kill(main, signal.SIGINT)

    presser = threading.Thread(target=press)
    presser.start()
    with pytest.raises(KeyboardInterrupt) as caught:
        store.put_if_absent("a", b"mine")
    presser.join()
    assert backend.cancelled.wait(10), "the write goes on unseen"
    assert isinstance(caught.value.__cause__, OutcomeUnknown)
    assert caught.value.__cause__.outcome.data == b"mine"


async def test_sync_call_on_the_fsspec_loop_is_refused_and_does_not_hang():
    store = Store(Hanging(), "root")

    async def inside() -> None:
        store.put_if_absent("a", b"")

    with pytest.raises(CasError, match="AsyncStore"):
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(inside(), get_loop()))


# The faults that `fsspec_cas.testing` ships do what they say


def test_lost_answer_is_applied_and_lost_request_is_not():
    for fault, there in ((LoseAnswer(), True), (LoseRequest(), False)):
        store, backend = faulty({"put": [fault], "head": [Refuse()] * 1000}, version_of=type(fault).__name__)
        assert isinstance(store.put_if_absent("a", b"1", timeout=1), Unknown)
        assert MemoryBackend(fsspec.filesystem("memory"))._fs.exists(f"{store.root}/a") is there
        assert backend.fired[0] == ("put", fault)


def test_write_delivered_twice_is_won():
    store, backend = faulty({"put": [DeliverTwice()]})
    assert isinstance(store.put_if_absent("a", b"1"), Won)
    assert backend.calls == ["put", "head"]


def test_write_that_lands_after_empty_read_back_is_applied_once():
    store, backend = faulty({"put": [DeliverLate(calls=2)]})
    outcome = store.put_if_absent("a", b"1")  # put (late), head: nothing, then it lands, and the second put is refused
    assert backend.calls == ["put", "head", "put", "head"]
    assert outcome == Won(store.head("a").version)


def test_delay_moves_the_clock_of_the_test():
    store, backend = faulty({"put": [Delay(100.0), Refuse()]})
    store.put_if_absent("a", b"1")
    assert backend._world.sleeps == [100.0]
    assert backend.left == {"put": [Refuse()]}


@pytest.mark.parametrize(("ours", "theirs"), [(Store, AsyncStore), (Exclusive, AsyncExclusive)])
def test_sync_store_has_every_verb_of_the_async_store(ours, theirs):
    verbs = [n for n, f in vars(theirs).items() if inspect.iscoroutinefunction(f) and not n.startswith("_")]
    assert verbs
    for verb in verbs:
        mine, its = getattr(ours, verb), getattr(theirs, verb)
        assert inspect.signature(mine) == inspect.signature(its)
        assert not inspect.iscoroutinefunction(mine)
        assert mine.__doc__
        alone = its.__doc__.replace(">>> async ", ">>> ").replace("await ", "")
        assert mine.__doc__ == alone or (ours, verb) == (Exclusive, "write")
        with pytest.raises(TypeError, match=rf"^{ours.__name__}\.{verb}\(\)"):
            mine(SimpleNamespace(_async=None, _drive=SimpleNamespace(run=None)), attempts=0)
