"""Servers that are no dependencies of the project: installed once a user, into a cache folder, under a lock.

What cannot be installed is an error that says what the installer said; a test then fails, it is not skipped.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from servers.base import ServerError

if TYPE_CHECKING:
    from collections.abc import Iterator

INSTALL_S = 600.0


def cache_folder() -> Path:
    """Where installed servers stay between runs: `FSSPEC_CAS_TESTS_CACHE`, else below the user's cache."""
    own = os.environ.get("FSSPEC_CAS_TESTS_CACHE")
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(own) if own else Path(cache) / "fsspec-cas-tests"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def from_pypi(name: str, version: str) -> Path:
    """A folder for PYTHONPATH with this release and what it needs, apart from the project's own packages."""
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return _once(f"{name}-{version}-{tag}", [*_pip(), f"{name}=={version}", "--target"])


def from_npm(name: str, version: str) -> Path:
    """A folder with this release in its node_modules."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise ServerError(f"{name} needs node and npm on the PATH: install Node.js 20 or later")
    quiet = ["--no-audit", "--no-fund", "--no-save", "--loglevel=error"]
    return _once(f"{name}-{version}", [npm, "install", *quiet, f"{name}@{version}", "--prefix"])


def _pip() -> list[str]:
    if importlib.util.find_spec("pip"):
        quiet = ["--quiet", "--disable-pip-version-check", "--no-warn-conflicts"]
        return [sys.executable, "-m", "pip", "install", *quiet]
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--quiet", "--python", sys.executable]
    raise ServerError(f"neither pip (for {sys.executable}) nor uv is here: install one of them")


def _once(label: str, command: list[str]) -> Path:
    """Run `command FOLDER` unless it was done; the folder has its final name only when it is whole."""
    done = cache_folder() / label
    if done.exists():
        return done
    with _locked(cache_folder() / f"{label}.lock"):
        if not done.exists():
            _fill(done, command)
    return done


def _fill(done: Path, command: list[str]) -> None:
    partial = Path(tempfile.mkdtemp(prefix=f".{done.name}-", dir=done.parent))
    try:
        _run([*command, str(partial)])
        partial.rename(done)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _run(command: list[str]) -> None:
    shown = " ".join(command)
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ServerError(f"{shown}: not done after {INSTALL_S:g} s: {error.stdout!r} {error.stderr!r}") from None
    if ended.returncode:
        raise ServerError(f"{shown}: exit {ended.returncode}\n{ended.stdout}{ended.stderr}")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    deadline = time.monotonic() + INSTALL_S
    with path.open("a") as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ServerError(f"{path} is held by another process for {INSTALL_S:g} s") from None
                time.sleep(0.1)
        yield
