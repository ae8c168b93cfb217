"""An intent's name says all but its bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lockprovider.storage_lock.commit_rules import Intent, intents_folder, parse_intent
from lockprovider.storage_lock.record import Log, Pending

SAMPLE = b'{"begin": "", "rule": "as usual"}'
LAST = bytes(range(256)) * 8
LOG = Log("log").plus(Pending.of_bytes("before", LAST))
LIKE_IT = Intent("log", 1, "mine_", SAMPLE + b"mine" + LAST)


@pytest.mark.parametrize("log", ["abc", "with/slash", "with.dot", "ümlaut %2F"])
@pytest.mark.parametrize("stem", [".hoodie/timeline/2026_", "a", "a.b.c", "spaces and %"])
def test_intent_name_encodes_its_content(log: str, stem: str) -> None:
    intent = Intent(log, 17, stem, b"body")
    assert parse_intent(intent.name, b"body") == intent
    assert intent.name.startswith(intents_folder(log))
    assert intent.name.count("/") == 1, "all of one log are in one folder, and nothing else is"


def test_another_log_position_or_stem_gives_another_name() -> None:
    names = {Intent(log, place, stem, b"").name for log in ("a", "b") for place in (1, 11) for stem in ("s", "t")}
    assert len(names) == 8


@pytest.mark.parametrize(
    "name", ["", "log", "log/", "log/1", "log/1.", "log/.stem", "log/x.stem", "log/-1.stem", f"log/{'1' * 5000}.stem"]
)
def test_other_names_are_not_parsed_as_intents(name: str) -> None:
    assert parse_intent(name, b"body") is None


def test_intent_similar_to_last_entry_and_sample_is_read_from_its_name() -> None:
    told = LIKE_IT.with_packed_body(LOG, SAMPLE)
    found = parse_intent(told.name, b"")
    assert found is not None
    assert len(told.name) < 60
    assert found == replace(LIKE_IT, body=b"")
    later = LOG.plus(Pending.of_bytes("after", b"x"))
    assert found.read(LOG, SAMPLE) == found.read(later, SAMPLE) == told == LIKE_IT
    assert found.read(LOG, SAMPLE).name == told.name, "it is withdrawn where it was posted"


@pytest.mark.parametrize(
    ("log", "sample"),
    [
        (LOG, b""),
        (LOG, SAMPLE.replace(b"usual", b"never")),
        (Log("log").plus(Pending.of_bytes("before", LAST[::-1])), SAMPLE),
        (Log("log", 1, 1), SAMPLE),
    ],
    ids=["no sample", "another sample", "another entry", "a log that does not go back so far"],
)
def test_intent_name_is_unreadable_without_its_log_and_sample(log: Log, sample: bytes) -> None:
    found = parse_intent(LIKE_IT.with_packed_body(LOG, SAMPLE).name, b"")
    assert found is not None
    assert found.read(log, sample).body == b""


@pytest.mark.parametrize("told", ["!", "!!", "!AAAA", "!not base64", "!ümlaut", "!" + "A" * 200])
def test_malformed_intent_name_is_ignored(told: str) -> None:
    found = parse_intent(f"log/1.mine_{told}", b"")
    assert found is not None
    assert found.stem == "mine_"
    assert found.read(LOG, SAMPLE).body == b""


def test_content_too_long_for_a_name_is_left_out() -> None:
    first = Intent("log", 0, "mine_", LIKE_IT.body)
    assert first.with_packed_body(LOG, SAMPLE) is first, "nothing was before it, and its bytes do not deflate"
    longest = max(len(Intent("l", 1, "s" * n, b"b").with_packed_body(LOG, b"").name) for n in range(300))
    assert longest - len("l/") in range(250, 310)
    told = [one for n in range(300) if (one := Intent("l", 1, "s" * n, b"b").with_packed_body(LOG, b"")).packed_body]
    assert max(len(one.name) for one in told) - len("l/") == 255
