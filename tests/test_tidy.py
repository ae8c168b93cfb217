"""The house rules that a machine can check: layers, pure modules, light imports, what is shipped."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import hypothesis
import pytest
from more import MORE

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("fsspec_cas", "lockprovider")
TESTS = {str(path.relative_to(ROOT)): path for path in sorted((ROOT / "tests").rglob("*.py"))}
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
}

# What is slept through in tests, besides by `patience`: a time is meant there, not something that happens meanwhile.
SLEEPS = {
    "tests/patience.py": "waits for conditions, for all others",
    "tests/jvm/counting_child.py": "writers rest between commits",
    "tests/jvm/test_lock_provider.py": "clients rest between turns",
    "tests/jvm/test_spark_races.py": "writers rest between turns",
    "tests/soak/leaks.py": "what is closed takes its time to be gone",
    "tests/soak/market_audit.py": "the dead do not tell that they are",
    "tests/soak/test_beside_an_older_commit.py": "a death at any moment",
    "tests/soak/town.py": "holders rest",
    "tests/soak/trades.py": "traders think",
    "tests/recipes/interrupted_child.py": "a call is interrupted at another moment each time",
    "tests/fsspec_cas/backends/test_local.py": "a writer is killed at another moment each time",
    "tests/lockprovider/demo/test_the_whole_demo.py": "waits for a condition, or the end of the demo",
    "tests/servers/base.py": "waits for a server, or its end",
    "tests/servers/install.py": "waits for a file lock",
    "tests/table/engines/spark/cluster.py": "waits for a condition in processes of their own",
    "tests/table/engines/spark/speculation_child.py": "waits for a condition in a process of its own",
    "tests/table/test_bucket_histories.py": "writers think, so that others commit meanwhile",
    "tests/table/test_histories.py": "writers think, so that others commit meanwhile",
    "tests/lockprovider/commands/test_table_commands.py": "so long is the wait that is drawn",
}


# A test is named `test_<subject>_<does what>[_when_<condition>]`; the number of a known bug or rule may stand first.
_TEST = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)
_LONGEST_NAME = 75
_NO_SUBJECT = re.compile(
    r"test_(?:[a-z]\d+_)*"
    r"(?:what|who|whoever|whatever|whether|it|its|one_that|those|nobody|somebody|nor|so|they|we|there|of)_"
)


_ON_FIRST_USE = {"botocore", "aiobotocore", "aiohttp", "fsspec", "difflib", "pandas", "pyspark", "dask"}


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("fsspec_cas", {"s3fs", "pyarrow", "fsspec_cas.probe.probe"}),
        ("lockprovider", {"pyarrow", "fsspec_cas.probe.probe"}),
        ("lockprovider.table", {"polars", "pyarrow.dataset", "fsspec_cas.probe.probe"}),
        ("lockprovider.cli", {"pyarrow", "fsspec_cas.probe.probe"}),
    ],
)
def test_import_is_light(module: str, heavy: set[str]) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {*_ON_FIRST_USE, *heavy} & set(loaded) == set()


@pytest.mark.parametrize("package", [m for m in MODULES if MODULES[m].name == "__init__.py"])
def test_names_in_all_exist(package: str) -> None:
    tree = ast.parse(MODULES[package].read_text())
    listed = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and any(getattr(t, "id", "") == "__all__" for t in node.targets)
    ]
    names = listed[0] if listed else []
    module = __import__(package, fromlist=["*"])
    assert [name for name in names if not hasattr(module, name)] == []


def nodes_of(test: str, word: str) -> list[ast.AST]:
    """All of it, or nothing if the word is nowhere in it: to parse all tests takes seconds."""
    text = TESTS[test].read_text()
    return list(ast.walk(ast.parse(text))) if word in text else []


def test_no_property_has_a_deadline() -> None:
    """A pause of the machine is no failure: the profile in tests/conftest.py rules for all of them."""
    assert hypothesis.settings.default.deadline is None
    assert hypothesis.HealthCheck.too_slow in hypothesis.settings.default.suppress_health_check
    own = [
        f"{name}:{node.lineno}"
        for name in TESTS
        for node in nodes_of(name, "deadline")
        if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "settings"
        if any(keyword.arg == "deadline" for keyword in node.keywords)
    ]
    assert own == []


def test_no_test_sleeps_instead_of_waiting_for_a_condition() -> None:
    sleeping = {
        name
        for name in TESTS
        for node in nodes_of(name, "sleep")
        if isinstance(node, ast.Attribute) and (getattr(node.value, "id", ""), node.attr) == ("time", "sleep")
    }
    assert sleeping == set(SLEEPS), "wait with `patience.until`; or say here why not"


def test_names_of_tests_are_short_and_begin_with_a_subject() -> None:
    names = {name for path in TESTS.values() for name in _TEST.findall(path.read_text())}
    assert {name for name in names if len(name) > _LONGEST_NAME or _NO_SUBJECT.match(name)} == set()
    assert _TEST.findall("    async def test_m1_what_is_there_is_read(self):") == ["test_m1_what_is_there_is_read"]
    assert _NO_SUBJECT.match("test_m1_what_is_there_is_read")


def test_test_files_outside_packages_have_unique_names() -> None:
    """Or the second of them is not collected, when both are."""
    alone = [p.name for p in TESTS.values() if p.name.startswith("test_") and not (p.parent / "__init__.py").exists()]
    assert {name for name, count in Counter(alone).items() if count > 1} == set()


def test_tests_named_in_more_exist() -> None:
    """By file and name; parameters are not looked at."""
    here = Path(__file__).parent
    for file, names in MORE.items():
        text = (here / file).read_text()
        for name in names:
            kind, _, function = name.partition("[")[0].rpartition("::")
            assert f"class {kind}" in text if kind else f"def {function}" in text, (file, name)


def test_no_module_is_named_like_a_drawer_for_everything() -> None:
    assert [m for m in MODULES if m.rpartition(".")[2] in {"utils", "util", "helpers", "common", "misc"}] == []


def test_packages_say_that_they_are_typed_and_carry_their_license() -> None:
    for package in PACKAGES:
        assert (ROOT / package / "py.typed").exists()
        assert "Apache License" in (ROOT / package / "LICENSE").read_text()


def test_linter_and_the_type_checker_find_nothing() -> None:
    for command in (["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"]):
        done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"


def test_only_the_agreed_entries_are_at_the_top() -> None:
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip("not a git checkout")
    tops = {line.split("/")[0] for line in done.stdout.splitlines()}
    agreed = {"pyproject.toml", "README.md", "fsspec_cas", "lockprovider", "tests", "benchmarks", "uv.lock"}
    assert {top for top in tops if not top.startswith(".")} <= agreed


def test_ci_calls_the_readmes_test_command() -> None:
    readme, script = (ROOT / "README.md").read_text(), (ROOT / ".ci" / "run").read_text()
    commands = [line for line in script.splitlines() if "pytest" in line]
    assert len(commands) == 1
    assert commands[0] in readme
