"""The Spark session is made as for the tests of tables."""

from __future__ import annotations

from table.conftest import spark

__all__ = ["spark"]
