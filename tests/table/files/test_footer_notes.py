"""Who looks keys up opens no file that certainly has none of them, and every one that has."""

from __future__ import annotations

import json
import random
import uuid
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import budgets
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from patience import until
from table.asked_for import Asked, at_rest, counted
from table.tables import SETTINGS

from fsspec_cas import Store
from lockprovider.table import Table, TableSpec
from lockprovider.table.engines import changes
from lockprovider.table.files import place
from lockprovider.table.files.base_file import open_base_file
from lockprovider.table.files.encoding import all_fresh, encode_base_file
from lockprovider.table.files.place import FooterNote, FooterNotes
from lockprovider.table.format import bloom
from lockprovider.table.format.layout import BaseFile
from lockprovider.table.state import checkpoint

SCHEMA = pa.schema([("id", pa.string()), ("value", pa.int64())])
SPEC = TableSpec("t", SCHEMA, record_keys="id")
GROUPS, ROWS = 1000, 2
DRAW = random.Random(7)
IDS = [str(uuid.UUID(int=DRAW.getrandbits(128))) for _ in range(GROUPS * ROWS)]  # in any order: ranges tell nothing
BASE = BaseFile("f-0", "0-0-0", "20240101000000000")
EMPTY = Store.from_url("memory://no-notes")

KEYS = st.text(st.sampled_from("ab0~\x00é\ud7ff\U0001f600"), min_size=1, max_size=3)


def rows(*pairs: tuple[str, int]) -> pa.Table:
    return pa.table({"id": [key for key, _ in pairs], "value": [value for _, value in pairs]}, schema=SCHEMA)


def note_of(keys: list[str]) -> FooterNote:
    table = rows(*((key, 0) for key in keys))
    data = encode_base_file(
        all_fresh(table, BASE), SCHEMA, keys=pa.array(keys), partition="", base_file=BASE, table_name="t"
    ).data
    return FooterNote.of(open_base_file(data).metadata)


def without_last(keys: list[str]) -> FooterNote:
    """A wrong twin: the filter of a file before its last row was appended."""
    return FooterNote(None, bloom.encode_filter(pa.array(sorted(keys)[:-1], pa.string()), room=len(keys)))


def cut(keys: list[str]) -> FooterNote:
    """A wrong twin: a range whose greatest key was cut short."""
    return FooterNote((min(keys), max(keys)[:1]), None)


def lost(files: dict[str, list[str]], wanted: list[str], make: Callable[[list[str]], FooterNote]) -> set[str]:
    """The files that are left out and have a wanted key, by notes as they are and as they come back from the store."""
    made = {path: make(keys) for path, keys in files.items()}
    found: set[str] = set()
    for notes in (made, place.decode_notes(place.encode_notes(made))):
        known = FooterNotes()
        for path, note in notes.items():
            known.add(path, note)
        found |= known.without(EMPTY, [*files, "unknown"], pa.array(wanted, pa.string()))
    assert "unknown" not in found
    return {path for path in found if not {*files[path]}.isdisjoint(wanted)}


@given(st.lists(st.sets(KEYS, min_size=1, max_size=6), min_size=1, max_size=3), st.sets(KEYS, min_size=1, max_size=4))
def test_no_file_with_one_of_the_keys_is_skipped(groups: list[set[str]], wanted: set[str]) -> None:
    files = {f"f{number}": sorted(keys) for number, keys in enumerate(groups)}
    assert lost(files, sorted(wanted), note_of) == set()
    asked = pa.array(sorted(wanted))
    for keys in groups:
        perhaps = note_of(sorted(keys)).may_have_each(asked)
        assert wanted & keys <= {*asked.filter(pa.array(perhaps)).to_pylist()}


@pytest.mark.parametrize("twin", [without_last, cut])
def test_mutant_with_wrong_notes_loses_a_key(twin: Callable[[list[str]], FooterNote]) -> None:
    assert lost({"f": ["a", "ab", "b", "ba"]}, ["ba"], twin) == {"f"}


def test_notes_are_small_and_large_filters_stay_in_the_process() -> None:
    small, large = note_of(["a", "b"]), note_of([f"k{number}" for number in range(600)])
    assert place.decode_notes(place.encode_notes({"s": small, "l": large})) == {
        "s": small,
        "l": replace(large, filter=None),
    }
    known = FooterNotes()
    known.look_up(EMPTY, [])  # else no long filters are kept
    known.add("s", small)
    known.add("l", large)
    assert known.without(EMPTY, ["s", "l"], pa.array(["k5"])) == {"s"}
    others = FooterNotes()
    others.add("l", replace(large, filter=None))
    assert others.without(EMPTY, ["l"], pa.array(["k5a"])) == set()
    others.add("l", large)  # once it was opened
    assert others.without(EMPTY, ["l"], pa.array(["k5a"])) == {"l"}
    others.add("l", replace(large, filter=None))
    assert others.get("l") == large
    assert known.without(EMPTY, ["s", "l"], pa.array(["aa"])) == {"s", "l"}
    assert known.without(EMPTY, ["s", "l"], pa.array([], pa.string())) == {"s", "l"}


def test_oldest_notes_are_dropped_when_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "_MEMORY_BYTES", 5000)
    known, note = FooterNotes(), note_of(["a"])
    for number in range(50):
        known.add(f"f{number}", note)
    assert known.get("f0") is None
    assert known.get("f49") == note


@pytest.mark.parametrize("text", ["", "x", "\x00"])
def test_unreadable_filter_is_ignored(text: str) -> None:
    known = FooterNotes()
    known.add("f", FooterNote(("a", "c"), text))
    assert known.without(EMPTY, ["f"], pa.array(["b"])) == set()


WRONG: list[Any] = [
    {"version": 2, "files": []},
    {"files": []},
    [1],
    {"version": 1, "files": [["f0"]]},
    {"version": 1, "files": [["f0", None, None, [1]]]},
    {"version": 1, "files": [["f0", None, None, {"a": ["int64", 1, "2", False]}]]},
    {"version": 1, "files": [["f0", None, None, {"a": ["int64", 1, 2]}]]},
    {"version": 1, "files": [[["f0"], None, None, {}]]},
]


def damaged(what: Any) -> bytes:
    return zlib.compress(json.dumps(what).encode())


def moved(asked: Asked) -> tuple[int, int]:
    """How many requests read an object, and how many of these a data file."""
    gets = [name for name in asked.names if name.startswith("get")]
    return len(gets), gets.count("get data")


def notes_of(store: Store) -> list[Any]:
    return store.list(place.NOTES)


def test_upsert_of_one_key_opens_one_of_a_thousand_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(changes, "ROWS_PER_FILE", ROWS)
    monkeypatch.setattr(checkpoint, "EVERY", 4)
    table = Table.create(f"memory://key-notes-{uuid.uuid4()}", SPEC, settings=SETTINGS)
    table.append(rows(*((key, 0) for key in IDS)))
    assert len(table.snapshot().slices) == GROUPS
    warm, asked = counted(table, SETTINGS)
    for number in range(8):
        warm.upsert(rows((IDS[3], number)))
    at_rest(table)
    until(lambda: bool(notes_of(table.store)))
    asked.names.clear()
    warm.upsert(rows((IDS[3], 100)))
    warm.upsert(rows((IDS[700], 100)))
    assert asked.names.count("get data") == 2, "of the file groups that have the keys"
    sizes = [entry.size for entry in table.store.list(".hoodie/.locks/")]
    assert sum(sizes) + 200_000 < 5_000_000

    cold, asked = counted(table, SETTINGS)
    cold.upsert(rows((IDS[1500], 100), ("a new one", 100)))
    requests, data = moved(asked)
    assert data <= 1 + 8, "of files since the notes little is known"
    assert requests <= budgets.UPSERT_COLD
    changed = dict.fromkeys((IDS[3], IDS[700], IDS[1500], "a new one"), 100)
    found = table.to_arrow()
    assert (
        dict(zip(*(found[name].to_pylist() for name in SCHEMA.names), strict=True)) == dict.fromkeys(IDS, 0) | changed
    )
    assert found.num_rows == len(IDS) + 1


def test_no_notes_are_written_for_few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "EVERY", 2)
    table = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)
    for number in range(8):
        table.append(rows((str(number), number)))
    assert not notes_of(table.store)


def said(store: Store) -> dict[str, FooterNote]:
    return {path: note for one in place.read_notes(store, ()).values() for path, note in one.items()}


def knowing(*names: str) -> FooterNotes:
    known = FooterNotes(beside_the_lock=True)
    for name in names:
        known.add(name, note_of([name]))
    return known


def names(store: Store) -> list[str]:
    return [entry.path.rpartition("/")[2] for entry in notes_of(store)]


def test_missing_notes_are_written_and_read_once(tmp_path: Path) -> None:
    store, files = Store.from_url(str(tmp_path)), [f"f{number}" for number in range(9)]
    first = knowing(*files)
    assert not first.put(store, "1", files[1:]), "of eight nothing is said"
    assert not first.put(store, "1", [*files, "unknown"])
    assert said(store) == {name: note_of([name]) for name in files}
    assert not first.put(store, "2", files)
    assert names(store) == ["1"]
    counted = Asked(store.backend)
    second, asked = FooterNotes(beside_the_lock=True), Store(counted, store.root)  # type: ignore[arg-type] # by name
    assert second.ranges(asked, files) == {name: note_of([name]).ranges for name in files}
    assert second.ranges(asked, [*files, *"abcdefgh"]).keys() == {*files}, "eight are opened"
    assert counted.names == ["list_page notes", "get notes"]
    assert second.ranges(asked, [*files, *"abcdefghi"]).keys() == {*files}
    assert second.ranges(asked, [*files, *"abcdefghi"]).keys() == {*files}
    assert counted.names == ["list_page notes", "get notes", "list_page notes"], "looked for once more, and nothing new"
    second.put(store, "2", files)
    assert names(store) == ["1"], "the first has said it"


def test_many_note_objects_are_merged_and_the_last_two_stay(tmp_path: Path) -> None:
    store, files = Store.from_url(str(tmp_path)), [f"f{number}" for number in range(9)]
    for number in range(10, 26):
        assert not knowing(*files).put(store, str(number), files)
    store.put_if_absent(f"{place.NOTES}00", b"damaged").unwrap()
    last = knowing(*files, *"abcdefghi")
    assert last.put(store, "26", "abcdefghi")
    last.merge(store, lambda path: path != "f3")
    assert names(store) == ["25", "26", "26m"]
    store.delete_all([f"{place.NOTES}{name}" for name in ("25", "26")])
    assert said(store).keys() == {*files, *"abcdefghi"} - {"f3"}
    last.merge(store, lambda _: True)
    assert names(store) == ["26m"], "one is not made of one"


class Meanwhile(Asked):
    """A backend; right before the next put another does something."""

    others: Callable[[], object] | None = None

    def __getattr__(self, name: str) -> Any:
        if name == "put" and self.others is not None:
            others, self.others = self.others, None
            others()
        return super().__getattr__(name)


def test_one_of_two_concurrent_merges_of_notes_wins(tmp_path: Path) -> None:
    store, files = Store.from_url(str(tmp_path)), [f"f{number}" for number in range(9)]
    for name in "123":
        knowing(*files).put(store, name, files)
    backend = Meanwhile(store.backend)
    mine = Store(backend, store.root)  # type: ignore[arg-type] # by name
    backend.others = lambda: knowing().merge(store, lambda _: True)
    knowing().merge(mine, lambda _: False)
    assert backend.others is None
    assert names(store) == ["2", "3", "3m"]
    assert said(store).keys() == {*files}


@pytest.mark.parametrize("data", [b"", b"x", b"x\x9c\x03\x00\x00\x00\x00\x01", *map(damaged, WRONG)])
def test_unreadable_notes_are_ignored(tmp_path: Path, data: bytes) -> None:
    store, files = Store.from_url(str(tmp_path)), [f"f{number}" for number in range(9)]
    store.put_if_absent(f"{place.NOTES}5", data).unwrap()
    assert said(store) == {}
    assert FooterNotes(beside_the_lock=True).ranges(store, files) == {}
