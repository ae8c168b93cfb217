"""Tables of many columns: the work grows as their number does, and not as its square."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from table.own_process import told_by

ROOT = Path(__file__).resolve().parents[2]
LISTS = {"names", "column_names", "schema_arrow"}  # each is made anew, whenever it is asked for


def loops(tree: ast.AST) -> list[tuple[str, int]]:
    """Where a loop asks whether a name is in such a list of `pyarrow`."""
    found = set()
    for loop in ast.walk(tree):
        if isinstance(loop, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
            first, *rest = loop.generators  # what the first one runs over is made once
            inside: list[ast.AST] = [getattr(loop, "elt", loop), *first.ifs, *rest]
        elif isinstance(loop, (ast.For, ast.While)):
            inside = [*loop.body]
        else:
            continue
        for node in (node for part in inside for node in ast.walk(part) if isinstance(node, ast.Compare)):
            for sort, asked in zip(node.ops, node.comparators, strict=True):
                if isinstance(sort, (ast.In, ast.NotIn)) and isinstance(asked, ast.Attribute) and asked.attr in LISTS:
                    found.add((ast.unparse(asked), node.lineno))
    return sorted(found)


def test_no_loop_searches_a_list_that_it_rebuilds() -> None:
    sets = {"timeline.names", "now.names", "listed.names", "self.timeline.names"}  # of instants: kept, and hashed
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}; use format.schema.present or absent"
        for path in sorted((ROOT / "lockprovider" / "table").rglob("*.py"))
        for text, line in loops(ast.parse(path.read_text()))
        if text not in sets
    ]
    assert found == []


@pytest.mark.parametrize("text", ["[n for n in a if n in b.names]", "for n in a:\n  n not in f.schema_arrow.names"])
def test_loop_that_rebuilds_its_list_is_found(text: str) -> None:
    assert loops(ast.parse(text))


def test_calls_of_each_verb_grow_as_the_columns_do(tmp_path: Path) -> None:
    few, many = (seen := told_by("table.wide_child", str(tmp_path), timeout_s=600))["few"], seen["many"]
    assert few.keys() == {"append", "upsert", "read", "filter", "delete"}
    assert {verb: many[verb] / few[verb] for verb in few if many[verb] > 9 * few[verb]} == {}
