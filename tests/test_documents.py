"""The documents say what is so: links lead somewhere, commands, files and imports are there, figures are the code's."""

from __future__ import annotations

import argparse
import ast
import re
import shlex
from functools import cache
from importlib import import_module
from itertools import dropwhile
from pathlib import Path

import budgets
import pytest
from jvm.spark import SHARED

from fsspec_cas import cli as cas_cli
from lockprovider import HUDI_LOCK_PATH, Holder, LockRecord, LockSettings, Log, Pending
from lockprovider import cli as lock_cli
from lockprovider.settings import GRACE_MS, HAND_OVER_S
from lockprovider.storage_lock import commit_rules, driver, polling, record
from lockprovider.table import KeepActive, KeepCommits, KeepHours, KeepVersions

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (ROOT, ROOT / ".github", *(ROOT / name for name in ("fsspec_cas", "lockprovider", "tests", "benchmarks")))
DOCUMENTS = [*ROOT.glob("*.md"), *(path for folder in FOLDERS[1:] for path in sorted(folder.rglob("*.md")))]
NAMES = [str(path.relative_to(ROOT)) for path in DOCUMENTS]

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_FILE = re.compile(r"`([\w./-]+\.(?:py|md|toml|txt))`")
_BENCHMARK = re.compile(r"python -m (benchmarks\.\w+)")
# Keys: in an archive's footer, in a table's properties, in a plan.
PERSISTED = {"lockprovider.digest", "fsspec_cas.visibility", "fsspec_cas.owned"}
_DOTTED = re.compile(r"\b(?:fsspec_cas|lockprovider)(?:\.\w+)+")


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def prose_of(name: str) -> str:
    return re.sub(r"`[^`\n]*`", "", _BLOCK.sub("", text_of(name)))


def blocks(name: str, *languages: str) -> list[str]:
    return [body for language, body in _BLOCK.findall(text_of(name)) if language in languages]


def anchors(text: str) -> set[str]:
    """As GitHub makes them of headings."""
    titles = re.findall(r"^#+ (.+)$", _BLOCK.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


def broken(name: str, text: str) -> list[str]:
    """The links of a document that lead nowhere."""
    wrong = []
    for link in _LINK.findall(text):
        path, _, anchor = link.partition("#")
        if "://" in path:
            continue
        target = (ROOT / name).parent / path if path else ROOT / name
        if not target.exists() or (anchor and anchor not in anchors(target.read_text(encoding="utf-8"))):
            wrong.append(link)
    return wrong


# As many lines as a reader takes in at once. The changelog merges by union, which would bring back what was cut.
SHORT = {"README.md": 200, ".github/CHANGELOG.md": 80, ".github/CONTRIBUTING.md": 40}


@pytest.mark.parametrize("name", SHORT)
def test_document_is_short(name: str) -> None:
    assert text_of(name).count("\n") <= SHORT[name]


# An afternoon to read them: all pages but specifications, decisions and forms, without the bars of tables and the
# markers of printed results, which no reader sees.
PAGES = [name for name in NAMES if not re.search("SPECIFICATION|decisions/|ISSUE_TEMPLATE|SECURITY", name)]
MOST_WORDS = 21_000
_UNREAD = re.compile(r"\||<!-- results .* -->")


def test_pages_are_within_the_budget_of_words() -> None:
    assert sum(len(_UNREAD.sub("", text_of(name)).split()) for name in PAGES) <= MOST_WORDS


def test_documents_exist() -> None:
    there = {
        "README.md",
        ".github/CONTRIBUTING.md",
        *(f"{p}/README.md" for p in ("fsspec_cas", "lockprovider", "tests")),
    }
    assert there | {"lockprovider/table/README.md", "benchmarks/README.md", ".github/decisions/README.md"} <= {*NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_every_link_has_a_target(name: str) -> None:
    assert broken(name, prose_of(name)) == []


def test_broken_link_is_found() -> None:
    assert broken("README.md", "[a](tests/README.md#kinds) [b](nowhere.md) [c](#no-such)") == ["nowhere.md", "#no-such"]


@pytest.mark.parametrize("name", NAMES)
def test_every_named_file_exists(name: str) -> None:
    text = _BLOCK.sub("", text_of(name))
    places = [(ROOT / name).parent, *FOLDERS, *(path for folder in FOLDERS[1:] for path in folder.rglob("*/"))]
    named = {found for found in _FILE.findall(text) if not found.startswith("manifest")}
    assert {found for found in named if not any((place / found).exists() for place in places)} == set()


@pytest.mark.parametrize("name", NAMES)
def test_every_named_module_exists(name: str) -> None:
    named = {found for found in _DOTTED.findall(text_of(name)) if not found.endswith((".py", ".svg", ".md"))}
    assert {found for found in named - PERSISTED if not _is_module(found)} == set()


def test_every_module_named_in_code_exists() -> None:
    folders = ("fsspec_cas", "lockprovider", "tests", "benchmarks")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    wrong = [
        (file.name, name)
        for file in files
        for name in {*_DOTTED.findall(file.read_text(encoding="utf-8"))} - PERSISTED
        if not name.endswith(".py") and not _is_module(re.sub(r"(\.[A-Z]\w*)\..*", r"\1", name))
    ]
    assert wrong == []


def _is_module(dotted: str) -> bool:
    """It, or one in which its last word stands."""
    path = ROOT / dotted.replace(".", "/")
    if path.is_dir() or path.with_suffix(".py").exists():
        return True
    files = [path.parent.with_suffix(".py"), path.parent / "__init__.py"]
    return any(file.exists() and path.name in file.read_text(encoding="utf-8") for file in files)


# -- commands ----------------------------------------------------------------------------------------------------------


def commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(found[0].choices) if found else {}


@cache
def parsers() -> dict[str, argparse.ArgumentParser]:
    return {
        "fsspec-cas": cas_cli._parser(),
        "lockprovider": lock_cli.parser(["table", "state", "queue", "wal", "elect", "leader"]),
    }


def unknown(line: str) -> list[str]:
    """The words of a shell line that a command of ours does not know."""
    words = shlex.split(line.partition(" #")[0].replace("$(", " ").replace(")", " "))
    at = next((i for i, word in enumerate(words) if Path(word).name in parsers()), None)
    if at is None:
        return []
    parser = parsers()[Path(words[at]).name]
    general = {option for action in parser._actions for option in action.option_strings} | {"-vv"}
    rest = list(dropwhile(general.__contains__, words[at + 1 :]))
    while rest and commands(parser):
        if rest[0] not in commands(parser):
            return rest[:1]
        parser = commands(parser)[rest.pop(0)]
    ours = rest[: rest.index("--")] if "--" in rest else rest
    options = {option for action in parser._actions for option in action.option_strings}
    return [word for word in ours if word.startswith("-") and word not in options]


@pytest.mark.parametrize("name", NAMES)
def test_every_shown_command_exists(name: str) -> None:
    assert [
        (line, wrong) for body in blocks(name, "sh") for line in body.splitlines() if (wrong := unknown(line))
    ] == []


@pytest.mark.parametrize("line", ["lockprovider brake s3://b/t", "v=$(fsspec-cas get --if-match v s3://b/k)"])
def test_nonexistent_command_is_found(line: str) -> None:
    assert unknown(line) != []


@pytest.mark.parametrize("name", NAMES)
def test_every_named_test_and_benchmark_exists(name: str) -> None:
    words = {word for body in blocks(name, "sh") for word in body.split()}
    assert {word for word in words if word.startswith("tests/") and not (ROOT / word).exists()} == set()
    benchmarks = {*_BENCHMARK.findall(text_of(name))}
    assert {one for one in benchmarks if not (ROOT / f"{one.replace('.', '/')}.py").exists()} == set()


# -- examples ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_example_is_python_with_existing_imports(name: str) -> None:
    for body in blocks(name, "python"):
        tree = compile(body, name, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        for node in ast.walk(tree):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            if module.partition(".")[0] not in {"fsspec_cas", "lockprovider"}:
                continue
            for alias in node.names if isinstance(node, ast.ImportFrom) else ():
                assert _is_there(module, alias.name), f"{name}: from {module} import {alias.name}"


def _is_there(module: str, name: str) -> bool:
    """By the file for engines, whose libraries take long to be imported."""
    path = ROOT / module.replace(".", "/")
    if "engines" not in module:
        return hasattr(import_module(module), name)
    files = [path / f"{name}.py", path / name / "__init__.py"]
    text = path.with_suffix(".py").read_text(encoding="utf-8") if path.with_suffix(".py").exists() else ""
    return any(file.exists() for file in files) or f"def {name}(" in text or f"class {name}" in text


# -- the specification -------------------------------------------------------------------------------------------------


def test_every_field_of_the_record_is_specified() -> None:
    pending = Pending("a", "s", "d", b"1", unshared=True)
    log = Log("n").plus(pending)
    whole = LockRecord(
        "o", 1, expired=True, epoch=1, nonce="n", pending=pending, holder=Holder("h", 1, 1), waiters=("p",)
    )
    data = LockRecord.encode(whole)
    more = LockRecord(
        "o",
        1,
        expired=True,
        turn_ms=1,
        freed_ms=1,
        foreign_seen_ms=1,
        yield_until_ms=1,
        released_pending=True,
        pending_until_ms=1,
        combiner_ms=1,
        log=log,
    )
    earlier = LockRecord("o", 1, expired=False, pending=pending, pending_before=(pending,))
    said = {key for one in (data, more.encode(), earlier.encode()) for key in re.findall(rb'"(\w+)":', one)}
    specified = text_of("lockprovider/SPECIFICATION.md")
    assert {key.decode() for key in said if f"`{key.decode()}`" not in specified} == set()


def test_documented_constants_of_the_lock_equal_the_code() -> None:
    text, settings = " ".join(text_of("lockprovider/SPECIFICATION.md").split()), LockSettings()
    said = [
        f"{settings.validity:g} s, at least 10 x `renew`",
        f"every {settings.renew:g} s;",
        f"{settings.timeout:g} s, {settings.poll:g} s",
        f"`now > validUntil + {GRACE_MS} ms`",
        f"`validUntil = now + min(validity, {HAND_OVER_S:g} s)`",
        f"After {HAND_OVER_S / 2:g} s the rest is left",
        f"returns {HAND_OVER_S / 2 + GRACE_MS / 1000:g} s after its take",
        f"At most {commit_rules.MOST_PENDING} are pending at once",
        f"After {polling.LONGEST_S:g} s a free lock belongs to any client",
        f"{polling._YIELD_MS / 1000:g} s: every {polling._YIELD_EVERY_MS // 1000} s",
        f"every {polling._YIELD_UNSEEN_MS // 1000} s of a group commit",
        f"kept for {record._PAST_MS // 1000} s after that time",
        f"{record.MOST_ENTRIES} entries, {record._PACKED} bytes deflated, {record.LARGEST_ENTRY} bytes an entry",
        f"more than {record.LARGEST_ENTRY} bytes, or of more than {record._PACKED // 2} deflated",
        f"bytes in the record | {driver._ENCLOSED} deflated",
        HUDI_LOCK_PATH,
    ]
    assert [sentence for sentence in said if sentence not in text] == []


def test_documented_defaults_of_the_services_equal_the_code() -> None:
    text = text_of("lockprovider/table/README.md") + text_of("lockprovider/table/SPECIFICATION.md")
    keep = KeepActive()
    said = [
        f"nothing is done up to {keep.most} commits, and {keep.least} stay",
        f"By commits ({KeepCommits().commits}) or hours ({KeepHours().hours:g})",
        f"By versions ({KeepVersions().versions})",
    ]
    assert [sentence for sentence in said if sentence not in text] == []


def test_documented_costs_of_lock_and_tables_equal_the_counted_ones() -> None:
    lock, table = text_of("lockprovider/README.md"), text_of("lockprovider/table/README.md")
    assert (
        f"| acquire and release, uncontended | {len(budgets.LOCK_WARM)}; {len(budgets.LOCK_COLD)} the first time |"
        in lock
    )
    assert f"| publish under a lease | {len(budgets.PUBLISH)} if the bytes fit" in lock
    assert f"else {len(budgets.PUBLISH_LARGE)} (stage, read the path, commit, apply, delete the staged copy)" in lock
    assert (
        len(budgets.PUBLISH) - len(budgets.PUBLISH_NEW)
        == 1
        == len(budgets.PUBLISH_LARGE) - len(budgets.PUBLISH_LARGE_NEW)
    )
    assert f"| small append by pyarrow, S3 | {len(budgets.APPEND)}," in table
    assert f"| {16 + budgets.NON_BLOCKING}: 16 log files and {budgets.NON_BLOCKING} |" in table
    assert f"| open a table | {len(budgets.OPEN)} by a" in table


def test_documented_settings_for_jvm_writers_equal_those_of_the_tests() -> None:
    text = text_of("lockprovider/table/JVM.md")
    assert [f"{key}={value}" for key, value in SHARED.items() if f"`{key}={value}`" not in text] == []
