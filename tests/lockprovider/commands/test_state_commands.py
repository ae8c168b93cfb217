"""`lockprovider state`, as a user types it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE_S, until
from typed import typed

from fsspec_cas.machine import Worker
from lockprovider import Lease, LeaseLost
from lockprovider.cli import main
from lockprovider.commands.running import CommandOrder, CommandResult, passed_signals
from lockprovider.election import Term
from lockprovider.state import Fenced, State, TfLock

COMMAND = str(Path(sys.executable).with_name("lockprovider"))


@pytest.fixture
def url(tmp_path) -> str:
    return f"file://{tmp_path}/orders.json"


def state(*arguments, stdin=b"", code=0, **environment):
    """One command to its end. It never shows a traceback."""
    done = typed("lockprovider", "state", *arguments, stdin=stdin, env=environment)
    assert b"Traceback" not in done.stderr
    assert done.returncode == code, done
    return done


def test_state_command_puts_gets_compares_and_rolls_back(url) -> None:
    assert b"no state exists" in state("get", url, code=1).stderr
    state("put", url, "--expected", 0, "--reason", "begin", stdin=b'{"day": 1}')
    assert b"at serial 1, not 0" in state("put", url, "--expected", 0, stdin=b"{}", code=1).stderr
    said = json.loads(state("put", url, "--json", stdin=b'{"day": 2, "new": true}').stdout)
    assert (said["outcome"], said["serial"]) == ("written", 2)
    assert json.loads(state("get", url).stdout) == {"day": 2, "new": True}
    assert json.loads(state("get", url, "--serial", 1).stdout) == {"day": 1}
    assert state("diff", url, 1, 2).stdout.decode().splitlines() == ["/day: 1 -> 2", "/new: absent -> true"]
    assert json.loads(state("diff", url, 1, 2, "--json").stdout.splitlines()[1]) == {"where": "/new", "after": True}
    assert b"serial 3" in state("rollback", url, 1).stdout
    shown = json.loads(state("get", url, "--json").stdout)
    assert (shown["serial"], shown["reason"], shown["value"]) == (3, "rollback to 1", {"day": 1})
    assert [json.loads(line)["serial"] for line in state("history", url, "--json").stdout.splitlines()] == [3, 2, 1]
    assert b"begin" in state("history", url).stdout
    assert b"no serial 9" in state("get", url, "--serial", 9, code=1).stderr


def test_history_shows_a_lock_of_terraform_in_words(url) -> None:
    info = {"ID": "7c2a", "Operation": "OperationTypeApply", "Who": "ci@vm-7", "Version": "1.11.4"}
    for reason in (json.dumps(info), '{"ID": 1}', '{"a": 1}', "[7]"):
        state("put", url, "--reason", reason, stdin=b"{}")
    shown = state("history", url).stdout.decode().splitlines()
    assert shown[2].endswith('  {"ID": 1}')
    assert shown[3].endswith("  locked for OperationTypeApply by ci@vm-7 (ID 7c2a)")
    assert shown[1].endswith('  {"a": 1}')
    assert shown[0].endswith("  [7]")


def test_state_bytes_come_back_unchanged(url) -> None:
    state("put", url, "--bytes", stdin=bytes(range(256)))
    assert state("get", url).stdout == bytes(range(256))
    assert b"not JSON" in state("put", url, stdin=b"\xff", code=2).stderr
    state("put", url, "--bytes", stdin=b"\x01")
    assert state("diff", url, 1, 2).stdout.endswith(b'" -> "AQ=="\n')
    assert b"how bytes are stored" in state("put", url, stdin=b'{"base64": "AAEC"}', code=2).stderr


def test_diff_compares_contents_of_terraform_states(url) -> None:
    for serial in (1, 2):
        state("put", url, "--bytes", stdin=b'{"lineage": "0f6e", "serial": %d, "version": 4}' % serial)
    assert state("diff", url, 1, 2).stdout == b"/serial: 1 -> 2\n"


def test_rollback_restores_empty_state_and_null_is_refused(url) -> None:
    with State.open(url).edit() as edit:
        edit.value = {"day": 1}
    assert b"serial 3" in state("rollback", url, 1).stdout
    assert b"no state exists" in state("get", url, code=1).stderr
    said = state("put", url, stdin=b"null", code=2).stderr
    assert b"null is not a state" in said
    assert b"UNCHANGED" not in said
    terraform = f"{url}.tfstate"
    with State.open(terraform, codec=bytes).edit() as edit:
        edit.value = b"{}"
    assert b"serial 1 of" in state("rollback", terraform, 1, code=1).stderr
    assert state("get", terraform).stdout == b"{}"


def test_older_fence_is_refused(url) -> None:
    state("put", url, "--fence", 7, stdin=b"{}")
    assert b"epoch 6 is over" in state("put", url, "--fence", 6, stdin=b"{}", code=1).stderr


def test_state_is_edited_in_an_editor(url) -> None:
    state("put", url, stdin=b'{"day": 1}')
    state("edit", url, "--reason", "by hand", "--editor", "sed -i s/1/2/")
    assert json.loads(state("get", url).stdout) == {"day": 2}
    state("edit", url, VISUAL="sed -i s/2/3/")
    assert json.loads(state("get", url).stdout) == {"day": 3}
    assert b"ended with exit code 1" in state("edit", url, "--editor", "false", code=2).stderr
    assert b"not JSON" in state("edit", url, "--editor", "sed -i s/3/x/", code=2).stderr
    assert b"no-such-editor" in state("edit", url, "--editor", "no-such-editor", code=2).stderr
    assert json.loads(state("get", url).stdout) == {"day": 3}


def test_editor_of_state_is_shown_and_can_be_stopped(url) -> None:
    opened = State.open(url, default=dict)
    assert b"not being edited" in state("who", url).stdout
    assert json.loads(state("unlock", url, "--yes", "--json").stdout) == {"outcome": "not_held"}
    edit = opened.edit(reason="migration 12")
    edit.__enter__()
    shown = json.loads(state("who", url, "--json").stdout)
    assert (shown["state"], shown["reason"]) == ("held", "migration 12")
    assert shown["valid_until_ms"] > shown["since_ms"]
    assert re.search(rb", until \S+ \(in [\d.]+ \w+.*\) unless it is renewed  migration 12", state("who", url).stdout)
    refused = state("put", url, stdin=b"{}", code=1).stderr
    assert b"(migration 12): wait, or see who() (`lockprovider state who URL`)" in refused
    assert b"add --yes" in state("unlock", url, code=2).stderr
    assert b"held by" in state("edit", url, "--timeout", 0, "--editor", "true", code=1).stderr
    assert b"migration 12" in state("unlock", url, "--yes").stdout
    with pytest.raises((LeaseLost, Fenced)):
        edit.__exit__(None, None, None)
    state("put", url, stdin=b'{"free": true}')
    assert opened.read().value == {"free": True}


def test_invalid_state_is_bad_input(tmp_path) -> None:
    (tmp_path / "x.json").write_text("[]")
    assert b"not a state file" in state("get", f"file://{tmp_path}/x.json", code=2).stderr
    assert b"must name an object" in state("get", "s3://bucket", code=2).stderr


def test_run_passes_the_environment_and_the_exit_code_on(url) -> None:
    done = state("run", url, "--", "sh", "-c", 'echo "$TF_HTTP_ADDRESS $TF_HTTP_USERNAME"; exit 7', code=7)
    assert done.stdout.startswith(b"http://127.0.0.1:")
    assert done.stdout.endswith(b" lockprovider\n")
    assert b"no command" in state("run", url, code=125).stderr
    assert b"no-such-command" in state("run", url, "--", "no-such-command", code=127).stderr
    told = state("run", url, "--json", "--", "sh", "-c", "exit 7", code=7).stderr.splitlines()[-1]
    assert json.loads(told) | {"why": ""} == {
        "outcome": "ended", "code": 7, "epoch": None, "held_s": None, "reason": None, "why": ""
    }  # fmt: skip


_ASK = """
import base64, os, urllib.request
name, password, address = (os.environ["TF_HTTP_" + word] for word in ("USERNAME", "PASSWORD", "ADDRESS"))
token = base64.b64encode(f"{name}:{password}".encode()).decode()
urllib.request.urlopen(urllib.request.Request(address, headers={"Authorization": "Basic " + token}))
"""


@pytest.mark.parametrize(("words", "code", "asks"), [((sys.executable, "-c", _ASK), 0, True), (("false",), 1, False)])
def test_run_notes_if_its_command_did_not_ask_for_the_state(url, words, code, asks) -> None:
    noted = state("run", url, "--", *words, code=code).stderr
    assert (noted == b"") is asks
    assert (b'is its block `backend "http" {}` missing?' in noted) is not asks


def test_terraforms_own_lock_is_held_while_a_command_runs(url) -> None:
    style = ("--style", "tflock")
    said = state(
        "lock", url, *style, "--", "sh", "-c", f'echo "$LOCKPROVIDER_LOCK_ID"; cat {url[7:]}.tflock; exit 7', code=7
    )
    identity, held = said.stdout.decode().splitlines()
    assert (json.loads(held)["ID"], json.loads(held)["Operation"]) == (identity, "sh")
    assert json.loads(state("who", url, *style, "--json").stdout) == {"state": "absent"}
    left = state("lock", url, *style, "--reason", "by hand").stdout.decode().strip()
    shown = json.loads(state("who", url, *style, "--json").stdout)
    assert (shown["state"], shown["id"], shown["info"]) == ("held", left, "by hand")
    assert b"by hand" in state("lock", url, *style, "--", "true", code=122).stderr
    assert b"held by" in state("lock", url, *style, code=1).stderr
    assert b"nothing was unlocked" in state("unlock", url, *style, "--id", identity, code=1).stderr
    assert b"add --yes" in state("unlock", url, *style, code=2).stderr
    assert b"add --style" in state("unlock", url, "--id", left, code=2).stderr
    state("unlock", url, *style, "--id", left)
    assert b"not locked" in state("unlock", url, *style, "--yes").stdout
    assert b"another process unlocked" in state("lock", url, *style, "--", "rm", f"{url[7:]}.tflock", code=123).stderr
    assert b"no-such-command" in state("lock", url, *style, "--", "no-such-command", code=127).stderr
    assert b"not locked" in state("who", url, *style).stdout
    assert b"--style" in state("lock", url, code=2).stderr


def test_get_from_a_missing_bucket_names_the_bucket(ministack) -> None:
    options = json.dumps(ministack.storage_options)
    refused = state("get", "s3://no-such-bucket-here/network.json", "--storage-options", options, code=2)
    assert b"the bucket 'no-such-bucket-here' does not exist" in refused.stderr


@pytest.mark.parametrize("words", [("run",), ("lock", "--style", "tflock")])
@pytest.mark.parametrize("name", ["QUIT", "USR1", "TERM"])
def test_command_gets_every_signal_and_nothing_stays_locked(url, tmp_path, words, name) -> None:
    """Of `consul lock`, QUIT and HUP left the command without its holder (hashicorp/consul#1210, #2489)."""
    ready = tmp_path / "ready"
    script = f'trap "exit 9" {name}; touch {ready}; while :; do sleep 0.05; done'
    command = [COMMAND, "state", words[0], url, *words[1:]]
    running = subprocess.Popen([*command, "--", "sh", "-c", script], stdin=subprocess.DEVNULL)
    until(ready.exists)
    running.send_signal(getattr(signal, f"SIG{name}"))
    assert running.wait(PATIENCE_S) == 9
    assert b"not locked" in state("who", url, "--style", "tflock").stdout


@pytest.mark.parametrize("words", [("run",), ("lock", "--style", "tflock")])
def test_command_is_ended_when_its_holder_is_killed(url, tmp_path, words) -> None:
    number = tmp_path / "number"
    command = [COMMAND, "state", words[0], url, *words[1:]]
    script = f"echo $$ > {number}.new; mv {number}.new {number}; exec sleep 1000"
    running = subprocess.Popen([*command, "--", "sh", "-c", script], stdin=subprocess.DEVNULL)
    until(number.exists)
    running.kill()
    running.wait(PATIENCE_S)
    until(lambda: not Path(f"/proc/{number.read_text().strip()}").exists())


def test_command_keeps_its_exit_code_when_the_unlock_fails(url, tmp_path) -> None:
    lock = f"{url[7:]}.tflock"
    script = f"rm {lock}; ln -s {lock} {lock}; exit 7"
    done = state("lock", url, "--style", "tflock", "--", "sh", "-c", script, code=7)
    assert b"the unlock failed" in done.stderr
    assert b"state who" in done.stderr


GIVING_BACK = [
    (["run"], Lease, "release"),
    (["elect"], Term, "resign"),
    (["state", "lock", "--style", "tflock"], TfLock, "unlock"),
]


@pytest.mark.parametrize("giving_back", GIVING_BACK)
def test_command_keeps_its_exit_code_after_an_unexpected_error(giving_back, url, monkeypatch, capfd) -> None:
    words, kind, method = giving_back
    give_back = getattr(kind, method)

    def fail(*arguments: object) -> None:
        give_back(*arguments)
        monkeypatch.undo()
        raise ZeroDivisionError("no text for a user")

    monkeypatch.setattr(kind, method, fail)
    assert main([*words, url, "--", "sh", "-c", "exit 7"]) == 7
    assert "failed" in (said := capfd.readouterr().err)
    assert "unexpected ZeroDivisionError: no text for a user" in said


def test_lock_is_removed_when_the_command_cannot_be_watched(url, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(CommandOrder, "run", full)
    assert main(["state", "lock", url, "--style", "tflock", "--", "true"]) == 125
    assert TfLock.open(url).shown() is None


def test_command_that_cannot_be_waited_for_is_ended(monkeypatch) -> None:
    children, start = [], Worker.start

    def full(worker: Worker) -> None:
        if worker.name == "command":
            children.append(worker._target.__self__)
            raise RuntimeError("can't start new thread")
        start(worker)

    monkeypatch.setattr(Worker, "start", full)
    with pytest.raises(RuntimeError, match="can't start"), passed_signals() as signals:
        CommandOrder(["sleep", "1000"], signals).run({}, CommandResult("", 0))
    assert children[0]._process.wait(PATIENCE_S) == -signal.SIGTERM


def test_deeply_nested_state_is_bad_input(url) -> None:
    assert b"is not JSON" in state("put", url, stdin=b"[" * 100_000 + b"]" * 100_000, code=2).stderr
