"""The command `fsspec-cas`, typed as a user types it: a process, its exit code, what it says where."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from faults import actions as do
from faults.actions import Ending
from faults.proxy import FaultProxy
from patience import PATIENCE_S, until
from servers.stores import STORES
from typed import sentences, typed

from fsspec_cas import Store, Version

COMMAND = str(Path(sys.executable).with_name("fsspec-cas"))


def run(*arguments, stdin=b"", env=None, code=None):
    """One command. It never shows a traceback, and an error is one sentence."""
    done = typed("fsspec-cas", *arguments, stdin=stdin, env=env)
    assert b"Traceback" not in done.stderr
    if code is not None:
        assert done.returncode == code, done
    return done


def sentence(done):
    lines = sentences(done.stderr.decode())
    assert len(lines) == 1, lines
    assert lines[0].startswith("fsspec-cas: ")
    return lines[0]


def test_file_in_the_root_folder_is_not_one_of_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = uuid.uuid4().hex
    (tmp_path / name).write_bytes(b"here")
    assert f"'/{name}'" in sentence(run("get", f"/{name}", code=6))


def options_of(server):
    """The options of a server, as -o and as --storage-options."""
    return ["--storage-options", json.dumps(server.storage_options)]


@pytest.fixture(params=STORES)
def at(request, tmp_path):
    """A URL, what goes behind it, and another road to what is there."""
    if request.param == "local":
        return str(tmp_path), [], Store.from_url(str(tmp_path))
    server = request.getfixturevalue(request.param)
    url = server.new_prefix()
    return url, options_of(server), Store.from_url(url, server.storage_options)


def test_put_get_and_rm_work_from_a_shell(at, tmp_path_factory):
    url, options, store = at
    made = run("put", "--if-absent", f"{url}/a", *options, stdin=b"one\n", code=0)
    version = made.stdout.decode().strip()
    assert store.head("a").version == Version.parse(version)
    assert store.read("a").data == b"one\n"

    taken = run("put", "--if-absent", f"{url}/a", *options, stdin=b"two\n", code=1)
    assert "already exists" in sentence(taken)
    assert taken.stdout == b""
    assert store.read("a").data == b"one\n"

    got = run("get", f"{url}/a", *options, code=0)
    assert got.stdout == b"one\n"
    assert got.stderr.decode().strip() == version
    file = tmp_path_factory.mktemp("got") / "a"
    assert run("get", f"{url}/a", file, *options, code=0).stdout.decode().strip() == version
    assert file.read_bytes() == b"one\n"

    file.write_bytes(b"three\n")
    second = run("put", "--if-match", version, f"{url}/a", file, *options, code=0).stdout.decode().strip()
    assert "is not at version" in sentence(run("put", "--if-match", version, f"{url}/a", file, *options, code=1))
    assert store.read("a").data == b"three\n"

    if store.kind != "gcs":  # the server ignores the condition
        run("rm", "--if-match", version, f"{url}/a", *options, code=1)
        assert store.read("a").data == b"three\n"
    told = 3 if store.kind == "gcs" else 0  # the emulator's answer has no id of Google's: who removed it is not known
    run("rm", "--if-match", second, f"{url}/a", *options, code=told)
    assert store.list("") == []


def test_json_output_says_the_same(at):
    url, options, _ = at
    made = json.loads(run("put", "--json", "--if-absent", f"{url}/a", *options, stdin=b"1", code=0).stdout)
    assert made["outcome"] == "won"
    lost = run("put", "--json", "--if-absent", f"{url}/a", *options, stdin=b"2", code=1)
    assert json.loads(lost.stdout) == {"outcome": "lost", "current": made["version"]}
    got = run("get", "--json", f"{url}/a", *options, code=0)
    assert json.loads(got.stderr) == {"version": made["version"], "size": 1}
    other = f"{made['version'].partition(':')[0]}:1"
    gone = run("put", "--json", "--if-match", other, f"{url}/none", *options, stdin=b"", code=1)
    assert json.loads(gone.stdout) == {"outcome": "lost", "current": None}


def test_large_file_is_streamed(at, tmp_path_factory):
    url, options, store = at
    large = tmp_path_factory.mktemp("large") / "file"
    large.write_bytes(os.urandom(20 << 20))
    run("put", "--if-absent", f"{url}/large", large, *options, code=0)
    assert store.read("large").data == large.read_bytes()


@pytest.mark.parametrize("form", ["json", "table"])
def test_probe_prints_a_verdict(at, form):
    url, options, store = at
    done = run("probe", url, *options, *(["--json"] if form == "json" else []), "--racers", 3, code=0)
    text = done.stdout.decode()
    if form == "json":
        report = json.loads(text)
        assert report["verdict"]["locks"] is True
        assert {"name", "proves", "state", "evidence", "needed_for"} == set(report["findings"][0])
    else:
        assert "safe for locks and create-once" in text
        assert "create race" in text
        assert "refused, and nothing has changed" in text
    assert store.list("") == []


def test_probe_reports_endpoint_that_does_not_answer_like_a_store(negative_gcs):
    done = run("probe", negative_gcs.new_prefix(), *options_of(negative_gcs), code=4)
    assert b"is not an object store" in done.stderr


def test_probe_prints_one_line_for_each_check(tmp_path):
    lines = run("probe", tmp_path, code=0).stdout.decode().splitlines()
    assert any(re.match("yes +create race +3 rounds", line) for line in lines)
    assert lines[-1] == "safe for locks and create-once"


def test_options_come_with_dots_or_from_the_environment(seaweedfs):
    url = f"{seaweedfs.new_prefix()}/a"
    one = [f"key={seaweedfs.key}", f"secret={seaweedfs.secret}", f"endpoint_url={seaweedfs.endpoint}"]
    one.append("client_kwargs.region_name=us-east-1")
    run("put", "--if-absent", url, *(word for option in one for word in ("-o", option)), stdin=b"1", code=0)

    aws = {"AWS_ACCESS_KEY_ID": seaweedfs.key, "AWS_SECRET_ACCESS_KEY": seaweedfs.secret}
    aws |= {"AWS_ENDPOINT_URL": seaweedfs.endpoint, "AWS_DEFAULT_REGION": "us-east-1"}
    assert run("get", url, env=aws, code=0).stdout == b"1"

    fsspec = {"FSSPEC_S3_KEY": seaweedfs.key, "FSSPEC_S3_SECRET": seaweedfs.secret}
    fsspec |= {"FSSPEC_S3_ENDPOINT_URL": seaweedfs.endpoint}
    assert run("get", url, env=fsspec, code=0).stdout == b"1"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["get", "{url}/none"], 6, "no object"),
        (["get", "s3://"], 2, "must name a bucket"),
        (["get", "s3://bucket"], 2, "not an object"),
        (["get", "ftp://host/x"], 5, "ftp"),
        (["get", "{url}/x", "-o", "nonsense"], 2, "KEY=VALUE"),
        (["get", "{url}/x", "-o", "a={not json"], 2, "JSON"),
        (["get", "{url}/x", "--storage-options", "[]"], 2, "JSON object"),
        (["put", "--if-match", "nonsense", "{url}/x"], 2, "not a version"),
        (["put", "--if-match", "s3:x", "{url}/x"], 2, "not one of local"),
        (["put", "--if-match", "local:*", "{url}/x"], 2, "wildcard"),
        (["put", "--if-absent", "{url}/x", "/no/such/file"], 2, "No such file"),
        (["rm", "--if-match", "local:1-1-1", "{url}/x"], 1, "no object exists"),
    ],
)
def test_error_is_one_sentence_and_an_exit_code(tmp_path, arguments, code, says):
    done = run(*(argument.replace("{url}", str(tmp_path)) for argument in arguments), code=code)
    assert says in sentence(done)


def test_wrong_credentials_missing_bucket_and_no_server_have_exit_codes(seaweedfs, azurite):
    wrong = json.dumps({**seaweedfs.storage_options, "secret": "wrong"})
    assert "key, secret" in sentence(run("get", seaweedfs.new_prefix() + "/a", "--storage-options", wrong, code=2))
    nowhere = run("put", "--if-absent", "az://no-such-container/x", *options_of(azurite), stdin=b"1", code=2)
    assert "no-such-container" in sentence(nowhere)
    away = json.dumps(seaweedfs.options_for("http://127.0.0.1:1"))
    for words in (["get"], ["put", "--if-absent"], ["probe"]):
        done = run(*words, "s3://bucket/x", "--storage-options", away, "--timeout", "3", code=4)
        assert "127.0.0.1:1" in sentence(done)


def test_usage_error_is_that_of_argparse():
    assert run("put", "s3://b/x", code=2).stderr.startswith(b"usage:")
    assert b"exit codes:" in run("--help", code=0).stdout
    assert b"exit codes:" in run("put", "--help", code=0).stdout


def test_permanently_lost_answer_exits_with_code_3(seaweedfs):
    """The write arrives, its answer does not, and neither does any other."""
    url = seaweedfs.new_prefix()
    with FaultProxy("127.0.0.1", seaweedfs.port) as proxy:
        lost = proxy.rule(match=lambda request: request.method == "PUT", action=do.lose_answer(Ending.HANG))
        blind = proxy.rule(match=lambda _: True, action=do.never_deliver(Ending.HANG), times=None)
        through = json.dumps(seaweedfs.options_for(proxy.endpoint))
        words = ["put", "--if-absent", f"{url}/a", "--storage-options", through, "--timeout", "2", "--json"]
        done = run(*words, stdin=b"mine", code=3)
        assert lost.fired == 1
        assert blind.fired <= 1
    assert json.loads(done.stdout)["outcome"] == "unknown"
    assert "may have been" in sentence(done)
    assert Store.from_url(url, seaweedfs.storage_options).read("a").data == b"mine"


def test_ctrl_c_while_waiting_for_the_answer_exits_with_code_3(seaweedfs):
    url = seaweedfs.new_prefix()
    with FaultProxy("127.0.0.1", seaweedfs.port) as proxy:
        proxy.rule(match=lambda request: request.method == "PUT", action=do.lose_answer(Ending.HANG))
        through = json.dumps(seaweedfs.options_for(proxy.endpoint))
        words = [COMMAND, "put", "--if-absent", f"{url}/a", "--storage-options", through]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            process.stdin.write(b"mine")
            process.stdin.close()
            process.stdin = None
            until(lambda: proxy.delivered)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 3, said
    assert b"may have been applied" in said
    assert b"Traceback" not in said


def test_ctrl_c_before_any_request_exits_with_code_130(tmp_path):
    with subprocess.Popen(
        [COMMAND, "put", "--if-absent", f"{tmp_path}/a"], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        until(lambda: reads_stdin(process.pid))
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, said
    assert said.startswith(b"fsspec-cas: interrupted")
    assert list(tmp_path.iterdir()) == []


def test_closed_output_pipe_is_no_error(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * (1 << 20))
    line = f"'{COMMAND}' get '{tmp_path}/a' | head -c 1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, timeout=60, check=True)
    assert done.stdout == b"x"
    assert b"Traceback" not in done.stderr
    assert b"Exception" not in done.stderr


def reads_stdin(pid):
    """Whether the process waits for its standard input."""
    return "pipe_read" in Path(f"/proc/{pid}/wchan").read_text() or _blocked_in_read(pid)


def _blocked_in_read(pid):
    try:
        number, _, rest = Path(f"/proc/{pid}/syscall").read_text().partition(" ")
    except OSError:
        return False
    return number in ("0", "63") and rest.startswith("0x0 ")  # read(0, ...) on x86-64, arm64
