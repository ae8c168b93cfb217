"""Commands as a user types them, each a process of its own, forked from one that has imported what commands import.

To start Python and import an SDK takes a second of a busy machine, a hundred times over.
"""

from __future__ import annotations

import argparse
import atexit
import importlib
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from patience import PATIENCE_S

from lockprovider import cli

MAINS = {"lockprovider": "lockprovider.cli", "fsspec-cas": "fsspec_cas.cli"}
_IMPORTED = [*MAINS.values(), *(module for module, _ in cli.LATE.values()), "s3fs"]
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(_IMPORTED)


def typed(
    name: str, *words: Any, stdin: bytes = b"", env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    """One command to its end; `env` is added to what is there, and read when modules are imported: that starts anew."""
    done = _done(name, *words, stdin=stdin, env=env, cwd=cwd)
    if name == "lockprovider" and done.returncode > 0:
        assert documented(*words) & {done.returncode, ANY}, f"{words}: its help has no exit code {done.returncode}"
    return done


ANY = -1


def documented(*words: Any) -> set[int]:
    """The exit codes in the help of the command that these words name."""
    found: argparse.ArgumentParser = cli.parser(list(cli.LATE))
    for word in map(str, words):
        for action in found._actions:
            if isinstance(action, argparse._SubParsersAction) and word in action.choices:
                found = action.choices[word]
    codes = {int(code) for code in re.findall(r"(?m)(?:^  |[:;] )(\d+)\b", found.epilog or "")}
    return codes | {ANY} if re.search(r"(?m)^  N ", found.epilog or "") else codes or {0, 2}


def _done(
    name: str, *words: Any, stdin: bytes, env: Mapping[str, str] | None, cwd: Path | None
) -> subprocess.CompletedProcess[bytes]:
    line = [str(Path(sys.executable).with_name(name)), *map(str, words)]
    if env:
        there = {**os.environ, **env}
        return subprocess.run(
            line, input=stdin, capture_output=True, timeout=PATIENCE_S, check=False, env=there, cwd=cwd
        )
    with tempfile.TemporaryDirectory() as folder:
        streams = [Path(folder) / str(number) for number in range(3)]
        streams[0].write_bytes(stdin)
        for stream in streams[1:]:
            stream.touch()
        given = (line, dict(os.environ), str(cwd or Path.cwd()), [*map(str, streams)])
        process = _FORKS.Process(target=_run, args=(MAINS[name], *given))
        process.start()
        process.join(PATIENCE_S)
        out, err = (stream.read_bytes() for stream in streams[1:])
        if (code := process.exitcode) is None:
            process.kill()
            raise subprocess.TimeoutExpired(line, PATIENCE_S, out, err)
        process.close()
    return subprocess.CompletedProcess(line, code, out, err)


def sentences(stderr: str) -> list[str]:
    """What it says at its end; on a busy machine it says before that it waits."""
    return [line for line in stderr.splitlines() if "no answer yet; still waiting" not in line]


def _run(module: str, line: list[str], env: Mapping[str, str], cwd: str, streams: list[str]) -> None:
    """What the installed script does, and the interpreter at its end."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    for number, path in enumerate(streams):
        opened = os.open(path, os.O_WRONLY if number else os.O_RDONLY)
        os.dup2(opened, number)
        os.close(opened)
    sys.argv = line
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    try:
        sys.exit(importlib.import_module(module).main())
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
