"""The command line as a user types it, up to where processes would start."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import tempfile

import pytest

from fsspec_cas import CasError, InvalidUrl, Store, Unavailable
from lockprovider import cli
from lockprovider.demo.proof import Comparison
from lockprovider.demo.run import Death, Report, Step, Track, check_target
from lockprovider.table import TableExists

SAME = Comparison(2, 2, (), ())
OTHER = Comparison(2, 2, (("a", 3),), (("a", 4),))


def report(proof: Comparison | None = SAME, deaths: tuple[Death, ...] = ()) -> Report:
    return Report("t", (Track("ingest", Step(2, 2, "done")),), deaths, proof, "no such file", "run.svg", 12.0)


@pytest.mark.parametrize("words", [["-o", "key"], ["--serve", "--url", "x"], ["--keep"], ["--url", "nosuch://b/t"]])
def test_demo_that_cannot_start_prints_one_sentence(words, capsys):
    assert cli.main(["demo", *words]) == 2
    assert capsys.readouterr().err.startswith("lockprovider: ")


def test_demo_raises_its_error_with_debug():
    with pytest.raises(CasError):
        cli.main(["demo", "--url", "nosuch://b/t", "--debug"])


def test_refused_demo_leaves_no_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert cli.main(["demo", "--url", "memory://t"]) == 2
    assert list(tmp_path.iterdir()) == []


def test_run_is_good_only_if_all_finished_and_the_proof_holds():
    assert report().ok
    assert not report(OTHER).ok
    assert not report(None).ok
    assert not report(deaths=(Death("protect", -9, 0, ()),)).ok


def test_report_names_the_first_difference_and_the_dead():
    words = report(OTHER, (Death("protect", 1, 0, ("boom",)),)).text()
    assert "PROOF FAILED" in words
    assert "    expected ('a', 3)\n    found    ('a', 4)" in words
    assert "protect failed, status 1. Its last words:" in words
    assert "boom" in words


def test_unreadable_table_is_a_failed_proof():
    assert "PROOF FAILED: hudi-rs cannot read the table: no such file" in report(None).text()


@pytest.mark.parametrize("url", ["nosuch://bucket/table", "s3://", "s3:///t", "memory://t"])
def test_bad_url_is_refused_in_one_sentence(url):
    with pytest.raises(CasError) as refusal:
        check_target(url, {})
    assert "\n" not in str(refusal.value)
    assert url.split("/")[0] in str(refusal.value)


def test_nonempty_folder_is_refused_and_left_alone(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "precious.txt").write_text("x")
    (tmp_path / "table" / ".hoodie").mkdir(parents=True)
    (tmp_path / "table" / ".hoodie" / "hoodie.properties").write_text("")
    with pytest.raises(InvalidUrl, match="is not empty"):
        check_target(str(tmp_path / "other"), {})
    with pytest.raises(TableExists, match="there is a table"):
        check_target(f"file://{tmp_path}/table", {})
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["precious.txt"]


def test_new_or_empty_folder_is_fine_and_not_made_by_looking(tmp_path):
    check_target(str(tmp_path), {})
    check_target(str(tmp_path / "new" / "table"), {})
    assert list(tmp_path.iterdir()) == []


def test_command_line_loads_nothing_heavy():
    code = "import lockprovider.cli, sys; lockprovider.cli.parser(); print(*sorted(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"pyspark", "pandas", "pyarrow", "botocore", "aiohttp", "rich", "hudi"}
    assert heavy & set(run.stdout.split()) == set()


def test_missing_extra_is_named_with_what_to_install():
    code = "import sys; sys.modules['hudi'] = None; from lockprovider import cli; sys.exit(cli.main(['demo']))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert run.returncode == 2
    assert "hudi is not installed: install the extra 'demo' of fsspec-cas" in run.stderr


SERVED = """
from lockprovider.commands.demo import _end_with
from lockprovider.demo.run import s3_server
with s3_server() as (url, options):
    _end_with(url, options, keep=True)
"""


def test_server_that_is_kept_can_be_asked_until_ctrl_c_and_is_gone_then():
    with subprocess.Popen([sys.executable, "-c", SERVED], stderr=subprocess.PIPE, text=True) as keeps:
        try:
            text, _, command = keeps.stderr.readline().partition(" in another terminal: ")
            assert text == "lockprovider: the server runs until Ctrl-C;"
            words = shlex.split(command)
            assert words[:3] == ["lockprovider", "table", "log"]
            options = json.loads(words[words.index("--storage-options") + 1])
            store = Store.from_url("s3://demo/flights", options)
            store.put_if_absent("there", b"yes").unwrap()
            keeps.send_signal(signal.SIGINT)
            assert keeps.wait(60) == 0
        finally:
            keeps.kill()
    with pytest.raises(Unavailable):
        store.read("there", timeout=5)
