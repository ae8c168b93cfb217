"""How much code does one operation walk through? Functions, files, lines of these files.

    python -m benchmarks.walks            # seconds; --store URL (default memory://), --json

Two walks, each warm: a lock that is acquired, publishes once and is released; `Table.upsert` of ten rows that is the
fourth commit of its table. Calls are counted in all threads, from the call until what it has begun in the background is
done. Only code of this repository counts, each function once. A reader may need only part of a file, so one column
counts the lines of the called functions, docstrings included.

Not to be fooled: a store in memory or in a local folder runs some work in the caller's thread that a remote store runs
in others. Compare figures of one kind of store.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import CodeType, FrameType
from uuid import uuid4

import pyarrow as pa

import fsspec_cas
import lockprovider
from lockprovider.table import Table, TableSpec

_PACKAGES = tuple(str(Path(package.__file__ or "").parent) for package in (fsspec_cas, lockprovider))
_IDLE_S = 1.5  # a thread that has nothing to do any more ends within that time


@dataclass(frozen=True)
class Walk:
    """What one operation walked through.

    Attributes:
        functions: called at least once.
        files: in which these stand.
        lines: of these files, all of them.
        own_lines: lines of these functions, from the decorators to the end, docstrings included.
        switches: calls that came from another file than the call before, in the same thread.
        threads: that made a call.
    """

    name: str
    functions: int
    files: int
    lines: int
    own_lines: int
    switches: int
    threads: int


class Tracer:
    """Notes the functions of our packages that are called in any thread while `walk` runs something."""

    def __init__(self) -> None:
        self._on = False
        self._here = threading.local()
        self._called: set[CodeType] = set()
        self._threads: set[int] = set()
        self._switches = 0
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def walk(self, name: str, run: Callable[[], object]) -> Walk:
        """Run `run`, wait for what it has begun on other threads, and return what was called meanwhile."""
        self._called, self._threads, self._switches, self._on = set(), set(), 0, True
        run()
        time.sleep(_IDLE_S)
        self._on = False
        begins: dict[str, set[int]] = defaultdict(set)
        for code in self._called:
            begins[code.co_filename].add(code.co_firstlineno)
        texts = {file: Path(file).read_text(encoding="utf-8") for file in begins}
        lines = sum(len(text.splitlines()) for text in texts.values())
        own = sum(own_lines(text, begins[file]) for file, text in texts.items())
        return Walk(name, len(self._called), len(texts), lines, own, self._switches, len(self._threads))

    def _note(self, frame: FrameType, event: str, arg: object) -> None:
        """Record a call of the library's code: its function, its thread, and whether the file changed."""
        del arg
        if not self._on or event != "call" or not frame.f_code.co_filename.startswith(_PACKAGES):
            return
        code = frame.f_code
        self._called.add(code)
        self._threads.add(threading.get_ident())
        self._switches += getattr(self._here, "file", code.co_filename) != code.co_filename
        self._here.file = code.co_filename


def own_lines(text: str, begins: set[int]) -> int:
    """Return how many lines of this source belong to functions that begin at these lines, decorators included."""
    lines: set[int] = set()  # a function within another is not counted twice
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first in begins:
                lines |= {*range(first, (node.end_lineno or first) + 1)}
    return len(lines)


def publish(url: str) -> Callable[[], object]:
    """Return a function that acquires, publishes and releases; it has run three times already."""
    lock = lockprovider.lock(f"{url}/lock-{uuid4()}")

    def run() -> None:
        with lock.acquire() as lease:
            lease.publish(f"state/{uuid4()}", b"seven")

    for _ in range(3):
        run()
    return run


def upsert(url: str) -> Callable[[], object]:
    """Upsert ten rows, after three commits."""
    rows = pa.table({"id": list(range(10)), "value": ["a"] * 10})
    table = Table.create(f"{url}/table-{uuid4()}", TableSpec("walk", rows.schema, record_keys="id", buckets=4))
    for _ in range(3):
        table.upsert(rows)
    return lambda: table.upsert(rows)


WALKS = {"acquire, publish, release": publish, "`Table.upsert` of 10 rows": upsert}


def main() -> None:
    """Trace each walk, and print a Markdown table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", default="memory://walks")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    tracer = Tracer()
    walks = [tracer.walk(name, begin(given.store)) for name, begin in WALKS.items()]
    if given.json:
        print(json.dumps([asdict(walk) for walk in walks]))
        return
    columns = ("walk", "functions", "files", "lines of these files", "lines of these functions")
    print(f"| {' | '.join((*columns, 'switches between files', 'threads'))} |")
    print("|---|---|---|---|---|---|---|")
    for walk in walks:
        print(
            "|",
            " | ".join(f"{value:,}" if isinstance(value, int) else str(value) for value in asdict(walk).values()),
            "|",
        )


if __name__ == "__main__":
    main()
