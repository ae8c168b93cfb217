"""Run the benchmarks one after the other, and write their tables into `benchmarks/README.md`.

    python -m benchmarks.page                        # all questions: some 20 minutes on two quiet cores
    python -m benchmarks.page --only lock age        # these questions
    python -m benchmarks.page --list                 # print each command, and run nothing

Each question of the page is one command, which runs in a process of its own. The tables that it prints replace those
between the question's markers; all other text of the page is written by hand. A question that fails or hangs keeps its
old tables, does not keep the next one from running, and makes the exit status 1. Its log is `build/page/NAME.log`.

The commit, the day and the number of cores stand once at the top of the page, if one run measured all questions.
Until then each command that ran has its own commit and day, so the page is true after each question.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "benchmarks" / "README.md"
LOGS = ROOT / "build" / "page"
S3_LIKE = "GET 15, PUT 30, LIST 40 ms"
# In the page's order: the name in the markers, and the module of `benchmarks` with its arguments.
QUESTIONS = {
    "primitives": "primitives --latencies --rounds 3",
    "coordination": "coordination --seconds 3",
    "lock": "lock --only cycles --rounds 3",
    "contention": "lock --only contention --contenders 8 128 --seconds 8",
    "gcs-lock": "contention --only GCS",
    "bulk": "table_bulk --rows 250000 --repeat 2",
    "partitions": "table_partitions --rounds 3",
    "filters": "table_filters",
    "logs": "table_logs --rounds 1",
    "commits": "table --only commits --writers 1 16 --seconds 3 --engines lockprovider.table 'ours, on obstore'"
    f" 'ours, on obstore, unordered' deltalake lance pyiceberg --stores '{S3_LIKE}'",
    "simulated": "simulated_commits --stores S3-like GCS-like --writers 64 --seconds 4",
    "age": "table_age --commits 80 1000 --rounds 3",
    "frames": "frames --rows 100000 --repeat 2",
    "queues": "queues --threads 1 512 --producers 1 512 --seconds 4",
    "processes": "queue_processes --seconds 6",
    "walks": "walks",
}
RUN = "run"  # the name in the markers of the line at the top
LEFT_OUT = re.compile(r"^.*(?:left out|NOT measured).*$", re.MULTILINE)
GRACE_S = 30


class FailedError(Exception):
    """A question whose command failed, hung, or printed no table."""


def main(given: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=QUESTIONS, metavar="NAME", help="run these; default: all")
    parser.add_argument("--list", action="store_true", help="print each question's command, and run nothing")
    parser.add_argument("--limit", type=float, default=10, metavar="MINUTES", help="stop a question after this time")
    parser.add_argument("--page", type=Path, default=PAGE, metavar="FILE", help="the page to write")
    options = parser.parse_args(given)
    if options.list:
        print("\n".join(f"{name}: {command(name)}" for name in QUESTIONS))
        return 0
    if marked(options.page.read_text(encoding="utf-8")) != [RUN, *QUESTIONS]:
        parser.error(f"the markers of {options.page} are not {RUN}, {', '.join(QUESTIONS)}, in this order")
    names = [name for name in QUESTIONS if name in (options.only or QUESTIONS)]
    failed = run(options.page, names, options.limit * 60)
    if failed:
        print(f"failed, with their old tables kept: {', '.join(failed)}")
    return 1 if failed else 0


def run(page: Path, names: list[str], limit_s: float) -> list[str]:
    """Run each question's command, and write its tables into the page at once; return the names of failed questions."""
    commit, day, began_s = head(), time.strftime("%Y-%m-%d"), time.monotonic()
    answers: dict[str, str] = {}
    failed = []
    for number, name in enumerate(names, 1):
        print(f"{number} of {len(names)}: {name}: {command(name)}", flush=True)
        question_s = time.monotonic()
        try:
            answers[name] = answer(name, limit_s)
        except FailedError as error:
            failed.append(name)
            print(f"  FAILED: {error}; see {LOGS / name}.log", flush=True)
            continue
        keep(page, {name: answers[name]}, f", commit {commit}, {day}")
        now_s = time.monotonic()
        print(f"  {now_s - question_s:.0f} s; {(now_s - began_s) / 60:.1f} minutes in all", flush=True)
    if answers.keys() == QUESTIONS.keys():
        keep(page, answers, "")
        text = page.read_text(encoding="utf-8")
        line = f"Commit {commit}, {day}, {os.cpu_count()} cores."
        page.write_text(written(text, RUN, line, ""), encoding="utf-8")
    return failed


def answer(name: str, limit_s: float) -> str:
    """Run a question's command in a session of its own; return the tables that it printed.

    SIGTERM ends the command as well, and then this process.

    Raises:
        FailedError: the command failed, was stopped after `limit_s`, or printed no table.
    """
    LOGS.mkdir(parents=True, exist_ok=True)
    module, *arguments = shlex.split(QUESTIONS[name])
    words = [sys.executable, "-m", f"benchmarks.{module}", *arguments]
    log = LOGS / f"{name}.log"
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with log.open("w") as errors, (LOGS / f"{name}.md").open("w+") as output:
        process = subprocess.Popen(words, cwd=ROOT, stdout=output, stderr=errors, start_new_session=True)
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise FailedError(f"stopped after {limit_s / 60:.3g} minutes") from None
        finally:
            end(process)
            signal.signal(signal.SIGTERM, before)
        output.seek(0)
        tables = tables_of(output.read())
    for line in LEFT_OUT.findall(log.read_text(errors="replace")):
        print(f"  {line}", flush=True)
    if status:
        raise FailedError(f"exit status {status}")
    if not tables:
        raise FailedError("no table was printed")
    return tables


def end(process: subprocess.Popen[bytes]) -> None:
    """Interrupt the command if it still runs, so that it stops its servers; then kill what is left of its session."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def command(name: str) -> str:
    """Return a question's command, as the page shows it."""
    return f"python -m benchmarks.{QUESTIONS[name]}"


def tables_of(output: str) -> str:
    """Return the markdown tables in a command's output, with a blank line between neighbours."""
    return "\n\n".join(table.strip() for table in re.findall(r"(?:^\|.*\|$\n?)+", output, re.MULTILINE))


def marked(page: str) -> list[str]:
    """Return the names in the page's markers, in their order; an end without its begin counts as a name, too."""
    begins = re.findall(r"^<!-- results (.+): begin -->$", page, re.MULTILINE)
    ends = re.findall(r"^<!-- results (.+): end -->$", page, re.MULTILINE)
    return begins if begins == ends else begins + ends


def written(page: str, name: str, command: str, tables: str) -> str:
    """Return the page with this line of the command and these tables between the markers of `name`.

    Raises:
        ValueError: the page does not have these markers.
    """
    begin, end = (f"<!-- results {name}: {word} -->\n" for word in ("begin", "end"))
    before, begun, rest = page.partition(begin)
    _, ended, after = rest.partition(end)
    if not begun or not ended:
        raise ValueError(f"the page has no markers of {name!r}: add {begin!r} and {end!r} where its table belongs")
    body = "\n\n".join(part for part in (command, tables) if part)
    return f"{before}{begin}\n{body}\n\n{end}{after}"


def keep(page: Path, answers: dict[str, str], stamp: str) -> None:
    """Write the answers into the page; `stamp` follows each command."""
    text = page.read_text(encoding="utf-8")
    for name, tables in answers.items():
        text = written(text, name, f"`{command(name)}`{stamp}", tables)
    page.write_text(text, encoding="utf-8")


def head() -> str:
    """Return the commit that is measured, with `+` if the worktree differs from it beyond the page."""
    commit = _git("rev-parse", "--short", "HEAD")
    changed = [line for line in _git("status", "--porcelain").splitlines() if not line.endswith("benchmarks/README.md")]
    return f"{commit}{'+' if changed else ''}"


def _git(*arguments: str) -> str:
    words = ["git", *arguments]
    return subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout.rstrip()


if __name__ == "__main__":
    sys.exit(main())
