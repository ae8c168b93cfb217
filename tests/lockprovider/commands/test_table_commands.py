"""`lockprovider table`, as a user runs it."""

from __future__ import annotations

import json
import math
import time
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from patience import until
from table.asked_for import at_rest
from table.metadata_written import with_files_alone
from table.overwriting import overwrite, timeline_names
from table.tables import SCHEMA, SETTINGS, SPEC, by_hudi_rs, content, data_files, orphans, rows, upsert
from typed import documented

from fsspec_cas import Store
from lockprovider import HUDI_LOCK_PATH, AuditLog, Lock
from lockprovider.cli import main
from lockprovider.commands.table import Bar, draw_timeline, lanes, with_lock
from lockprovider.lanes import WIDTH
from lockprovider.storage_lock.audit import Tenure, places
from lockprovider.storage_lock.audit_log import set_enabled
from lockprovider.table import Table, TableSpec, WriteConflict
from lockprovider.table.engines import arrow as engine
from lockprovider.table.services.rollback import roll_back
from lockprovider.table.transaction.transaction import Transaction, transact


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A table with four commits, an overwrite and a writer that gave way."""
    table = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)
    upsert(table, (1, "a", 1), (2, "b", 2))
    late = Transaction(table)
    engine.write(late, upserts=rows((1, "a", 100)))
    upsert(table, (1, "a", 2))
    with pytest.raises(WriteConflict):
        late.commit()
    roll_back(late.table, late.begin, own=True)  # as others do
    late.rollback()
    overwrite(table, ["b"], (3, "b", 3))
    transact(table, lambda txn: (txn.extra.update(writer="nightly"), engine.write(txn, upserts=rows((4, "c", 4)))))
    at_rest(table)
    return tmp_path / "t"


ROWS = {(1, "a", 2), (3, "b", 3), (4, "c", 4)}


class Told:
    """One run: its exit code and what it said."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def said(self) -> Any:
        return json.loads(self.out, parse_constant=pytest.fail)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    def once(*words: object) -> Told:
        try:
            code = main(["table", *map(str, words)])
        except SystemExit as stop:
            code = int(stop.code or 0)
        seen = capsys.readouterr()
        assert code in documented("table", *words), seen.err
        return Told(code, seen.out, seen.err)

    return once


def commits(folder: Path) -> list[str]:
    return [commit.instant for commit in Table.open(str(folder)).history()]


def test_table_is_made_from_columns_and_from_a_parquet_file(tmp_path: Path, run: Any) -> None:
    words = ["--column", "id:int64", "--column", "part:string", "--column", "value:int64", "--key", "id"]
    nine = ("--table-version", "9")
    made = run("create", tmp_path / "one", *words, "--partition-by", "part", "--url-encode", "--json", *nine)
    assert (made.code, made.said["name"]) == (0, "one")
    pq.write_table(rows((1, "a", 1)), tmp_path / "like.parquet")
    assert run("create", tmp_path / "two", "--like", tmp_path / "like.parquet", "--key", "id").code == 0
    for name in ("one", "two"):
        table = Table.open(str(tmp_path / name), settings=SETTINGS)
        assert table.schema().names == SCHEMA.names
        assert table.config().url_encode == (name == "one")
        assert table.config().version == (9 if name == "one" else 8)
        upsert(table, (1, "a", 1))
        assert by_hudi_rs(str(tmp_path / name)) == content(table) == {(1, "a", 1)}
    again = run("create", tmp_path / "one", *words)
    assert (again.code, again.out) == (1, "")
    assert "open it" in again.err


@pytest.mark.parametrize(("url", "name"), [(".", "my trips"), ("file://{}/", "my trips"), ("{}/x", "x")])
def test_table_without_a_name_has_that_of_its_folder(
    tmp_path: Path, run: Any, monkeypatch: Any, url: str, name: str
) -> None:
    folder = tmp_path / "my trips"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert run("create", url.format(folder), "--column", "id:int64", "--key", "id", "--json").said["name"] == name


@pytest.mark.parametrize(
    ("column", "sentence"), [("id", "NAME:TYPE"), ("id:integer", "is not a type"), ("other:int64", "id")]
)
def test_invalid_column_is_refused_and_nothing_is_written(tmp_path: Path, run: Any, column: str, sentence: str) -> None:
    told = run("create", tmp_path / "t", "--column", column, "--key", "id")
    assert told.code == 2
    assert sentence in told.err
    assert list(tmp_path.iterdir()) == []


def test_info_describes_the_table(folder: Path, run: Any) -> None:
    said = run("info", folder, "--json").said
    assert said["columns"] == {"id": "int64", "part": "string", "value": "int64"}
    assert (said["files"], said["partitions"], said["commits"]) == (3, 3, 5)
    assert said["bytes"] == sum(
        (folder / f"{s.path}").stat().st_size for s in Table.open(str(folder)).snapshot().slices
    )
    assert "record keys" in run("info", folder).out


def test_log_and_timeline_agree_with_the_folder(folder: Path, run: Any) -> None:
    log = run("log", folder, "--json").said
    assert [one["instant"] for one in log] == commits(folder)[::-1]
    assert log[0]["extra"] == {"writer": "nightly"}
    assert (log[1]["operation"], log[1]["inserted"]) == ("INSERT_OVERWRITE", 1)
    assert len(run("log", folder, "--last", 2, "--json").said) == 2
    told = run("timeline", folder, "--json").said
    names = {name for name in timeline_names(folder) if "_" in name}
    assert {f"{one['begin']}_{one['completed']}.{one['action']}" for one in told} == names
    assert {one["state"] for one in told} == {"completed"}
    pending = Transaction(Table.open(str(folder), settings=SETTINGS))
    begin = pending.start()
    assert run("timeline", folder, "--last", 1, "--json").said[0] == {
        "begin": begin,
        "completed": None,
        "action": "commit",
        "state": "inflight",
    }
    pending.rollback()


def test_files_and_read_show_the_present_and_the_past(folder: Path, run: Any) -> None:
    files = run("files", folder, "--json").said
    assert {one["path"] for one in files} < data_files(folder)
    assert len(run("files", folder, "--partition", "b", "--json").said) == 1
    assert {tuple(row.values()) for row in run("read", folder, "--json").said} == by_hudi_rs(str(folder)) == ROWS
    old = Table.open(str(folder)).history()[1].completion
    then = run("read", folder, "--as-of", old, "--columns", "id,value", "--json").said
    assert {tuple(row.values()) for row in then} == {(1, 1), (2, 2)}
    assert len(run("read", folder, "--limit", 1, "--json").said) == 1
    assert len(run("read", folder, "--limit", 0, "--json").said) == 3
    assert "3 rows" in run("read", folder).out
    assert run("read", folder, "--as-of", "20200101000000000").code == 1
    assert run("read", folder, "--as-of", "yesterday").code == 2
    assert run("read", folder, "--columns", "nothing").code == 2


def test_clean_previews_and_then_removes(folder: Path, run: Any) -> None:
    before = data_files(folder)
    would = run("clean", folder, "--versions", 1, "--dry-run", "--json").said
    assert data_files(folder) == before
    done = run("clean", folder, "--versions", 1, "--json").said
    gone = {f"{one['partition']}/{one['file']}" for one in done}
    assert gone == {f"{one['partition']}/{one['file']}" for one in would} == before - data_files(folder)
    assert len(gone) == 2
    assert run("clean", folder, "--versions", 1).out == "removed 0 files\n"
    assert run("clean", folder, "--versions", 0).code == 2
    assert by_hudi_rs(str(folder)) == ROWS


def test_archive_previews_then_archives_and_names_what_limits_it(folder: Path, run: Any) -> None:
    few = ("--hoodie", "hoodie.clean.commits.retained=1", "--keep-min", 2, "--keep-max", 3)
    upsert(Table.open(str(folder), settings=SETTINGS), (4, "c", 4))
    before = timeline_names(folder)
    told = run("archive", folder, *few, "--dry-run")
    assert told.code == 0
    assert told.out.startswith("would archive 3 instants\ninstant\n")
    assert "no more, because files that 2" in told.out
    assert "lockprovider table clean URL" in told.out
    assert timeline_names(folder) == before
    assert "history" not in before
    assert run("clean", folder, "--commits", 1).code == 0
    told = run("archive", folder, *few, "--json")
    assert told.said["held"] == ""
    assert len(told.said["archived"]) == 5
    assert not set(told.said["archived"]) & timeline_names(folder)
    assert run("info", folder, "--json").said["archived_up_to"] == told.said["archived"][-1][:17]
    assert run("archive", folder, *few).out == "archived 0 instants\n"
    assert run("archive", folder, "--keep-min", 5, "--keep-max", 5).code == 2
    assert by_hudi_rs(str(folder)) == content(Table.open(str(folder))) == ROWS
    assert run("doctor", folder).code == 0


def test_savepoints_are_made_listed_and_deleted(folder: Path, run: Any) -> None:
    old = commits(folder)[1]
    assert run("savepoint", folder, old, "--comment", "before", "--json").said == {"savepoint": old}
    (listed,) = run("savepoint", folder, "--list", "--json").said
    assert (listed["instant"], listed["comment"]) == (old, "before")
    run("clean", folder, "--versions", 1)
    assert run("savepoint", folder, "--delete").code == 2
    assert run("savepoint", folder, "--delete", old).code == 0
    assert run("savepoint", folder, old, "--delete").code == 1
    assert run("savepoint", folder, "20200101000000000").code == 1
    assert by_hudi_rs(str(folder)) == ROWS


def test_restore_asks_for_confirmation(folder: Path, run: Any) -> None:
    old = commits(folder)[1]
    refused = run("restore", folder, old)
    assert refused.code == 2
    assert "--yes" in refused.err
    assert by_hudi_rs(str(folder)) == ROWS
    assert len(run("restore", folder, old, "--yes", "--json").said["taken_back"]) == 3
    assert by_hudi_rs(str(folder)) == {(1, "a", 1), (2, "b", 2)}


def test_restore_names_the_commits_it_undoes_by_completion_time(
    folder: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table.open(str(folder), settings=SETTINGS)
    began_first = Transaction(table)
    engine.write(began_first, upserts=rows((8, "d", 8)))
    target = upsert(table, (9, "e", 9)).instant
    began_first.commit()
    answer = StringIO("no\n")
    monkeypatch.setattr(answer, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", answer)
    refused = run("restore", folder, target)
    assert refused.code == 1
    assert f"after {target} ({began_first.begin})" in refused.err


@pytest.mark.parametrize("when", ["before the answer", "before it has the lock"])
def test_restore_undoes_no_commit_that_was_made_after_the_question(
    folder: Path, run: Any, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    acquire = Lock.acquire

    def acquire_late(lock: Lock, *args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(Lock, "acquire", acquire)
        upsert(Table.open(str(folder), settings=SETTINGS), (9, "e", 9))
        return lock.acquire(*args, **kwargs)

    class Answer(StringIO):
        def isatty(self) -> bool:
            return True

        def readline(self, size: int | None = -1) -> str:
            if when == "before the answer":
                upsert(Table.open(str(folder), settings=SETTINGS), (9, "e", 9))
            else:
                monkeypatch.setattr(Lock, "acquire", acquire_late)
            return super().readline(size or -1)

    monkeypatch.setattr("sys.stdin", Answer("yes\n"))
    refused = run("restore", folder, commits(folder)[1])
    assert (refused.code, "other commits since" in refused.err) == (1, True)
    assert by_hudi_rs(str(folder)) == {*ROWS, (9, "e", 9)}


def test_rollback_spares_live_writers_and_undoes_dead_ones(folder: Path, run: Any) -> None:
    table = Table.open(str(folder), settings=SETTINGS)
    living, dead = Transaction(table), Transaction(table)
    engine.write(living, upserts=rows((8, "a", 8)))
    engine.write(dead, upserts=rows((9, "a", 9)))
    dead.heartbeat.stop()
    assert run("rollback", folder, "--json").said == {"done": [dead.begin]}
    alive = run("rollback", folder, living.begin)
    assert alive.code == 1
    assert "is alive" in alive.err
    assert table.timeline().pending_writes == (living.begin,)
    assert run("rollback", folder, living.begin, "--force").code == 0
    assert run("rollback", folder, commits(folder)[0]).code == 1
    assert run("rollback", folder).out == "rolled back or finished: nothing to do\n"
    living.rollback()
    assert orphans(folder) == set()
    assert by_hudi_rs(str(folder)) == ROWS


def test_doctor_exit_code_tells_whether_anything_is_wrong(folder: Path, run: Any) -> None:
    healthy = run("doctor", folder)
    assert (healthy.code, "all checks passed" in healthy.out) == (0, True)
    (folder / "b" / ".hoodie_partition_metadata").unlink()
    ill = run("doctor", folder, "--json")
    assert ill.code == 1
    assert [(one["rule"], one["state"]) for one in ill.said] == [("R7", "wrong")]
    assert "WRONG" in run("doctor", folder).out


def test_timeline_is_drawn(folder: Path, run: Any) -> None:
    svg = folder.parent / "t.svg"
    Table.open(str(folder), settings=SETTINGS).savepoint()
    assert run("timeline", folder, "--svg", svg, "--json").said["svg"] == str(svg)
    root = ET.fromstring(svg.read_text())  # noqa: S314 - our own
    titles = [title.text or "" for title in root.iter("{http://www.w3.org/2000/svg}title")]
    for instant in commits(folder):
        assert any(title.startswith(instant) for title in titles)
    assert sum("was rolled back by" in title for title in titles) == 1
    assert "savepoint" in titles
    assert "nightly" in [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]


def test_timeline_draws_latest_instants_with_whole_labels(folder: Path, run: Any) -> None:
    svg = folder.parent / "t.svg"
    assert run("timeline", folder, "--svg", svg, "--last", 2, "--json").said["instants"] == 2
    drawn = {title[:17] for title in titles_of(svg)}
    every = {instant.begin for instant in Table.open(str(folder)).timeline().instants}
    assert drawn == {*sorted(every)[-2:]}
    refused = run("timeline", folder, "--last", 0)
    assert (refused.code, "--last: '0' is not a whole number, 1 or more" in refused.err) == (2, True)
    bars = [Bar(0, 10, "write", "one"), Bar(5, 15, "write", "two"), Bar(7, 20, "write", "three")]
    texts = [*ET.fromstring(draw_timeline(bars, "t")).iter("{http://www.w3.org/2000/svg}text")]  # noqa: S314 - our own
    assert [text.text for text in texts].count("writers") == 1
    widest = max(float(text.get("x", "0")) for text in texts if text.get("text-anchor") == "middle")
    assert widest + 45 < WIDTH, "a time has 12 letters of 7 pixels, half of them to the right of its line"


def test_timeline_separates_days_and_shows_the_end_of_a_long_title() -> None:
    day_ms = 86_400_000
    bars = [Bar(0, 5, "write", "a"), Bar(2 * day_ms, 2 * day_ms + 9, "clean", "b", savepoint=True)]
    picture = draw_timeline(bars, f"trips at s3://bucket/{'folder/' * 30}trips")
    texts = [text.text or "" for text in ET.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")]  # noqa: S314
    assert texts[0].startswith("…")
    assert texts[0].endswith("folder/trips")
    assert len(texts[0]) == 80
    assert {"01-01 00:00", "01-02 00:00", "01-03 00:00"} <= {*texts}
    assert "savepoint" in texts


def titles_of(svg: Path) -> list[str]:
    root = ET.fromstring(svg.read_text())  # noqa: S314 - our own
    return [title.text or "" for title in root.iter("{http://www.w3.org/2000/svg}title")]


def test_timeline_draws_lock_waits_from_the_audit_or_says_they_are_unknown(folder: Path, run: Any) -> None:
    svg = folder.parent / "t.svg"
    run("timeline", folder, "--svg", svg)
    assert "waits for the lock are unknown" in svg.read_text()
    store = Store.from_url(str(folder))
    set_enabled(store, places(HUDI_LOCK_PATH).switch, enabled=True, timeout_s=10)
    logs = [AuditLog(store), AuditLog(store)]
    other, table = Lock(store, audit=logs[0]), Table(store, str(folder), settings=SETTINGS, audit=logs[1])
    with other.acquire():
        pass  # before what is drawn
    upsert(table, (1, "a", 76))
    txn = Transaction(table)
    engine.write(txn, upserts=rows((1, "a", 77)))
    with ThreadPoolExecutor(1) as pool:
        with other.acquire():
            done = pool.submit(txn.commit)
            until(lambda: other._client.queue.fifo.taken, "it waits")
            time.sleep(0.3)  # so long is the wait that is to be seen
        commit = done.result()
    assert all(log.flush() for log in logs)
    said = run("timeline", folder, "--svg", svg, "--last", 1, "--json").said
    assert said["holdings"] == sum("held the lock for" in t and "until" not in t for t in titles_of(svg))
    mine = [title for title in titles_of(svg) if title.startswith(commit.instant)]
    assert sum("waited for the lock for" in title and "at most" in title for title in mine) == 1
    assert sum("held the lock for" in title and "until its commit" in title for title in mine) == 1
    assert "the lock" in svg.read_text()


def test_lock_wait_is_drawn_only_as_far_as_the_records_agree() -> None:
    def tenure(start_ms: int, end_ms: int) -> Tenure:
        return Tenure("me", "", start_ms, end_ms, "released", end_ms)

    bar = Bar(100, 200, "write", "")
    assert with_lock(bar, 150, [tenure(180, 210)]) == replace(bar, ready_ms=150, held_ms=180)
    assert with_lock(bar, 190, [tenure(180, 210)]) == replace(bar, ready_ms=180, held_ms=180), "the clocks differ"
    assert with_lock(bar, None, [tenure(50, 210)]) == replace(bar, held_ms=100)
    assert with_lock(bar, 150, [tenure(50, 190), tenure(201, 300)]) == bar, "no holding has the commit in it"
    assert with_lock(bar, 150, [tenure(150, 220), tenure(180, 210)]) == bar, (
        "it cannot be told which one was the writer's"
    )


def test_bars_that_overlap_are_in_different_lanes_and_names_are_escaped() -> None:
    bars = [
        Bar(0, 10, "write", "one"),
        Bar(5, 15, "write", "two"),
        Bar(15, 20, "write", "<three>"),
        Bar(0, 9, "clean", ""),
    ]
    placed, names = lanes(bars)
    assert names == ["writers", "writers", "table services"]
    assert {bar.label: lane for bar, lane in placed} == {"one": 0, "two": 1, "<three>": 0, "": 2}
    assert "&lt;three&gt;" in draw_timeline(bars, "a < b")
    ET.fromstring(draw_timeline([], "nothing"))  # noqa: S314 - our own


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["info", "{}/nothing"], 2, "there is no Hudi table"),
        (["doctor", "{}/nothing"], 2, "there is no Hudi table"),
        (["clean", "{}/t", "--hoodie", "mode=x"], 2, "--hoodie 'mode=x' is not a key"),
        (["clean", "{}/t", "--hoodie", "hoodie.client.heartbeat.interval_in_ms=soon"], 2, "is not a number"),
        (["log", "{}/t", "-o", "nonsense"], 2, "KEY=VALUE"),
    ],
)
def test_impossible_request_prints_one_sentence_with_the_next_step(
    folder: Path, run: Any, words: list[str], code: int, sentence: str
) -> None:
    told = run(*(word.format(folder.parent) for word in words))
    assert (told.code, told.out) == (code, "")
    assert sentence in told.err
    assert told.err.count("\n") == 1


def test_metadata_table_is_retired_by_its_option(folder: Path, run: Any) -> None:
    assert run("retire-metadata", folder).out == "the table has no metadata table\n"
    with (folder / ".hoodie" / "hoodie.properties").open("a") as properties:
        properties.write("hoodie.table.metadata.partitions=files\n")
    (folder / ".hoodie" / "metadata").mkdir()
    (folder / ".hoodie" / "metadata" / "listing").touch()
    assert "retire-metadata" in run("doctor", folder).out
    assert run("retire-metadata", folder, "--dry-run").out == "would remove 1 files of the metadata table\n"
    assert "retire-metadata" in run("doctor", folder).out
    assert run("retire-metadata", folder, "--json").said == {"removed": 1}
    assert run("doctor", folder).code == 0


def test_metadata_table_is_kept_by_its_option(tmp_path: Path, run: Any) -> None:
    folder = with_files_alone("mdt_v9_default", tmp_path / "theirs")
    assert "retire" in run("share", folder).err
    assert "hoodie.metadata.enable" in run("share", folder, "--hoodie", "hoodie.metadata.enable=true").out
    assert run("share", folder).out == "all settings are already set\n"
    assert run("clean", folder).code == 0
    assert run("retire-metadata", folder).code == 0


def test_table_is_shared_by_its_option(folder: Path, run: Any) -> None:
    assert run("share", folder).out == "all settings are already set\n"
    properties = folder / ".hoodie" / "hoodie.properties"
    shared = properties.read_text()
    other = shared.replace("hoodie.write.auto.upgrade=false\n", "")
    properties.write_text(other)
    assert "table share" in run("doctor", folder).out
    change = {"key": "hoodie.write.auto.upgrade", "found": None, "wanted": "false"}
    assert run("share", folder, "--dry-run", "--json").said == {"changed": [change]}
    assert properties.read_text() == other
    assert "hoodie.write.auto.upgrade" in run("share", folder).out
    assert properties.read_text() == shared


def test_rows_that_json_has_no_words_for_are_json_all_the_same(tmp_path: Path, run: Any) -> None:
    """Of pyiceberg and Snowflake's command, such rows are no JSON (apache/iceberg#6590, snowflake-cli#2386)."""
    spec = TableSpec("t", pa.schema([("id", pa.int64()), ("x", pa.float64()), ("raw", pa.binary())]), "id")
    table = Table.create(str(tmp_path / "t"), spec, settings=SETTINGS)
    numbers = [math.nan, math.inf, -math.inf, 0.5, None]
    table.append(pa.table({"id": range(5), "x": numbers, "raw": [b"\xff", b"", None, b"a", b"b"]}))
    told = run("read", tmp_path / "t", "--columns", "x,raw", "--json")
    rows = json.loads(told.out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert {(row["x"], row["raw"]) for row in rows} == {
        ("NaN", "/w=="), ("Infinity", ""), ("-Infinity", None), (0.5, "YQ=="), (None, "Yg==")
    }  # fmt: skip


def test_time_of_a_year_that_python_lacks_is_read_as_text(tmp_path: Path, run: Any) -> None:
    time = pa.array([4 * 10**17, 0]).cast(pa.timestamp("us"))
    times = pa.array([[4 * 10**17], []]).cast(pa.list_(time.type))
    named = pa.MapArray.from_arrays([0, 1, 2], ["late", "early"], time)
    rows = pa.table({"id": [1, 2], "at": time, "times": times, "named": named})
    Table.create(str(tmp_path / "t"), TableSpec("t", rows.schema, "id"), settings=SETTINGS).append(rows)
    shown = run("read", tmp_path / "t", "--json", "--columns", "at,times,named").said
    late, early = "14645-06-30 15:06:40.000000", "1970-01-01 00:00:00"
    assert shown == [
        {"at": late, "times": [late], "named": [["late", late]]},
        {"at": early, "times": [], "named": [["early", early]]},
    ]
