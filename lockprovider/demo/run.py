"""Runs the demonstration: makes the table, starts the processes, follows them, proves, draws, reports."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fsspec_cas import InvalidUrl, Machine, Store, check_url
from lockprovider.demo import flights, proof, track
from lockprovider.demo.pipelines import COMPACT, SETTINGS, Job, Message
from lockprovider.demo.pipelines import run as run_process
from lockprovider.demo.track import Track
from lockprovider.table import Table, TableExists
from lockprovider.table.engines.java import find_java

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.context import SpawnProcess

Target = Callable[[str, Job, Connection, str], None]
GRACE_S = 10.0
LAST_WORDS = 12  # lines of the log of a process that died


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user asked for. `out` is where the picture goes; None: into the folder of the run.

    `is_merge_on_read`: the table has log files, and a compaction service runs next to the pipelines.
    """

    url: str | None = None
    storage_options: dict[str, object] = field(default_factory=dict)
    months: tuple[int, ...] = flights.ALL_MONTHS
    out: Path | None = None
    is_merge_on_read: bool = False


@dataclass(frozen=True, slots=True)
class Death:
    """A process that ended before its work did. `status` is negative for a signal."""

    role: str
    status: int
    at_ms: int
    last_words: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """How it ended."""
        how = f"was killed by signal {-self.status}" if self.status < 0 else f"failed, status {self.status}"
        return f"{self.role} {how}"


@dataclass(frozen=True, slots=True)
class Report:
    """One run. `proof` is None if the reader could not read the table; `trouble` then says why."""

    url: str
    tracks: tuple[Track, ...]
    deaths: tuple[Death, ...]
    proof: proof.Comparison | None
    trouble: str
    picture: str
    took_s: float
    rolled_back: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True if every pipeline finished and the proof holds."""
        return self.proof is not None and self.proof.equal and not self.deaths

    def to_json(self) -> dict[str, object]:
        """The report as a JSON-able mapping."""
        return {
            "ok": self.ok,
            "url": self.url,
            "took_s": round(self.took_s, 1),
            "pipelines": [one.to_json() for one in self.tracks],
            "deaths": [asdict(death) | {"sentence": death.sentence} for death in self.deaths],
            "proof": None if self.proof is None else asdict(self.proof) | {"equal": self.proof.equal},
            "reader": proof.READER,
            "trouble": self.trouble,
            "rolled_back": list(self.rolled_back),
            "pending": list(self.pending),
            "picture": self.picture,
        }

    def text(self) -> str:
        """The report for people."""
        lines = [*_summary(self.tracks), ""]
        for death in self.deaths:
            lines.append(death.sentence + (". Its last words:" if death.last_words else ", without a word."))
            lines += [f"    {words}" for words in death.last_words]
        if self.rolled_back:
            lines.append(f"rolled back after its death: {', '.join(self.rolled_back)}")
        if self.pending:
            lines.append(f"left open, to be rolled back: {', '.join(self.pending)}")
        lines += _proved(self.proof, self.trouble)
        return "\n".join([*lines, f"table    {self.url}", f"picture  {self.picture}", f"took     {self.took_s:.0f} s"])


def _summary(tracks: tuple[Track, ...]) -> list[str]:
    """A table of text, one line a pipeline."""
    names = ("pipeline", "commits", "conflicts", "retries", "lock_waits", "lock_wait_median_ms", "lock_wait_max_ms")
    head = ("pipeline", "commits", "conflicts", "retries", "lock waits", "median ms", "max ms")
    rows = [head, *([str(one.to_json()[name]) for name in names] for one in tracks)]
    return [f"{first:<9}" + "".join(f"{cell:>12}" for cell in rest) for first, *rest in rows]


def _proved(found: proof.Comparison | None, trouble: str) -> list[str]:
    if found is None:
        return [f"PROOF FAILED: {proof.READER} cannot read the table: {trouble}"]
    reads = f"{proof.READER} reads {found.found_rows:,} rows"
    if found.equal:
        return [f"proof    {reads}, equal row for row to the same three jobs in single-threaded pandas"]
    changed = ", ".join(f"{column} in {count:,} rows" for column, count in found.changed.items())
    failed = (
        f"PROOF FAILED: {reads}, {found.expected_rows:,} expected; {found.missing:,} missing, "
        f"{found.surplus:,} surplus, {found.repeated:,} repeated; different: {changed or 'nothing'}"
    )
    shown = (
        f"    {' '.join(map(str, one.key))}  {one.column}: found {one.found}, expected {one.expected}"
        for one in found.first[:20]
    )
    return [failed, *shown]


def run(settings: Settings) -> Report:
    """The whole demonstration. Ctrl-C ends all processes and comes out as KeyboardInterrupt.

    Raises: NoJava, CasError or TableError before anything is written.
    """
    world = Machine()
    started_s = world.monotonic_s()
    folder = Path(tempfile.mkdtemp(prefix="lockprovider-demo-"))
    url = check_target(settings.url or str(folder / "table"), settings.storage_options)
    java, data = find_java(), flights.load()
    job = Job(url, settings.storage_options, settings.months, settings.is_merge_on_read, str(java.home))
    table = Table.create(url, job.spec, storage_options=job.storage_options, settings=SETTINGS)
    tracks = {role: Track(role) for role in job.roles}
    with Display(job.roles) as display, Processes(job, folder) as processes:
        display.say(f"table {url}; Java {java.version} from {java.origin}; logs in {folder}; processes {processes}")
        deaths: list[Death] = []
        for item in processes.messages():
            if isinstance(item, Death):
                deaths.append(item)
                display.say(item.sentence + "; the others go on")
            else:
                track.take(tracks, item)
                display.update(tracks[item.role])
        rolled_back = _roll_back_the_dead(table, tracks, deaths, world, display)
        display.say("reading the table back")
    found, trouble = _prove(job, data)
    picture = settings.out or folder / "run.svg"
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.write_text(track.draw(list(tracks.values()), _title(job), {one.role: one.at_ms for one in deaths}))
    return Report(
        url=url,
        tracks=tuple(tracks.values()),
        deaths=tuple(deaths),
        proof=found,
        trouble=trouble,
        picture=str(picture),
        took_s=world.monotonic_s() - started_s,
        rolled_back=rolled_back,
        pending=tuple(table.timeline().pending_writes),
    )


def check_target(url: str, storage_options: dict[str, object]) -> str:
    """The URL, a folder's as an absolute path. Only reads: no table, and nothing else, may be there.

    Raises: CasError that names what is wrong and what to do.
    """
    check_url(url)
    if url.startswith("memory://"):
        raise InvalidUrl(f"{url} is the memory of one process: three cannot share it; name a folder or a bucket")
    protocol, is_url, rest = url.partition("://")
    if is_url and rest.startswith("/") and protocol not in ("file", "local"):
        raise InvalidUrl(f"{url} names no bucket: write it as {protocol}://BUCKET/FOLDER")
    url = url if is_url else str(Path(url).absolute())
    there = [entry.path for entry in Store.from_url(url, storage_options).list("")]
    if any(path.startswith(".hoodie/") for path in there):
        raise TableExists(f"there is a table at {url} already: name an empty folder")
    if there:
        raise InvalidUrl(f"{url} is not empty ({there[0]}): name an empty or new folder")
    return url


def _roll_back_the_dead(
    table: Table, tracks: dict[str, Track], deaths: list[Death], world: Machine, display: Display
) -> tuple[str, ...]:
    """Wait until the heartbeats of dead pipelines have expired, then begin a transaction, which rolls them back."""
    if not deaths or not table.timeline().pending_writes:
        return ()
    display.say("waiting until the dead writer's heartbeat has expired, to roll its instant back")
    beat = SETTINGS.heartbeat
    ripe_ms = deaths[-1].at_ms + (beat.tolerance_s + beat.interval_s) * 1000
    world.sleep(max(0.0, (ripe_ms - world.now_ms()) / 1000))
    told: list[Message] = []
    watching = Table.open(
        table.url,
        storage_options=table.storage_options,
        settings=SETTINGS,
        watcher=lambda event: told.append(Message(event.kind, "", event.at_ms, event.instant, event.detail)),
    )
    watching.append(watching.schema().empty_table())
    for message in told:
        track.take(tracks, message)
    attempts = [attempt for death in deaths for attempt in tracks[death.role].attempts.values()]
    return tuple(one.instant for one in attempts if one.end == "was left open" and one.rolled_back_ms is not None)


def _prove(job: Job, data: Any) -> tuple[Any, str]:
    try:
        return proof.prove(job.url, job.storage_options, data, job.months), ""
    except Exception as error:  # noqa: BLE001 - whatever stops the reader is the finding
        return None, f"{type(error).__name__}: {error}"


def _title(job: Job) -> str:
    months = len(job.months)
    story = "336,776 flights" if months == len(flights.ALL_MONTHS) else f"{months} months of flights"
    beside = ", a compaction service beside them" if job.is_merge_on_read else ""
    return f"Three Spark pipelines share one table{beside}: {story}"


class Display:
    """`with Display(roles) as display:` a progress bar for each process, on standard error.

    On a pipe or a file: one line whenever a step begins.
    """

    def __init__(self, roles: tuple[str, ...]) -> None:
        self._console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("[bold]{task.description:<9}"),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TextColumn("{task.fields[counts]}"),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.fields[doing]}"),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._bars = {role: self._progress.add_task(role, total=None, counts="", doing="starts") for role in roles}
        self._said: dict[str, str] = {}

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    def say(self, words: str) -> None:
        """One line above the bars."""
        self._console.print(words, highlight=False, markup=False, soft_wrap=True)

    def update(self, one: Track) -> None:
        """Show how far a process is."""
        waits = one.lock_waits_ms
        counts = f"{one.commits:>3} commits {one.conflicts:>3} conflicts {len(waits):>3} lock waits, "
        counts += f"max {max(waits, default=0)} ms"
        bar, total = self._bars[one.role], one.total or None
        self._progress.update(bar, completed=one.done, total=total, counts=counts, doing=one.doing)
        if self._progress.disable and one.doing and self._said.get(one.role) != one.doing:
            self._said[one.role] = one.doing
            self.say(f"{one.role:<9} {one.done}/{one.total}  {one.doing}")


class Processes:
    """The processes of the demo. They run inside a `with` block, whose end stops those that still run."""

    def __init__(
        self, job: Job, folder: Path, target: Callable[[str, Job, Connection, str], None] = run_process
    ) -> None:
        self._job, self._folder, self._target = job, folder, target
        self._running: dict[str, tuple[SpawnProcess, Connection]] = {}

    def __enter__(self) -> Processes:
        spawning = multiprocessing.get_context("spawn")
        try:
            for role in self._job.roles:
                ours, theirs = spawning.Pipe()
                arguments = (role, self._job, theirs, str(self._log(role)))
                process = spawning.Process(target=self._target, args=arguments, name=role)
                process.start()
                theirs.close()
                self._running[role] = (process, ours)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        for process, _ in self._running.values():
            process.terminate()
        for process, _ in self._running.values():
            process.join(GRACE_S)
            _end_group(process)

    def __str__(self) -> str:
        return ", ".join(f"{role} {process.pid}" for role, (process, _) in self._running.items())

    def messages(self) -> Iterator[Message | Death]:
        """All that the processes say, until the last one has ended.

        Lets all begin once each has started (or died), tells the others of a death, and the service that it is alone.
        """
        starting, finished = set(self._running), set[str]()
        while self._running:
            by_pipe = {pipe: role for role, (_, pipe) in self._running.items()}
            for pipe in wait(list(by_pipe)):
                item = self._next(by_pipe[pipe])  # type: ignore[index]
                if isinstance(item, Message):
                    finished |= {item.role} if item.kind == "finished" else set()
                    yield item
                elif item.status != 0 or item.role not in finished:
                    self._tell(item.role)
                    yield item
                if item.role in starting and (isinstance(item, Death) or item.kind == "started"):
                    starting.discard(item.role)
                    if not starting:
                        self._tell("go")
                if isinstance(item, Death) and set(self._running) == {COMPACT}:
                    self._tell("alone")

    def _next(self, role: str) -> Message | Death:
        process, pipe = self._running[role]
        try:
            item: Message = pipe.recv()
        except (EOFError, OSError):
            process.join(GRACE_S)
            _end_group(
                process
            )  # the JVM of a killed driver ends by itself within a moment; nothing of it shall be left
            del self._running[role]
            lines = self._log(role).read_text(errors="replace").strip().splitlines()
            return Death(role, process.exitcode or 0, Machine().now_ms(), tuple(lines[-LAST_WORDS:]))
        return item

    def _tell(self, word: str) -> None:
        for _, pipe in self._running.values():
            with contextlib.suppress(OSError):
                pipe.send(word)

    def _log(self, role: str) -> Path:
        log = self._folder / f"{role}.log"
        log.touch()
        return log


def _end_group(process: SpawnProcess) -> None:
    # The group's id is the id of its leader, a process that this one started.
    if process.pid is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
