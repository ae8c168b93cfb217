"""Ctrl-C and the cancellation of a task in the middle of a call come out as unknown, and can be settled afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pickle
import signal
import subprocess
import sys
from base64 import b64decode
from pathlib import Path

import pytest
from patience import PATIENCE_S, soon, until

from faults import actions as do
from faults.actions import Action, Ending
from faults.conftest import Bench, is_delete, is_write
from faults.interrupted_writer import MINE
from fsspec_cas import OutcomeUnknown, Unknown, Version, Won

TESTS = Path(__file__).parents[1]
HANGS: dict[str, Action] = {"applied": do.lose_answer(Ending.HANG), "lost": do.never_deliver(Ending.HANG)}


def hangs(bench: Bench) -> bool:
    return any(given == "hang" for *_, given in bench.proxy.log)


def interrupt(bench: Bench, call: str, version: Version | None = None, *, asynchronous: bool = False) -> dict[str, str]:
    """Start a process that makes the call, send it SIGINT while the call hangs; what it says about its end."""
    asked = {
        "url": bench.prefix,
        "options": bench.server.options_for(bench.proxy.endpoint),
        "key": bench.key,
        "call": call,
        "version": None if version is None else str(version),
        "asynchronous": asynchronous,
    }
    writer = subprocess.Popen(
        [sys.executable, "-m", "faults.interrupted_writer"],
        cwd=TESTS,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    bench.proxy.log.clear()
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(writer.kill)
        writer.stdin.write(json.dumps(asked))
        writer.stdin.close()
        writer.stdin = None
        until(lambda: hangs(bench) or writer.poll() is not None)
        assert hangs(bench), writer.communicate()
        writer.send_signal(signal.SIGINT)
        out, err = writer.communicate(timeout=PATIENCE_S)
    assert writer.returncode == 0, err
    return json.loads(out)


@pytest.mark.parametrize("hang", HANGS)
@pytest.mark.parametrize("call", ["create", "match"])
def test_ctrl_c_during_write_is_unknown_and_resolve_finds_the_outcome(bench: Bench, call: str, hang: str):
    version = bench.rival_writes(b"first") if call == "match" else None
    rule = bench.proxy.rule(match=is_write, action=HANGS[hang])
    said = interrupt(bench, call, version)
    assert (said["raised"], said["cause"]) == ("KeyboardInterrupt", "OutcomeUnknown")
    assert (rule.fired, len(rule.answers)) == (1, int(hang == "applied"))
    assert said["resolved"] == "Won"
    assert bench.won(Won(Version.parse(said["version"])), MINE)
    # The error can be taken to another process, this one.
    error = pickle.loads(b64decode(said["error"]))
    assert bench.won(bench.store.resolve(error.outcome), MINE)


@pytest.mark.parametrize("hang", HANGS)
def test_ctrl_c_in_asyncio_run_is_unknown_inside_and_interrupt_outside(s3: Bench, hang: str):
    rule = s3.proxy.rule(match=is_write, action=HANGS[hang])
    said = interrupt(s3, "create", asynchronous=True)
    assert (said["raised"], said["cause"], said["ended"]) == ("CancelledError", "OutcomeUnknown", "KeyboardInterrupt")
    assert (rule.fired, said["resolved"]) == (1, "Won")
    assert s3.won(Won(Version.parse(said["version"])), MINE)


@pytest.mark.parametrize("hang", HANGS)
def test_ctrl_c_during_a_delete_is_unknown(s3: Bench, hang: str):
    version = s3.rival_writes()
    rule = s3.proxy.rule(match=is_delete, action=HANGS[hang])
    said = interrupt(s3, "delete", version)
    assert (said["raised"], said["cause"]) == ("KeyboardInterrupt", "OutcomeUnknown")
    assert rule.fired == 1
    assert (s3.truth()[0] is None) == (hang == "applied")


async def cancelled(bench: Bench, task: asyncio.Task) -> asyncio.CancelledError:
    await soon(lambda: hangs(bench) or task.done())
    assert hangs(bench)
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert task.cancelled()
    return caught.value


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("hang", HANGS)
@pytest.mark.parametrize("call", ["create", "match"])
async def test_cancelled_write_is_unknown_and_resolve_finds_the_outcome(bench: Bench, async_stores, call, hang):
    store = async_stores(bench)
    version = bench.rival_writes(b"first") if call == "match" else None
    rule = bench.proxy.rule(match=is_write, action=HANGS[hang])
    bench.proxy.log.clear()
    write = store.put_if_absent(bench.key, MINE) if version is None else store.put_if_match(bench.key, MINE, version)
    stop = await cancelled(bench, asyncio.ensure_future(write))
    assert isinstance(stop.__cause__, OutcomeUnknown)
    assert isinstance(stop.__cause__.outcome, Unknown)
    assert (rule.fired, bench.applied()) == (1, int(hang == "applied"))
    assert bench.won(await store.resolve(stop.__cause__.outcome), MINE)


@pytest.mark.asyncio(loop_scope="session")
async def test_write_timed_out_by_wait_for_carries_unknown_in_its_exception_chain(bench: Bench, async_stores):
    bench.proxy.rule(match=is_write, action=HANGS["applied"])
    store = async_stores(bench)
    with pytest.raises(asyncio.TimeoutError) as caught:
        await asyncio.wait_for(store.put_if_absent(bench.key, MINE), 0.5)
    stop = caught.value.__cause__
    assert isinstance(stop, asyncio.CancelledError)
    assert isinstance(stop.__cause__, OutcomeUnknown)
    assert bench.won(await store.resolve(stop.__cause__.outcome), MINE)


@pytest.mark.asyncio(loop_scope="session")
async def test_cancelled_write_that_was_already_replaced_stays_unknown(s3: Bench, async_stores):
    store = async_stores(s3)
    s3.proxy.rule(match=is_write, action=HANGS["applied"])
    s3.proxy.log.clear()
    stop = await cancelled(s3, asyncio.ensure_future(store.put_if_absent(s3.key, MINE)))
    s3.rival_writes()
    assert isinstance(await store.resolve(stop.__cause__.outcome), Unknown)
    assert s3.truth()[0] == b"theirs"
