"""A store of yours: `pytest -m live --store s3://bucket/scratch`, with credentials as its SDK finds them.

`--store-option KEY=VALUE` gives storage options, another client too: `--store-option client=obstore`. Everything is
written below a fresh prefix, which is removed afterwards.
"""

from __future__ import annotations

import contextlib
import uuid

import pytest

from conformance.suite import AmongProcesses, Conformance, Target
from conformance.wrong_answers import WrongAnswers, answered_inside
from fsspec_cas import Store
from fsspec_cas.probe.checks import THOROUGH
from fsspec_cas.probe.probe import probe


@pytest.mark.live
class TestLive(Conformance, AmongProcesses):
    contenders = 8
    rounds = 2
    increments = (2, 2)  # GCS takes one write a second of one object
    prizes = 4

    @pytest.fixture
    def target(self, live_store, store_options):
        url = f"{live_store.rstrip('/')}/fsspec-cas-{uuid.uuid4().hex}"
        yield Target(url, store_options, {})
        store = Store.from_url(url, store_options)
        with contextlib.suppress(FileNotFoundError):
            for entry in store.list(""):
                store.delete(entry.path)


@pytest.mark.live
class TestLiveBehindWrongAnswers(WrongAnswers):
    @pytest.fixture
    def gatewayed(self, live_store, store_options):
        url = f"{live_store.rstrip('/')}/fsspec-cas-{uuid.uuid4().hex}"
        with answered_inside(url, store_options) as (store, inside, truth):
            yield store, inside, truth
            truth.delete_all(entry.path for entry in truth.list(""))


@pytest.mark.live
def test_probe_finds_live_store_safe_for_locks(live_store, store_options):
    report = probe(live_store, store_options, checks=THOROUGH)
    assert report["paging"].state == "yes"
    assert report.verdict.locks, report.to_json()
    assert report.left_behind == ()
