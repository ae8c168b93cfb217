"""What released JVM Hudi makes of keys and partitions is what was stored, and what we are held against without a JVM.

FSSPEC_CAS_STORE_TEXTS=1 .venv/bin/python -m pytest -m jvm tests/jvm/test_key_texts.py   # stores what comes out
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from table.key_values import VERSIONS, store, stored

from jvm.key_texts import DRIVER, ZONES, found_by, found_in, grouped, ungrouped

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from jvm.spark import HudiSpark

pytestmark = pytest.mark.jvm


@pytest.mark.parametrize("version", VERSIONS)
def test_key_and_partition_texts_of_released_jvm_match_the_stored_samples(
    version: str, start_release: Callable[..., HudiSpark], tmp_path: Path
) -> None:
    with start_release(version, tmp_path, **DRIVER) as hudi:
        found = dict(found_by(hudi, tmp_path, version))
    for place, zone in ZONES.items():
        conf = {key: value.replace("timezone=UTC", f"timezone={zone}") for key, value in DRIVER.items()}
        with start_release(version, tmp_path, **conf) as hudi:
            found |= found_in(hudi, tmp_path, place)
    known = ungrouped(stored())
    if os.environ.get("FSSPEC_CAS_STORE_TEXTS"):
        store(grouped(dict(sorted((known | {version: found}).items()))))
    else:
        assert found == known[version]
