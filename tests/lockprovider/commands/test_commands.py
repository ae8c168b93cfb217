"""The command `lockprovider` about locks, typed as a user types it: processes, exit codes, signals, terminals."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from faults import actions as do
from faults.actions import Ending
from faults.proxy import FaultProxy
from patience import PATIENCE_S, until
from typed import sentences, typed

from fsspec_cas import Machine, Store
from lockprovider import HUDI_LOCK_PATH, Lock, LockRecord, LockSettings
from lockprovider.commands.running import Signals

COMMAND = str(Path(sys.executable).with_name("lockprovider"))
LIMIT_S = PATIENCE_S
SHORT = ("--validity", "10", "--renew", "0.2")


def command(*arguments, stdin="", env=None, code=None):
    """One command to its end. It never shows a traceback."""
    done = typed("lockprovider", *arguments, stdin=stdin.encode(), env=env)
    done.stdout, done.stderr = done.stdout.decode(), done.stderr.decode()
    assert "Traceback" not in done.stderr
    if code is not None:
        assert done.returncode == code, done
    return done


@contextlib.contextmanager
def started(*arguments, **how):
    """A command in the background, which never outlives the test."""
    process = subprocess.Popen(
        [COMMAND, *map(str, arguments)], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **how
    )
    try:
        yield process
    finally:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # what it left behind has its stderr
            process.communicate(timeout=LIMIT_S)


def sentence(done):
    """The error: one line, from us."""
    lines = sentences(done.stderr)
    assert len(lines) == 1, lines
    assert lines[0].startswith("lockprovider: ")
    return lines[0]


class NoBuckets:
    """An S3 server that has no bucket at all."""

    def __enter__(self):
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _NoBucket)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self._server.server_port}"

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()


class _NoBucket(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _answer(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b"<Error><Code>NoSuchBucket</Code><Message>none</Message></Error>"
        self.send_response(404)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _answer  # noqa: N815 - http.server's names

    def log_message(self, *_):
        pass


class At:
    """A URL, what goes behind it, and another road to the record."""

    def __init__(self, url, options=()):
        self.url = url
        self.words = [url, *options]
        self.store = Store.from_url(url, json.loads(options[1]) if options else None)

    def record(self):
        return LockRecord.decode(self.store.read(HUDI_LOCK_PATH).data)


def server_at(server, endpoint=None):
    options = server.storage_options if endpoint is None else server.options_for(endpoint)
    return At(server.new_prefix(), ["--storage-options", json.dumps(options)])


@pytest.fixture
def local(tmp_path):
    return At(str(tmp_path / "table"))


@pytest.fixture(params=["local", "seaweedfs"])
def at(request):
    if request.param == "local":
        return request.getfixturevalue("local")
    return server_at(request.getfixturevalue("seaweedfs"))


def holding(at):
    """A holder in this process."""
    return Lock(at.store, settings=LockSettings(validity=60, renew=0.5)).acquire()


@pytest.fixture
def held(at):
    with holding(at) as lease:
        yield lease


@pytest.fixture
def held_locally(local):
    with holding(local) as lease:
        yield lease


def alive(pid):
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def break_it(at, *words):
    """Break the lock of a living holder; a renewal may come in between, then again."""
    return until(lambda: (done := command("break", "--yes", *words, *at.words)).returncode != 1 and done)


# Who holds it


def test_status_shows_each_state_of_a_lock(at):
    assert json.loads(command("status", "--json", *at.words, code=0).stdout)["state"] == "absent"
    with Lock(at.store).acquire() as lease:
        said = json.loads(command("status", "--json", *at.words, code=0).stdout)
        assert (said["state"], said["owner"], said["epoch"]) == ("held", lease.owner, lease.epoch)
        assert (said["pid"], said["clock"]) == (os.getpid(), "store")
    words = command("status", *at.words, code=0).stdout
    assert "state    released" in words
    assert f"owner    {lease.owner}\n" in words
    assert f"epoch    {lease.epoch}\n" in words


def test_status_reads_the_record_of_jvm_hudi(local):
    local.store.put_if_absent(HUDI_LOCK_PATH, b'{"expired":false,"validUntil":1000,"owner":"j-1"}').unwrap()
    said = json.loads(command("status", "--json", *local.words, code=0).stdout)
    assert (said["state"], said["owner"], said["host"], said["epoch"]) == ("lapsed", "j-1", None, 0)
    assert "lapsed" in command("status", *local.words, code=0).stdout


def test_lock_without_a_table_is_on_any_object(local):
    with Lock(local.store, "jobs/nightly.json").acquire() as lease:
        for words in ([local.url, "--on", "jobs/nightly.json"], [f"file://{local.url}?on=jobs/nightly.json"]):
            said = json.loads(command("status", "--json", *words, code=0).stdout)
            assert (said["owner"], said["path"]) == (lease.owner, "jobs/nightly.json")
    both = command("status", f"file://{local.url}?on=a", "--on", "b", code=2)
    assert "give only one of them" in sentence(both)


# Breaking it


def test_break_frees_a_held_lock_and_says_so_once(at, held):
    said = json.loads(break_it(at, "--json").stdout)
    assert (said["outcome"], said["seen"]["owner"]) == ("broken", held.owner)
    assert at.record().expired
    until(held.lost.is_set)
    assert json.loads(command("break", "--yes", "--json", *at.words, code=0).stdout)["outcome"] == "not_held"


def test_break_if_owner_spares_everybody_else(local, held_locally):
    at, held = local, held_locally
    done = command("break", "--yes", "--if-owner", "somebody", *at.words, code=1)
    assert held.owner in sentence(done)
    assert not at.record().expired
    break_it(at, "--if-owner", held.owner)
    assert at.record().expired
    assert "not held" in command("break", "--yes", "--if-owner", "somebody", *at.words, code=0).stdout


def test_break_of_missing_or_invalid_record_writes_nothing(local):
    assert "absent" in command("break", "--yes", *local.words, code=0).stdout
    assert local.store.list("") == []
    local.store.put_if_absent(HUDI_LOCK_PATH, b"precious").unwrap()
    assert "not a lock record" in sentence(command("break", "--yes", *local.words, code=2))
    assert local.store.read(HUDI_LOCK_PATH).data == b"precious"


def test_break_frees_blocked_lock_and_names_where_it_moved_the_obstacle(local):
    lock = Lock(local.store)
    pending = lock.stage("state/1", os.urandom(10_000))  # does not fit into the record
    lock.acquire().release()
    record = replace(local.record(), expired=False, released_pending=True, pending=pending)
    local.store.update(HUDI_LOCK_PATH, lambda _: record.encode())
    local.store.delete(pending.staged)
    done = command("run", "--timeout", "0", *local.words, "--", "true", code=125)
    assert "lockprovider break" in sentence(done)
    said = json.loads(command("break", "--yes", "--json", *local.words, code=0).stdout)
    assert (said["outcome"], said["finished"], list(said["set_aside"])) == ("broken", [], ["state/1"])
    assert json.loads(local.store.read(said["set_aside"]["state/1"]).data)["digest"] == pending.digest
    command("run", "--timeout", "0", *local.words, "--", "true", code=0)


def test_break_refuses_without_a_terminal_to_confirm(local):
    with Lock(local.store).acquire():
        assert "--yes" in sentence(command("break", *local.words, code=2))
        assert not local.record().expired


class Terminal:
    """A process that has a terminal, typed at from here."""

    def __init__(self, *words):
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.execv(words[0], list(words))  # noqa: S606
        self.shown = ""

    def read_until(self, text):
        while text not in self.shown:
            self.shown += self._more() or pytest.fail(f"{text!r} is not in {self.shown!r}")

    def write(self, text):
        os.write(self.master, text.encode())

    def ends(self):
        while more := self._more():
            self.shown += more
        os.close(self.master)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def _more(self):
        try:
            return os.read(self.master, 4096).decode()
        except OSError:  # Linux: the other side is closed
            return ""


@pytest.mark.parametrize(("answer", "code"), [("yes\n", 0), ("no\n", 1)])
def test_break_shows_the_record_and_asks(local, answer, code):
    with Lock(local.store).acquire() as lease:
        terminal = Terminal(COMMAND, "break", local.url)
        terminal.read_until("Type yes:")
        assert lease.owner in terminal.shown
        terminal.write(answer)
        assert terminal.ends() == code
        assert local.record().expired is (code == 0)


def test_break_refuses_when_the_record_changed_after_it_was_shown(local):
    with Lock(local.store).acquire() as lease:
        terminal = Terminal(COMMAND, "break", local.url)
        terminal.read_until("Type yes:")
        assert lease.renew()
        terminal.write("yes\n")
        assert terminal.ends() == 1
        assert "has changed" in terminal.shown
        assert not local.record().expired
        lease.check()


# Watching it


def test_watch_prints_what_happens_as_it_happens(at):
    with started("watch", "--json", "--every", "0.05", *at.words, stdout=subprocess.PIPE) as watching:

        def next_line():
            return json.loads(watching.stdout.readline())

        assert next_line()["what"] == "absent"
        lock = Lock(at.store, settings=LockSettings(validity=100, renew=10))
        lease = lock.acquire()
        line = next_line()
        assert (line["what"], line["owner"], line["epoch"]) == ("acquired", lease.owner, lease.epoch)
        lease.renew()
        assert next_line()["what"] == "renewed"
        lease.release()
        assert next_line()["what"] == "released"
        watching.send_signal(signal.SIGINT)
        assert watching.wait(LIMIT_S) == 130


def test_watch_reports_a_lapse_and_ends_on_signal(local):
    local.store.put_if_absent(HUDI_LOCK_PATH, b'{"expired":false,"validUntil":1000,"owner":"j-1"}').unwrap()
    done = command("watch", "--every", "0.01", "--for", "0.1", *local.words, code=0)
    assert done.stdout.count("lapsed") == 1


def _gets(proxy):
    return [status for method, _, status in proxy.delivered if method == "GET"]


def test_watch_of_a_quiet_lock_moves_no_bodies(seaweedfs):
    at = server_at(seaweedfs)
    at.store.put_if_absent(HUDI_LOCK_PATH, b'{"expired":true,"validUntil":1000,"owner":"j-1"}').unwrap()
    with FaultProxy("127.0.0.1", seaweedfs.port) as proxy:
        words = ["--storage-options", json.dumps(seaweedfs.options_for(proxy.endpoint))]
        with started("watch", at.url, *words, "--every", "0.02", stdout=subprocess.DEVNULL) as watching:
            answers = until(lambda: gets if len(gets := _gets(proxy)) > 2 else [], "three looks")
            watching.send_signal(signal.SIGINT)
            assert watching.wait(LIMIT_S) == 130
    assert answers[0] == 200
    assert set(answers[1:]) == {304}


# Running under it


def test_run_holds_the_lock_while_the_command_runs(at):
    inside = f"'{COMMAND}' status --json {' '.join(map(repr, at.words))}; echo $LOCKPROVIDER_EPOCH; cat"
    done = command("run", *at.words, "--", "sh", "-c", inside, stdin="from outside", code=0)
    first, epoch, rest = done.stdout.split("\n", 2)
    assert json.loads(first)["state"] == "held"
    assert json.loads(first)["epoch"] == int(epoch)
    assert rest == "from outside"
    assert at.record().expired
    assert at.record().epoch == int(epoch)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -TERM $$"], 128 + signal.SIGTERM),
        (["no-such-command-at-all"], 127),
        (["/"], 126),
    ],
)
def test_run_passes_the_exit_code_on_and_gives_the_lock_back(local, words, code):
    command("run", *local.words, "--", *words, code=code)
    assert local.record().expired


def test_commands_under_one_lock_run_one_after_the_other(local, tmp_path):
    counter = tmp_path / "counter"
    counter.write_text("0\n")
    script = f"n=$(cat {counter}); sleep 0.05; echo $((n + 1)) > {counter}"
    with contextlib.ExitStack() as stack:
        words = ["run", *local.words, "--timeout", str(LIMIT_S), "--", "sh", "-c", script]
        running = [stack.enter_context(started(*words)) for _ in range(6)]
        assert [process.wait(LIMIT_S) for process in running] == [0] * 6
    assert counter.read_text() == "6\n"


def test_run_prints_its_result_as_json(local):
    done = command("run", "--json", *local.words, "--", "sh", "-c", "echo out; exit 3", code=3)
    assert done.stdout == "out\n"
    said = json.loads(done.stderr)
    assert (said["outcome"], said["code"], said["epoch"]) == ("ended", 3, local.record().epoch)


def test_run_does_not_start_the_command_without_the_lock(local, held_locally):
    done = command("run", *local.words, "--timeout", "0.2", "--", "echo", "ran", code=122)
    assert done.stdout == ""
    assert held_locally.owner in sentence(done)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "{url}"], "no command"),
        (["run", "{url}", "--validity", "5", "--renew", "1", "--", "echo", "ran"], "renew"),
        (["run", "nosuch://x/y", "--", "echo", "ran"], "nosuch"),
        (["run", "{url}", "-o", "nonsense", "--", "echo", "ran"], "KEY=VALUE"),
        (["run", "{url}", "--", ""], "no command"),
        (["run", "", "--", "echo", "ran"], "''"),
        (["run", "{url}", "--on", "", "--", "echo", "ran"], "on=''"),
    ],
)
def test_run_exits_with_code_125_when_it_cannot_start(local, words, says):
    done = command(*(word.replace("{url}", local.url) for word in words), code=125)
    assert says in sentence(done)
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run"], "URL"),
        (["run", "--", "echo", "ran"], "URL"),
        (["run", "{url}", "echo", "ran"], "echo ran"),
        (["run", "{url}", "git", "diff", "--", "echo", "ran"], "git diff"),
        (["run", "{url}", "--timeout", "soon", "--", "echo", "ran"], "soon"),
        (["run", "{url}", "--grace", "-1", "--", "echo", "ran"], "--grace: '-1'"),
        (["run", "{url}", "--timeout", "nan", "--", "echo", "ran"], "--timeout: 'nan'"),
        (["run", "{url}", "--tmeout", "5", "--", "echo", "ran"], "--tmeout"),
    ],
)
def test_wrong_use_of_run_exits_with_125_and_locks_nothing(tmp_path, words, says):
    done = typed("lockprovider", *(word.replace("{url}", str(tmp_path / "table")) for word in words), cwd=tmp_path)
    said = done.stderr.decode()
    assert (done.returncode, done.stdout) == (125, b"")
    assert says in said
    assert "write -- between the options and the command" in said.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_run_reports_a_silent_store_and_keeps_trying():
    nobody = json.dumps({"key": "k", "secret": "s", "endpoint_url": "http://127.0.0.1:1"})
    words = ["run", "s3://bucket/folder", "--storage-options", nobody, "--timeout", "100", "--", "echo", "ran"]
    with started(*words) as running:
        assert running.stderr is not None
        said = running.stderr.readline()
        assert "did not answer" in said
        assert "for the 100 s of --timeout" in said
        assert running.poll() is None


def test_run_on_a_silent_store_ends_soon_after_its_timeout(seaweedfs):
    with FaultProxy("127.0.0.1", seaweedfs.port) as proxy:
        rule = proxy.rule(action=do.never_deliver(Ending.HANG), times=None)
        options = json.dumps(seaweedfs.options_for(proxy.endpoint))
        words = ("run", seaweedfs.new_prefix(), "--storage-options", options, "--timeout", "6", "--", "echo", "ran")
        done = command(*words, code=125)
    assert rule.fired >= 2
    assert done.stdout == ""
    tries_on, gives_up = done.stderr.splitlines()
    assert "retrying for the 6 s of --timeout" in tries_on
    assert "the store did not prove within 5 s that it refuses stale writes" in gives_up


def test_run_does_not_wait_for_a_bucket_that_does_not_exist():
    with NoBuckets() as endpoint:
        options = json.dumps({"key": "k", "secret": "s", "endpoint_url": endpoint})
        done = command("run", "s3://nosuch/t", "--storage-options", options, "--", "echo", "ran", code=125)
    assert "the bucket 'nosuch' does not exist" in sentence(done)
    assert "retrying" not in done.stderr


# Leaves its own pid and that of a child in a file once both are up, and is deaf to TERM if told so.
_FAMILY = """
{deaf}
sleep 1000 & child=$!
echo $$ $child > '{file}.tmp'; mv '{file}.tmp' '{file}'
while :; do wait; done
"""


def family(file, *, deaf=False):
    return ["sh", "-c", _FAMILY.format(file=file, deaf="trap '' TERM" if deaf else "")]


@contextlib.contextmanager
def family_under(folder, *words, deaf=False):
    """`run` with a family that is up; again, if the machine stood still for a whole lease before that."""
    for _ in range(20):
        file = Path(tempfile.mkdtemp(dir=folder), "pids")
        with started("run", *words, "--", *family(file, deaf=deaf)) as running:
            until(lambda file=file, running=running: file.exists() or running.poll() is not None)
            if file.exists():
                yield running, [int(word) for word in file.read_text().split()]
                return
            assert running.returncode == 123, running.communicate()
    raise AssertionError("it never came up")


def test_command_is_ended_with_its_children_when_the_lock_is_broken(at, tmp_path):
    with family_under(tmp_path, "--json", *at.words, *SHORT) as (running, there):
        break_it(at)
        _, said = running.communicate(timeout=LIMIT_S)
    assert running.returncode == 123, said
    assert "is lost" in said
    assert json.loads(said.splitlines()[-1])["reason"] == "broken"
    assert not any(map(alive, there))


def test_command_that_ignores_term_is_killed_after_the_grace(local, tmp_path):
    with family_under(tmp_path, *local.words, *SHORT, "--grace", "0.5", deaf=True) as (running, there):
        break_it(local)
        assert running.wait(LIMIT_S) == 123
    assert not any(map(alive, there))


def test_lease_that_is_taken_over_ends_the_command(local, tmp_path):
    with family_under(tmp_path, *local.words, *SHORT) as (running, there):
        theirs = LockRecord("other", 2**42, expired=False, epoch=2**42).encode()
        local.store.update(HUDI_LOCK_PATH, lambda _: theirs)
        _, said = running.communicate(timeout=LIMIT_S)
    assert running.returncode == 123, said
    assert not any(map(alive, there))
    assert local.record().owner == "other", "not released in the other's place"


def test_signals_reach_the_command_and_its_answer_is_the_exit_code(local, tmp_path):
    up, file = tmp_path / "up", tmp_path / "got"
    script = f"trap 'echo usr1 >> {file}' USR1; trap 'echo term >> {file}; exit 9' TERM; touch {up}"
    script += "; while :; do sleep 0.05; done"
    with started("run", *local.words, "--", "sh", "-c", script) as running:
        until(up.exists)
        running.send_signal(signal.SIGUSR1)
        until(file.exists)
        running.send_signal(signal.SIGTERM)
        assert running.wait(LIMIT_S) == 9
    assert file.read_text().split() == ["usr1", "term"]
    assert local.record().expired


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_wait_and_leaves_the_holder_alone(local, number):
    with Lock(local.store).acquire() as lease:
        before = local.store.read(HUDI_LOCK_PATH).data
        with started("run", *local.words, "--", "echo", "ran", stdout=subprocess.PIPE) as waiting:
            until(lambda: handles(waiting.pid, number))
            waiting.send_signal(number)
            out, said = waiting.communicate(timeout=LIMIT_S)
        assert waiting.returncode == 128 + number
        assert out == ""
        assert said == f"lockprovider: interrupted by {number.name}\n"
        assert local.store.read(HUDI_LOCK_PATH).data == before
        lease.check()


def handles(pid, number):
    """Whether the process has a handler for the signal."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt"))
    caught = int(line.split()[1], 16)
    return caught >> (signal.SIGUSR1 - 1) & 1 and caught >> (number - 1) & 1


def test_killed_run_ends_its_command_and_the_lock_lapses(at, tmp_path):
    lease = ("--validity", "3", "--renew", "0.3", "--grace", "0.2")
    with family_under(tmp_path, *at.words, *lease, deaf=True) as (running, there):
        first_ms = at.record().valid_until_ms
        until(lambda: at.record().valid_until_ms > first_ms or running.poll() is not None)
        running.kill()
        running.wait(LIMIT_S)
    until(lambda: not any(map(alive, there)))
    left = at.record()
    assert not left.expired, "nobody released it"
    assert not at.store.list(".hoodie/.locks/audit/"), "nobody asked for records"
    done = command("run", *at.words, "--timeout", LIMIT_S, "--", "echo", "next", code=0)
    assert done.stdout == "next\n"
    assert at.record().epoch > left.epoch
    assert at.record().holder.since_ms > left.valid_until_ms + 500


def test_command_in_terminal_reads_from_it_and_gets_ctrl_c_once(local, tmp_path):
    # In front: a `wait` of dash sleeps on if the signal comes right before it.
    loop = "while :; do sleep 0.1; done"
    script = f"read -r line; echo got $line; trap 'echo int >> {tmp_path}/got; exit 5' INT; echo ready; {loop}"
    terminal = Terminal(COMMAND, "run", local.url, "--", "sh", "-c", script)
    terminal.write("typed\n")
    terminal.read_until("got typed")
    terminal.read_until("ready")
    terminal.write("\x03")
    assert terminal.ends() == 5
    assert (tmp_path / "got").read_text() == "int\n"
    assert local.record().expired


def test_signal_sent_by_the_terminal_is_not_sent_to_the_command_again():
    signals, sent = Signals(), []
    signals.hold()
    signals.receive(signal.SIGINT, None)
    signals.started()
    signals.receive(signal.SIGINT, None)
    signals.receive(signal.SIGTERM, None)
    signals.pass_to(SimpleNamespace(own_group=False, send=sent.append))
    assert sent == [signal.SIGINT, signal.SIGTERM]


def test_signal_that_comes_as_a_command_ends_does_not_reach_the_next_one():
    signals, sent = Signals(), []
    signals.hold()
    signals.receive(signal.SIGUSR1, None)
    signals.stop()
    signals.hold()
    signals.started()
    signals.pass_to(SimpleNamespace(own_group=True, send=sent.append))
    assert sent == []


def test_signals_ignored_by_nohup_stay_ignored(local, tmp_path):
    up, go = tmp_path / "up", tmp_path / "go"
    script = f"touch {up}; while [ ! -e {go} ]; do sleep 0.05; done; exit 4"
    words = ["nohup", COMMAND, "run", local.url, "--", "sh", "-c", script]
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        until(up.exists)
        running.send_signal(signal.SIGHUP)
        go.touch()
        running.communicate(timeout=LIMIT_S)
    assert running.returncode == 4


def test_store_that_is_gone_for_a_lease_ends_the_command_in_time(seaweedfs, tmp_path):
    at = server_at(seaweedfs)
    with FaultProxy("127.0.0.1", seaweedfs.port) as proxy:
        words = ["--storage-options", json.dumps(seaweedfs.options_for(proxy.endpoint))]
        lease = ("--validity", "3", "--renew", "0.3")
        with family_under(tmp_path, at.url, *words, *lease) as (running, there):
            proxy.rule(match=lambda _: True, action=do.never_deliver(Ending.HANG), times=None)
            until(lambda: not any(map(alive, there)))
            assert running.wait(LIMIT_S) == 123
    assert not at.record().expired, "it could not be released, and lapses"


# Its audit


def audit_of(at, code=0):
    return json.loads(command("audit", "--json", *at.words, code=code).stdout)


def test_run_on_a_server_is_in_its_audit(seaweedfs, tmp_path):
    at, go = server_at(seaweedfs), tmp_path / "go"
    command("audit", "--enable", *at.words, code=0)
    shell = f"echo $LOCKPROVIDER_EPOCH; until [ -e {go} ]; do sleep 0.05; done"
    with started("run", *at.words, "--", "sh", "-c", shell, stdout=subprocess.PIPE) as running:
        until(lambda: audit_of(at)["tenures"])  # at the exit there is time for its end alone
        go.touch()
        epoch = int(running.communicate(timeout=LIMIT_S)[0])
    assert [(tenure["start_ms"], tenure["how"]) for tenure in audit_of(at)["tenures"]] == [(epoch, "released")]


def test_audit_names_each_holder_and_how_long_it_held(local, tmp_path):
    at = local
    assert audit_of(at)["enabled"] is False
    command("run", *at.words, "--", "true", code=0)
    assert audit_of(at)["tenures"] == [], "nobody asked for records"
    command("audit", "--enable", *at.words, code=0)
    epochs = []
    for _ in range(2):
        done = command("run", *at.words, "--", "sh", "-c", "echo $LOCKPROVIDER_EPOCH; sleep 0.3", code=0)
        epochs.append(int(done.stdout))
    said = audit_of(at)
    assert [(tenure["start_ms"], tenure["how"]) for tenure in said["tenures"]] == [
        (epoch, "released") for epoch in epochs
    ]
    assert all(tenure["held_ms"] >= 300 for tenure in said["tenures"])
    assert (said["enabled"], said["overlaps"], said["wrong"]) == (True, [], False)

    picture = tmp_path / "audit.svg"
    words = command("audit", *at.words, "--svg", picture, code=0).stdout
    assert all(tenure["owner"] in words for tenure in said["tenures"])
    assert picture.read_text().count("<rect") > 4
    command("audit", "--disable", *at.words, code=0)
    command("run", *at.words, "--", "true", code=0)
    assert len(audit_of(at)["tenures"]) == 2, "kept, and no more of them"


def test_holder_that_was_stopped_past_its_lease_shows_as_an_overlap(tmp_path):
    for attempt in range(5):  # the machine may stand still at the wrong moment
        at = At(str(tmp_path / f"table-{attempt}"))
        if stop_past_the_lease(at, tmp_path):
            break
    said = audit_of(at, code=1)
    assert [tenure["how"] for tenure in said["tenures"]] == ["lost", "released"]
    assert (len(said["overlaps"]), said["wrong"]) == (1, True)
    assert "WRONG" in command("audit", *at.words, code=1).stdout


def stop_past_the_lease(at, folder):
    """Whether the stopped holder thought that it held the lock until it went on."""
    command("audit", "--enable", *at.words, code=0)
    with family_under(folder, *at.words, "--validity", "2", "--renew", "0.2") as (stale, _):
        until(lambda: at.store.list(".hoodie/.locks/audit/"))
        stale.send_signal(signal.SIGSTOP)
        with family_under(folder, *at.words) as (newer, _):
            until(lambda: Machine().now_ms() > at.record().holder.since_ms + 600)
            went_on_ms = Machine().now_ms()
            stale.send_signal(signal.SIGCONT)
            assert stale.wait(LIMIT_S) == 123
            newer.send_signal(signal.SIGTERM)
            assert newer.wait(LIMIT_S) == 128 + signal.SIGTERM
    return json.loads(command("audit", "--json", *at.words).stdout)["tenures"][0]["end_ms"] >= went_on_ms


def test_audit_reads_the_records_of_jvm_hudi(local):
    """One file for all acquisitions of a provider, as its `StorageLockProviderAuditService` writes it."""
    steps = (("START", 0), ("END", 5_000), ("START", 10_000))
    lines = [
        f'{{"transactionStartTime":1700000000000,"lockHeld":true,"state":"{step}",'
        f'"lockExpiration":{1_700_000_300_000 + at_ms},"ownerId":"j-1","timestamp":{1_700_000_000_000 + at_ms}}}'
        for step, at_ms in steps
    ]
    path = ".hoodie/.locks/audit/1700000000000_j-1.jsonl"
    local.store.put_if_absent(path, "\n".join([*lines, ""]).encode()).unwrap()
    said = audit_of(local)
    assert [(tenure["held_ms"], tenure["how"]) for tenure in said["tenures"]] == [
        (5000, "released"),
        (300_000, "lapsed"),
    ]


def test_audit_takes_only_the_files_written_last(local):
    command("audit", "--enable", *local.words, code=0)
    for _ in range(3):
        command("run", *local.words, "--", "true", code=0)
    last = json.loads(command("audit", "--json", "--last", "1", *local.words, code=0).stdout)
    assert [tenure["start_ms"] for tenure in last["tenures"]] == [local.record().holder.since_ms]
    assert "above zero" in sentence(command("audit", "--last", "0", *local.words, code=2))


# All of them


def test_no_server_and_a_wrong_option_are_one_sentence(seaweedfs):
    away = json.dumps(seaweedfs.options_for("http://127.0.0.1:1"))
    for words in (["status"], ["break", "--yes"]):
        done = command(*words, "s3://bucket/x", "--storage-options", away, "--timeout", "1", code=4)
        assert "127.0.0.1:1" in sentence(done)
    assert "KEY=VALUE" in sentence(command("status", "s3://bucket/x", "-o", "nonsense", code=2))


def test_options_come_from_the_environment_too(seaweedfs):
    url = seaweedfs.new_prefix()
    aws = {"AWS_ACCESS_KEY_ID": seaweedfs.key, "AWS_SECRET_ACCESS_KEY": seaweedfs.secret}
    aws |= {"AWS_ENDPOINT_URL": seaweedfs.endpoint, "AWS_DEFAULT_REGION": "us-east-1"}
    assert json.loads(command("status", "--json", url, env=aws, code=0).stdout)["state"] == "absent"


def test_every_command_has_its_exit_codes_in_its_help():
    for name in ("status", "break", "watch", "run", "audit"):
        assert "exit codes:" in command(name, "--help", code=0).stdout
    assert "exit codes:" in command("--help", code=0).stdout
    for name in ("leader", "queue stat", "state get", "wal info"):
        codes = command(*name.split(), "--help", code=0).stdout.partition("exit codes:")[2]
        assert [word for word in ("break", "audit", "demo", "lock record") if word in codes] == []


def test_command_whose_extra_is_missing_says_what_to_install():
    code = "import sys; sys.modules['pyarrow'] = None; from lockprovider.cli import main; main(['table', 'info', 'x'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("lockprovider: 'table' needs pyarrow")
    assert done.stderr.count("\n") == 1
    assert "install the extra 'table'" in done.stderr
