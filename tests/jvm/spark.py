"""Released JVM Hudi in the Spark that it supports: another Python environment and process, told what to do."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servers.install import from_pypi

from jvm.artifacts import HUDI, joined
from jvm.clients import environment

if TYPE_CHECKING:
    from types import TracebackType

    from servers.s3 import S3Server
    from typing_extensions import Self

PYSPARK = "3.5.7"
_HADOOP, _SDK = "3.3.4", "1.12.262"
BUNDLE = "org.apache.hudi:hudi-spark3.5-bundle_2.12:{}"
# 80 MB, and 7 MB for S3; PySpark itself is 320 MB.
JARS = (
    BUNDLE.format(HUDI),
    f"org.apache.hadoop:hadoop-aws:{_HADOOP}",
    *(f"com.amazonaws:aws-java-sdk-{part}:{_SDK}" for part in ("core", "s3", "kms", "sts", "dynamodb")),
)
MAIN = Path(__file__).parent / "spark_main.py"
ANSWER_S = 600.0

# What a writer must be told that does not look into the properties; lockprovider/table/JVM.md says the same.
SHARED = {
    "hoodie.write.auto.upgrade": "false",
    "hoodie.metadata.enable": "false",
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.clean.failed.writes.policy": "LAZY",
    "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.StorageBasedLockProvider",
    "hoodie.rollback.avoid.duplicate.plan": "true",
}


def pyspark() -> Path:
    """A folder for PYTHONPATH with the PySpark that Hudi supports."""
    return from_pypi("pyspark", PYSPARK)


class HudiError(RuntimeError):
    """What JVM Hudi raised."""


class HudiSpark:
    """One Spark driver. One thread at a time may ask it.

    A call that is not answered in time ends the driver, as nobody knows what it is at; the next call starts another. So
    one test that leaves it busy fails alone, and the run comes to its end.
    """

    def __init__(
        self,
        folder: Path,
        classpath: list[Path],
        server: S3Server | None,
        log: Path,
        zone: str = "UTC",
        **conf: str,
    ) -> None:
        self.log = log
        self._conf = _conf(classpath, server, log.parent, zone) | conf
        asked = {"PYTHONPATH": str(folder), "SPARK_LOCAL_IP": "127.0.0.1"}
        self._env = os.environ | ({} if server is None else environment(server)) | asked
        self._start()

    def _start(self) -> None:
        self._answers: queue.Queue[str | None] = queue.Queue()
        self._is_late = False
        with self.log.open("ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, str(MAIN)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=self._env,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, args=(self._process, self._answers), daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        try:
            self._ask({"conf": self._conf})
        except BaseException:
            self.kill9()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill9()

    def read(self, url: str, columns: list[str], where: str | None = None, **options: str) -> list[tuple[Any, ...]]:
        """All rows, or those of which this SQL is true, as JVM Hudi sees them."""
        rows = self._ask({"do": "read", "url": url, "columns": columns, "where": where, "options": options})
        return [tuple(row) for row in rows]

    def write(
        self,
        url: str,
        schema: str,
        rows: list[tuple[Any, ...]],
        options: dict[str, str],
        gate: Path | None = None,
        *,
        select: list[str] | None = None,
    ) -> None:
        """Write these rows; with a `gate`, between begin and data files it waits until that file is there.

        `select` are expressions of SQL that make the columns of what is written, for types that JSON has not.
        """
        given = {"schema": schema, "rows": rows, "options": options, "gate": None if gate is None else str(gate)}
        self._ask({"do": "write", "url": url, "select": select, **given})

    def save(self, query: str, url: str, options: dict[str, str]) -> None:
        """Write what this query gives: all of it is in Spark, and no Python process is asked for a row."""
        self._ask({"do": "save", "statement": query, "url": url, "options": options})

    def set_zone(self, zone: str) -> None:
        """Let this be the JVM's time zone from now on."""
        self._ask({"do": "set_zone", "zone": zone})

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        """What this statement gives."""
        return [tuple(row) for row in self._ask({"do": "sql", "statement": statement})]

    def buckets(self, fields: str, keys: list[str], count: int) -> list[int]:
        """The bucket of each record key, of `count`, by the hash of these fields."""
        found: list[int] = self._ask({"do": "buckets", "fields": fields, "keys": keys, "count": count})
        return found

    def archived(self, url: str) -> dict[str, bytes]:
        """What its archived timeline tells: the contents of completed files, by the names that they had."""
        found = self._ask({"do": "archived", "url": url})
        return {f"{begin}_{completion}.{action}": bytes.fromhex(data) for begin, completion, action, data in found}

    def looks_at_lock(self, url: str) -> int:
        """How often it has looked at the lock of this table so far."""
        return self.log.read_text().count(f"looks at {url}/")

    def kill9(self) -> None:
        """End driver and JVM as a power cut would."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()

    def _ask(self, call: dict[str, Any]) -> Any:
        if self._is_late:
            self._start()
            self._ask({"conf": self._conf})
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(call) + "\n")
        self._process.stdin.flush()
        try:
            line = self._answers.get(timeout=ANSWER_S)
        except queue.Empty:
            self.kill9()
            self._is_late = True
            asked = json.dumps(call)[:200]
            raise HudiError(f"no answer after {ANSWER_S:g} s, and the driver was ended; it was asked {asked}") from None
        if line is None:
            raise HudiError(f"the driver ended with {self._process.wait()}:\n{self.log.read_text()[-4000:]}")
        answer = json.loads(line)
        if "error" in answer:
            raise HudiError(answer["error"])
        return answer["ok"]

    @staticmethod
    def _read(process: subprocess.Popen[str], answers: queue.Queue[str | None]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            answers.put(line)
        answers.put(None)


def _conf(classpath: list[Path], server: S3Server | None, folder: Path, zone: str) -> dict[str, str]:
    return {
        "spark.driver.extraClassPath": joined(classpath),
        "spark.driver.extraJavaOptions": f"-Duser.timezone={zone} -XX:+UseSerialGC",
        "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
        "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
        "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        **({} if server is None else _s3(server)),
    }


def _s3(server: S3Server) -> dict[str, str]:
    s3a = {
        "impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "endpoint": server.endpoint,
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
        "access.key": server.key,
        "secret.key": server.secret,
        "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
        "connection.maximum": "2000",  # a driver that writes for minutes runs out of 96: not all readers are closed
    }
    return {f"spark.hadoop.fs.s3a.{name}": value for name, value in s3a.items()} | {
        "spark.hadoop.fs.s3.impl": s3a["impl"]
    }
