"""An intent's name says all but its bytes."""

from __future__ import annotations

import pytest

from lockprovider.group.intent import Intent, folder, parse


@pytest.mark.parametrize("log", ["abc", "with/slash", "with.dot", "ümlaut %2F"])
@pytest.mark.parametrize("stem", [".hoodie/timeline/2026_", "a", "a.b.c", "spaces and %"])
def test_a_name_tells_what_it_names(log: str, stem: str) -> None:
    intent = Intent(log, 17, stem, b"body")
    assert parse(intent.name, b"body") == intent
    assert intent.name.startswith(folder(log))
    assert intent.name.count("/") == 1, "all of one log are in one folder, and nothing else is"


def test_another_log_place_or_stem_is_another_name() -> None:
    names = {Intent(log, place, stem, b"").name for log in ("a", "b") for place in (1, 11) for stem in ("s", "t")}
    assert len(names) == 8


@pytest.mark.parametrize("name", ["", "log", "log/", "log/1", "log/1.", "log/.stem", "log/x.stem", "log/-1.stem"])
def test_what_is_no_intent_is_none(name: str) -> None:
    assert parse(name, b"body") is None
