"""Completion of a command line for bash, zsh and fish, made of its argparse parser: commands and options."""

from __future__ import annotations

import argparse
from typing import Any

SHELLS = ("bash", "zsh", "fish")


def add_completion(commands: Any, of: Any) -> None:
    """The command `completion SHELL`; `of` gives the whole parser."""
    text = "Print what completes this command line: eval it in your shell's startup file."
    parser = commands.add_parser("completion", help=text, description=text)
    parser.add_argument("shell", choices=SHELLS)
    parser.set_defaults(run=lambda arguments: print(script(of(), arguments.shell)) or 0)


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """What the shell has to evaluate."""
    found = words_of(parser)
    return _fish(parser.prog, found) if shell == "fish" else _bash(parser.prog, found, zsh=shell == "zsh")


def words_of(parser: argparse.ArgumentParser) -> dict[tuple[str, ...], list[str]]:
    """The commands and options that may come behind each row of commands."""
    found: dict[tuple[str, ...], list[str]] = {}
    _collect(parser, (), found)
    return found


def _collect(parser: argparse.ArgumentParser, path: tuple[str, ...], found: dict[tuple[str, ...], list[str]]) -> None:
    words: list[str] = []
    for action in parser._actions:  # noqa: SLF001 - argparse tells it in no other way
        words += [option for option in action.option_strings if option.startswith("--")]
        for name, inner in action.choices.items() if isinstance(action, argparse._SubParsersAction) else ():  # noqa: SLF001
            words.append(name)
            _collect(inner, (*path, name), found)
    found[path] = sorted(words)


def _bash(program: str, found: dict[tuple[str, ...], list[str]], *, zsh: bool) -> str:
    name = f"_{program.replace('-', '_')}"
    cases = [f'    "{" ".join(path)}") words="{" ".join(words)}" ;;' for path, words in sorted(found.items())]
    lines = [
        f"{name}() {{",
        '  local at="" word words=""',
        '  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do',
        '    case " ' + " ".join(sorted({step for path in found for step in path})) + ' " in',
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


def _fish(program: str, found: dict[tuple[str, ...], list[str]]) -> str:
    lines = []
    for path, words in sorted(found.items()):
        inner = [word for word in words if not word.startswith("-")]
        seen = "; and ".join(f"__fish_seen_subcommand_from {step}" for step in path)
        unseen = f"not __fish_seen_subcommand_from {' '.join(inner)}" if inner else ""
        when = "; and ".join(filter(None, (seen, unseen)))
        condition = f" -n '{when}'" if when else ""
        lines += [f"complete -c {program}{condition} -f -a '{' '.join(inner)}'"] if inner else []
        lines += [f"complete -c {program}{condition} -l {word[2:]}" for word in words if word.startswith("--")]
    return "\n".join(lines)
