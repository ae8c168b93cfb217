"""The keys that are known here are those of released JVM Hudi: by the names that its classes hold."""

from __future__ import annotations

import re
import struct
import zipfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from lockprovider import InvalidSettings
from lockprovider.hudi_keys import HONOURED, OWNED, REFUSED, WITHOUT_EFFECT, check

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.jvm
ONLY_EARLIER = {"hoodie.write.meta.key.prefixes"}  # 1.2.0 has hoodie.write.rolling.metadata.keys
ONLY_LATER = {"hoodie.write.config.keys.to.serialize.to.commit.metadata"}  # than 1.2.0
_CONSTANT, _KEY = b"\x01", b"hoodie."


def keys(jar: Path) -> set[str]:
    """All texts in a jar's classes that could be keys."""
    with zipfile.ZipFile(jar) as classes:
        ours = (one for one in classes.namelist() if one.startswith("org/apache/hudi/") and one.endswith(".class"))
        return {text for one in ours for text in texts(classes.read(one))}


def texts(code: bytes) -> Iterator[str]:
    """The texts of a class file that begin as keys do: each after its tag and its length."""
    at = code.find(_KEY)
    while at >= 0:
        if code[at - 3 : at - 2] == _CONSTANT:
            (length,) = struct.unpack(">H", code[at - 2 : at])
            yield code[at : at + length].decode(errors="replace")
        at = code.find(_KEY, at + 1)


def known(key: str) -> bool:
    try:
        check({key: ""})
    except InvalidSettings as error:
        return "another lock" in str(error)
    return True


def test_known_keys_are_exactly_those_of_released_hudi(hudi_jars: list[Path]) -> None:
    released = {key for jar in hudi_jars for key in keys(jar)}
    assert (HONOURED | WITHOUT_EFFECT | REFUSED.keys()) - released == ONLY_LATER | ONLY_EARLIER
    owned = [key for key in released if key.startswith(OWNED) and re.fullmatch(r"[\w.]+\w", key)]
    assert len(owned) > 100
    assert [key for key in sorted(owned) if not known(key)] == []
