from __future__ import annotations

import pytest

from conformance.suite import AmongProcesses, Conformance, ManyObjects, Target


class TestLocal(Conformance, ManyObjects, AmongProcesses):
    rounds = 20

    @pytest.fixture
    def target(self, tmp_path):
        return Target(tmp_path.as_uri())
