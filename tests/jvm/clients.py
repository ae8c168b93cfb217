"""A JVM with Hudi's released storage-based lock providers in it, told what to do line by line."""

from __future__ import annotations

import contextlib
import queue
import signal
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from jvm.artifacts import HUDI, joined, tool

if TYPE_CHECKING:
    from types import TracebackType

    from servers.s3 import S3Server
    from typing_extensions import Self

# 6 MB; the provider's own S3 client is in an artifact that is not asked for (see java/S3StorageLockClient.java).
JARS = (
    f"org.apache.hudi:hudi-client-common:{HUDI}",
    f"org.apache.hudi:hudi-common:{HUDI}",
    f"org.apache.hudi:hudi-io:{HUDI}",
    "com.fasterxml.jackson.core:jackson-databind:2.15.2",
    "com.fasterxml.jackson.core:jackson-core:2.15.2",
    "com.fasterxml.jackson.core:jackson-annotations:2.15.2",
    "io.dropwizard.metrics:metrics-core:4.2.19",
    "org.slf4j:slf4j-api:2.0.7",
    "org.slf4j:slf4j-simple:2.0.7",
)
SOURCES = sorted((Path(__file__).parent / "java").glob("*.java"))
ANSWER_S = 300.0
_OPTIONS = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")


class JvmError(RuntimeError):
    """What the JVM raised instead of an answer."""


class JvmLocks:
    """One process; each name in it is a provider of its own, as each writer of Hudi has one.

    `ask` may be called by one thread at a time: the process does one thing after the other.
    """

    def __init__(self, classpath: list[Path], server: S3Server, log: Path) -> None:
        self.log = log
        self._names = 0
        self._answers: queue.Queue[str | None] = queue.Queue()
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                [tool("java"), *_OPTIONS, "-cp", joined(classpath), "jvm.LockClients"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=environment(server),
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        try:
            assert self._answer() == "ready"
        except BaseException:
            self.kill9()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill9()

    def ask(self, *words: object) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write("\t".join(str(word) for word in words) + "\n")
        self._process.stdin.flush()
        kind, _, answer = self._answer().partition("\t")
        if kind != "ok":
            raise JvmError(answer)
        return answer

    def open(self, table: str, validity_s: int = 60, renew_s: int = 5) -> Provider:
        """A provider of the lock of the table at this URL."""
        self._names += 1
        provider = Provider(self, f"provider{self._names}")
        self.ask("open", provider.name, table, validity_s, renew_s)
        return provider

    def kill9(self) -> None:
        """End it as a power cut would: nothing is released."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def _answer(self) -> str:
        answer = self._answers.get(timeout=ANSWER_S)
        if answer is None:
            raise AssertionError(f"the JVM ended with {self._process.wait()}:\n{self.log.read_text()[-4000:]}")
        return answer

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line.rstrip("\n"))
        self._answers.put(None)


class Provider:
    """One of its lock providers."""

    def __init__(self, jvm: JvmLocks, name: str) -> None:
        self.name = name
        self._jvm = jvm

    def try_lock(self, timeout_s: float = 0.2) -> bool:
        """Within 1 s it looks once: its own pace between two looks."""
        words = ("try", self.name, round(timeout_s * 1000))
        try:
            return self._jvm.ask(*words) == "true"
        except JvmError as error:
            # The heartbeat of another provider, which has lost its lock, interrupts the thread that all of them share.
            if not str(error).endswith("lock state FAILED_TO_ACQUIRE"):
                raise
        return self._jvm.ask(*words) == "true"

    def unlock(self) -> None:
        self._jvm.ask("unlock", self.name)

    def held(self) -> str:
        """What it believes to hold: `expired validUntil owner`, or `none`."""
        return self._jvm.ask("held", self.name)

    def told_lost(self) -> bool:
        """Whether the thread that took the lock was interrupted since this was last asked."""
        return self._jvm.ask("interrupted", self.name) == "true"

    def count(self, counter: str, times: int) -> int:
        """Add one to the counter so many times, each under the lock; how often it looked at the lock."""
        done, looks = self._jvm.ask("count", self.name, counter, times).split()
        assert int(done) == times
        return int(looks)


def environment(server: S3Server) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": server.endpoint,
        "AWS_ACCESS_KEY_ID": server.key,
        "AWS_SECRET_ACCESS_KEY": server.secret,
        "AWS_REGION": server.region,
        "TZ": "UTC",
    }
