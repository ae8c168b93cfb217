"""What a run looked like: the messages of each process become counts, and the counts and times a picture. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lockprovider.demo.pipelines import COMPACT, Message
from lockprovider.storage_lock.lanes import FAINT, INK, RED, Box, Curve, Lane, Mark, draw_lanes
from lockprovider.words import count

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

WAIT = "#f0a202"
COLOURS = {"ingest": "#3b78c3", "protect": "#2f9e6e", "backfill": "#8a5cc2", COMPACT: "#a9643b"}
_COUNTED = {"committed": "commits", "compacted": "commits", "conflict": "conflicts", "retry": "retries"}
_COUNTED |= {"rolled_back": "rollbacks"}
_ENDS = {"committed": "committed", "compacted": "committed", "conflict": "lost a conflict"}


@dataclass(slots=True)
class Attempt:
    """One instant of one pipeline, from its begin to its commit or conflict, or to the last message of its writer."""

    instant: str
    doing: str
    begin_ms: int
    end_ms: int
    end: str = "was left open"
    rolled_back_ms: int | None = None
    named: tuple[str, ...] = ()  # by its end: instants, or their files on the timeline, among other words


@dataclass(slots=True)
class Track:
    """One process so far; `take` adds a message. `lock_waits_ms` has one entry for each time the lock was acquired."""

    role: str
    commits: int = 0
    conflicts: int = 0
    retries: int = 0
    rollbacks: int = 0
    lock_waits_ms: list[int] = field(default_factory=list)
    done: int = 0
    total: int = 0
    doing: str = "starts"
    finished: bool = False
    attempts: dict[str, Attempt] = field(default_factory=dict)
    lock: list[Box] = field(default_factory=list)
    _asked_ms: int | None = None
    _held_ms: int | None = None

    def take(self, message: Message) -> None:
        """Count it, and note its time."""
        at_ms = message.at_ms
        attempt = self.attempts.get(message.instant)
        if attempt is not None and attempt.end not in _ENDS.values():
            attempt.end_ms = max(attempt.end_ms, at_ms)
        if message.kind in _COUNTED:
            name = _COUNTED[message.kind]
            setattr(self, name, getattr(self, name) + 1)
        match message.kind:
            case "work":
                self.done, self.total, self.doing = (message.detail[name] for name in ("done", "total", "doing"))
            case "finished":
                self.finished, self.doing = True, "done"
            case "begin" | "compaction_scheduled":
                self.attempts[message.instant] = Attempt(message.instant, self.doing, at_ms, at_ms)
            case "lock_wait" | "lock_held" | "lock_released":
                self._at_the_lock(message.kind, at_ms)
        if attempt is not None and message.kind in _ENDS:
            attempt.end, attempt.named = _ENDS[message.kind], tuple(_texts(message.detail.values()))

    def _at_the_lock(self, kind: str, at_ms: int) -> None:
        if kind == "lock_wait":
            self._asked_ms = at_ms
        elif kind == "lock_held" and self._asked_ms is not None:
            waited_ms = max(0, at_ms - self._asked_ms)  # the wall clock may step back between the two
            self.lock_waits_ms.append(waited_ms)
            if waited_ms:
                self.lock.append(Box(self._asked_ms, at_ms, WAIT, f"{self.role} waits for the lock for {waited_ms} ms"))
            self._asked_ms, self._held_ms = None, at_ms
        elif kind == "lock_released":
            if self._held_ms is not None:
                words = f"{self.role} holds the lock for {at_ms - self._held_ms} ms"
                self.lock.append(Box(self._held_ms, at_ms, INK, words))
            elif self._asked_ms is not None:
                self.lock.append(Box(self._asked_ms, at_ms, WAIT, f"{self.role} never got the lock"))
            self._asked_ms = self._held_ms = None

    def to_json(self) -> dict[str, object]:
        """What the summary says about this pipeline."""
        waits = sorted(self.lock_waits_ms)
        return {
            "pipeline": self.role,
            "commits": self.commits,
            "conflicts": self.conflicts,
            "retries": self.retries,
            "rollbacks": self.rollbacks,
            "lock_waits": len(waits),
            "lock_wait_median_ms": waits[(len(waits) - 1) // 2] if waits else 0,
            "lock_wait_max_ms": max(waits, default=0),
            "done": self.done,
            "total": self.total,
            "finished": self.finished,
        }


def take(tracks: Mapping[str, Track], message: Message) -> None:
    """Add a message to the track of its sender; a rollback, also to the attempt, whose writer may be dead."""
    if message.role in tracks:
        tracks[message.role].take(message)
    if message.kind == "rolled_back":
        for track in tracks.values():
            if message.instant in track.attempts:
                track.attempts[message.instant].rolled_back_ms = message.at_ms


def _texts(values: Iterable[object]) -> Iterable[str]:
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _texts(value)


def draw(tracks: Sequence[Track], title: str, died_ms: Mapping[str, int]) -> str:
    """The picture as SVG: two lanes for each process, its attempts and its lock; `died_ms` says when a process died."""
    lanes: list[Lane] = []
    winners = {
        attempt.instant: (2 * number, attempt.end_ms)
        for number, track in enumerate(tracks)
        for attempt in track.attempts.values()
        if attempt.end == "committed"
    }
    links: list[Curve] = []
    for number, track in enumerate(tracks):
        attempts = list(track.attempts.values())
        marks = [mark for attempt in attempts for mark in _marks(attempt, track.role)]
        if track.role in died_ms:
            marks.append(Mark(died_ms[track.role], "line", RED, f"{track.role} ended here", "ended here"))
        boxes = [_box(attempt, track.role) for attempt in attempts]
        lanes.append(Lane(track.role, boxes, marks, COLOURS[track.role]))
        lanes.append(Lane(count(track.commits, "compaction" if track.role == COMPACT else "commit"), track.lock))
        losers = [attempt for attempt in attempts if attempt.end == _ENDS["conflict"]]
        lost = [(attempt, name.partition("_")[0]) for attempt in losers for name in attempt.named]
        links += [Curve(2 * number, attempt.end_ms, *winners[name]) for attempt, name in lost if name in winners]
    return draw_lanes(title, _words(tracks), lanes, legend=_LEGEND, links=list(dict.fromkeys(links)))


_LEGEND = (
    Box(0, 0, COLOURS["ingest"], "writes (month; + late corrections)"),
    Mark(0, "dot", INK, "commit"),
    Box(0, 0, RED, "lost attempt", hollow=True),
    Mark(0, "cross", RED, "conflict, linked to the commit that won"),
    Mark(0, "triangle", FAINT, "rolled back"),
    Box(0, 0, WAIT, "waits for the lock"),
    Box(0, 0, INK, "holds the lock"),
)


def _words(tracks: Sequence[Track]) -> str:
    attempts = [attempt for track in tracks for attempt in track.attempts.values()]
    start_ms = min((attempt.begin_ms for attempt in attempts), default=0)
    end_ms = max((attempt.end_ms for attempt in attempts), default=0)
    commits = sum(track.commits for track in tracks if track.role != COMPACT)
    conflicts, retries = sum(track.conflicts for track in tracks), sum(track.retries for track in tracks)
    waited_ms = sum(sum(track.lock_waits_ms) for track in tracks)
    return (
        f"{count(commits, 'commit')}, {count(conflicts, 'conflict')}, "
        f"{'1 retry' if retries == 1 else f'{retries} retries'}, {waited_ms / 1000:.1f} s spent waiting for the lock, "
        f"{(end_ms - start_ms) / 1000:.0f} s of writing (the start of Spark is not drawn)"
    )


def _box(attempt: Attempt, role: str) -> Box:
    is_committed = attempt.end == "committed"
    label = "".join(filter(str.isdigit, attempt.doing)) + ("+" if attempt.doing.startswith("late") else "")
    colour = COLOURS[role] if is_committed else RED
    return Box(attempt.begin_ms, attempt.end_ms, colour, _story(attempt, role), label, hollow=not is_committed)


def _marks(attempt: Attempt, role: str) -> list[Mark]:
    marks: list[Mark] = []
    if attempt.end == "committed":
        marks.append(Mark(attempt.end_ms, "dot", INK, _story(attempt, role)))
    elif attempt.end == _ENDS["conflict"]:
        marks.append(Mark(attempt.end_ms, "cross", RED, _story(attempt, role)))
    if attempt.rolled_back_ms is not None:
        marks.append(Mark(attempt.rolled_back_ms, "triangle", FAINT, _story(attempt, role)))
    return marks


def _story(attempt: Attempt, role: str) -> str:
    took_s = (attempt.end_ms - attempt.begin_ms) / 1000
    story = f"{role} {attempt.doing}: instant {attempt.instant} {attempt.end} after {took_s:.2f} s"
    return story + ("; rolled back" if attempt.rolled_back_ms is not None else "")
