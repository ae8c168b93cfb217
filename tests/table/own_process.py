"""A module of the tests as a process of its own, which tells on one line of its output what it saw."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent
_BEFORE = "seen: "


def tell(seen: dict[str, Any]) -> None:
    """In that process."""
    print(_BEFORE + json.dumps(seen))  # noqa: T201 - for `told_by`


def told_by(module: str, *words: str, timeout_s: float) -> dict[str, Any]:
    """What the process told; it must end by itself, and well."""
    child = subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=TESTS,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-4000:]
    told = [line.removeprefix(_BEFORE) for line in child.stdout.splitlines() if line.startswith(_BEFORE)]
    assert len(told) == 1, child.stdout[-4000:]
    seen: dict[str, Any] = json.loads(told[0])
    return seen
