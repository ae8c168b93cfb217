"""Progress bars on the terminal, one a process; on standard error, so that standard output is the report's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockprovider.demo.tally import Tally


class Display:
    """`with Display(roles) as display:` a bar for each; on a pipe or a file, one line whenever a step begins."""

    def __init__(self, roles: Sequence[str]) -> None:
        self._roles = roles
        self._console = Console(stderr=True)
        self._live = self._console.is_terminal
        self._progress = Progress(
            TextColumn("[bold]{task.description:<9}"),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TextColumn("{task.fields[commits]:>3} commits {task.fields[conflicts]:>3} conflicts"),
            TextColumn("{task.fields[waits]:>3} lock waits, max {task.fields[longest]} ms"),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.fields[doing]}"),
            console=self._console,
            disable=not self._live,
        )
        self._bars: dict[str, TaskID] = {}
        self._said: dict[str, str] = {}

    def __enter__(self) -> Display:
        for role in self._roles:
            self._bars[role] = self._progress.add_task(
                role, total=None, commits=0, conflicts=0, waits=0, longest=0, doing="starts"
            )
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    def say(self, words: str) -> None:
        """One line above the bars."""
        self._console.print(words, highlight=False, markup=False, soft_wrap=True)

    def update(self, tally: Tally) -> None:
        """Draw one process's bar anew."""
        self._progress.update(
            self._bars[tally.role],
            completed=tally.done,
            total=tally.total or None,
            commits=tally.commits,
            conflicts=tally.conflicts,
            waits=len(tally.lock_waits_ms),
            longest=tally.lock_wait_max_ms,
            doing=tally.doing,
        )
        if not self._live and tally.doing and self._said.get(tally.role) != tally.doing:
            self._said[tally.role] = tally.doing
            self.say(f"{tally.role:<9} {tally.done}/{tally.total}  {tally.doing}")
