"""Bugs that other clients and stores are known to have, each by its number in our catalogue of them.

A fault is counted, and what is reported is compared with what the server holds, read past the proxy. Where a number is
about a store that breaks its own promise (T22, T23, T29), no client can tell from one answer: then the test shows what
is sent and what the history checker says.
"""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from patience import once_sent, until

from faults import actions as do
from faults.actions import Action, Ending, Hop, Outcome
from faults.conftest import Bench, conditions, identity, is_delete, is_look, is_write
from faults.wire import Answer, set_headers
from fsspec_cas import ABSENT, Lost, NotSupported, Unavailable, Unknown, Version, Won

SHORT_S = 1.5
PATIENCE_S = 15.0
MINE = b"mine, and never written before"

AFTER_COMMIT = {"500": do.replace_answer(500), "abort": do.lose_answer(Ending.RESET)}


def as_answer(raw) -> Answer:
    kept = tuple((n, v) for n, v in raw.headers.items() if n not in ("transfer-encoding", "content-length"))
    return Answer(raw.status, (*kept, ("content-length", str(len(raw.body)))), raw.body)


def refused(bench: Bench) -> str:
    """Return the error text of a refused create; "" if the answer came too late on a busy machine."""
    try:
        outcome = bench.store.put_if_absent(bench.key, MINE, timeout=SHORT_S)
    except Unavailable as told:
        return str(told)
    assert isinstance(outcome, Unknown)
    return ""


def empty(answer: Answer, status: int) -> Answer:
    return Answer(status, set_headers((), [("Content-Length", "0")]), last=answer.last)


def sign_again(bench: Bench, **change: str | None) -> Action:
    """For S3, whose conditions are signed: hand the request on under a new signature, with other headers."""

    async def act(hop: Hop) -> Outcome:
        asked = hop.request
        kept = {n: v for n, v in asked.headers.items() if n.startswith(("if-", "x-amz-meta-"))}
        headers = {n: v for n, v in (kept | {n.replace("_", "-"): v for n, v in change.items()}).items() if v}
        raw = await asyncio.to_thread(
            bench.server.raw, asked.method, asked.path.lstrip("/"), headers=headers, body=asked.body
        )
        bench.proxy.delivered.append((asked.method, asked.path, raw.status))
        return as_answer(raw)

    return act


def then(action: Action, meanwhile) -> Action:
    """After the exchange, and before the client hears of it, something else happens."""

    async def act(hop: Hop) -> Outcome:
        outcome = await action(hop)
        await asyncio.to_thread(meanwhile)
        return outcome

    return act


# What an answer meant.


@pytest.mark.parametrize("fault", AFTER_COMMIT)
def test_t01_t02_create_with_lost_answer_is_won_at_the_stored_version(bench: Bench, fault: str):
    rule = bench.proxy.rule(match=is_write, action=AFTER_COMMIT[fault])
    assert bench.won(bench.store.put_if_absent(bench.key, MINE, timeout=PATIENCE_S), MINE)
    assert rule.fired == 1


@pytest.mark.parametrize("fault", AFTER_COMMIT)
def test_t03_match_with_lost_answer_is_won_and_its_version_matches(bench: Bench, fault: str):
    first = bench.rival_writes()
    rule = bench.proxy.rule(match=is_write, action=AFTER_COMMIT[fault])
    outcome = bench.store.put_if_match(bench.key, MINE, first, timeout=PATIENCE_S)
    assert bench.won(outcome, MINE)
    assert rule.fired == 1
    assert isinstance(bench.rival.put_if_match(bench.key, b"next", outcome.version), Won)


@pytest.mark.parametrize("code", ["ConditionalRequestConflict", "OperationAborted", "ConcurrentModification"])
def test_t04_persistent_conflict_is_unavailable_and_not_exists(s3: Bench, code: str):
    """ConcurrentModification is Ceph's word, OperationAborted OVH's."""
    rule = s3.proxy.rule(match=is_write, action=do.refuse(409, code), times=None)
    until(lambda: code in refused(s3) and rule.fired > 2)
    assert s3.truth() == (None, None)


def test_t04_persistent_conflict_on_gcs_is_unavailable_and_not_exists(gcs: Bench):
    rule = gcs.proxy.rule(match=is_write, action=do.conflict(), times=None)
    until(lambda: "409" in refused(gcs) and rule.fired > 2)
    assert gcs.truth() == (None, None)


@pytest.mark.parametrize("fault", AFTER_COMMIT)
@pytest.mark.parametrize("operation", ["create", "match"])
def test_t05_write_replaced_before_read_back_is_never_reported_lost(bench: Bench, operation: str, fault: str):
    first = bench.rival_writes(b"first") if operation == "match" else None
    rule = bench.proxy.rule(match=is_write, action=then(AFTER_COMMIT[fault], bench.rival_writes))
    if first is None:
        outcome = bench.store.put_if_absent(bench.key, MINE, timeout=PATIENCE_S)
    else:
        outcome = bench.store.put_if_match(bench.key, MINE, first, timeout=PATIENCE_S)
    unknown = bench.unknown(outcome)
    assert (rule.fired, bench.applied(), bench.truth()[0]) == (1, 1, b"theirs")
    bench.unknown(bench.store.resolve(unknown, timeout=PATIENCE_S))
    assert bench.applied() == 1


@pytest.mark.parametrize("status", [500, 503])
def test_t06_failed_read_back_is_unknown_and_not_lost(bench: Bench, status: int):
    lost = bench.proxy.rule(match=is_write, action=do.lose_answer())
    blind = bench.proxy.rule(match=is_look, action=do.refuse(status, "InternalError"), times=None)
    unknown = bench.unknown(once_sent(lambda timeout_s: bench.store.put_if_absent(bench.key, MINE, timeout=timeout_s)))
    assert (lost.fired, bench.applied()) == (1, 1)
    assert blind.fired
    bench.proxy.rules.remove(blind)
    assert bench.won(bench.store.resolve(unknown, timeout=PATIENCE_S), MINE)


def test_t06_refused_read_back_is_unknown_and_not_access_denied(bench: Bench):
    """A key that may write and not read."""
    bench.proxy.rule(match=is_write, action=do.lose_answer())
    blind = bench.proxy.rule(match=is_look, action=do.refuse(403, "AccessDenied"), times=None)
    unknown = bench.unknown(once_sent(lambda timeout_s: bench.store.put_if_absent(bench.key, MINE, timeout=timeout_s)))
    assert (blind.fired, bench.applied()) == (1, 1)
    assert "403" in unknown.why


def test_t06_refusal_without_read_back_is_not_lost(bench: Bench):
    """The answer to a first copy that something on the way sent could be the one that was refused."""
    bench.proxy.rule(match=is_write, action=do.deliver_twice())
    blind = bench.proxy.rule(match=is_look, action=do.server_error(), times=None)
    unknown = bench.unknown(once_sent(lambda timeout_s: bench.store.put_if_absent(bench.key, MINE, timeout=timeout_s)))
    bench.proxy.rules.remove(blind)
    assert bench.won(bench.store.resolve(unknown, timeout=PATIENCE_S), MINE)


def test_t07_write_that_lands_after_empty_read_back_is_won_once(bench: Bench):
    rule = bench.proxy.rule(match=is_write, action=do.deliver_late(), until=is_look)
    assert bench.won(bench.store.put_if_absent(bench.key, MINE, timeout=PATIENCE_S), MINE)
    assert len(rule.answers) == 1
    assert [200 <= status < 300 for method, _, status in bench.proxy.delivered if method in {"PUT", "POST"}] == [
        True,
        False,  # the second send: refused, and recognised as mine
    ]


def test_t07_write_that_lands_after_timeout_is_unknown_and_found_by_resolve(bench: Bench):
    late = bench.proxy.rule(match=is_write, action=do.deliver_late())
    throttled = bench.proxy.rule(match=is_write, action=do.too_many(), times=None)
    unknown = bench.unknown(once_sent(lambda timeout_s: bench.store.put_if_absent(bench.key, MINE, timeout=timeout_s)))
    assert bench.truth() == (None, None)
    assert throttled.fired > 0
    assert late.release()[0] // 100 == 2
    bench.proxy.rules.remove(throttled)
    assert bench.won(bench.store.resolve(unknown, timeout=PATIENCE_S), MINE)


@pytest.mark.parametrize("fault", ["none", *AFTER_COMMIT])
def test_t08_equal_bytes_of_another_writer_are_not_own_write(bench: Bench, fault: str):
    """On S3 an equal ETag, too: only the identity tells them apart."""
    bench.rival_writes(MINE)
    before = bench.truth()
    if fault != "none":
        bench.proxy.rule(match=is_write, action=AFTER_COMMIT[fault])
    outcome = bench.store.put_if_absent(bench.key, MINE, timeout=PATIENCE_S)
    if fault == "none":
        assert isinstance(outcome, Lost)
    else:
        bench.unknown(outcome)
    assert bench.truth() == before
    assert bench.applied() == 0


def test_t08_one_of_two_matches_with_equal_bytes_is_lost(bench: Bench):
    first = bench.rival_writes(b"first")
    assert isinstance(bench.rival.put_if_match(bench.key, MINE, first), Won)
    assert isinstance(bench.store.put_if_match(bench.key, MINE, first, timeout=PATIENCE_S), Lost)
    assert bench.applied() == 0


@pytest.mark.parametrize("code", ["InternalError", "PreconditionFailed", "SlowDown"])
@pytest.mark.parametrize("landed", [True, False], ids=["applied", "not applied"])
def test_t09_error_inside_a_200_is_no_success_and_no_loss(bench: Bench, code: str, landed: bool):
    action = do.ok_with_error(code) if landed else do.refuse(200, code)
    rule = bench.proxy.rule(match=is_write, action=action)
    assert bench.won(bench.store.put_if_absent(bench.key, MINE, timeout=PATIENCE_S), MINE)
    assert (rule.fired, len(rule.answers)) == (1, int(landed))


def test_t10_412_without_proof_from_the_store_leaves_outcome_unknown(bench: Bench):
    bench.rival_writes()
    # Azure says 409 here; a middlebox that takes away body and headers leaves the status, which any gateway can say.
    rule = bench.proxy.rule(match=is_write, action=do.rewrite_answer(lambda a: empty(a, 412)))
    bench.unknown(bench.store.put_if_absent(bench.key, MINE, timeout=PATIENCE_S))
    assert rule.answers[0] in (409, 412)
    assert bench.truth()[0] == b"theirs"


def test_t11_304_answer_to_write_is_a_refusal(s3: Bench):
    """As old MinIO said it."""
    s3.rival_writes()
    said = Answer(304, (("x-amz-request-id", "1"), ("Content-Length", "0")))
    rule = s3.proxy.rule(match=is_write, action=do.rewrite_answer(lambda _: said), times=None)
    assert isinstance(s3.store.put_if_absent(s3.key, MINE, timeout=PATIENCE_S), Lost)
    assert rule.answers == [412]


@pytest.mark.parametrize("status", [404, 412])
def test_t12_match_on_deleted_object_is_lost_by_404_and_by_412(bench: Bench, status: int):
    """AWS says 404, others 412."""
    version = bench.rival_writes()
    bench.server.raw_delete(bench.path)
    codes = {404: {"s3": "NoSuchKey", "gs": "No such object", "az": "BlobNotFound"}, 412: {"az": "ConditionNotMet"}}
    protocol = bench.server.protocol
    action = do.replace_answer(status, codes[status].get(protocol, "PreconditionFailed"))
    rule = bench.proxy.rule(match=is_write, action=action)
    outcome = bench.store.put_if_match(bench.key, MINE, version, timeout=PATIENCE_S)
    assert (rule.fired, rule.answers[0] in (404, 412)) == (1, True)
    assert outcome == Lost(outcome.path, version, ABSENT)
    assert bench.truth() == (None, None)


def test_t13_5xx_answer_to_write_that_never_landed_is_not_a_success(bench: Bench):
    rule = bench.proxy.rule(match=is_write, action=do.server_error(), times=None)
    unknown = bench.unknown(once_sent(lambda timeout_s: bench.store.put_if_absent(bench.key, MINE, timeout=timeout_s)))
    assert rule.fired
    assert bench.truth() == (None, None)
    bench.proxy.rules.remove(rule)
    assert bench.won(bench.store.resolve(unknown, timeout=PATIENCE_S), MINE)


@pytest.mark.parametrize("operation", ["create", "match"])
def test_t16_every_send_carries_the_same_condition_and_the_same_identity(bench: Bench, operation: str):
    first = bench.rival_writes() if operation == "match" else None
    for action in (do.server_error(), do.never_deliver(), do.too_many(), do.slow_down()):
        bench.proxy.rule(match=is_write, action=action)
    if first is None:
        outcome = bench.store.put_if_absent(bench.key, MINE, timeout=PATIENCE_S)
    else:
        outcome = bench.store.put_if_match(bench.key, MINE, first, timeout=PATIENCE_S)
    assert bench.won(outcome, MINE)
    assert len(bench.asked) == 5
    wanted = {
        "s3": {"if-none-match": "*"} if first is None else {"if-match": first.token},
        "az": {"if-none-match": "*"} if first is None else {"if-match": first.token},
        "gs": {"ifGenerationMatch": "0" if first is None else first.token},
    }[bench.server.protocol]
    assert [conditions(request) for request in bench.asked] == [wanted] * 5
    assert len({identity(request) for request in bench.asked} - {""}) == 1


def test_t16_retry_after_is_waited_for(bench: Bench):
    bench.proxy.rule(match=is_write, action=do.too_many(1))
    asked_at = time.monotonic()
    assert bench.won(bench.store.put_if_absent(bench.key, MINE, timeout=PATIENCE_S), MINE)
    assert time.monotonic() - asked_at >= 0.5


# What stores do.


def quoted(request) -> bool:
    return is_write(request) and request.headers.get("if-match", "").startswith('"')


def bare(request) -> bool:
    return is_write(request) and "if-match" in request.headers and not quoted(request)


def with_quotes(bench: Bench) -> Action:
    """The server behind it wants quotes, so a bare tag is handed on with them, signed again."""

    async def act(hop: Hop) -> Outcome:
        return await sign_again(bench, if_match=f'"{hop.request.headers["if-match"]}"')(hop)

    return act


def test_t20_store_that_takes_if_match_only_without_quotes_is_written(s3: Bench):
    """Ceph, DigitalOcean Spaces, Hetzner: 412 to the very form that they return."""
    first = s3.rival_writes()
    refused = s3.proxy.rule(match=quoted, action=do.failed_condition(), times=None)
    taken = s3.proxy.rule(match=bare, action=with_quotes(s3), times=None)
    store = s3.another_store()
    outcome = store.put_if_match(s3.key, MINE, first, timeout=PATIENCE_S)
    assert s3.won(outcome, MINE)
    assert (refused.fired, taken.fired) == (1, 1)
    assert isinstance(store.put_if_match(s3.key, b"again", outcome.version, timeout=PATIENCE_S), Won)
    assert (refused.fired, taken.fired) == (1, 2)  # learned


def test_t20_lost_race_on_such_a_store_is_still_lost(s3: Bench):
    first = s3.rival_writes(b"first")
    s3.rival_writes()
    s3.proxy.rule(match=quoted, action=do.failed_condition(), times=None)
    s3.proxy.rule(match=bare, action=with_quotes(s3), times=None)
    assert isinstance(s3.another_store().put_if_match(s3.key, MINE, first, timeout=PATIENCE_S), Lost)
    assert s3.truth()[0] == b"theirs"


def test_t20_many_threads_learn_dialect_of_store_at_once(s3: Bench):
    s3.proxy.rule(match=quoted, action=do.failed_condition(), times=None)
    s3.proxy.rule(match=bare, action=with_quotes(s3), times=None)
    keys = [f"{s3.key}-{n}" for n in range(8)]
    firsts = [s3.rival.put_if_absent(key, b"first").unwrap() for key in keys]
    store, start = s3.another_store(), threading.Barrier(len(keys))

    def write(key: str, first: Version):
        start.wait()
        return store.put_if_match(key, MINE, first, timeout=PATIENCE_S)

    with ThreadPoolExecutor(len(keys)) as pool:
        assert [type(outcome) for outcome in pool.map(write, keys, firsts)] == [Won] * len(keys)


def test_t21_store_that_needs_quoted_if_match_is_written_after_false_alarm(s3: Bench):
    """A racing writer that came and went looks like a dialect; the way back must be found."""
    first = s3.rival_writes()
    alarm = s3.proxy.rule(match=is_write, action=do.failed_condition())
    refused = s3.proxy.rule(match=bare, action=do.failed_condition(), times=None)
    store = s3.another_store()
    assert s3.won(store.put_if_match(s3.key, MINE, first, timeout=PATIENCE_S), MINE)
    assert (alarm.fired, refused.fired) == (1, 1)


def test_t21_store_that_returns_unquoted_and_needs_quoted_tags_is_written(s3: Bench):
    bareback = s3.proxy.rule(match=lambda r: is_look(r) or "if-none-match" in r.headers, action=do.unquote_etag())
    bareback.times = None
    refused = s3.proxy.rule(match=bare, action=do.failed_condition(), times=None)
    store = s3.another_store()
    first = store.put_if_absent(s3.key, b"first", timeout=PATIENCE_S).unwrap()
    assert bareback.fired == 1
    assert store.read(s3.key).version == first
    assert isinstance(store.put_if_match(s3.key, MINE, first, timeout=PATIENCE_S), Won)
    assert refused.fired <= 1
    assert s3.truth()[0] == MINE


def test_t20_quoted_and_unquoted_tags_are_the_same_version(s3: Bench):
    """A gateway that unquotes only some answers must not make a lost answer look superseded."""
    first = s3.rival_writes()
    s3.proxy.rule(match=is_look, action=do.unquote_etag(), times=None)
    lost = s3.proxy.rule(match=is_write, action=do.never_deliver())
    assert s3.won(s3.another_store().put_if_match(s3.key, MINE, first, timeout=PATIENCE_S), MINE)
    assert lost.fired == 1


@pytest.mark.parametrize("fixture", ["s3", "azure"])
def test_t22_delete_at_stale_version_is_lost_by_its_condition(fixture, request):
    bench: Bench = request.getfixturevalue(fixture)
    stale = bench.rival_writes(b"first")
    bench.rival_writes()
    rule = bench.proxy.rule(match=is_delete, action=do.server_error())
    assert isinstance(bench.store.delete_if_match(bench.key, stale, timeout=PATIENCE_S), Lost)
    assert rule.fired == 0
    assert bench.truth()[0] == b"theirs"


@pytest.mark.parametrize("fixture", ["s3", "azure"])
def test_t22_delete_overtaken_by_rival_removes_nothing_and_is_unknown(fixture, request):
    """Between its look and its send. That it was refused says nothing: so is a second copy of one that was done."""
    bench: Bench = request.getfixturevalue(fixture)
    first = bench.rival_writes(b"first")
    seen: list[dict[str, str]] = []

    async def outrun(hop: Hop) -> Outcome:
        seen.append(conditions(hop.request))
        await asyncio.to_thread(bench.rival_writes)
        return await hop.deliver()

    bench.proxy.rule(match=is_delete, action=outrun)
    bench.unknown(bench.store.delete_if_match(bench.key, first, timeout=PATIENCE_S))
    assert seen == [{"if-match": first.token}]
    assert bench.truth()[0] == b"theirs"


def test_t22_delete_delivered_twice_is_not_lost_to_itself(bench: Bench):
    version = bench.rival_writes()
    rule = bench.proxy.rule(match=is_delete, action=do.deliver_twice())
    outcome = bench.store.delete_if_match(bench.key, version, timeout=PATIENCE_S)
    assert isinstance(outcome, Unknown), outcome
    assert (len(rule.answers), bench.truth()) == (2, (None, None))
    assert isinstance(bench.store.resolve(outcome, timeout=PATIENCE_S), Unknown)


@pytest.mark.parametrize("action", [do.slow_down(), do.never_deliver(), do.server_error()], ids=["503", "reset", "500"])
def test_t22_delete_that_never_arrived_is_sent_again(bench: Bench, action: Action):
    version = bench.rival_writes()
    rule = bench.proxy.rule(match=is_delete, action=action)
    outcome = bench.store.delete_if_match(bench.key, version, timeout=PATIENCE_S)
    assert outcome == Won(version)
    assert outcome.resent
    assert (rule.fired, bench.truth()) == (1, (None, None))


def test_t22_delete_that_never_arrived_is_done_by_resolve(bench: Bench):
    version = bench.rival_writes()
    rule = bench.proxy.rule(match=is_delete, action=do.slow_down(), times=None)
    tried = once_sent(lambda timeout_s: bench.store.delete_if_match(bench.key, version, timeout=timeout_s))
    unknown = bench.unknown(tried)
    assert bench.truth()[1] == version.token
    rule.times = rule.fired
    assert bench.store.resolve(unknown, timeout=PATIENCE_S) == Won(version)
    assert bench.truth() == (None, None)


def test_t22_delete_whose_answer_was_lost_is_unknown(bench: Bench):
    """A tombstone has no identity: gone may be mine or another's."""
    version = bench.rival_writes()
    rule = bench.proxy.rule(match=is_delete, action=do.lose_answer(Ending.RESET))
    bench.unknown(bench.store.delete_if_match(bench.key, version, timeout=PATIENCE_S))
    assert (rule.fired, bench.truth()) == (1, (None, None))


def test_t22_throttled_delete_is_sent_again_under_its_condition(bench: Bench):
    version = bench.rival_writes()
    rule = bench.proxy.rule(match=is_delete, action=do.too_many())
    assert bench.store.delete_if_match(bench.key, version, timeout=PATIENCE_S) == Won(version)
    assert (rule.fired, bench.truth()) == (1, (None, None))


def test_t25_delete_marker_is_no_object(seaweedfs, benches, s3: Bench):
    """On a versioned bucket."""
    bucket = f"{seaweedfs.bucket}-versioned"
    assert seaweedfs.raw("PUT", bucket).ok
    enabled = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
    assert seaweedfs.raw("PUT", bucket, query="versioning=", body=enabled).ok
    store = type(s3.store).from_url(f"s3://{bucket}/below", seaweedfs.storage_options)
    store.put_if_absent("a", b"one").unwrap()
    store.delete("a")
    assert b"DeleteMarker" in seaweedfs.raw("GET", bucket, query="versions=").body
    second = store.put_if_absent("a", b"two", timeout=PATIENCE_S).unwrap()
    assert isinstance(store.put_if_absent("a", b"three", timeout=PATIENCE_S), Lost)
    assert store.read("a").version == second


def test_t25_store_that_counts_delete_marker_as_object_is_refused_by_name(bench: Bench):
    bench.rival_writes()
    bench.server.raw_delete(bench.path)
    said = do.refuse(409, "BlobAlreadyExists") if bench.server.protocol == "az" else do.failed_condition()
    rule = bench.proxy.rule(match=is_write, action=said, times=None)
    with pytest.raises(NotSupported, match="probe"):
        bench.store.put_if_absent(bench.key, MINE, timeout=PATIENCE_S)
    assert rule.fired == 5
    assert bench.truth() == (None, None)


@pytest.mark.parametrize("status", [501, 400])
def test_t26_store_without_conditional_writes_is_refused_by_name(s3: Bench, status: int):
    """Backblaze says 501, Alibaba 400."""
    rule = s3.proxy.rule(match=is_write, action=do.refuse(status, "NotImplemented"), times=None)
    with pytest.raises(NotSupported, match="NotImplemented"):
        s3.store.put_if_absent(s3.key, MINE, timeout=PATIENCE_S)
    assert rule.fired == 1
    assert s3.truth() == (None, None)


@pytest.mark.parametrize("action", [do.refuse(501, "NotImplemented"), do.failed_condition()], ids=["501", "412"])
def test_t26_unsupported_store_error_hides_no_write_that_may_have_landed(s3: Bench, action: Action):
    """One node of the store did it, late; another says that it cannot."""
    late = s3.proxy.rule(match=is_write, action=do.deliver_late())
    s3.proxy.rule(match=is_write, action=action, times=None)
    unknown = s3.unknown(s3.store.put_if_absent(s3.key, MINE, timeout=PATIENCE_S))
    assert late.release() == [200]
    assert s3.won(s3.store.resolve(unknown, timeout=PATIENCE_S), MINE)


def test_t27_store_that_inverts_condition_is_refused_and_nothing_is_written(s3: Bench):
    """Ceph's POSIX driver did: it creates only where something is."""
    inverted = s3.proxy.rule(
        match=is_write, action=sign_again(s3, if_none_match=None, if_match='"nothing"'), times=None
    )
    with pytest.raises(NotSupported, match="refused a true condition"):
        s3.store.put_if_absent(s3.key, MINE, timeout=PATIENCE_S)
    assert inverted.fired == 5
    assert s3.truth() == (None, None)


@pytest.mark.parametrize("fault", AFTER_COMMIT)
def test_t30_read_back_from_stale_cache_makes_no_false_outcome(bench: Bench, fault: str):
    """The cache says for ever that nothing is there."""
    miss = {"s3": "NoSuchKey", "gs": "No such object", "az": "BlobNotFound"}[bench.server.protocol]
    bench.proxy.rule(match=is_write, action=AFTER_COMMIT[fault])
    cached = bench.proxy.rule(match=is_look, action=do.refuse(404, miss), times=None)
    unknown = bench.unknown(bench.store.put_if_absent(bench.key, MINE, timeout=PATIENCE_S))
    assert bench.applied() == 1
    assert cached.fired > 1
    bench.proxy.rules.remove(cached)
    assert bench.won(bench.store.resolve(unknown, timeout=PATIENCE_S), MINE)


def without_version(bench: Bench) -> Action:
    def strip(answer: Answer) -> Answer:
        if bench.server.protocol != "gs" or answer.status >= 300:
            return replace(answer, lines=tuple(line for line in answer.lines if line[0].lower() != "etag"))
        return replace(answer, lines=set_headers(answer.lines, [("Content-Length", "2")]), body=b"{}")

    return do.rewrite_answer(strip)


@pytest.mark.parametrize("operation", ["create", "match"])
def test_t31_answer_without_version_is_won_at_the_version_read_back(bench: Bench, operation: str):
    first = bench.rival_writes() if operation == "match" else None
    rule = bench.proxy.rule(match=is_write, action=without_version(bench))
    if first is None:
        outcome = bench.store.put_if_absent(bench.key, MINE, timeout=PATIENCE_S)
    else:
        outcome = bench.store.put_if_match(bench.key, MINE, first, timeout=PATIENCE_S)
    assert bench.won(outcome, MINE)
    assert (rule.fired, len(rule.answers)) == (1, 1)


def test_t31_store_that_never_returns_versions_makes_no_false_outcome(bench: Bench):
    rule = bench.proxy.rule(match=lambda r: is_write(r) or is_look(r), action=without_version(bench), times=None)
    bench.unknown(once_sent(lambda timeout_s: bench.store.put_if_absent(bench.key, MINE, timeout=timeout_s)))
    assert rule.fired
    assert bench.applied() == 1


def test_t31_read_without_version_is_no_answer(bench: Bench):
    bench.rival_writes()
    strip = do.strip_answer_headers("ETag", "x-goog-generation")
    rule = bench.proxy.rule(match=is_look, action=strip, times=None)

    def asked() -> bool:
        with pytest.raises(Unavailable):
            bench.store.read(bench.key, timeout=SHORT_S)
        return rule.fired > 0

    until(asked)


# The limits of what can be told.


def test_write_repeated_unseen_and_then_replaced_is_reported_lost(bench: Bench):
    """The one lie that is left: who sends a request twice unseen, and a rival in between, make a win look lost.

    Every lost race looks just like this, so the only other answer would be "unknown" to all of them.
    """

    async def replaced_in_between(hop: Hop) -> Outcome:
        await hop.deliver()
        await asyncio.to_thread(bench.rival_writes)
        return await hop.deliver()

    bench.proxy.rule(match=is_write, action=replaced_in_between)
    assert isinstance(bench.store.put_if_absent(bench.key, MINE, timeout=PATIENCE_S), Lost)
    assert bench.applied() == 1


def test_create_is_repeated_when_it_landed_unseen_and_was_deleted(bench: Bench):
    """That nothing is there is never unique: where others delete, a create whose answer was lost may happen twice."""

    def deleted():
        bench.server.raw_delete(bench.path)

    rule = bench.proxy.rule(match=is_write, action=then(do.lose_answer(), deleted))
    outcome = bench.store.put_if_absent(bench.key, MINE, timeout=PATIENCE_S)
    assert rule.fired == 1
    assert bench.truth() == (MINE, outcome.unwrap().token)
    assert bench.applied() == 2
