"""Every public class, function and method has an example in its docstring, and each comes to what it shows.

A method's example goes on from its class's. Known are `lockprovider`, the public names of `fsspec_cas` and its
`testing` and, for tables, those of `lockprovider.table` and `pa`; `await` is as in `python -m asyncio`.
"""

from __future__ import annotations

import ast
import asyncio
import doctest
import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

import fsspec_cas
import fsspec_cas.testing
import lockprovider

RECIPES = ("lockprovider.election", "lockprovider.queue", "lockprovider.state", "lockprovider.wal")
_REQUESTS = ("abort", "add", "begin", "delete", "finish", "get", "head", "list_page", "put")
PUBLIC = ("fsspec_cas", "fsspec_cas.testing", "lockprovider", *RECIPES, "lockprovider.table")
OURS = ("fsspec_cas", "lockprovider")

_INSIDE = "for what stands on it, here; no user calls it"
_COMMITS = "for layers that let publishes be decided together, as tables do; the lock's specification shows it"
_READS = ("to_arrow", "to_pandas", "to_polars")
# What has none of its own, and why; a class stands for its methods, too.
NONE = {
    **{f"fsspec_cas.testing.ManualClock.{name}": "see `World`" for name in ("monotonic_s", "new_id", "now_ms")},
    **{f"fsspec_cas.testing.ManualClock.{name}": "see `World`" for name in ("random", "sleep")},
    **{f"fsspec_cas.testing.Faulty.{name}": "a backend's" for name in ("close", "relay", *_REQUESTS)},
    **{f"fsspec_cas.testing.{name}": "see `Gateway`" for name in ("Rule", "Rule.match", "Rule.takes")},
    **{f"lockprovider.storage_lock.audit_log.AuditLog.{name}": _INSIDE for name in ("ended", "renewed", "taken")},
    "lockprovider.storage_lock.audit_log.AuditLog.begin_if_forked": _INSIDE,
    **{f"lockprovider.storage_lock.lease.Lease.{name}": _INSIDE for name in ("abandon", "again", "end")},
    **{f"lockprovider.storage_lock.commit_rules.{name}": _COMMITS for name in ("Decided", "Decider", "Hold", "Void")},
    "lockprovider.storage_lock.commit_rules.Intent": _COMMITS,
    "lockprovider.storage_lock.lock.Lock.commit": _COMMITS,
    **{f"lockprovider.recipes.election.election.Election.{name}": _INSIDE for name in ("ending", "try_once")},
    **{f"lockprovider.recipes.election.term.Term.{name}": _INSIDE for name in ("abandon", "give_up", "renew")},
    "lockprovider.recipes.queue.job.Job.believe_until": _INSIDE,
    "lockprovider.recipes.queue.job.Letter.of": _INSIDE,
    "lockprovider.table.settings.FailedWrites": "see `TableSettings`",
    "lockprovider.table.settings.Mode": "see `TableSettings`",
    "lockprovider.table.settings.TableSettings.check": _INSIDE,
    "lockprovider.table.spec.TableSpec.with_index": _INSIDE,
    **{f"lockprovider.table.table.Table.{name}": "see `Scan`" for name in ("count", *_READS, "to_duckdb")},
    **{f"lockprovider.table.table_transaction.TableTransaction.{name}": "see `Scan`" for name in _READS},
    "lockprovider.table.timeline.versions.AsOf.includes": _INSIDE,
    **{f"lockprovider.table.timeline.view.FileSlice.{name}": _INSIDE for name in ("of_logs", "with_logs")},
    **{f"lockprovider.table.table.Table.{name}": _INSIDE for name in ("data_files", "locked")},
    **{f"lockprovider.table.table.Table.{name}": _INSIDE for name in ("begin_dead_check_if_due", "metadata_of", "now")},
    **{f"lockprovider.table.table.Table.{name}": _INSIDE for name in ("snapshot_of", "report", "report_each")},
}


def offered() -> Iterator[tuple[str, Any]]:
    """What the packages list: classes with their methods, and functions. Errors are in the examples of what raises."""
    listed = [getattr(module, name) for module in map(import_module, PUBLIC) for name in module.__all__]
    ours = [one for one in listed if getattr(one, "__module__", "").startswith(OURS)]
    classes = [one for one in ours if inspect.isclass(one) and not issubclass(one, BaseException)]
    for one in classes:
        yield _name(one), one
        yield from _methods(one, classes)
    for one in ours:
        if inspect.isroutine(one):
            yield _name(one), one


def _name(one: Any) -> str:
    return f"{one.__module__}.{one.__qualname__}"


def _methods(of: type, classes: list[type]) -> Iterator[tuple[str, Any]]:
    """But for those that it has from another that is listed."""
    for name in dir(of):
        if name.startswith("_") or not inspect.isroutine(method := getattr(of, name)):
            continue
        owner = next(one for one in of.__mro__ if name in vars(one))
        if owner.__module__.startswith(OURS) and (owner is of or owner not in classes):
            yield f"{_name(of)}.{name}", method


def has_example(one: Any) -> bool:
    return ">>> " in (inspect.getdoc(one) or "")


THINGS = dict(offered())
SHOWN = [name for name, one in THINGS.items() if has_example(one)]


def is_for_tasks(one: Any) -> bool:
    """Made of a method for threads, whose example shows it; that of the class shows the difference."""
    return inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one) if hasattr(one, "__wrapped__") else False


def test_public_names_have_an_example() -> None:
    missing = {name for name, one in THINGS.items() if not has_example(one) and not is_for_tasks(one)}
    excused = {name for name in missing if name in NONE or name.rpartition(".")[0] in NONE}
    assert sorted(missing - excused) == []
    assert sorted(set(NONE) - missing) == [], "these have one by now, or are gone"


def test_public_objects_have_a_repr() -> None:
    classes = {
        name: one for name, one in THINGS.items() if inspect.isclass(one) and not getattr(one, "_is_protocol", False)
    }
    assert [name for name, one in classes.items() if one.__repr__ is object.__repr__] == []


@pytest.mark.parametrize("name", SHOWN)
def test_example_gives_the_shown_result(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    monkeypatch.setattr(MemoryFileSystem, "pseudo_dirs", [""])
    names = _known(name)
    of_class = THINGS.get(name.rpartition(".")[0])
    texts = [inspect.getdoc(one) for one in (of_class, THINGS[name]) if one is not None]
    examples = [example for text in texts for example in doctest.DocTestParser().get_examples(text or "")]
    loop = asyncio.new_event_loop()
    for example in examples:
        if "await " in example.source or "async " in example.source:
            example.source = f"_awaited({example.source!r})\n"
    try:
        test = doctest.DocTest(examples, names, name, None, 0, None)
        test.globs["_awaited"] = _awaiting(test.globs, loop)
        done = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, clear_globs=False)
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
    assert done.attempted == len(examples) > 0
    assert done.failed == 0


def _known(name: str) -> dict[str, Any]:
    modules = [fsspec_cas, fsspec_cas.testing]
    known: dict[str, Any] = {"lockprovider": lockprovider}
    if name.startswith("lockprovider.table"):
        modules.append(import_module("lockprovider.table"))
        known["pa"] = import_module("pyarrow")
    return known | {one: getattr(module, one) for module in modules for one in module.__all__}


def _awaiting(names: dict[str, Any], loop: asyncio.AbstractEventLoop) -> Any:
    """Run one statement of an example as `python -m asyncio` does."""

    def awaited(source: str) -> None:
        code = compile(source, "<example>", "single", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        running = eval(code, names)  # noqa: S307 - our own examples
        if inspect.iscoroutine(running):
            loop.run_until_complete(running)

    return awaited
