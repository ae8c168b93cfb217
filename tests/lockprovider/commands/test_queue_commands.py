"""`lockprovider queue`, as a user types it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from patience import until
from typed import typed

from lockprovider.queue import Queue

COMMAND = str(Path(sys.executable).with_name("lockprovider"))


@pytest.fixture
def url(tmp_path) -> str:
    return f"file://{tmp_path}/backfill.json"


def queue(*arguments, stdin="", code=0):
    """One command to its end. It never shows a traceback."""
    done = typed("lockprovider", "queue", *arguments, stdin=stdin.encode(errors="surrogateescape"))
    done.stdout, done.stderr = done.stdout.decode(), done.stderr.decode()
    assert "Traceback" not in done.stderr
    assert done.returncode == code, done
    return done


def test_queue_command_puts_shows_and_works_on_messages(url, tmp_path) -> None:
    assert "create it with `lockprovider queue create URL`" in queue("stat", url, code=2).stderr
    for _ in range(2):
        assert queue("create", url, "--max-attempts", 2).stdout == f"exists: {url}\n"
    assert "already exists with" in queue("create", url, code=2).stderr
    assert "put: 3; already there: 0" in queue("put", url, "--producer", "days", stdin="a\nb\nc\n").stdout
    assert json.loads(queue("put", url, "--producer", "days", "--json", stdin="a\nb\nc\nd\n").stdout)["again"] == 3
    queue("put", url, "--priority", 1, '{"day": 1}', "--key", "k")
    assert "leave out" in queue("put", url, "x", "--producer", "days", "--key", "k", code=2).stderr
    assert "of stdin is not UTF-8 text" in queue("put", url, stdin="\udcff", code=2).stderr
    stat = json.loads(queue("stat", url, "--json").stdout)
    assert (stat["ready"], stat["put"]) == (5, 5)
    assert [json.loads(line)["body"] for line in queue("peek", url, "--json").stdout.splitlines()][:2] == [
        {"day": 1},
        "a",
    ]
    script = f'read x; echo "$x $QUEUE_ATTEMPT $QUEUE_KEY" >> {tmp_path}/done; test "$x" != b'
    done = queue("work", url, "--threads", 2, "--until-empty", "--", "sh", "-c", script)
    assert "acked: 4; failed: 1" in done.stdout
    assert "exit code 1" in done.stderr
    assert sorted((tmp_path / "done").read_text().splitlines()) == ["a 1 ", "b 1 ", "c 1 ", "d 1 ", '{"day": 1} 1 k']
    (left,) = queue("peek", url, "--json").stdout.splitlines()
    assert (json.loads(left)["body"], json.loads(left)["attempts"]) == ("b", 1)
    queue("put", url, "1e400", "[NaN]")
    lines = queue("peek", url, "--json").stdout.splitlines()
    assert [json.loads(line)["body"] for line in lines] == ["b", "1e400", "[NaN]"]


def test_put_into_a_full_queue_tells_that_some_messages_may_be_put(url) -> None:
    queue("create", url, "--max-bytes", 4096)
    assert "holds" in queue("put", url, "--key", "k", "a", "b" * 4096, code=4).stderr
    assert json.loads(queue("stat", url, "--json").stdout)["ready"] == 1
    told = queue("put", "--help").stdout
    assert "some may be put" in told
    assert "nothing was written" not in told


def test_words_after_two_dashes_are_no_options(url) -> None:
    queue("create", url)
    for words in (("--", url, "--json"), ("--", url, "--help", "--json"), (url, "--priority", 0, "--", "--json")):
        assert queue("put", *words).stdout.startswith("put: ")
    lines = queue("peek", "--json", "--", url).stdout.splitlines()
    assert [json.loads(line)["body"] for line in lines] == ["--json", "--help", "--json", "--json"]


def test_exit_codes_give_back_bury_and_redrive_messages(url) -> None:
    queue("create", url, "--max-attempts", 1)
    queue("put", url, "a")
    queue("work", url, "--until-empty", "--", "sh", "-c", "exit 75")
    (later,) = queue("peek", url, "--json").stdout.splitlines()
    assert (json.loads(later)["attempts"], json.loads(later)["error"]) == (0, "later")
    rev = json.loads(queue("stat", url, "--json").stdout)["rev"]
    assert "removed messages: 1" in queue("purge", url, "--expected", rev).stdout
    queue("put", url, "b")
    queue("work", url, "--until-empty", "--", "sh", "-c", "exit 3")
    (dead,) = queue("dead", url, "--json").stdout.splitlines()
    assert json.loads(dead)["why"] == "1 attempts: RuntimeError: exit code 3"
    assert "exit code 3" in queue("dead", url).stdout
    assert "again: 1" in queue("redrive", url).stdout
    assert "unused segments: 0" in queue("clean", url).stdout
    stat = json.loads(queue("stat", url, "--json").stdout)
    assert "has changed since" in queue("purge", url, "--expected", stat["rev"] - 1, code=1).stderr
    assert "removed messages: 1" in queue("purge", url, "--expected", stat["rev"]).stdout
    assert "no command" in queue("work", url, code=2).stderr


def test_slow_command_gets_the_whole_message(url, tmp_path) -> None:
    body = "long " * 40_000
    queue("create", url)
    queue("put", url, stdin=body)
    script = f"sleep 1; cat > {tmp_path}/got; sleep 1"
    assert "acked: 1; failed: 0" in queue("work", url, "--until-empty", "--", "sh", "-c", script).stdout
    assert (tmp_path / "got").read_text() == body


def test_stopped_worker_finishes_its_claimed_message(url, tmp_path) -> None:
    opened = Queue.create(url)
    opened.put("a")
    opened.put("b")
    script = f"echo begun > {tmp_path}/begun; while ! test -e {tmp_path}/go; do sleep 0.05; done"
    working = subprocess.Popen(
        [COMMAND, "queue", "work", url, "--", "sh", "-c", script], stdout=subprocess.PIPE, text=True
    )
    try:
        until((tmp_path / "begun").exists)
        working.send_signal(signal.SIGTERM)
        (tmp_path / "go").touch()
        said, _ = working.communicate(timeout=240)
        assert working.returncode == 0
        assert "failed: 0" in said
    finally:
        working.kill()
        working.wait()
    stat = opened.stat()
    assert stat.claimed == 0
    assert stat.ready in (0, 1)  # the second, if it was claimed before the signal was seen


def test_queue_work_under_nohup_goes_on_after_a_hangup(url, tmp_path) -> None:
    opened = Queue.create(url)
    opened.put("a")
    opened.put("b")
    script = f"echo >> {tmp_path}/begun; while ! test -e {tmp_path}/go; do sleep 0.05; done"
    words = [COMMAND, "queue", "work", url, "--until-empty", "--", "sh", "-c", script]
    working = subprocess.Popen(["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *words])
    try:
        until((tmp_path / "begun").exists)
        working.send_signal(signal.SIGHUP)
        (tmp_path / "go").touch()
        assert working.wait(240) == 0
    finally:
        working.kill()
        working.wait()
    assert opened.stat().ready == 0


def test_command_whose_claim_is_lost_is_ended(url, tmp_path) -> None:
    opened = Queue.create(url)
    opened.put("a")
    script = f"echo $$ > {tmp_path}/pid; sleep 600"
    words = [COMMAND, "queue", "work", url, "--visible", "0.5", "--", "sh", "-c", script]
    working = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        until((tmp_path / "pid").exists)
        working.send_signal(signal.SIGSTOP)
        job = until(lambda: opened.claim(visible_s=600))
        working.send_signal(signal.SIGTERM)
        working.send_signal(signal.SIGCONT)
        _, said = working.communicate(timeout=240)
        assert "stop working on it" in said
        job.ack()
    finally:
        working.kill()
        working.wait()


@pytest.mark.parametrize("how", [(), ("--producer", "days"), ("--priority", 1)])
def test_put_of_an_older_epoch_is_refused(url, how) -> None:
    queue("create", url)
    queue("put", url, "a", "--fence", 3)
    assert (
        "epoch 2 is over, because epoch 3 has put messages" in queue("put", url, "b", "--fence", 2, *how, code=1).stderr
    )
    queue("put", url, "c", "--fence", 3, *how)
    assert [letter.body for letter in Queue.open(url).peek()].count("b") == 0


def test_command_that_does_not_exist_spends_no_attempt(url) -> None:
    queue("create", url, "--max-attempts", 1)
    queue("put", url, "1")
    assert "'no-such-command'" in queue("work", url, "--until-empty", "--", "no-such-command", code=2).stderr
    stat = json.loads(queue("stat", url, "--json").stdout)
    assert (stat["ready"], stat["dead"]) == (1, 0)
