"""Options, logging, exit codes, tables and completion scripts of `fsspec-cas` and `lockprovider`."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

from fsspec_cas.errors import CasError, InvalidInput, NotSupported, OutcomeUnknown, Unavailable

DONE, REFUSED, BAD_INPUT, UNKNOWN, UNAVAILABLE, NOT_SUPPORTED, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130

_CODES = {OutcomeUnknown: UNKNOWN, Unavailable: UNAVAILABLE, NotSupported: NOT_SUPPORTED}

OPTIONS_HELP = (
    "Options and credentials come from -o and --storage-options, from FSSPEC_* variables and fsspec's configuration\n"
    "files, and from the variables and files that the store's SDK reads (AWS_*, GOOGLE_*, AZURE_*)."
)
_OPTION_HELP = "a storage option, repeatable; a dot names a nested one: client_kwargs.region_name=eu-west-1"

SHELLS = ("bash", "zsh", "fish")


def add_storage_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", dest="options", action="append", default=[], metavar="KEY=VALUE", help=_OPTION_HELP)
    parser.add_argument("--storage-options", metavar="JSON", help="storage options as a JSON object")


def add_general(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    parser.add_argument("-v", "--verbose", action="count", default=0, help="log to stderr; -vv logs each request")


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        from importlib.metadata import version  # noqa: PLC0415 - slow

        print(f"{parser.prog} {version('fsspec-cas')}")
        parser.exit(DONE)


class _Complaints(logging.Handler):
    def __init__(self, program: str) -> None:
        super().__init__(logging.WARNING)
        self.program = program

    def emit(self, record: logging.LogRecord) -> None:
        complain(self.program, record.getMessage())


def log_to_stderr(program: str, verbose: int) -> None:
    for name in ("fsspec_cas", "lockprovider"):
        logging.getLogger(name).handlers = [] if verbose else [_Complaints(program)]
    if verbose:
        logging.basicConfig(format="%(asctime)s %(name)s: %(message)s")
        for name in ("fsspec_cas", "lockprovider"):
            logging.getLogger(name).setLevel(logging.INFO if verbose == 1 else logging.DEBUG)


def storage_options(arguments: Any) -> dict[str, Any]:
    """Return the options of `-o` and `--storage-options` as nested dicts; `-o` wins.

    Raises InvalidInput for bad JSON, no KEY=VALUE, or contradicting `-o`.
    """
    options = {} if arguments.storage_options is None else _json_object(arguments.storage_options)
    values: dict[str, Any] = {}
    for number, pair in enumerate(arguments.options, 1):
        key, equals, text = pair.partition("=")
        if not key or not equals:
            raise InvalidInput(
                f"option {number} of -o must be KEY=VALUE (its text is not shown, as it may hold a secret)"
            )
        value = _value(key, text)
        for other, before in values.items():
            overlap = f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")
            if overlap and (key, value) != (other, before):
                raise InvalidInput(f"-o {key}=... contradicts -o {other}=...: give only one of them")
        values[key] = value
        *steps, last = key.split(".")
        inner = options
        for step in steps:
            if not isinstance(inner.get(step), dict):
                inner[step] = {}
            inner = inner[step]
        inner[last] = value
    return options


def _json_object(text: str) -> dict[str, Any]:
    """Parse the text as a JSON object; anything else raises InvalidInput."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"--storage-options is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidInput("--storage-options is not a JSON object: write e.g. '{\"anon\": true}'")
    return value


def _value(key: str, text: str) -> Any:
    if text[:1] in ("{", "[") or text in ("true", "false", "null"):
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"-o {key}=... begins like JSON but is not JSON: {error}") from error
    return text


def run(program: str, arguments: Any, code_of: Callable[[Exception], int | None]) -> int:
    """Set up logging, call `arguments.run`, print its error to stderr; return the exit code.

    Ctrl-C: 130, or 3 in doubt. `--debug` re-raises. A broken pipe closes stderr, and is no error. `code_of` returns a
    program's own code.
    """
    log_to_stderr(program, getattr(arguments, "verbose", 0))
    try:
        return int(arguments.run(arguments))
    except KeyboardInterrupt as stop:
        return _interrupted(program, stop)
    except BrokenPipeError:
        sys.stderr.close()  # Python would report the broken pipe at exit
        return DONE
    except Exception as error:
        if getattr(arguments, "debug", False):
            raise
        code = code_of(error)
        if code is None and not isinstance(error, (CasError, OSError)):
            complain(program, f"unexpected {type(error).__name__}: {error}; add --debug for the traceback")
        else:
            complain(program, str(error))
        if code is not None:
            return code
        return next((code for kind, code in _CODES.items() if isinstance(error, kind)), BAD_INPUT)


def _interrupted(program: str, stop: KeyboardInterrupt) -> int:
    cause: BaseException | None = stop.__cause__
    while cause is not None and not isinstance(cause, OutcomeUnknown):
        cause = cause.__cause__
    complain(program, "interrupted" if cause is None else f"interrupted: {cause}")
    return INTERRUPTED if cause is None else UNKNOWN


def complain(program: str, sentence: str) -> None:
    print(f"{program}: {' '.join(sentence.split())}", file=sys.stderr)


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    print(title)
    widths = [max(len(row[n]) for row in (columns, *rows)) for n in range(len(columns))]
    for row in (columns, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def add_completion(commands: Any, of: Any) -> None:
    text = "Print a completion script for your shell: eval it in the shell's startup file."
    parser = commands.add_parser("completion", help=text, description=text)
    parser.add_argument("shell", choices=SHELLS)
    parser.set_defaults(run=lambda arguments: print(script(of(), arguments.shell)) or 0)


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    words = words_of(parser)
    return _fish(parser.prog, words) if shell == "fish" else _bash(parser.prog, words, zsh=shell == "zsh")


def words_of(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], list[str]]:
    """Return the subcommands and `--options` that may follow each sequence of commands.

    `path`: the sequence that leads to `parser`.
    """
    words, words_by_path = list[str](), dict[tuple[str, ...], list[str]]()
    for action in parser._actions:  # noqa: SLF001
        words += [option for option in action.option_strings if option.startswith("--")]
        for name, inner in action.choices.items() if isinstance(action, argparse._SubParsersAction) else ():  # noqa: SLF001
            words.append(name)
            words_by_path |= words_of(inner, (*path, name))
    return {path: sorted(words), **words_by_path}


def _bash(program: str, words_by_path: dict[tuple[str, ...], list[str]], *, zsh: bool) -> str:
    """Return a completion script for bash, or for zsh through its bash emulation."""
    name = f"_{program.replace('-', '_')}"
    cases = [f'    "{" ".join(path)}") words="{" ".join(words)}" ;;' for path, words in sorted(words_by_path.items())]
    lines = [
        f"{name}() {{",
        '  local at="" word words=""',
        '  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do',
        '    case " ' + " ".join(sorted({step for path in words_by_path for step in path})) + ' " in',
        '      *" $word "*) at="${at:+$at }$word" ;;',
        "    esac",
        "  done",
        '  case "$at" in',
        *cases,
        "  esac",
        '  COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))',
        "}",
        f"complete -o default -F {name} {program}",
    ]
    return "\n".join(["autoload -U +X bashcompinit && bashcompinit", *lines] if zsh else lines)


def _fish(program: str, words_by_path: dict[tuple[str, ...], list[str]]) -> str:
    """Fish script that completes `words_by_path` by the commands typed before."""
    lines = []
    for path, words in sorted(words_by_path.items()):
        inner = [word for word in words if not word.startswith("-")]
        commands_seen = "; and ".join(f"__fish_seen_subcommand_from {step}" for step in path)
        unseen = f"not __fish_seen_subcommand_from {' '.join(inner)}" if inner else ""
        when = "; and ".join(filter(None, (commands_seen, unseen)))
        condition = f" -n '{when}'" if when else ""
        lines += [f"complete -c {program}{condition} -f -a '{' '.join(inner)}'"] if inner else []
        lines += [f"complete -c {program}{condition} -l {word[2:]}" for word in words if word.startswith("--")]
    return "\n".join(lines)
