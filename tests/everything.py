"""Run all kinds of tests one after the other, and write what came out into `tests/README.md`.

    .venv/bin/python -m tests.everything                               # all kinds; hours
    .venv/bin/python -m tests.everything default jvm --workers 2       # these kinds
    .venv/bin/python -m tests.everything --soak 3 --limit 60 --table /tmp/table.md

A kind that fails or hangs does not keep the next one from running. The output of a kind is in
`build/everything/KIND.log`. Its row is written when it ends, so a run that is stopped loses only the kind it was in.
Rows of kinds that did not run stay. The exit status is 0 only if every kind that ran is green.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "tests" / "README.md"
LOGS = ROOT / "build" / "everything"
KINDS = {
    "default": "-n {workers} --dist loadfile",
    "jvm": "-m jvm tests/jvm -n {jvms} --dist loadfile",
    "floors": "-m floors tests/floors",
    "stores": "-m stores tests/conformance",
    "soak": "-m soak --soak {soak} tests/soak",
    "soak-lock": "-m soak --soak {soak} tests/lock",
    "soak-table": "-m soak --soak {soak} tests/table -n {workers} --dist loadfile",
    "soak-model": "-m soak --soak {soak} tests/model tests/simulate",
    "soak-recipes": "-m soak --soak {soak} tests/recipes",
    "soak-modules": "-m soak --soak {soak} tests/lockprovider tests/fsspec_cas -n {workers} --dist loadfile",
    "soak-stores": "-m soak --soak {soak} tests/conformance tests/faults tests/damage tests/linearize tests/servers"
    " tests/test_everything.py tests/test_reference.py -n {workers} --dist loadfile",
    "soak-jvm": '-m "jvm and soak" --soak {soak} tests/jvm',
}
HEAD = "| kind | commit | day | passed | failed | skipped | minutes | |\n|---|---|---|---|---|---|---|---|\n"
BEGIN, END = "<!-- everything: begin -->\n", "<!-- everything: end -->"
# A line of `pytest -v` for one finished test: with xdist the word stands before the name, without it behind.
RESULT = re.compile(
    r"^\[gw\d+\] \[ *\d+%\] (?P<xdist>PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) "
    r"|(?:^| )(?P<plain>PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)(?: \(.*\))? +\[ *\d+%\]$",
    re.MULTILINE,
)
GRACE_S = 60


@dataclass(frozen=True)
class Row:
    """What one kind came to, as the table shows it."""

    kind: str
    commit: str
    day: str
    counts: Counter[str]
    minutes: float
    remark: str

    @property
    def green(self) -> bool:
        return not self.remark

    def __str__(self) -> str:
        failed, skipped = self.counts["FAILED"] + self.counts["ERROR"], self.counts["SKIPPED"]
        passed = self.counts["PASSED"] + self.counts["XFAIL"] + self.counts["XPASS"]  # a strict XPASS is FAILED
        minutes = f"{self.minutes:.0f}" if self.minutes >= 10 else f"{self.minutes:.1f}"
        cells = (
            self.kind,
            f"`{self.commit}`",
            self.day,
            f"{passed:,}",
            f"{failed}",
            f"{skipped}",
            minutes,
            self.remark,
        )
        return f"| {' | '.join(cells)} |\n"


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.everything", description=__doc__.partition("\n")[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"default: all of {', '.join(KINDS)}")
    parser.add_argument(
        "--without", action="append", default=[], metavar="KIND", help="leave this kind out; repeatable"
    )
    parser.add_argument("--soak", type=float, default=3, metavar="MINUTES", help="of each soak that goes by time")
    parser.add_argument("--limit", type=float, default=120, metavar="MINUTES", help="a kind is stopped after as long")
    parser.add_argument("--workers", type=int, default=4, help="of the default run")
    parser.add_argument("--jvms", type=int, default=1, help="workers of the jvm run: each has a JVM of its own")
    parser.add_argument("--table", type=Path, default=TABLE, metavar="FILE", help="where the table is kept")
    parser.add_argument("--list", action="store_true", help="print each kind's command, and run nothing")
    options = parser.parse_args(given)
    if unknown := {*options.kinds, *options.without} - KINDS.keys():
        parser.error(f"{sorted(unknown)}: the kinds are {', '.join(KINDS)}")
    green = True
    for kind in options.kinds or KINDS:
        if kind in options.without:
            continue
        asked = KINDS[kind].format(soak=options.soak, workers=options.workers, jvms=options.jvms)
        print(f"{kind}: python -m pytest {asked}", flush=True)  # noqa: T201
        if options.list:
            continue
        row = run(kind, asked, options.limit * 60)
        keep(options.table, row)
        green = green and row.green
        log = "" if row.green else f"  see {LOGS / kind}.log\n"
        print(f"  {row}{log}", end="", flush=True)  # noqa: T201
    return 0 if green else 1


def run(kind: str, asked: str, limit_s: float) -> Row:
    """Run one kind in a session of its own, which is interrupted, then killed, once `limit_s` has passed.

    SIGTERM ends the kind in the same way, and then this process.
    """
    LOGS.mkdir(parents=True, exist_ok=True)
    commit, began = head(), time.monotonic()
    arguments = [word.strip('"') for word in re.findall(r'"[^"]+"|\S+', asked)]
    command = [sys.executable, "-m", "pytest", "-v", "--color=no", *arguments]
    with (LOGS / f"{kind}.log").open("w") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        stopped, before = "", signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            stopped = f"stopped after {limit_s / 60:.3g} minutes"
        finally:
            end(process)
            signal.signal(signal.SIGTERM, before)
    counts = count((LOGS / f"{kind}.log").read_text(errors="replace"))
    remark = stopped or ("" if process.returncode == 0 else f"exit status {process.returncode}")
    minutes = (time.monotonic() - began) / 60
    return Row(kind, commit, time.strftime("%Y-%m-%d"), counts, minutes, remark)


def end(process: subprocess.Popen[bytes]) -> None:
    """Stop it and all that it started, if it still runs: as Ctrl-C does, so that it says where it stood."""
    for how, wait_s in ((signal.SIGINT, GRACE_S), (signal.SIGKILL, None)):
        if process.poll() is not None:
            return
        os.killpg(process.pid, how)
        try:
            process.wait(wait_s)
        except subprocess.TimeoutExpired:
            continue


def count(log: str) -> Counter[str]:
    """How many tests ended how, by the lines of `pytest -v`, so that a run that was stopped is counted too."""
    return Counter(found["xdist"] or found["plain"] for found in RESULT.finditer(log))


def head() -> str:
    """The commit that is tested, with `+` if the worktree differs from it beyond the table."""
    commit = _git("rev-parse", "--short", "HEAD")
    changed = [line for line in _git("status", "--porcelain").splitlines() if not line.endswith("tests/README.md")]
    return f"{commit}{'+' if changed else ''}"


def keep(path: Path, row: Row) -> None:
    """Put the row in the place of its kind's last one; a file without a table gets one at its end."""
    text = path.read_text() if path.exists() else ""
    if BEGIN not in text:
        text += BEGIN + HEAD + END + "\n"
    before, _, rest = text.partition(BEGIN)
    table, _, after = rest.partition(END)
    rows = {line.split("|")[1].strip(): line for line in table.removeprefix(HEAD).splitlines(keepends=True)}
    rows[row.kind] = str(row)
    path.write_text(before + BEGIN + HEAD + "".join(rows[kind] for kind in KINDS if kind in rows) + END + after)


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.rstrip()


if __name__ == "__main__":
    sys.exit(main())
