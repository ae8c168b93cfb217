"""Runs the demonstration: makes the table, starts the processes, follows them, proves, draws, reports."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fsspec_cas import Machine, check_url
from lockprovider.demo import flights, picture, proof
from lockprovider.demo.attempts import attempts
from lockprovider.demo.children import Children, Ended
from lockprovider.demo.display import Display
from lockprovider.demo.errors import CannotStart, TableIsThere
from lockprovider.demo.lines import Job, Line
from lockprovider.demo.report import Death, Report
from lockprovider.demo.settings import table_settings, table_spec
from lockprovider.demo.tally import Tally, add, add_all
from lockprovider.demo.target import check_target
from lockprovider.table import Table
from lockprovider.table.engines.java import find_java
from lockprovider.table.errors import TableError, TableExists


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user asked for. `out` is where the picture goes; None: into the run's own folder.

    `is_merge_on_read`: the table has log files, and a compaction service runs beside the pipelines.
    """

    url: str | None = None
    storage_options: dict[str, object] = field(default_factory=dict)
    months: tuple[int, ...] = flights.ALL_MONTHS
    out: Path | None = None
    is_merge_on_read: bool = False


def run(settings: Settings) -> Report:
    """The whole demonstration. Ctrl-C ends all processes and comes out as KeyboardInterrupt.

    Raises: CannotStart or NoJava before anything is written.
    """
    world = Machine()
    started_s = world.monotonic_s()
    java = find_java()
    data = flights.load()
    folder = Path(tempfile.mkdtemp(prefix="lockprovider-demo-"))
    url = _absolute(settings.url or str(folder / "table"))
    _check(url, settings.storage_options)
    job = Job(url, settings.storage_options, settings.months, settings.is_merge_on_read)
    table = _create(job)
    environ = os.environ | {"JAVA_HOME": str(java.home)}
    with Display(job.roles) as display, Children(job, folder, environ) as children:
        display.say(f"table {url}; Java {java.version} from {java.origin}; logs in {folder}")
        lines, deaths = _follow(job, children, display, world)
        if deaths:
            display.say("waiting until the dead writer's heartbeat has expired, to roll its instant back")
            lines += _roll_back_the_dead(table, deaths[-1].at_ms, world)
        display.say("reading the table back")
    found, trouble = _prove(job, data)
    drawn = settings.out or folder / "run.svg"
    drawn.parent.mkdir(parents=True, exist_ok=True)
    drawn.write_text(picture.draw(lines, _title(job, data), {death.role: death.at_ms for death in deaths}))
    return Report(
        url=url,
        tallies=tuple(add_all(role, lines) for role in job.roles),
        deaths=tuple(deaths),
        proof=found,
        reader=proof.READER,
        trouble=trouble,
        picture=str(drawn),
        took_s=world.monotonic_s() - started_s,
        rolled_back=_rolled_back(lines, deaths),
        pending=tuple(table.timeline().pending_writes),
    )


def _absolute(url: str) -> str:
    check_url(url)  # `s3:/x` would be a local folder
    return url if "://" in url else str(Path(url).absolute())


def _check(url: str, storage_options: dict[str, object]) -> None:
    try:
        check_target(url, storage_options)
    except TableIsThere as there:
        try:
            Table.open(url, storage_options=storage_options)
        except TableError as unsupported:
            raise CannotStart(f"{there}; and this one could not be used: {unsupported}") from None
        raise


def _create(job: Job) -> Table:
    spec = table_spec(is_merge_on_read=job.is_merge_on_read)
    try:
        return Table.create(job.url, spec, storage_options=job.storage_options, settings=table_settings())
    except (TableExists, OSError) as reason:
        raise CannotStart(f"no table can be made at {job.url}: {reason}") from None


def _follow(job: Job, children: Children, display: Display, world: Machine) -> tuple[list[Line], list[Death]]:
    lines: list[Line] = []
    deaths: list[Death] = []
    tallies = {role: Tally(role) for role in job.roles}
    for item in children.news():
        match item:
            case Line():
                lines.append(item)
                tallies[item.role] = add(tallies[item.role], item)
                display.update(tallies[item.role])
            case Ended(role, status):
                if status != 0 or not tallies[role].finished:
                    words = tuple(children.by_role[role].last_words())
                    deaths.append(Death(role, status, world.now_ms(), words))
                    display.say(deaths[-1].sentence + "; the others go on")
    return lines, deaths


def _roll_back_the_dead(table: Table, died_ms: int, world: Machine) -> list[Line]:
    """Wait until their heartbeats have expired, then begin a transaction: whoever begins one rolls them back."""
    told: list[Line] = []
    if table.timeline().pending_writes:
        settings = table_settings()
        ripe_ms = died_ms + (settings.heartbeat.tolerance_s + settings.heartbeat.interval_s) * 1000
        world.sleep(max(0.0, (ripe_ms - world.now_ms()) / 1000))
        watching = Table.open(
            table.url,
            storage_options=table.storage_options,
            settings=settings,
            watcher=lambda event: told.append(Line(event.kind, "conductor", event.at_ms, event.instant, event.detail)),
        )
        watching.append(watching.schema().empty_table())
    return [line for line in told if line.kind == "rolled_back"]


def _rolled_back(lines: list[Line], deaths: list[Death]) -> tuple[str, ...]:
    dead = {death.role for death in deaths}
    left = (attempt for attempt in attempts(lines) if attempt.role in dead and attempt.end == "open")
    return tuple(attempt.instant for attempt in left if attempt.rolled_back_ms is not None)


def _prove(job: Job, data: Any) -> tuple[Any, str]:
    try:
        return proof.prove(job.url, job.storage_options, data, job.months), ""
    except Exception as error:  # noqa: BLE001 - whatever stops the reader is the finding
        return None, f"{type(error).__name__}: {error}"


def _title(job: Job, data: Any) -> str:
    months = len(job.months)
    story = f"{data.num_rows:,} flights" if months == len(flights.ALL_MONTHS) else f"{months} months of flights"
    beside = ", a compaction service beside them" if job.is_merge_on_read else ""
    return f"Three Spark pipelines share one table{beside}: {story}"
