"""Each format of stored objects x each kind of damage: one typed error that names the object, in little memory."""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from damage.formats import FORMATS, Format, bombs
from lockprovider.bounded import Undecodable, parse_json

OTHERS = (None, True, False, -1, 0, 1.5, "", "x", "\x00", "../up", [], {}, [[]], [None], {"a": 1}, [1, 2, 3])
NUMBERS = ("1e999", "-1e999", "NaN", "Infinity", "-Infinity", "9" * 30, "-" + "9" * 30, "9" * 5000, "1e308", "-0.0")
DEEP = ("[" * 100 + "]" * 100, "[" * 5_000 + "]" * 5_000, '{"a":' * 100_000, "[" * 1_000_000)
_HERE = "\x01here\x01"


def checked(name: str, data: bytes) -> Any:
    """What the decoder makes of it: a value that can be written again, or the one error, which names the object."""
    format_ = FORMATS[name]
    if format_.error is None:
        return format_.decode(data)
    found = _decoded(format_, data)
    if isinstance(found, format_.error):
        assert type(found) is format_.error, repr(found)
        assert format_.named in str(found), str(found)
        assert len(str(found)) < 1000
        return found
    if format_.encode is not None:
        again = format_.encode(found)
        assert format_.encode(format_.decode(again)) == again, "what is written again reads back as it was"
    return found


def _decoded(format_: Format, data: bytes) -> Any:
    assert format_.error is not None
    try:
        return format_.decode(data)
    except format_.error as error:
        return error


def refused(name: str, data: bytes) -> None:
    format_ = FORMATS[name]
    found = checked(name, data)
    wanted = format_.absent if format_.error is None else format_.error
    assert found == wanted if format_.error is None else isinstance(found, wanted), (name, data[:200], found)


def places(value: Any) -> Iterator[tuple[Any, ...]]:
    """All places in JSON."""
    yield ()
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in below:
        yield from ((key, *rest) for rest in places(one))


def replaced(value: Any, place: tuple[Any, ...], by: Any) -> Any:
    if not place:
        return by
    if isinstance(value, dict):
        return {key: replaced(one, place[1:], by) if key == place[0] else one for key, one in value.items()}
    return [replaced(one, place[1:], by) if at == place[0] else one for at, one in enumerate(value)]


def without(value: Any, place: tuple[Any, ...]) -> Any:
    if len(place) > 1:
        return replaced(value, place[:1], without(value[place[0]], place[1:]))
    if isinstance(value, dict):
        return {key: one for key, one in value.items() if key != place[0]}
    return [one for at, one in enumerate(value) if at != place[0]]


def json_of(format_: Format) -> Any:
    return json.loads(format_.unwrap(format_.sample).partition(b"\n")[0])


def wrapped(format_: Format, said: str) -> bytes:
    rest = format_.unwrap(format_.sample).partition(b"\n")[1:]
    return format_.wrap(said.encode() + b"".join(rest))


@pytest.fixture(params=FORMATS)
def name(request) -> str:
    return request.param


def test_sample_is_read(name) -> None:
    format_ = FORMATS[name]
    found = checked(name, format_.sample)
    assert not isinstance(found, Exception), found
    assert found != format_.absent
    if format_.encode is not None:
        assert format_.encode(found) == format_.sample
    checked(name, wrapped(format_, json.dumps(json_of(format_))))


def test_truncated_object_is_refused(name) -> None:
    sample = FORMATS[name].sample
    for length in range(1, len(sample)):
        refused(name, sample[:length])
    if FORMATS[name].unwrap is not bytes:
        refused(name, sample + b"x")


@pytest.mark.parametrize("data", [b"", b"null", b"[]", b"{}", b"0", b'""', b"\n", b"\x00" * 64, b"\xff" * 64])
def test_object_that_is_empty_or_of_another_kind_is_refused(name, data) -> None:
    if not (name == "log in the record" and not data):
        refused(name, data)
    refused(name, FORMATS[name].wrap(data))


def test_flipped_bits_are_refused_or_harmless(name, seed) -> None:
    format_, draw = FORMATS[name], random.Random(seed)
    for _ in range(300):
        data = bytearray(format_.sample)
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        checked(name, bytes(data))
        if format_.unwrap is not bytes:
            data = bytearray(format_.unwrap(format_.sample))
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
            checked(name, format_.wrap(bytes(data)))


def test_wrong_types_are_refused_or_harmless(name) -> None:
    format_ = FORMATS[name]
    found = json_of(format_)
    for place in places(found):
        for other in OTHERS:
            checked(name, wrapped(format_, json.dumps(replaced(found, place, other))))
        if place:
            checked(name, wrapped(format_, json.dumps(without(found, place))))


@pytest.mark.parametrize("said", [*NUMBERS, *DEEP], ids=lambda said: said[:12])
def test_huge_numbers_and_deep_nesting_are_refused_or_harmless(name, said) -> None:
    format_ = FORMATS[name]
    found = json_of(format_)
    for place in places(found):
        text = json.dumps(replaced(found, place, _HERE))
        checked(name, wrapped(format_, text.replace(json.dumps(_HERE), said)))


@pytest.mark.parametrize("said", ["NaN", "1e999", "[" * 100 + "]" * 100, '"\\ud800"'])
def test_values_that_cannot_be_written_back_are_refused(name, said) -> None:
    """They were read, and every later write failed with an error of Python's."""
    format_ = FORMATS[name]
    if not isinstance(json_of(format_), dict) or format_.error is None or name == "terraform":
        pytest.skip("it has no fields that are not known")
    text = json.dumps({**json_of(format_), "a field of later": _HERE})
    refused(name, wrapped(format_, text.replace(json.dumps(_HERE), said)))


def test_parser_refuses_text_that_no_writer_could_store() -> None:
    with pytest.raises(Undecodable, match="lone surrogate"):
        parse_json(b'{"a": "\\ud800"}', most=100)


def test_other_version_is_refused(name) -> None:
    format_ = FORMATS[name]
    found = json_of(format_)
    field = next((field for field in ("format", "version") if field in found and name != "terraform"), None)
    if not isinstance(found, dict) or field is None:
        pytest.skip("it has no version")
    for version in (found[field] + 99, str(found[field]), None, [found[field]]):
        refused(name, wrapped(format_, json.dumps({**found, field: version})))


def test_bombs_take_little_memory_and_time() -> None:
    """A record of 2.7 MB took 4.5 GB and 25 s; a slot of 283 bytes a gigabyte and a minute."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        said = json.loads(line)
        assert said["cpu_s"] < 1, said
        assert said["grew_mb"] < 200, said


def _measure() -> None:
    """In a process of its own, whose memory is that of the decoders."""
    for name, objects in bombs().items():
        for number, data in enumerate(objects):
            before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            began_s = time.process_time()
            if (name, number) != ("lock record", 3):  # its log is unpacked by those who want it
                refused(name, data)
            cpu_s = time.process_time() - began_s
            grew_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) / 1024
            sys.stdout.write(json.dumps({"name": name, "number": number, "cpu_s": cpu_s, "grew_mb": grew_mb}) + "\n")


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda below: st.lists(below, max_size=4) | st.dictionaries(st.text(max_size=3), below, max_size=4),
    max_leaves=20,
)


def _fuzz(name: str, draw: st.DataObject) -> None:
    format_ = FORMATS[name]
    found = json_of(format_)
    for _ in range(draw.draw(st.integers(1, 3))):
        place = draw.draw(st.sampled_from([*places(found)]))
        found = replaced(found, place, draw.draw(ANY))
    checked(name, wrapped(format_, json.dumps(found)))
    data = bytearray(format_.sample)
    for at in draw.draw(st.lists(st.integers(0, len(data) - 1), max_size=5)):
        data[at] = draw.draw(st.integers(0, 255))
    checked(name, bytes(data))
    checked(name, format_.wrap(draw.draw(st.binary(max_size=50))))


@given(name=st.sampled_from(sorted(FORMATS)), draw=st.data())
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_random_damage_is_refused_or_harmless(name, draw) -> None:
    _fuzz(name, draw)


@pytest.mark.soak
@pytest.mark.parametrize("name", FORMATS)
def test_much_random_damage_is_refused_or_harmless(name, request) -> None:
    end_s = time.monotonic() + 60 * request.config.getoption("--soak") / 5 / len(FORMATS)

    @given(draw=st.data())
    @settings(max_examples=20, database=None, suppress_health_check=[*HealthCheck])
    def some(draw: st.DataObject) -> None:
        _fuzz(name, draw)

    while time.monotonic() < end_s:
        some()


if __name__ == "__main__":
    _measure()
