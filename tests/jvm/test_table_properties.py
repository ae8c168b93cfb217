"""The properties of tables that the tests compare with are those of released JVM Hudi, by the names in its classes."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path

import pytest

from jvm.artifacts import HUDI, Missing, jars
from jvm.test_keys import texts

pytestmark = pytest.mark.jvm

STORED = Path(__file__).parents[1] / "table" / "data" / "table_config_keys.json"
CLASSES = (
    "common/table/HoodieTableConfig.class",
    "keygen/constant/KeyGeneratorOptions.class",
    "common/config/TimestampKeyGeneratorConfig.class",
)
NO_KEYS = {"hoodie.properties", "hoodie.properties.backup"}


def released(version: str) -> list[str]:
    """The keys that its table configuration names, without the prefixes of families."""
    found = jars(f"hudi-common-{version}", (f"org.apache.hudi:hudi-common:{version}",))
    with zipfile.ZipFile(found[0]) as classes:
        named = [text for name in CLASSES for text in texts(classes.read(f"org/apache/hudi/{name}"))]
    return sorted({key for key in named if re.fullmatch(r"[\w.]+\w", key)} - NO_KEYS)


@pytest.mark.parametrize("version", ["0.15.0", HUDI])
def test_stored_table_properties_are_those_of_the_release(version: str) -> None:
    try:
        found = released(version)
    except Missing as reason:
        pytest.skip(f"JVM Hudi is not tested: {reason}")
    assert json.loads(STORED.read_text())[version] == found, "write it anew with `released`"
