"""One Spark session a worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    from lockprovider.table.engines.java import spark_session

    session = spark_session("tests", cores=2, attempts=2)
    yield session
    session.stop()
