"""What the processes tell the conductor: one JSON object a line."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

ROLES = ("ingest", "protect", "backfill")
COMPACT = "compact"  # the service beside them, where it is asked for

# Printed by a pipeline into its own log.
SPARK_IS_UP = "Spark is up."


@dataclass(frozen=True, slots=True)
class Line:
    """One message. `kind` is one of the table's events, or started, ready, progress, result, finished.

    `at_ms` is the sender's wall clock (epoch ms): good for drawing, for nothing else.
    """

    kind: str
    role: str
    at_ms: int
    instant: str = ""
    detail: dict[str, object] = field(default_factory=dict)


def encode(line: Line) -> bytes:
    """The line with its line feed."""
    return json.dumps(asdict(line), default=str, separators=(",", ":")).encode() + b"\n"


def decode(text: bytes) -> Line | None:
    """The message, or None for a line that a dying process left unfinished."""
    try:
        return Line(**json.loads(text))
    except (ValueError, TypeError):
        return None


@dataclass(frozen=True, slots=True)
class Job:
    """What a process is told on its standard input: where the table is, of which type, and the months of the story."""

    url: str
    storage_options: dict[str, object]
    months: tuple[int, ...]
    is_merge_on_read: bool = False

    @property
    def roles(self) -> tuple[str, ...]:
        """All processes: of a merge-on-read table a compaction service beside the pipelines."""
        return (*ROLES, COMPACT) if self.is_merge_on_read else ROLES

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Job:
        """The job that `to_json` wrote."""
        raw = json.loads(text)
        return Job(**raw | {"months": tuple(raw["months"])})
