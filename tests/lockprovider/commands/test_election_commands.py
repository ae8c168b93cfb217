"""`lockprovider elect` and `leader`, as a user types them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from recipes.freezing import freeze
from typed import typed

from lockprovider.cli import main
from lockprovider.election import Election

COMMAND = str(Path(sys.executable).with_name("lockprovider"))


@pytest.fixture
def url(tmp_path) -> str:
    return f"file://{tmp_path}/compactor.json"


@pytest.fixture
def started():
    running = []
    yield running
    for one in running:
        one.kill()
        one.communicate()


def cli(*arguments, code=0):
    """One command to its end. It never shows a traceback."""
    done = typed("lockprovider", *arguments)
    done.stdout, done.stderr = done.stdout.decode(), done.stderr.decode()
    assert "Traceback" not in done.stderr
    assert done.returncode == code, done
    return done


@pytest.fixture
def here(capfd):
    """The same in this process, which is quicker; what it said on stdout and stderr."""

    def run(*arguments, code=0):
        assert main([*map(str, arguments)]) == code
        return "".join(capfd.readouterr())

    return run


def begin(started, *arguments):
    words = [COMMAND, *map(str, arguments)]
    started.append(subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    return started[-1]


def test_elect_runs_command_while_leading_and_returns_its_exit_code(url, here) -> None:
    script = f"echo in $LOCKPROVIDER_EPOCH; {COMMAND} leader {url} --json; exit 7"
    done = cli("elect", url, "--name", "vm-7", "--value", '{"url": 1}', "--json", "--", "sh", "-c", script, code=7)
    first, second = done.stdout.splitlines()
    said, shown = json.loads(done.stderr), json.loads(second)
    assert (said["outcome"], said["code"], first) == ("ended", 7, f"in {said['epoch']}")
    assert (shown["name"], shown["value"], shown["epoch"]) == ("vm-7", {"url": 1}, said["epoch"])
    assert here("leader", url, code=1) == "no leader\n"
    assert json.loads(here("elect", url, "--timeout", "inf", "--json", "--", "true"))["epoch"] == said["epoch"] + 1


def test_elect_has_exit_codes_for_not_elected_and_for_bad_input(url, tmp_path, here) -> None:
    with Election.open(url, name="vm-9").lead():
        assert "'vm-9', in term" in here("elect", url, "--timeout", 0, "--", "true", code=122)
        assert "vm-9, in term" in here("leader", url)
    assert "write --" in here("elect", url, "true", code=125)
    assert "is not JSON" in here("elect", url, "--value", "x", "--", "true", code=125)
    assert "--grace" in here("elect", url, "--grace", -1, "--", "true", code=125)
    assert "no command" in here("elect", url, code=125)
    here("elect", url, "--", "/no/such/command", code=127)
    (tmp_path / "other.json").write_text("{}")
    assert "not an election" in here("elect", f"file://{tmp_path}/other.json", "--", "true", code=125)
    assert "not an election" in here("leader", f"file://{tmp_path}/other.json", code=2)


def test_frozen_leader_ends_its_command_and_starts_it_in_next_term(url, started) -> None:
    script = "echo $LOCKPROVIDER_EPOCH; exec sleep 1000"
    frozen = begin(started, "elect", url, "--name", "a", "--validity", 1.5, "--json", "--", "sh", "-c", script)
    first = int(frozen.stdout.readline())
    freeze(frozen, url)
    with Election.open(url, name="b", poll=0.05).lead() as term:
        assert term.epoch == first + 1
        frozen.send_signal(signal.SIGCONT)
        assert "standing again" in frozen.stderr.readline()
    assert int(frozen.stdout.readline()) == first + 2
    frozen.send_signal(signal.SIGTERM)  # the command's, which ends by it
    assert frozen.wait(240) == 128 + signal.SIGTERM
    assert json.loads(frozen.stderr.read())["outcome"] == "ended"


def test_elect_with_once_runs_the_command_once(url, started) -> None:
    one = begin(started, "elect", url, "--validity", 1.5, "--once", "--json", "--", "sh", "-c", "echo; exec sleep 1000")
    one.stdout.readline()
    freeze(one, url)
    Election.open(url, poll=0.05).lead().resign()
    one.send_signal(signal.SIGCONT)
    assert one.wait(240) == 123
    said = json.loads(one.stderr.read().splitlines()[-1])
    assert (said["outcome"], said["reason"]) in {("lost", "lapsed"), ("lost", "taken_over")}


def test_signal_ends_the_wait_for_election(url, started) -> None:
    with Election.open(url, name="vm-9").lead():
        waiting = begin(started, "elect", url, "--", "true")
        watching = begin(started, "leader", url, "--watch", "--every", 0.05)
        assert watching.stdout.readline().startswith("elected   vm-9, in term")
        waiting.send_signal(signal.SIGTERM)
        assert waiting.wait(240) in {128 + signal.SIGTERM, -signal.SIGTERM}  # the second: before it was begun
    assert watching.stdout.readline().startswith("resigned  vm-9, in term")
    watching.send_signal(signal.SIGINT)
    assert watching.wait(240) == 130


def test_command_keeps_its_exit_code_when_the_term_cannot_be_resigned(url, here) -> None:
    damage = f"echo damaged > {url[7:]}; exit 7"
    said = here("elect", url, "--", "sh", "-c", damage, code=7)
    assert "the release failed" in said
