"""The specification's table of types is the rules, and a new column's type is in it."""

from __future__ import annotations

from pathlib import Path

from table.convert.oracle import SOURCES

from lockprovider.table.convert.columns import COLUMN_TYPES, OTHER, WRITE, family, new_column

SPECIFICATION = Path(__file__).resolve().parents[3] / "lockprovider/table/SPECIFICATION.md"
BEGIN, END = "<!-- types: printed from lockprovider/table/convert/columns.py -->\n", "<!-- /types -->"
NESTED = "struct; list of any kind; map with text keys"


def printed() -> str:
    """The rules as a table: families with the same rules and the same new column share a line."""
    lines: dict[tuple[str, str], list[str]] = {}
    kinds = {family(kind): kind for kind, _ in SOURCES.values()}
    for name, cells in WRITE.cells.items():
        made = new_column(kinds[name])
        column = "" if made is None else "decimal" if name == "decimal" else str(made).replace("[day]", "")
        lines.setdefault((cells, column), []).append(name)
    refused = "-" * len(COLUMN_TYPES)
    lines[refused, ""] = [OTHER]
    head = ["given", *COLUMN_TYPES, "new column"]
    rows = [[", ".join(names), *cells, f"`{column}`" if column else ""] for (cells, column), names in lines.items()]
    rows.append([NESTED, *refused, "the same"])
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *rows)) + "\n"


def test_specification_has_the_rules_that_are_in_force() -> None:
    text = SPECIFICATION.read_text()
    assert text[text.index(BEGIN) + len(BEGIN) : text.index(END)] == printed(), "paste what `printed()` gives"


def test_every_family_of_the_rules_is_tried_by_the_matrix() -> None:
    assert {family(kind) for kind, _ in SOURCES.values()} == {*WRITE.cells, OTHER}
