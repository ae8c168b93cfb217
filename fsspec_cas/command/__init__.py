"""What the command lines of this distribution share: storage options, exit codes, and errors in one sentence.

An error never shows a traceback unless `--debug` is given, and says on stderr what to do next.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

from fsspec_cas.command.completion import add_completion as add_completion
from fsspec_cas.errors import CasError, InvalidInput, NotSupported, OutcomeUnknown, Unavailable

DONE, REFUSED, BAD_INPUT, UNKNOWN, UNAVAILABLE, NOT_SUPPORTED, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130

OPTIONS_HELP = (
    "Options and credentials are taken as fsspec takes them: from -o and --storage-options, from FSSPEC_* variables\n"
    "and fsspec's configuration files, and from what the SDK of the store looks for (AWS_*, GOOGLE_*, AZURE_*)."
)
_OPTION_HELP = "a storage option; a dot goes one level down: client_kwargs.region_name=eu-west-1"

Run = Callable[[Any], int]


def add_storage_options(parser: argparse.ArgumentParser) -> None:
    """`-o KEY=VALUE` and `--storage-options JSON`, to be read by `storage_options`."""
    parser.add_argument("-o", dest="options", action="append", default=[], metavar="KEY=VALUE", help=_OPTION_HELP)
    parser.add_argument("--storage-options", metavar="JSON", help="storage options as a JSON object")


def add_general(parser: argparse.ArgumentParser) -> None:
    """`--version` and `-v`, before the command."""
    parser.add_argument("--version", action=_Version, nargs=0, help="say which version this is")
    parser.add_argument(
        "-v", "--verbose", action="count", default=0, help="say on stderr what is done; -vv: each request, too"
    )


class _Version(argparse.Action):
    """Asked of the distribution when it is wanted: not at each start."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        """Say it and end."""
        from importlib.metadata import version  # noqa: PLC0415 - takes longer than all the rest

        print(f"{parser.prog} {version('fsspec-cas')}")
        parser.exit(DONE)


class _Complaints(logging.Handler):
    """Warnings, as everything that a command says on stderr."""

    def __init__(self, program: str) -> None:
        super().__init__(logging.WARNING)
        self.program = program

    def emit(self, record: logging.LogRecord) -> None:
        complain(self.program, record.getMessage())


def log_to_stderr(program: str, verbose: int) -> None:
    """Show what the loggers of this distribution say, in as much detail as `-v` was given; warnings always."""
    for name in ("fsspec_cas", "lockprovider"):
        logging.getLogger(name).handlers = [] if verbose else [_Complaints(program)]
    if verbose:
        logging.basicConfig(format="%(asctime)s %(name)s: %(message)s")
        for name in ("fsspec_cas", "lockprovider"):
            logging.getLogger(name).setLevel(logging.INFO if verbose == 1 else logging.DEBUG)


def storage_options(arguments: Any) -> dict[str, Any]:
    """What was given with `-o` and `--storage-options`, as fsspec takes it; `-o` wins.

    Raises:
        InvalidInput: one of them cannot be understood.
    """
    options = {} if arguments.storage_options is None else _json_object(arguments.storage_options)
    for number, pair in enumerate(arguments.options, 1):
        key, equals, text = pair.partition("=")
        if not key or not equals:
            raise InvalidInput(f"option {number} of -o is not KEY=VALUE (it is not shown: it may hold a secret)")
        _set(options, key.split("."), _value(key, text), key)
    return options


def _set(options: dict[str, Any], steps: Sequence[str], value: Any, key: str) -> None:
    place = options
    for step in steps[:-1]:
        place = place.setdefault(step, {})
        if not isinstance(place, dict):
            raise InvalidInput(f"-o {key}=... goes below {step!r}, which has a value of its own")
    place[steps[-1]] = value


def _json_object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidInput(f"--storage-options is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise InvalidInput("--storage-options is not a JSON object: write e.g. '{\"anon\": true}'")
    return found


def _value(key: str, text: str) -> Any:
    """Objects, lists, true, false and null are read as JSON; all else, numbers too, may be a name or a secret."""
    if text[:1] in ("{", "[") or text in ("true", "false", "null"):
        try:
            return json.loads(text)
        except ValueError as error:
            raise InvalidInput(f"-o {key}=... begins like JSON and is none: {error}") from error
    return text


def run(program: str, arguments: Any, command: Run, code_of: Callable[[Exception], int | None]) -> int:
    """Run one parsed command; what it came to is the exit code.

    `code_of` says the code of an error that the program knows and this module does not, else None.
    """
    log_to_stderr(program, getattr(arguments, "verbose", 0))
    try:
        return int(command(arguments))
    except KeyboardInterrupt as stop:
        return _interrupted(program, stop)
    except BrokenPipeError:
        sys.stderr.close()  # whoever read stdout is gone; Python would complain about it at the end
        return DONE
    except Exception as error:  # users get one sentence
        if getattr(arguments, "debug", False):
            raise
        return _failed(program, error, code_of(error))


def _failed(program: str, error: Exception, code: int | None) -> int:
    match error:
        case _ if code is not None:
            found = code
        case OutcomeUnknown():
            found = UNKNOWN
        case Unavailable():
            found = UNAVAILABLE
        case NotSupported():
            found = NOT_SUPPORTED
        case CasError() | OSError():
            found = BAD_INPUT
        case _:
            found = BAD_INPUT
            error = CasError(f"unexpected {type(error).__name__}: {error}; --debug shows more")
    complain(program, str(error))
    return found


def _interrupted(program: str, stop: KeyboardInterrupt) -> int:
    cause: BaseException | None = stop.__cause__
    while cause is not None and not isinstance(cause, OutcomeUnknown):
        cause = cause.__cause__
    complain(program, "interrupted" if cause is None else f"interrupted: {cause}")
    return INTERRUPTED if cause is None else UNKNOWN


def complain(program: str, sentence: str) -> None:
    """One line on stderr."""
    print(f"{program}: {' '.join(sentence.split())}", file=sys.stderr)
