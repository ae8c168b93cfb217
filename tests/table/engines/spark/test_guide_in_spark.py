"""The guide with blocks for Spark is followed in the session of the other tests: to start one takes long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from test_guides import WITH_SPARK, follow, here  # noqa: F401 - a fixture


def test_guide_with_spark_can_be_followed(here: Path, spark: Any) -> None:  # noqa: F811
    follow(WITH_SPARK, here, {"spark": spark})
