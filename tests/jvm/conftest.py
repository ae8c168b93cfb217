"""JVM Hudi, where it can be had; a test that cannot have it is skipped and says why."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from servers.base import ServerError

from jvm import spark as jvm_spark
from jvm.artifacts import Missing, compiled, jars, tool
from jvm.clients import JARS, SOURCES, JvmLocks
from jvm.spark import HudiSpark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from servers.seaweedfs import SeaweedFS


@pytest.fixture(scope="session")
def lock_classpath(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The released lock provider, and the program that speaks for it."""
    try:
        tool("java"), tool("javac")
        released = jars("hudi-lock-1.2.0", JARS)
        return [compiled(SOURCES, released, tmp_path_factory.mktemp("classes")), *released]
    except Missing as reason:
        pytest.skip(f"JVM Hudi is not tested: {reason}")


@pytest.fixture(scope="session")
def start_jvm(
    lock_classpath: list[Path], seaweedfs: SeaweedFS, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], JvmLocks]]:
    """A function that starts a JVM of its own, for tests that kill it."""
    with ExitStack() as started:
        logs = tmp_path_factory.mktemp("jvm")
        yield lambda: started.enter_context(
            JvmLocks(lock_classpath, seaweedfs, logs / f"{len(list(logs.iterdir()))}.log")
        )


@pytest.fixture(scope="session")
def jvm(start_jvm: Callable[[], JvmLocks]) -> JvmLocks:
    """A JVM that all tests may share."""
    return start_jvm()


@pytest.fixture(scope="session")
def hudi_jars() -> list[Path]:
    """JVM Hudi for Spark, as released."""
    try:
        return jars("hudi-spark-1.2.0", jvm_spark.JARS)
    except (Missing, ServerError) as reason:
        pytest.skip(f"JVM Hudi is not tested: {reason}")


@pytest.fixture(scope="session")
def start_hudi(
    request: pytest.FixtureRequest, hudi_jars: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., HudiSpark]]:
    """A function that starts a Spark driver with JVM Hudi, in this zone, for tests that kill it."""
    try:
        tool("java")
        folder, released = jvm_spark.pyspark(), hudi_jars
        spark_jars = sorted((folder / "pyspark" / "jars").glob("*.jar"))
        ours = compiled(SOURCES, [*released, *spark_jars], tmp_path_factory.mktemp("classes"))
    except (Missing, ServerError) as reason:
        pytest.skip(f"JVM Hudi is not tested: {reason}")
    server = request.getfixturevalue("seaweedfs")
    with ExitStack() as started:

        def start(zone: str = "UTC") -> HudiSpark:
            log = tmp_path_factory.mktemp("spark") / "driver.log"
            return started.enter_context(HudiSpark(folder, [ours, *released], server, log, zone))

        yield start


@pytest.fixture(scope="session")
def start_release() -> Callable[..., HudiSpark]:
    """A function that starts a driver with this release of JVM Hudi, for tables in this folder."""

    def start(version: str, folder: Path, **conf: str) -> HudiSpark:
        try:
            tool("java")
            released = jars(f"hudi-spark-bundle-{version}", (jvm_spark.BUNDLE.format(version),))
            return HudiSpark(jvm_spark.pyspark(), released, None, folder / "driver.log", **conf)
        except (Missing, ServerError) as reason:
            pytest.skip(f"JVM Hudi {version} is not tested: {reason}")

    return start


@pytest.fixture(scope="session")
def hudi(start_hudi: Callable[..., HudiSpark]) -> HudiSpark:
    """The driver that all tests may share."""
    return start_hudi()
