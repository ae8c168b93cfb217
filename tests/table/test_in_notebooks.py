"""What notebooks show of a table, its history and a snapshot: `_repr_html_`."""

from __future__ import annotations

import uuid
from xml.etree import ElementTree as ET

import pyarrow as pa
import pytest

from lockprovider.table import Table, TableSpec

ROWS = pa.table({"id": [1, 2, 3], "city": ["ulm", "<b>", "bonn"]})


@pytest.fixture
def table():
    spec = TableSpec("trips", ROWS.schema, "id", "city")
    return Table.create(f"memory:///notebooks/{uuid.uuid4().hex}", spec)


def cells(html):
    """The texts, line by line; HTML that is no XML is none that we write."""
    root = ET.fromstring(html)  # noqa: S314 - our own
    return [[cell.text for cell in line] for line in root.iter("tr")]


def test_table_shows_what_it_is_and_its_newest_write(table):
    table.append(ROWS)
    shown = dict(cells(table._repr_html_()))
    assert (shown["name"], shown["record keys"], shown["partitioned by"]) == ("trips", "id", "city")
    assert (shown["completed writes on the timeline"], shown["newest"]) == ("2", table.version)
    assert table.url in table._repr_html_()


def test_table_that_is_gone_says_so(table):
    for entry in table.store.list(""):
        table.store.delete(entry.path)
    (name, why), *rest = cells(Table(table.store, table.url)._repr_html_())
    assert (name, rest) == ("cannot be read", [])
    assert "there is no Hudi table" in why


def test_history_is_a_list_whose_newest_write_is_shown_first(table):
    for _ in range(2):
        table.upsert(ROWS)
    history = table.history()
    assert isinstance(history, list)
    head, newest, before, _ = cells(history._repr_html_())  # the last is the creation
    assert head[:3] == ["completion", "operation", "instant"]
    assert newest[:3] == [history[-1].completion, "UPSERT", history[-1].instant]
    assert before[3:] == ["3", "3", "3", "0", "0"]
    many = type(history)(history * 40)
    assert "120 completed writes, the newest 50 shown" in many._repr_html_()
    assert len(cells(many._repr_html_())) == 51


def test_snapshot_shows_how_much_there_is(table):
    assert dict(cells(table.snapshot()._repr_html_()))["file groups"] == "0"
    table.append(ROWS)
    shown = dict(cells(table.snapshot()._repr_html_()))
    assert (shown["partitions"], shown["file groups"], shown["base files"], shown["log files"]) == ("3", "3", "3", "0")
    assert shown["as of"] == table.version
