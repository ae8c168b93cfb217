"""One Spark session a worker; writers that do not wait for seconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lockprovider.table.transaction import retry


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    from lockprovider.table.engines.java import spark_session

    session = spark_session("tests", cores=2, attempts=2)
    yield session
    session.stop()


@pytest.fixture
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has lost several times rests for a fifth of a second, not for five: writers meet the more often."""
    waits_s = retry.delay_s
    monkeypatch.setattr(retry, "delay_s", lambda conflicts, draw: min(0.2, waits_s(conflicts, draw)))
