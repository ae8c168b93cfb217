"""CONTRIBUTING's command builds the site of pages and docstrings; a user's program passes mypy's strict check."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from test_documents import ROOT, blocks

import fsspec_cas
import fsspec_cas.testing
import lockprovider
import lockprovider.table

RECIPES = {"election", "queue", "state", "wal"}  # modules, on a page of their own


def test_site_is_built_without_a_warning(tmp_path: Path) -> None:
    lines = [
        line for body in blocks(".github/CONTRIBUTING.md", "sh") for line in body.splitlines() if "-m mkdocs" in line
    ]
    assert len(lines) == 1
    words = [*shlex.split(lines[0], comments=True)[1:], "--site-dir", str(tmp_path / "site")]
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run([sys.executable, *words], cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    for module, page in (
        (fsspec_cas, "fsspec_cas"),
        (fsspec_cas.testing, "fsspec_cas_testing"),
        (lockprovider, "lockprovider"),
        (lockprovider.table, "lockprovider_table"),
    ):
        text = (tmp_path / "site" / "reference" / f"{page}.html").read_text(encoding="utf-8")
        offered = {name for name in module.__all__ if not hasattr(getattr(module, name), "__path__")}
        assert {name for name in offered if f'id="{module.__name__}.{name}"' not in text} - RECIPES == set()
    pages = {str(path.relative_to(ROOT)) for path in ROOT.glob("*/guides/*.md")}
    assert {page for page in pages if not (tmp_path / "site" / page).with_suffix(".html").exists()} == set()


PROGRAM = """
import lockprovider
from fsspec_cas import Lost, Store, Unknown, Version, Won
from lockprovider.table import CommitResult, Table, TableSpec, TableTransaction


def lead(store: Store) -> Version | None:
    match store.put_if_absent("leader", b"me"):
        case Won(version):
            return version
        case Lost():
            return None
        case Unknown() as unknown:
            store.resolve(unknown)
            return None


def publish(url: str) -> int:
    with lockprovider.lock(url, timeout=10) as lease:
        lease.publish("state/1", b"1")
        return lease.epoch


def fill(txn: TableTransaction) -> None:
    txn.upsert(txn.to_pandas(filter="fare is null"))


def load(url: str, spec: TableSpec) -> CommitResult:
    table = Table.create(url, spec, exist_ok=True)
    with table.transaction() as txn:
        fill(txn)
    done: CommitResult = table.transact(fill, retries=3)
    return done


wrong: int = Store.from_url("memory://x").read("a")  # type: ignore[assignment]
"""


def test_user_program_passes_a_strict_check_with_the_shipped_types(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(ROOT / ".mypy_cache"), "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "Success: no issues found in 1 source file\n"), done.stderr
