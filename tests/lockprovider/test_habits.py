"""What people expect of any package: a version, logs, objects that say what they are, a shell that completes."""

from __future__ import annotations

import importlib.metadata
import logging
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

import fsspec_cas
import lockprovider
from fsspec_cas import AsyncStore, Store
from fsspec_cas.command import SHELLS, script, words_of
from lockprovider import cli
from lockprovider.table import Table, TableSpec, WriteConflict

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64())])
ROWS = pa.table({"id": [1], "n": [1]})


def test_both_packages_say_their_version() -> None:
    there = importlib.metadata.version("fsspec-cas")
    assert (fsspec_cas.__version__, lockprovider.__version__) == (there, there)
    for module, name in (("fsspec_cas", "fsspec-cas"), ("lockprovider", "lockprovider")):
        said = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True)
        assert said.stdout == f"{name} {there}\n"


def test_commit_and_a_conflict_are_logged_and_requests_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = Table.create(tmp_path, TableSpec("t", SCHEMA, "id"))
    table.append(ROWS)
    caplog.set_level(logging.INFO, "lockprovider.table")
    late = table.transaction()
    late.upsert(ROWS)
    done = table.upsert(ROWS)
    with pytest.raises(WriteConflict):
        late.commit()
    late.rollback()
    said = messages(caplog, "lockprovider.table", tmp_path)
    kinds = dict.fromkeys(line.split(": ", 1)[1].split()[0] for line in said)  # a conflict may be found twice
    assert [*kinds] == ["committed", "conflict", "rolled_back"]
    assert all(line.startswith(str(tmp_path)) for line in said)
    assert done.instant in said[1], "with whom"
    caplog.set_level(logging.DEBUG, "fsspec_cas")
    caplog.clear()
    Store.from_url(tmp_path).read_or_none("none")
    assert messages(caplog, "fsspec_cas", tmp_path) == [f"request of {tmp_path}/none: Missing"]


def messages(caplog: pytest.LogCaptureFixture, logger: str, folder: Path) -> list[str]:
    """What was said of this folder: threads of tests before this one may still say something of theirs."""
    of_logger = (record.getMessage() for record in caplog.records if record.name == logger)
    return [message for message in of_logger if str(folder) in message]


def test_lost_lease_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lockprovider")
    with lockprovider.lock(tmp_path) as lease:
        Store.from_url(tmp_path).delete(lockprovider.HUDI_LOCK_PATH)
        assert not lease.renew()
    said = [record.getMessage() for record in caplog.records if record.name == "lockprovider"]
    assert len(said) == 1
    assert f"file://{tmp_path}/{lockprovider.HUDI_LOCK_PATH}" in said[0]


def test_repr_of_objects_identifies_them_without_secrets(tmp_path: Path) -> None:
    lock = lockprovider.lock(tmp_path, on="a.json")
    assert repr(lock) == f"<Lock 'file://{tmp_path}/a.json', not held by this client>"
    with lock as lease:
        assert repr(lease) == f"<Lease on 'file://{tmp_path}/a.json', epoch {lease.epoch}, held>"
    assert repr(lease).endswith("released>")
    s3 = Store.from_url("s3://bucket/folder", {"key": "me", "secret": "hidden"})
    assert repr(s3) == "<Store 's3://bucket/folder'>"
    assert repr(AsyncStore.from_url("memory://a")) == "<AsyncStore 'memory:///a'>"
    assert "hidden" not in repr(lockprovider.LockProvider.from_url("s3://bucket/t", {"secret": "hidden"}))
    table = Table.create(tmp_path / "t", TableSpec("t", SCHEMA, "id"))
    assert repr(table.history()[0]).startswith("<Commit 2")
    assert len(repr(table.history()[0])) < 100


def test_refused_acquire_names_lock_holder_process_and_next_step(tmp_path: Path) -> None:
    other = lockprovider.lock(tmp_path)
    with (
        ThreadPoolExecutor(1) as threads,
        lockprovider.lock(tmp_path) as lease,
        pytest.raises(lockprovider.NotAcquired) as refused,
    ):
        threads.submit(other.acquire, blocking=False).result()
    said = str(refused.value)
    for part in (f"file://{tmp_path}/{lockprovider.HUDI_LOCK_PATH}", lease.owner, "pid ", "Z (in ", "timeout="):
        assert part in said


@pytest.mark.parametrize("shell", SHELLS)
def test_shell_completion_lists_all_commands_and_options(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = cli.parser(list(cli.LATE))
    found = words_of(parser)
    assert {"run", "status", "table"} <= {*found[()]}
    assert {"doctor", "clean"} <= {*found["table",]}
    assert "--timeout" in found["run",]
    assert cli.main(["completion", shell]) == 0
    assert capsys.readouterr().out == script(parser, shell) + "\n"


def test_bash_completes_commands_and_options() -> None:
    ask = 'eval "$({0} -m lockprovider completion bash)"; {1}; _lockprovider; echo "${{COMPREPLY[@]}}"'
    for words, found in (
        ("COMP_WORDS=(lockprovider table do); COMP_CWORD=2", "doctor"),
        ("COMP_WORDS=(lockprovider run s3://b/t --val); COMP_CWORD=3", "--validity"),
    ):
        command = ["bash", "-c", ask.format(sys.executable, words)]
        said = subprocess.run(command, capture_output=True, text=True, check=True)
        assert said.stdout.split() == [found]


def test_verbose_logs_to_stderr(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lockprovider", "-vv", "run", str(tmp_path), "--", "echo", "done"]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert said.stdout == "done\n"
    assert "lockprovider: acquired" in said.stderr
    assert "fsspec_cas: write of" in said.stderr


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("lockprovider.table", "pyarrow", "table"),
        ("lockprovider.table.engines.dask", "dask", "dask"),
        ("lockprovider.table.engines.spark", "pyspark", "spark"),
    ],
)
def test_import_without_its_extra_names_the_extra(module: str, package: str, extra: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; import {module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    said = f"{module} needs {package}, which is not installed: install the extra {extra!r} of fsspec-cas"
    assert done.stderr.splitlines()[-1] == f"ModuleNotFoundError: {said}"
