"""`lockprovider wal`, as a user types it."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from patience import until

from lockprovider.cli import main
from lockprovider.wal import Wal

COMMAND = str(Path(sys.executable).with_name("lockprovider"))


@pytest.fixture
def url(tmp_path) -> str:
    return f"file://{tmp_path}/orders"


@pytest.fixture
def wal(capsys, monkeypatch):
    """One command to its end, in this process. It never shows a traceback."""

    def run(*arguments, stdin="", code=0):
        given = stdin if isinstance(stdin, bytes) else stdin.encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        capsys.readouterr()
        done = main(["wal", *map(str, arguments)])
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        assert done == code, said
        return said

    return run


def test_records_are_appended_once_shown_and_trimmed(url, wal) -> None:
    assert "create it with `lockprovider wal create URL`" in wal("info", url, code=2).err
    wal("create", url, "--slots", 64)
    assert "already exists with" in wal("create", url, "--write-once", code=2).err
    assert "appended: 3; already there: 0" in wal("append", url, "--producer", "days", stdin="a\nb\nc\n").out
    said = json.loads(wal("append", url, "b", "c", "d", "--producer", "days", "--first", 2, "--json").out)
    assert (said["appended"], said["again"], said["last"].partition(":")[2]) == (1, 2, "3")
    wal("append", url, "plain")
    assert wal("read", url).out.split() == ["a", "b", "c", "d", "plain"]
    lines = [json.loads(line) for line in wal("read", url, "--json", "--reader", "r").out.splitlines()]
    assert [one["record"] for one in lines] == ["a", "b", "c", "d", "plain"]
    assert wal("read", url, "--reader", "r").out == ""
    assert wal("read", url, "--start", lines[3]["position"]).out.split() == ["d", "plain"]
    info = json.loads(wal("info", url, "--json").out)
    assert (info["producers"], info["readers"], info["floor"]) == ({"days": 4}, {"r": info["end"]}, 0)
    assert json.loads(wal("trim", url, "--json").out)["floor"] == int(info["end"].partition(":")[0])
    assert "was trimmed" in wal("read", url, "--start", "0:0", code=1).err
    assert "retain" in wal("info", url).out


def test_full_log_newer_leader_and_bad_input_have_exit_codes(url, wal) -> None:
    wal("create", url, "--slots", 1)
    wal("tail", url, "--reader", "slow", "--timeout", 0)
    wal("append", url, "1")
    assert "'slow' has not read further" in wal("append", url, "2", code=4).err
    assert "no reader 'fast'" in wal("drop", url, "fast", code=2).err
    wal("drop", url, "slow")
    wal("trim", url, "--before", "1:1")
    wide = f"{url}-wide"
    wal("create", wide)
    Wal.open(wide).lead(fence=7)
    assert "epoch 6 is over" in wal("append", wide, "x", "--fence", 6, code=1).err
    assert "no other writer may append" in wal("append", wide, "x", code=1).err
    assert "appended: 1" in wal("append", wide, "x", "--fence", 7, "--producer", "p").out
    assert "not a position" in wal("read", url, "--start", "seven", code=2).err


def test_follower_of_a_sealed_log_reaches_its_end(url, wal) -> None:
    wal("create", url)
    wal("append", url, "a")
    assert "sealed at 1:1" in wal("seal", url, "--successor", "s3://bucket/next", "--fence", 3).out
    assert "continue in s3://bucket/next" in wal("append", url, "b", code=1).err
    assert "epoch 2 is over" in wal("seal", url, "--fence", 2, code=1).err
    assert wal("tail", url, "--start", "oldest").out.split() == ["a"]  # it ends by itself
    last = json.loads(wal("tail", url, "--json", "--reader", "r").out.splitlines()[-1])
    assert last == {"sealed": "1:1", "successor": "s3://bucket/next"}
    info = json.loads(wal("info", url, "--json").out)
    assert (info["sealed"], info["successor"], info["epoch"], info["readers"]) == (
        True,
        last["successor"],
        3,
        {"r": "1:1"},
    )


def test_tail_shows_new_records_until_it_is_interrupted(url) -> None:
    log = Wal.create(url)
    log.append(b"before")
    words = [COMMAND, "wal", "tail", url, "--json", "--idle", "0.1", "--reader", "r", "--start", "end"]
    tail = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: log.info().readers)
        log.append(b"\xff")
        assert json.loads(tail.stdout.readline()) == {"position": "1:1", "base64": "/w=="}
        until(lambda: log.info().readers["r"].slot == 2)
        tail.send_signal(signal.SIGINT)
        assert tail.wait(240) in {130, 3}  # 3: it had not heard yet that its position is kept
    finally:
        tail.kill()
        tail.communicate()


def test_lines_of_stdin_are_appended_as_the_bytes_that_they_are(url, wal) -> None:
    wal("create", url)
    wal("append", url, stdin=b"\xff\xfe\r\nplain\n\x00")
    records = [json.loads(line) for line in wal("read", url, "--json").out.splitlines()]
    assert [record.get("base64") or record["record"] for record in records] == ["//4=", "plain", "\x00"]


def test_log_is_not_sealed_for_a_successor_that_is_no_url(url, wal) -> None:
    wal("create", url)
    assert "write s3://orders" in wal("seal", url, "--successor", "s3:/orders", code=2).err
    wal("append", url, "a")
