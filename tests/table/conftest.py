"""One Spark session a worker; a machine without power cuts; writers that do not wait for seconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lockprovider.table.transaction import transaction

# Spark interprets these queries: they read a few rows, and a compilation takes longer. The results are the same.
QUICK = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
# A Python worker of a busy machine may take longer than 15 s to answer.
PATIENT = "--conf spark.python.authenticate.socketTimeout=240s pyspark-shell"


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    from lockprovider.table.engines.java import spark_session

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_SUBMIT_ARGS", PATIENT)
        session = spark_session("tests", cores=2, attempts=2)
    for key, value in QUICK.items():
        session.conf.set(key, value)
    yield session
    session.stop()


@pytest.fixture(scope="module", autouse=True)
def no_power_cuts() -> Iterator[None]:
    """Processes die here, the machine does not: nothing is synced. What is, local files' own tests know."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)
        yield


@pytest.fixture
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has lost several times rests for a fifth of a second, not for five: writers meet the more often."""
    waits_s = transaction.delay_s
    monkeypatch.setattr(transaction, "delay_s", lambda conflicts, draw: min(0.2, waits_s(conflicts, draw)))
