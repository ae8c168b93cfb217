"""The stores on which tests that start processes of their own run: two of them always, the other two as a soak."""

from __future__ import annotations

import pytest

STORES = ("local", "seaweedfs", *(pytest.param(name, marks=pytest.mark.soak) for name in ("fake_gcs", "azurite")))
