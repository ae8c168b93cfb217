"""Bad input from a shell: an exit code, one sentence that names what is wrong and what to do, and nothing is made."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fsspec_cas.cli
import lockprovider.cli
from lockprovider.commands.arguments import hours, integer, pause, positive, seconds, wait, whole

Case = tuple[str, int, str]  # what is typed, the exit code, words of the answer parted by " | "
PLACES = "status", "break", "watch", "audit", "leader"
NO_TABLE = "there is no Hudi table | lockprovider table create"
ON = [(f"{command} {url}", 2, words) for command in PLACES[:3] for url, words in (
    ("gs:/b", "'gs:/b' | write gs://b"),
    ("C:\\\\x", "path of Windows"),
    ("./here?timeout=1", "'./here?timeout=1' | file:///"),
    ("../x/../y", "'../x/../y' has a step '..' | write '/"),
    ("s3://", "'s3://' must name a bucket"),
)]  # fmt: skip
LOCKS: list[Case] = [
    *ON,
    *((f"{command}", 2, "required | URL") for command in PLACES),
    ("status ftp://h/x", 5, "'ftp' | supported are"),
    ("status ./a --on ../b", 2, "'../b' | jobs/nightly.json"),
    ("status ./a -o x", 2, "-o | KEY=VALUE"),
    ("status ./a -o auto_mkdr=true", 2, "'auto_mkdr' | did you mean auto_mkdir"),
    ("status ./a --storage-options [1]", 2, "not a JSON object"),
    ("status ./a --storage-options {x", 2, "not JSON"),
    ("status ./a --jsn", 2, "unrecognized | --jsn"),
    ("status ./a ./b", 2, "unrecognized | ./b"),
    ("break ./a --if-owner", 2, "--if-owner | expected one"),
    ("break --yes", 2, "required | URL"),
    ("leader ftp://h/x", 5, "'ftp' | supported are"),
    ("run", 125, "write -- between"),
    ("run ./a", 125, "no command | write -- between"),
    ("run ./a true", 125, "write -- between"),
    ("run ./a --", 125, "no command"),
    ("run -- true", 125, "write -- between"),
    ("run '' -- true", 125, "must name a bucket"),
    ("run s3:/x -- true", 125, "'s3:/x' | write s3://x"),
    ("run ./a --timeout -1 -- true", 125, "--timeout | '-1' | 0 or more"),
    ("run ./a --timeout x -- true", 125, "--timeout | 'x'"),
    ("run ./a --validity 0 -- true", 125, "validity | above zero"),
    ("run ./a --validity x -- true", 125, "--validity | 'x'"),
    ("run ./a --renew 100 --validity 50 -- true", 125, "validity=50 | renew=100"),
    ("run ./a --grce 5 -- true", 125, "--grce"),
    ("run ./a --validity 1e308 -- true", 125, "--validity | '1e308'"),
    ("run ./a --grace nan -- true", 125, "--grace | 'nan'"),
    *((f"watch ./a --every {text}", 2, f"--every | '{text}'") for text in ("0", "-1", "nan", "inf")),
    ("watch ./a --for nan", 2, "--for | 'nan'"),
    ("audit ./a --enable --svg x.svg", 2, "--svg | leave them out"),
    ("leader ./a --every 0", 2, "--every | '0'"),
    ("elect", 125, "required | URL"),
    ("elect ./a", 125, "no command"),
    ("elect ./a --timeout x -- true", 125, "write -- between"),
    ("watch ./a --interval x", 2, "unrecognized | --interval"),
    ("completion", 2, "required | shell"),
    ("completion powershell", 2, "'powershell' | 'bash', 'zsh', 'fish'"),
    ("nothing", 2, "'nothing' | choose from"),
    ("", 2, "required | COMMAND"),
    ("demo --url s3:/x", 2, "'s3:/x' | write s3://x"),
    ("demo --url ftp://h/x", 2, "ftp://h/x | no conditional writes"),
    ("demo --url memory://x", 2, "memory of one process | a folder or a bucket"),
    ("demo --out", 2, "--out | expected one"),
]
RECIPES: list[Case] = [
    ("queue", 2, "required | COMMAND"),
    ("queue put", 2, "required | URL"),
    ("queue put ./q.json {", 2, "no queue exists | lockprovider queue create"),
    ("queue status ./q.json", 2, "'status' | 'stat'"),
    ("queue stat ./q.json", 2, "no queue exists | lockprovider queue create"),
    ("queue work ./q.json", 2, "no command | write -- between"),
    ("queue work ./q.json -- true", 2, "no queue exists"),
    ("queue create ftp://h/q.json", 5, "'ftp' | supported are"),
    ("queue create", 2, "required | URL"),
    ("queue create ./q.json --limit x", 2, "unrecognized | --limit"),
    ("wal", 2, "required | COMMAND"),
    ("wal append", 2, "required | URL"),
    ("wal append ./w x", 2, "no log exists | lockprovider wal create"),
    ("wal read ./w", 2, "no log exists | lockprovider wal create"),
    ("wal read ./w --after x", 2, "unrecognized | --after"),
    ("wal nothing ./w", 2, "'nothing' | 'append'"),
    ("wal create ftp://h/w", 5, "'ftp' | supported are"),
    ("state", 2, "required | COMMAND"),
    ("state get", 2, "required | URL"),
    ("state get ./s.json", 1, "no state exists at ./s.json"),
    ("state get ftp://h/s", 5, "'ftp' | supported are"),
    ("state put ./s.json {", 2, "unrecognized"),
    ("state set ./s.json", 2, "'set' | 'put'"),
    ("state edit ./s.json --timeout x", 2, "--timeout | 'x'"),
    ("state run ./s.json", 125, "no command | write -- between"),
    ("state lock ./s.json", 2, "required | --style"),
    ("state lock ./s.json --style tflock --timeout x -- true", 125, "--timeout | 'x'"),
    ("state edit ./s.json --editor 'a \"b'", 2, 'the editor a "b is no command | --editor'),
    ("state edit ./s.json --editor no-such-editor", 2, "no-such-editor | --editor"),
    ("state history ./s.json --last 0", 2, "--last | '0' | 1 or more"),
    ("wal append ./w --first 5", 2, "--first needs --producer"),
    ("wal tail ./w --idle 0", 2, "--idle | '0'"),
    ("queue purge ./q.json --expected x", 2, "--expected | 'x' | whole"),
]
TABLES: list[Case] = [
    ("table", 2, "required | COMMAND"),
    ("table history ./t", 2, "'history' | 'timeline'"),
    ("table info", 2, "required | URL"),
    ("table info ftp://h/t", 5, "'ftp' | supported are"),
    ("table info s3:/t", 2, "'s3:/t' | write s3://t"),
    *(
        (f"table {command} ./t", 2, NO_TABLE)
        for command in ("info", "timeline", "files", "read", "clean", "compact", "cluster", "archive", "doctor", "log")
    ),
    *((f"table {command} ./t", 2, NO_TABLE) for command in ("savepoint", "rollback", "share", "retire-metadata")),
    ("table timeline ./t --last x", 2, "--last | 'x'"),
    ("table read ./t --limit -1", 2, "--limit | '-1' | 0 or more"),
    ("table restore ./t", 2, "required | VERSION"),
    ("table adopt-buckets ./t", 2, "required | N"),
    ("table create ./t", 2, "required | --key"),
    *(
        (f"table create ./t --key id --column 'id:{kind}'", 2, f"'{kind}' is not a type | decimal(10,2)")
        for kind in ("decimal(99,2)", "decimal(0,0)", "decimal(999999999999,2)", "list", "")
    ),
    ("table create ./t --key id --like /dev/null", 2, "--like /dev/null | Parquet"),
    ("table create ./t --key id --like ./no.parquet", 2, "--like no.parquet | Parquet"),
    ("table create ./t --key id --column id:int64 --buckets 0", 2, "--buckets | '0' | 1 or more"),
    ("table cluster ./t --unschedule-after -1", 2, "--unschedule-after | '-1' | 0 or more"),
    ("table clean ./t --hours 1e308", 2, "--hours | '1e308' | hours"),
    ("table rollback ./t --force", 2, "--force needs INSTANT"),
    ("table savepoint ./t 20260101000000000 --list", 2, "--list takes no VERSION"),
    ("table savepoint ./t --list --comment x", 2, "--comment"),
    ("table cluster ./t --run 20260101000000000 --sort-by id", 2, "a plan has its own"),
    ("table info ./t --hoodie 'caf\udce9'", 2, "not UTF-8"),
]
_NEW = "table create ./t --column id:int64 --key id"
_CREATE = "table create ./t --key id"
EMPTY: list[Case] = [
    *((f"{words} ''", 2, "it is empty") for words in (
        *(f"table {command} ./t --{option}" for command in ("compact", "cluster") for option in ("run", "unschedule")),
        *(f"table {command} ./t" for command in ("savepoint", "savepoint --delete", "restore", "rollback")),
        *(f"{_NEW} {option}" for option in ("--name", "--ordering", "--bucket-by")),
        "wal seal ./w --successor", "wal append ./w --producer", "queue put ./q.json --producer", "demo --url",
        "state unlock ./s.json --id", "break ./a --if-owner",
    )),
    *((f"{words} {path}", 2, "is not the path of a file") for path in ("''", ".") for words in (
        "audit ./a --svg", "table timeline ./t --svg", f"{_CREATE} --like", "demo --out",
    )),
]  # fmt: skip


def _numbers(parser: argparse.ArgumentParser, command: str = "") -> Iterator[Case]:
    """Bad numbers for each option of each command."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from _numbers(inner, f"{command} {name}".strip())
        elif action.option_strings and action.type in (seconds, wait, pause, hours, whole, positive, integer):
            code = 125 if command in ("run", "elect", "state run") else 2
            values = (
                "nan",
                "",
                *(() if action.type is wait else ("inf", "1e400")),
                *(() if action.type is integer else ("-1",)),
            )
            for value in (*values, *(("0",) if action.type in (pause, positive) else ())):
                option = action.option_strings[-1]
                yield f"{command} {option}={shlex.quote(value)}", code, f"{option} | {value!r}"


NUMBERS = [*_numbers(lockprovider.cli.parser(list(lockprovider.cli.LATE)))]
WRITES: list[Case] = [
    ("", 2, "required | COMMAND"),
    ("nothing", 2, "'nothing' | 'probe'"),
    *((command, 2, "required | URL") for command in ("probe", "get")),
    ("probe ftp://h/x", 5, "'ftp' | supported are"),
    ("probe s3:/x", 2, "'s3:/x' | write s3://x"),
    ("probe ./x --timeout x", 2, "--timeout | 'x'"),
    ("get ./x", 6, "there is no object"),
    ("get ./x a -o x", 2, "KEY=VALUE"),
    ("get ./x a -o auto_mkdr=1", 2, "'auto_mkdr' | did you mean auto_mkdir"),
    ("get ./x a --storage-options 5", 2, "not a JSON object"),
    ("put ./x a", 2, "--if-absent --if-match is required"),
    ("put ./x a --if-match 1", 2, "'1' | backend:token"),
    ("put ./x a --if-absent --if-match local:1", 2, "not allowed with"),
    ("put ./x a --if-absent", 2, "No such file | 'a'"),
    ("rm ./x", 2, "required | --if-match"),
    ("rm ./x --if-match", 2, "--if-match | expected one"),
    ("rm ./x --if-match x", 2, "'x' | backend:token"),
    ("rm ./x --if-match s3:1", 2, "s3:1 | local"),
    ("completion csh", 2, "'csh' | 'bash', 'zsh', 'fish'"),
]


def refused(main: Callable[[list[str]], int], case: Case, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    typed, code, words = case
    try:
        got = main(shlex.split(typed))
    except SystemExit as ended:  # argparse's own way out
        got = int(ended.code or 0)
    shown = capsys.readouterr()
    assert (got, "Traceback" in shown.err) == (code, False), shown.err
    assert [part for part in words.split(" | ") if part not in shown.err] == []
    assert list(folder.iterdir()) == []


ALL = [*LOCKS, *RECIPES, *TABLES, *EMPTY, *NUMBERS]


@pytest.mark.parametrize("case", ALL, ids=lambda case: case[0] or "nothing typed")
def test_lockprovider_refuses_bad_shell_input(
    case: Case, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(lockprovider.cli.main, case, capsys, tmp_path)


@pytest.mark.parametrize("case", WRITES, ids=lambda case: case[0] or "nothing typed")
def test_fsspec_cas_refuses_bad_shell_input(
    case: Case, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(fsspec_cas.cli.main, case, capsys, tmp_path)


def test_bad_shell_inputs_are_listed_once() -> None:
    for cases in (ALL, WRITES):
        typed = [case[0] for case in cases]
        assert len(typed) == len(set(typed))
