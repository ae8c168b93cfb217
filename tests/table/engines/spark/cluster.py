"""A standalone cluster of Spark: a master and two workers, processes of their own, on loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from lockprovider.table.engines.java import FAST_START, find_java

HOME = Path(pyspark.__file__).parent
ROOT = Path(__file__).resolve().parents[4]
WAIT_S = 300.0


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def environment() -> dict[str, str]:
    """Without this folder on the path: what is given by `--py-files` is what is imported."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return kept | {
        "SPARK_HOME": str(HOME),
        "JAVA_HOME": str(find_java().home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_DAEMON_JAVA_OPTS": FAST_START,
    }


@contextmanager
def _running(folder: Path, name: str, *words: str) -> Iterator[Path]:
    """A daemon of Spark, and what it logs."""
    log = folder / f"{name}.log"
    with (
        log.open("wb") as out,
        subprocess.Popen(
            [HOME / "bin" / "spark-class", *words], cwd=folder, env=environment(), stdout=out, stderr=subprocess.STDOUT
        ) as child,
    ):
        try:
            yield log
        finally:
            child.terminate()


def _wait(log: Path, words: str) -> None:
    end_s = time.monotonic() + WAIT_S
    while words not in log.read_text():
        assert time.monotonic() < end_s, log.read_text()
        time.sleep(0.2)


@contextmanager
def standalone(folder: Path, workers: int = 2, memory: str = "2g") -> Iterator[str]:
    """The master's URL."""
    place, port = "org.apache.spark.deploy", str(free_port())
    url = f"spark://127.0.0.1:{port}"
    with ExitStack() as running:
        words = ("--host", "127.0.0.1", "--port", port, "--webui-port", str(free_port()))
        master = running.enter_context(_running(folder, "master", f"{place}.master.Master", *words))
        _wait(master, "Successfully started service 'sparkMaster'")
        for number in range(workers):
            words = ("--host", "127.0.0.1", "--cores", "1", "--memory", memory, "--webui-port", str(free_port()))
            words += ("--work-dir", str(folder / f"worker-{number}"), url)
            log = running.enter_context(_running(folder, f"worker-{number}", f"{place}.worker.Worker", *words))
            _wait(log, "Successfully registered with master")
        yield url


def submit(master: str, script: Path, *words: str, conf: Mapping[str, str], files: Path | None = None) -> str:
    """What a user's script prints that was given to `spark-submit`; it must end well."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.extraJavaOptions": FAST_START,
        "spark.sql.shuffle.partitions": "4",
        **conf,
    }
    command = [str(HOME / "bin" / "spark-submit"), "--master", master]
    command += [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    command += ["--py-files", str(files)] if files is not None else []
    ran = subprocess.run(
        [*command, str(script), *words],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        cwd=script.parent,
    )
    assert ran.returncode == 0, ran.stderr[-6000:]
    return ran.stdout
