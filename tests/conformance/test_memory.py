from __future__ import annotations

import uuid

import pytest

from conformance.suite import Conformance, ManyObjects, Target


class TestMemory(Conformance, ManyObjects):
    rounds = 20

    @pytest.fixture
    def target(self):
        return Target(f"memory://conformance/{uuid.uuid4()}")
