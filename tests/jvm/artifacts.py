"""Released JVM artifacts, fetched by mvn once a user into the tests' cache folder.

Where they come from is mvn's own configuration. What cannot be had is `Missing`, with what mvn or javac said; nothing
is tried for longer than its limit.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from servers.install import _locked, cache_folder

HUDI = "1.2.0"
FETCH_S = 300.0
COMPILE_S = 120.0
# No transitive dependencies: Hudi's own would be hundreds of megabytes, and what is run needs none of them.
_DEPENDENCY = (
    "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>"
    "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"
)
_POM = (
    '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
    "<groupId>tests</groupId><artifactId>tests</artifactId><version>1</version>"
    "<dependencies>{}</dependencies></project>"
)


class Missing(Exception):
    """Something JVM cannot be had on this machine: says what, and what its tool said."""


def jars(label: str, coordinates: tuple[str, ...]) -> list[Path]:
    """The jars of these `group:artifact:version`, without what they depend on.

    Raises:
        Missing: mvn is not here, has not got one of them, or took too long.
    """
    done = cache_folder() / label
    if not done.exists():
        with _locked(cache_folder() / f"{label}.lock"):
            if not done.exists():
                _fetch(done, coordinates)
    return sorted(done.glob("*.jar"))


def compiled(sources: list[Path], classpath: list[Path], into: Path) -> Path:
    """A folder with the classes of these sources.

    Raises:
        Missing: there is no javac.
    """
    into.mkdir(parents=True, exist_ok=True)
    names = [str(path) for path in sources]
    run([tool("javac"), "-proc:none", "-d", str(into), "-cp", joined(classpath), *names], COMPILE_S)
    return into


def joined(classpath: list[Path]) -> str:
    return ":".join(str(path) for path in classpath)


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise Missing(f"{name} is not on the PATH (a JDK 17 and Maven are needed)")
    return found


def run(command: list[str], limit_s: float) -> None:
    shown = " ".join(command)[:300]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        raise Missing(f"not done after {limit_s:g} s: {shown}") from None
    if ended.returncode:
        said = (ended.stdout + ended.stderr)[-2000:]
        raise Missing(f"exit {ended.returncode} of {shown}\n{said}")


def _fetch(done: Path, coordinates: tuple[str, ...]) -> None:
    mvn, repository = tool("mvn"), cache_folder() / "maven"
    with tempfile.TemporaryDirectory(prefix=f".{done.name}-", dir=done.parent) as work:
        pom, partial = Path(work) / "pom.xml", Path(work) / "jars"
        pom.write_text(_POM.format("".join(_DEPENDENCY.format(*each.split(":")) for each in coordinates)))
        quiet = ["-q", "-B", f"-Dmaven.repo.local={repository}", "-f", str(pom)]
        run([mvn, *quiet, "dependency:copy-dependencies", f"-DoutputDirectory={partial}"], FETCH_S)
        partial.rename(done)
