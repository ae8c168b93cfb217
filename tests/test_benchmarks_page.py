"""`python -m benchmarks.page`: the page has the markers of its questions, and one question's tables are replaced."""

from __future__ import annotations

import sys

import pytest

sys.path.insert(0, __file__.rpartition("/tests/")[0])  # as `python -m benchmarks.page` has it

from benchmarks import page

SMALL = """# Results

<!-- results lock: begin -->

`old`

| old |
|---|

<!-- results lock: end -->

By hand.

<!-- results lock-2: begin -->
<!-- results lock-2: end -->
"""
TABLE = "| new |\n|---|\n| 1 |"
COMMIT = "abc1234"  # an sdist has no git


@pytest.fixture(autouse=True)
def commit(monkeypatch) -> None:
    monkeypatch.setattr(page, "head", lambda: COMMIT)


def test_markers_of_the_page_equal_the_list_of_questions() -> None:
    assert page.marked(page.PAGE.read_text(encoding="utf-8")) == [page.RUN, *page.QUESTIONS]


def test_module_of_each_question_exists() -> None:
    modules = {command.split()[0] for command in page.QUESTIONS.values()}
    assert {module for module in modules if not (page.ROOT / "benchmarks" / f"{module}.py").exists()} == set()


def test_written_replaces_only_what_is_between_the_markers() -> None:
    text = page.written(SMALL, "lock", "`new`", TABLE)
    assert text == SMALL.replace("`old`\n\n| old |\n|---|", f"`new`\n\n{TABLE}")
    assert page.written(text, "lock", "`new`", TABLE) == text
    assert page.written(SMALL, "lock-2", "`new`", "").endswith("begin -->\n\n`new`\n\n<!-- results lock-2: end -->\n")


@pytest.mark.parametrize("name", ["loc", "locks"])
def test_written_raises_for_an_unknown_marker(name: str) -> None:
    with pytest.raises(ValueError, match=f"no markers of '{name}'"):
        page.written(SMALL, name, "`new`", TABLE)


def test_written_raises_if_the_end_marker_is_missing() -> None:
    with pytest.raises(ValueError, match="no markers of 'lock'"):
        page.written(SMALL.replace("<!-- results lock: end -->", ""), "lock", "`new`", TABLE)


def test_tables_are_taken_from_the_output_without_its_other_lines() -> None:
    assert page.tables_of(f"said | so\n{TABLE}\n\n**title**\n{TABLE}\nend\n") == f"{TABLE}\n\n{TABLE}"
    assert page.tables_of("no table\n") == ""


def test_failed_question_keeps_its_table_and_the_rest_is_written(tmp_path, monkeypatch, capsys) -> None:
    file = tmp_path / "README.md"
    file.write_text("<!-- results run: begin -->\n<!-- results run: end -->\n" + SMALL)
    monkeypatch.setattr(page, "QUESTIONS", {"lock": "lock", "lock-2": "lock --only cycles"})
    monkeypatch.setattr(page, "answer", _answer_or_fail)
    assert page.main(["--page", str(file)]) == 1
    text = file.read_text()
    assert "`old`\n\n| old |" in text
    assert f"`python -m benchmarks.lock --only cycles`, commit {COMMIT}, " in text
    assert capsys.readouterr().out.endswith("failed, with their old tables kept: lock\n")


def test_run_of_all_questions_writes_commit_and_day_once(tmp_path, monkeypatch) -> None:
    file = tmp_path / "README.md"
    file.write_text("<!-- results run: begin -->\n<!-- results run: end -->\n" + SMALL)
    monkeypatch.setattr(page, "QUESTIONS", {"lock": "lock", "lock-2": "lock --only cycles"})
    monkeypatch.setattr(page, "answer", lambda name, limit_s: TABLE)
    assert page.main(["--page", str(file)]) == 0
    text = file.read_text()
    assert text.count(COMMIT) == 1
    assert f"\n`python -m benchmarks.lock`\n\n{TABLE}\n" in text


def _answer_or_fail(name: str, limit_s: float) -> str:
    if name == "lock":
        raise page.FailedError("exit status 1")
    return TABLE
