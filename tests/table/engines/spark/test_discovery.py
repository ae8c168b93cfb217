"""Spark finds the data source by itself, as it looks for it: in a top-level module of the installed wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
SOURCE, PLACE = "lockprovider/table/engines/spark/pyspark_hudi_cas.py", "pyspark_hudi_cas.py"


def run(folder: Path, code: str) -> str:
    shutil.copy(ROOT / SOURCE, folder / PLACE)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout


def test_wheel_has_the_module_where_spark_looks() -> None:
    assert f'"{SOURCE}" = "{PLACE}"' in (ROOT / "pyproject.toml").read_text()


def test_module_that_spark_finds_is_the_data_source(tmp_path: Path) -> None:
    lookup = (
        "from importlib import import_module; from pkgutil import iter_modules; "
        "found = [import_module(m.name) for m in iter_modules() if m.name.startswith('pyspark_')]; "
        "print(*(m.DefaultSource.name() for m in found if hasattr(m, 'DefaultSource')))"
    )
    assert "hudi_cas" in run(tmp_path, lookup).split()


def test_module_is_empty_without_spark(tmp_path: Path) -> None:
    code = "import sys; sys.modules['pyspark'] = None; import pyspark_hudi_cas as m; print(hasattr(m, 'DefaultSource'))"
    assert run(tmp_path, code).strip() == "False"
