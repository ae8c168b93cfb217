"""Print random functions as a stranger sees them: file, name, signature, docstring.

    .venv/bin/python -m tests.cards 7          # 20 functions of more than six lines, chosen by the seed 7
    .venv/bin/python -m tests.cards 7 --code   # their code

The question is whether a docstring can be understood alone. A first reader, who sees only the cards, writes down for
each function what a call returns (and what None, empty or False mean), what it changes (store, files, threads, locks,
state, arguments) and when it raises. A second reader compares that with the code, and counts:

- understood: all that was written is true; no result and no effect is missing;
- partly: true, but a result or an effect is missing;
- wrong: a caller who believes it errs.

How a function works inside, rare input, and errors that no caller handles may be missing. At least 18 of 20 should be
understood, and none wrongly. Rewrite the docstrings of the others.
"""

from __future__ import annotations

import argparse
import ast
import random
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("fsspec_cas", "lockprovider")
LINES = 6

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(node: ast.AST, outer: str = "") -> Iterator[tuple[str, Function]]:
    for child in ast.iter_child_nodes(node):
        name = f"{outer}.{getattr(child, 'name', '')}".strip(".")
        if isinstance(child, Function) and _lines(child) > LINES and not child.name.startswith("__"):
            yield name, child
        if isinstance(child, (*Function.__args__, ast.ClassDef)):
            yield from functions(child, name)


def _lines(function: Function) -> int:
    body = function.body[ast.get_docstring(function) is not None :]
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def card(function: Function) -> str:
    """Its decorators, signature and docstring, without the code."""
    stub = ast.parse(ast.unparse(function)).body[0]
    assert isinstance(stub, Function)
    stub.body = [stub.body[0] if ast.get_docstring(stub) is not None else ast.Expr(ast.Constant(...))]
    return ast.unparse(stub)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.cards", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("seed", type=int)
    parser.add_argument("--count", type=int, default=20, help="how many functions (default: 20)")
    parser.add_argument("--code", action="store_true", help="print their code")
    arguments = parser.parse_args()
    files = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    found = [(path, *entry) for path in files for entry in functions(ast.parse(path.read_text()))]
    random.Random(arguments.seed).shuffle(found)
    for number, (path, name, function) in enumerate(found[: arguments.count], 1):
        text = ast.get_source_segment(path.read_text(), function) if arguments.code else card(function)
        sys.stdout.write(f"## {number}. `{name}` in `{path.relative_to(ROOT)}`\n```python\n{text}\n```\n\n")


if __name__ == "__main__":
    main()
