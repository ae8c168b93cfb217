"""Storage options on a command line, and errors as exit codes."""

from __future__ import annotations

import argparse

import pytest

from fsspec_cas import CasError, InvalidInput, NotSupported, OutcomeUnknown, Unavailable
from fsspec_cas.command import add_storage_options, run, storage_options


def parsed(*words):
    parser = argparse.ArgumentParser()
    add_storage_options(parser)
    return parser.parse_args(words)


def test_dotted_options_are_nested_and_override_json():
    words = ["--storage-options", '{"key": "a", "anon": false}', "-o", "key=k", "-o", "anon=true"]
    words += ["-o", "client_kwargs.region_name=eu=1", "-o", "client_kwargs.verify=null", "-o", "a.b.c=7", "-o", "l=[1]"]
    assert storage_options(parsed(*words)) == {
        "key": "k",
        "anon": True,
        "client_kwargs": {"region_name": "eu=1", "verify": None},
        "a": {"b": {"c": "7"}},
        "l": [1],
    }


@pytest.mark.parametrize(
    "words",
    [
        ["-o", "key"],
        ["-o", "=value"],
        ["-o", ""],
        ["-o", "a=1", "-o", "a.b=2"],
        ["-o", "a.b=2", "-o", "a=1"],
        ["-o", "a=1", "-o", "a=2"],
        ["--storage-options", "[1]"],
        ["--storage-options", '{"a":' * 10_000],
        ["-o", "a=" + "[" * 10_000],
    ],
)
def test_malformed_options_are_refused(words):
    with pytest.raises(InvalidInput):
        storage_options(parsed(*words))


@pytest.mark.parametrize(
    "words",
    [
        ["-o", "secret:hush"],
        ["-o", "=hush"],
        ["-o", "secret={hush"],
        ["-o", "a=1", "-o", "a.secret=hush"],
        ["-o", "secret=hush", "-o", "secret=hush!"],
        ["--storage-options", '{"secret": "hush"'],
        ["--storage-options", '["hush"]'],
    ],
)
def test_no_message_shows_a_possible_secret(words):
    with pytest.raises(InvalidInput) as caught:
        storage_options(parsed(*words))
    assert "hush" not in str(caught.value)


class Ours(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OutcomeUnknown("x"), 3),
        (Unavailable("x"), 4),
        (NotSupported("x"), 5),
        (CasError("x"), 2),
        (FileNotFoundError("x"), 2),
        (KeyboardInterrupt(), 130),
        (Ours("x"), 42),
        (ZeroDivisionError("x"), 2),
    ],
)
def test_error_becomes_one_sentence_and_an_exit_code(error, code, capsys):
    def fail(_):
        raise error

    known = run("program", argparse.Namespace(run=fail), lambda error: 42 if isinstance(error, Ours) else None)
    assert known == code
    said = capsys.readouterr().err
    assert said.startswith("program: ")
    assert said.count("\n") == 1


def test_debug_shows_the_traceback():
    def fail(_):
        raise CasError("x")

    with pytest.raises(CasError):
        run("program", argparse.Namespace(debug=True, run=fail), lambda _: None)
