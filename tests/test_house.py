"""The rules of the house: which folder may import which, what is pure, how large a folder and a file may be.

Each package has floors: what stands on one imports only what stands below it, or in its own folder. An import under
`TYPE_CHECKING` counts like any other: a wish to see a type above is the circle, whether it runs or not.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("fsspec_cas", "lockprovider")
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
}

# From the ground up; what stands in one line does not know its neighbours.
FLOORS: dict[str, list[tuple[str, ...]]] = {
    "fsspec_cas": [
        ("machine",),
        ("errors", "outcome"),  # nouns that are tied by annotations
        ("answer", "arguments", "command"),
        ("settle", "urls"),
        ("bridge",),
        ("backends",),
        ("sender", "testing"),
        ("exclusive",),
        ("async_store",),
        ("store",),
        ("cached", "filesystem", "probe"),
        ("cli",),
        ("__main__",),
    ],
    "lockprovider": [
        ("bounded", "words"),
        ("errors", "lanes"),
        ("hudi_keys",),
        ("settings",),
        ("storage_lock",),
        ("recipes",),
        ("election", "queue", "state", "wal"),
        ("table",),
        ("demo",),
        ("commands",),
        ("cli",),
        ("__main__",),
    ],
    "lockprovider.storage_lock": [
        ("record",),
        ("audit", "polling"),
        ("audit_log", "machine"),
        ("metrics",),
        ("commit_rules", "driver", "otel"),
        ("acquire", "commit_writes"),
        ("committer",),
        ("client", "lease"),
        ("status",),
        ("lock",),
        ("async_lock", "provider"),
    ],
    "lockprovider.recipes": [
        ("errors",),
        ("base", "broker_rules", "values"),
        ("broker",),
        ("election", "queue", "state", "wal"),
    ],
    "lockprovider.table": [
        ("errors", "extras"),
        ("format",),
        ("convert", "timeline"),
        ("files", "settings"),
        ("state", "spec"),
        ("services", "doctor"),
        ("transaction", "read"),
        ("rewrite",),
        ("engines",),
        ("table_transaction",),
        ("table",),
    ],
}

# Nouns of which each is an annotation of the other.
TIED = ({"errors", "outcome"}, {"client", "lease"}, {"acquire", "client"})

# Decisions and codecs, by folder or module: no store, no clock, no thread. Which foreign libraries they may have.
PURE: dict[str, set[str]] = {
    "fsspec_cas.errors": set(),
    "fsspec_cas.outcome": set(),
    "fsspec_cas.answer": set(),
    "fsspec_cas.settle": set(),
    "fsspec_cas.backends.reply": set(),
    "fsspec_cas.backends.meaning": set(),
    **{f"fsspec_cas.backends.{name}.answers": set() for name in ("s3", "gcs", "azure")},
    "lockprovider.bounded": {"fsspec_cas"},
    "lockprovider.errors": set(),
    "lockprovider.hudi_keys": {"fsspec_cas"},
    "lockprovider.settings": {"fsspec_cas"},
    "lockprovider.storage_lock.record": {"fsspec_cas"},
    "lockprovider.storage_lock.machine": {"fsspec_cas"},
    "lockprovider.storage_lock.polling": {"fsspec_cas"},
    "lockprovider.storage_lock.commit_rules": {"fsspec_cas", "urllib"},
    "lockprovider.words": set(),
    "lockprovider.lanes": set(),
    "lockprovider.storage_lock.audit": set(),
    "lockprovider.recipes.errors": set(),
    "lockprovider.recipes.values": {"fsspec_cas"},
    "lockprovider.recipes.election.decide": {"fsspec_cas"},
    "lockprovider.recipes.broker_rules": set(),
    "lockprovider.recipes.queue.contents": {"fsspec_cas"},
    "lockprovider.recipes.queue.operations": set(),
    "lockprovider.recipes.state.changes": {"fsspec_cas"},
    "lockprovider.recipes.state.document": {"fsspec_cas"},
    "lockprovider.recipes.wal.contents": {"fsspec_cas"},
    "lockprovider.recipes.wal.appending": set(),
    "lockprovider.table.errors": set(),
    "lockprovider.table.format": {"numpy", "pyarrow", "fastavro", "fsspec_cas", "io"},
    "lockprovider.table.convert": {"numpy", "pyarrow", "fsspec_cas"},
    "lockprovider.table.timeline": {"pyarrow", "fsspec_cas"},
}
IMPURE = {"time", "random", "uuid", "os", "io", "socket", "threading", "asyncio", "subprocess", "pathlib", "logging"}

# Services know each other through `plans` alone, but for these.
SERVICES = {
    "archive": {"archive_files", "rollback"},
    "clean": {"archive_files"},
    "rollback": {"archive_files", "clean", "metadata_table"},
}


@cache
def parsed(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text())


@cache
def imported(module: str, *, at_run_time_only: bool = False) -> frozenset[str]:
    """The absolute names of what a module imports."""
    tree = parsed(module)
    nodes = list(ast.walk(tree))
    if at_run_time_only:
        skipped = {id(node) for block in nodes if _types_only(block) for node in ast.walk(block)}
        nodes = [node for node in nodes if id(node) not in skipped]
    found = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module or ""}
    return frozenset(found)


def _types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def modules_imported(module: str, *, at_run_time_only: bool = False) -> set[str]:
    """Those of our own; of `from folder import module` the module, not the folder."""
    own = {name for name in imported(module, at_run_time_only=at_run_time_only) if name in MODULES}
    return own - {parent for parent in own if any(name.startswith(f"{parent}.") for name in own)} - {module}


def room(package: str, module: str) -> str | None:
    """The folder or file of a package that a module is, or is in."""
    return module.removeprefix(f"{package}.").partition(".")[0] if module.startswith(f"{package}.") else None


def floors(package: str) -> dict[str, int]:
    return {name: number for number, names in enumerate(FLOORS[package]) for name in names}


@pytest.mark.parametrize("package", FLOORS)
def test_every_folder_has_a_floor(package: str) -> None:
    rooms = {found for module in MODULES if (found := room(package, module)) is not None}
    assert rooms == set(floors(package))


@pytest.mark.parametrize("package", FLOORS)
def test_imports_point_down(package: str) -> None:
    level, wrong = floors(package), []
    for module in MODULES:
        mine = room(package, module)
        for name in modules_imported(module) if mine is not None else ():
            theirs = room(package, name)
            tied = any({mine, theirs} <= nouns for nouns in TIED)
            if theirs is not None and theirs != mine and not tied and level[theirs] >= level[mine or ""]:
                wrong.append(f"{module} imports {name}")
    assert wrong == []


def test_lower_packages_do_not_import_higher_ones() -> None:
    below = {"fsspec_cas": "lockprovider"}
    wrong = [
        (m, n) for m in MODULES for n in imported(m) for a, b in below.items() if m.startswith(a) and n.startswith(b)
    ]
    assert wrong == []


# What one package knows of the inside of another below it, and why; all else goes by the other's public names.
INNER = {
    "fsspec_cas.command": "commands of both packages end, complain and take storage options alike",
    "fsspec_cas.backends": "large files of a table are read through the filesystem that its store is opened on",
    "fsspec_cas.bridge.threads": "tasks call what blocks in the same way, and threads wait for results alike",
    "fsspec_cas.arguments": "numbers that a caller gave are refused in the same words",
    "fsspec_cas.outcome": "a write of a state that is settled later is told as one of the store's",
    "lockprovider.hudi_keys": "options of Spark reads are told from those of a writer by the same table of names",
    "lockprovider.bounded": "what is stored beside a table's lock is decoded within the same bounds",
    "lockprovider.recipes.errors": "a writer whose epoch is over is refused by tables as by the recipes",
    "lockprovider.recipes.values": "a fence is given to tables as to the recipes",
    "lockprovider.words": "texts that UTF-8 lacks are refused in a table's metadata as in the recipes",
    "lockprovider.wal": "Spark reads a log as a stream",
    "fsspec_cas.machine": "threads of all packages wait for each other by the same signal",
    "fsspec_cas.sender": "a transaction that lost waits as a request does",
}


def test_packages_import_only_public_names_of_each_other() -> None:
    above = {"fsspec_cas": "lockprovider", "lockprovider": "lockprovider.table"}
    found = {
        name
        for below, other in above.items()
        for module in MODULES
        if module == other or module.startswith(f"{other}.")
        for name in modules_imported(module)
        if name.startswith(f"{below}.") and not name.startswith(f"{other}")
    }
    assert found == set(INNER)


def test_import_cycles_have_at_most_three_modules() -> None:
    graph = {module: modules_imported(module) for module in MODULES if not _is_package(module)}
    assert [circle for circle in circles(graph) if len(circle) > 3] == []


def _is_package(module: str) -> bool:
    return MODULES[module].name == "__init__.py"


def circles(graph: Mapping[str, Iterable[str]]) -> Iterator[list[str]]:
    """The strongly connected parts that have more than one member (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []

    def visit(node: str) -> Iterator[list[str]]:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in graph:
                continue
            if other not in index:
                yield from visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            part = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(part) > 1:
                yield part

    for node in graph:
        if node not in index:
            yield from visit(node)


def test_import_cycle_is_found() -> None:
    assert list(circles({"a": ["b"], "b": ["c"], "c": ["d"], "d": ["a", "e"], "e": []})) == [["a", "b", "c", "d"]]


def pure_modules() -> dict[str, set[str]]:
    return {m: allowed for m in MODULES for pure, allowed in PURE.items() if m == pure or m.startswith(f"{pure}.")}


@pytest.mark.parametrize("module", pure_modules())
def test_pure_modules_touch_nothing(module: str) -> None:
    pure, found = pure_modules(), imported(module, at_run_time_only=True)
    package = module.partition(".")[0]
    roots = {name.partition(".")[0] for name in found} - {"__future__"}
    assert roots - set(sys.stdlib_module_names) - {package} <= pure[module]
    assert roots & IMPURE <= pure[module]
    own = {name for name in modules_imported(module, at_run_time_only=True) if name.partition(".")[0] == package}
    assert own <= {*pure}


# Decisions that stand in the file of their I/O, and touch none of it: what they name is pure, or named here too.
PURE_PARTS = {
    "fsspec_cas.cached": {"SharedRead", "ReadResult", "Failed", "ReadState"},
    "lockprovider.recipes.base": {"Backlog"},
    "lockprovider.recipes.values": {"FailedNumbers"},
    "lockprovider.storage_lock.status": {"LockStatus", "Change", "state_at", "changes_between", "_change", "who"},
    "lockprovider.table.transaction.decision": {"Basis", "Proposal"},
    "lockprovider.table.transaction.lifecycle": {"State", "Step", "after", "_refusal"},
    "lockprovider.table.transaction.transaction": {"CommitResult"},
}


def impure_names(module: str, part: str) -> set[str]:
    """The names that this part of a module uses at run time, and that are neither pure nor such a part."""
    tree = parsed(module)
    (node,) = (one for one in tree.body if getattr(one, "name", None) == part)
    sources = {
        bound.asname or bound.name.partition(".")[0]: one.module if isinstance(one, ast.ImportFrom) else bound.name
        for one in tree.body
        if isinstance(one, ast.Import | ast.ImportFrom)
        for bound in one.names
    }
    defined = {one.name for one in tree.body if isinstance(one, ast.ClassDef | ast.FunctionDef)}
    annotations = {id(inner) for one in ast.walk(node) for hint in hints(one) for inner in ast.walk(hint)}
    used = {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and id(one) not in annotations}
    pure, own = pure_modules(), module.partition(".")[0]
    wrong = (used & defined) - PURE_PARTS[module]
    for name in used & {*sources}:
        source = str(sources[name])
        root = source.partition(".")[0]
        wrong |= {name} if root in IMPURE or (root == own and source not in pure) else set()
    return wrong


def hints(node: ast.AST) -> Iterator[ast.expr]:
    """The annotations of a node, which nothing evaluates."""
    for field in ("annotation", "returns"):
        if isinstance(hint := getattr(node, field, None), ast.expr):
            yield hint


@pytest.mark.parametrize(("module", "part"), [(m, part) for m, parts in PURE_PARTS.items() for part in sorted(parts)])
def test_pure_parts_touch_nothing(module: str, part: str) -> None:
    assert impure_names(module, part) == set()


def test_impure_part_is_found() -> None:
    assert impure_names("lockprovider.recipes.base", "Batcher")


DIALECTS = {f"fsspec_cas.backends.{name}.answers" for name in ("s3", "gcs", "azure")}
OPENED_BY = DIALECTS | {"fsspec_cas.backends.reply"}
MEANT_BY = {"fsspec_cas.backends.meaning"}
# What a caller acts on -> who may build it among the backends that speak HTTP.
BUILT_BY = {
    **dict.fromkeys(("Applied", "ConditionFailed", "Missing", "Unchanged", "UploadGone"), MEANT_BY),
    "Page": DIALECTS,
    "ObjectState": DIALECTS | {"fsspec_cas.backends.reply"},  # of its headers
    "Upload": DIALECTS | {"fsspec_cas.backends.azure.client"},  # nothing is asked to begin one there
    "StoreStatement": OPENED_BY,  # `reply` has the base of the dialects
}


def test_no_backend_believes_an_answer_by_its_status() -> None:
    """Only a dialect opens a reply, and what it has not heard cannot become an answer that a caller acts on."""
    vendors = ("http", "reply", "meaning", "wire", "s3", "gcs", "azure", "obstore")
    spoken = {m for m in MODULES if m.startswith(tuple(f"fsspec_cas.backends.{name}" for name in vendors))}
    wrong = []
    for module in spoken:
        for node in ast.walk(parsed(module)):
            if isinstance(node, ast.Attribute) and node.attr in ("_status", "_headers", "_body"):
                of_its_own = isinstance(node.value, ast.Name) and node.value.id == "self"
                wrong += [f"{module} opens a reply"] if module not in OPENED_BY and not of_its_own else []
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BUILT_BY:
                wrong += [f"{module} builds {node.func.id}"] if module not in BUILT_BY[node.func.id] else []
    assert wrong == []


def test_threads_are_workers() -> None:
    """A `Worker`: an exception that is sent to the creator of a plain thread can reach the new one. A demo has none."""
    wrong = [
        module
        for module in MODULES
        if module != "fsspec_cas.machine" and not module.startswith("lockprovider.demo")
        for node in ast.walk(parsed(module))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "Thread"
    ]
    assert not wrong


def test_engines_do_not_import_each_other() -> None:
    shared = {"changes", "java", "scan", "writer"}
    base = "lockprovider.table.engines"
    wrong = []
    for module in MODULES:
        mine = room(base, module)
        for name in modules_imported(module) if mine is not None else ():
            theirs = room(base, name)
            if theirs not in {None, mine, *shared} and mine != "scan":  # which hands itself to Dask's
                wrong.append(f"{module} imports {name}")
    assert wrong == []


def test_services_import_each_other_only_through_plans_except_some_pairs() -> None:
    base = "lockprovider.table.services"
    for module in MODULES:
        mine = room(base, module)
        known = {room(base, name) for name in modules_imported(module)} - {None, mine, "plans"} if mine else set()
        assert known <= SERVICES.get(mine or "", set()), f"{module} knows {known}"


def test_only_the_package_imports_its_public_table_class() -> None:
    above = ("lockprovider.commands", "lockprovider.demo", "lockprovider.table.table")
    faces = ("lockprovider.table.table", "lockprovider.table.Table")
    users = {m for m in MODULES if imported(m) & {*faces} and not m.startswith(above)}
    assert users == {"lockprovider.table"}


def test_dynamic_imports_of_own_modules_exist_in_three_files_only() -> None:
    found = {m for m in MODULES for node in ast.walk(parsed(m)) if _imports_own(node)}
    # `lockprovider` imports its recipes' modules for type checkers too, where the floors see them.
    assert found <= {"lockprovider", "lockprovider.cli", "fsspec_cas.backends"}


def _imports_own(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or "import_module" not in ast.dump(node.func):
        return False
    first = ast.unparse(node.args[0])
    return not first.strip("'\"").startswith(
        ("pyarrow", "pandas", "dask", "duckdb", "pyspark", "polars", "s3fs", "gcsfs", "adlfs")
    )
