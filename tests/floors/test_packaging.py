"""What is built is what users get: the sdist, the wheel, and what both do in an empty environment: `pytest -m floors`.

It fetches the build's tools and what `[pandas]` needs. The sdist's own tests need what the tests here need.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from test_documents import ROOT, blocks

pytestmark = [pytest.mark.floors, pytest.mark.timeout(3600)]

TOOLS = ["build>=1.2", "twine>=6", "check-wheel-contents>=0.6"]
_ELSEWHERE = "s3://"  # README's blocks that need a server


def environment(folder: Path, *packages: str) -> Path:
    """The programs of a new virtual environment with these packages."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    if packages:
        subprocess.run([folder / "bin/python", "-m", "pip", "install", "-q", *packages], check=True)
    return folder / "bin"


def run(command: list[str | Path], cwd: Path, programs: Path) -> str:
    """What it prints, with these programs and no environment but theirs."""
    names = {name: text for name, text in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    names["PATH"] = f"{programs}{os.pathsep}{names['PATH']}"
    done = subprocess.run(command, cwd=cwd, env=names, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("tools"), *TOOLS)


@pytest.fixture(scope="module")
def built(tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the sdist, and the wheel that was built of it."""
    folder = tmp_path_factory.mktemp("dist")
    run([tools / "python", "-m", "build", "--outdir", folder, ROOT], folder, tools)
    assert sorted(path.suffix for path in folder.iterdir()) == [".gz", ".whl"]
    return folder


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def test_package_index_accepts_both_files_and_renders_the_readme(built: Path, tools: Path) -> None:
    said = run([tools / "twine", "check", "--strict", *sorted(built.iterdir())], built, tools)
    assert said.count("PASSED") == 2, said
    run([tools / "check-wheel-contents", only(built, "*.whl")], ROOT, tools)


def test_sdist_has_every_file_of_the_repository(built: Path) -> None:
    with tarfile.open(only(built, "*.tar.gz")) as sdist:
        there = {name.partition("/")[2] for name in sdist.getnames()}
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    assert {*listed.stdout.splitlines()} - there == set()


def test_wheel_has_the_packages_and_nothing_else(built: Path) -> None:
    with zipfile.ZipFile(only(built, "*.whl")) as wheel:
        names = wheel.namelist()
        (metadata,) = (wheel.read(name).decode() for name in names if name.endswith("METADATA"))
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "fsspec_cas",
        "lockprovider",
        "pyspark_hudi_cas.py",
    }
    assert {"fsspec_cas/py.typed", "lockprovider/py.typed", "lockprovider/demo/example.svg"} <= {*names}
    assert "Description-Content-Type: text/markdown" in metadata
    assert "Requires-Python: >=3.10" in metadata


def test_wheel_in_an_empty_environment_does_what_the_readme_shows(built: Path, tmp_path: Path) -> None:
    wheel, python = only(built, "*.whl"), blocks("README.md", "python")
    bare = environment(tmp_path / "bare", str(wheel))
    (tmp_path / "first").mkdir()
    alone = [body for body in python if "pandas" not in body and _ELSEWHERE not in body]
    run([bare / "python", "-c", "\n".join(alone)], tmp_path / "first", bare)  # fsspec alone: writes, and a lock
    assert (tmp_path / "first/playground/jobs/state/000007").read_text() == "..."
    for command in ("lockprovider", "fsspec-cas"):
        assert run([bare / command, "--version"], tmp_path, bare) == f"{command} {wheel.name.split('-')[1]}\n"

    whole = environment(tmp_path / "whole", f"{wheel}[pandas]")
    here = [body for body in python if _ELSEWHERE not in body]
    (tmp_path / "readme.py").write_text("\n".join(here))
    run([whole / "python", tmp_path / "readme.py"], tmp_path, whole)
    assert (tmp_path / "playground/trips/.hoodie/hoodie.properties").exists()
    (shell,) = (body for body in blocks("README.md", "sh") if "playground" in body)
    assert "one at a time" in run(["bash", "-euc", shell], tmp_path, whole)


def test_sdist_passes_the_quick_tests_and_shows_the_demo(built: Path, tmp_path: Path) -> None:
    """Unpacked, by this environment's packages but for ours: those are the sdist's own, in child processes too."""
    with tarfile.open(only(built, "*.tar.gz")) as sdist:
        sdist.extractall(tmp_path, filter="data")
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    environ = {**os.environ, "PYTHONPATH": str(folder)}

    def ours(*words: str) -> str:
        command = [sys.executable, *words]
        done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{words}\n{done.stdout[-5000:]}\n{done.stderr[-5000:]}"
        return done.stdout

    where = ours("-c", "import fsspec_cas as writes, lockprovider as locks; print(writes.__file__, locks.__file__)")
    assert where.count(str(folder)) == 2
    assert " passed" in ours("-m", "pytest", "-m", "quick", "-q", "-n", "2", "-p", "no:cacheprovider")
    shown = ours("-m", "lockprovider", "demo", "--fast", "--json", "--out", str(tmp_path / "demo.svg"))
    assert json.loads(shown)
    assert (tmp_path / "demo.svg").read_text().startswith("<svg")
