"""What group commit asks of a table: whether a commit may follow those that were decided since, and under which name.

A commit that waits for its decision (`Wanted`) says by which rule it gives way to others, and carries the bytes of its
completed file: all of the check is made from these and from the log, by any writer of the table, and for the same log
it comes out the same. What cannot be said from the log alone is for its own writer (`JudgeAnew`).

Source: Hudi RFC-22; `TransactionUtils.resolveWriteConflictIfAny`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lockprovider import Intent, JudgeAnew, Log, LogEntry, Pending
from lockprovider.bounded import as_flag, as_text, as_whole, parse_object, text_in
from lockprovider.table.errors import Corrupt
from lockprovider.table.format.instant import Action, Instant, InstantState, parse_instant
from lockprovider.table.format.layout import TIMELINE
from lockprovider.table.format.metadata import CommitMetadata, batches_by_stream, decode_commit
from lockprovider.table.format.writer_settings import appears_at_once
from lockprovider.table.state.fence import BatchId
from lockprovider.table.timeline.conflict import (
    ConcurrentOperation,
    Resolution,
    by_file_group,
    by_partition,
    non_blocking,
    prefer_writer,
)
from lockprovider.table.timeline.timeline import time_after
from lockprovider.table.transaction.validate import Since, columns_digest, decide, short_digest

if TYPE_CHECKING:
    import pyarrow as pa

    from lockprovider.table.format.properties import TableConfig
    from lockprovider.table.state.context import TableContext
    from lockprovider.table.transaction.proposal import Proposal

_RULES: dict[str, Resolution] = {
    rule.__name__: rule for rule in (by_file_group, prefer_writer, by_partition, non_blocking)
}
_PREFIX = f"{TIMELINE}/"
_LARGEST = 1 << 16  # bytes of what stands before the data


@dataclass(frozen=True)
class Wanted:
    """A commit that is to be decided. `data`: its completed file. The rest is what that does not say.

    Attributes:
        begin: its begin time.
        action: commit or replacecommit.
        rule: the resolution, by its name; over buckets if `buckets`.
        config: the digest of the table's properties as its writer knows them.
        columns: the digest of the columns that it would state, but for those that it adds.
        batch_id: the batch of a stream that it is.
        compares_keys: its new keys are compared with those that others insert.
    """

    begin: str
    action: Action
    rule: str
    buckets: bool
    config: str
    columns: str
    batch_id: BatchId | None
    compares_keys: bool
    data: bytes

    @classmethod
    def of(cls, proposal: Proposal, resolution: Resolution, columns: pa.Schema, data: bytes) -> Wanted | None:
        """What this proposal comes to; None where only its writer can judge it, under a lock that is held."""
        rule = next((name for name, known in _RULES.items() if known is resolution), None)
        if rule is None or proposal.is_table_service:
            return None
        return cls(
            proposal.begin,
            proposal.action,
            rule,
            proposal.config.bucket_index is not None,
            config_digest(proposal.config),
            columns_digest(columns),
            proposal.batch_id,
            proposal.keys is not None,
            data,
        )

    def encode(self) -> bytes:
        """As the body of an intent."""
        said = {
            "begin": self.begin,
            "action": self.action.value,
            "rule": self.rule,
            "buckets": self.buckets,
            "config": self.config,
            "columns": self.columns,
            "batch": None if self.batch_id is None else astuple(self.batch_id),
            "keys": self.compares_keys,
        }
        return json.dumps(said).encode() + b"\n" + self.data

    @classmethod
    def decode(cls, body: bytes) -> Wanted:
        """Read it.

        Raises:
            ValueError, KeyError, TypeError, Corrupt: it is not one.
        """
        head, _, data = body.partition(b"\n")
        said = parse_object(head, most=_LARGEST)
        found = cls(
            text_in(said, "begin"),
            Action(said["action"]),
            text_in(said, "rule"),
            as_flag(said["buckets"], "buckets"),
            text_in(said, "config"),
            text_in(said, "columns"),
            _batch_id(said["batch"]),
            as_flag(said["keys"], "keys"),
            data,
        )
        found.metadata  # noqa: B018 - one whose data nobody can read is none
        return found

    @property
    def sample(self) -> bytes:
        """What most who write to that table now say, without what is their own."""
        rule = next(iter(_RULES))
        said = replace(self, begin="", action=Action.COMMIT, rule=rule, batch_id=None, compares_keys=False, data=b"")
        return said.encode()

    @cached_property
    def metadata(self) -> CommitMetadata:
        """What it does."""
        return decode_commit(self.data, self.begin)

    @property
    def inflight(self) -> Instant:
        """The instant, until it is decided."""
        return Instant(self.begin, self.action, InstantState.INFLIGHT)

    def completed(self, completion: str) -> Instant:
        """The instant, once it is."""
        return Instant(self.begin, self.action, InstantState.COMPLETED, completion)

    @property
    def stem(self) -> str:
        """What its path begins with, whenever it is completed."""
        return f"{_PREFIX}{self.begin}_"

    def refuse(self, others: Sequence[tuple[Instant, CommitMetadata | None]]) -> None:
        """Return if it may follow these commits, of which some are not known.

        Raises:
            JudgeAnew: that cannot be said without asking the table.
            WriteConflict, AlreadyCommitted, WrongCheckpoint, Fenced: it may not.
        """
        if not others:
            return
        if self.compares_keys:
            raise JudgeAnew
        known = [(instant, metadata) for instant, metadata in others if metadata is not None]
        if len(known) < len(others):
            raise JudgeAnew
        since = Since(
            notes=lambda: ((instant, batches_by_stream(metadata.extra)) for instant, metadata in reversed(known)),
            latest_first=lambda: reversed(known),
            others=lambda: [ConcurrentOperation.of(instant, metadata) for instant, metadata in known],
        )
        decide(self, lambda: self.columns, _RULES[self.rule], since)


class TableDecider:
    """Of one table of this process; see `lockprovider.storage_lock.combine.Decider`.

    `latest`: the largest time on the timeline when it was judged last. What came since is in the log.
    `config`: the table's properties then. Nobody decides it by others. `sample`: that of what is wanted.
    """

    def __init__(self, table: TableContext, latest: str, config: TableConfig, sample: bytes = b"") -> None:
        self.sample = sample
        self.at_once = appears_at_once(config)
        self._table = table
        self._latest = latest
        self._config = ""
        self._decoded: dict[bytes, Wanted | None] = {}

    def refresh(self, seen_s: float) -> None:
        """Read the properties, which are not always changed under the lock."""
        config = self._table.current.config_since(seen_s)
        self._config, self.at_once = config_digest(config), appears_at_once(config)

    def refuse(self, intent: Intent, since: Sequence[LogEntry]) -> None:
        """See `Wanted.refuse`."""
        wanted = self._wanted(intent)
        if wanted is None:
            raise JudgeAnew
        wanted.refuse([self._known(entry) for entry in since])

    def pending(self, intent: Intent, log: Log, now_ms: int) -> Pending | None:
        """Its completed file, at a time that exceeds all that is on the timeline."""
        wanted = self._wanted(intent)
        if wanted is None or wanted.config != self._config:
            return None
        named = (parse_instant(_name(entry)) for entry in log.entries)
        times = [instant.completion or "" for instant in named if instant is not None]
        now_ms = min(now_ms, self._table.clock.now_ms())
        name = wanted.completed(time_after(now_ms, self._latest, wanted.begin, *times)).file_name
        return None if parse_instant(name) is None else Pending.of_bytes(_PREFIX + name, wanted.data)

    def _wanted(self, intent: Intent) -> Wanted | None:
        if intent.body not in self._decoded:
            try:
                wanted: Wanted | None = Wanted.decode(intent.body)
            except (ValueError, KeyError, TypeError, Corrupt):
                wanted = None
            if len(self._decoded) >= _KEPT:
                self._decoded.clear()
            self._decoded[intent.body] = wanted
        return self._decoded[intent.body]

    def _known(self, entry: LogEntry) -> tuple[Instant, CommitMetadata | None]:
        name = _name(entry)
        instant = parse_instant(name)
        if instant is None:
            raise JudgeAnew
        memory = self._table.memory
        if entry.data is None:
            return instant, None  # also where it is known here: all who judge must come to the same
        if not memory.has(name):
            memory.remember(name, entry.data)
        try:
            return instant, memory.metadata(name)
        except Corrupt:
            return instant, None


_KEPT = 1000


def _name(entry: LogEntry) -> str:
    return entry.path.removeprefix(_PREFIX)


def config_digest(config: TableConfig) -> str:
    """By which a change of the table's properties is seen, also of those that are unknown here."""
    return short_digest(repr((config, sorted(config.raw.items()))))


def _batch_id(said: Sequence[Any] | None) -> BatchId | None:
    if said is None:
        return None
    stream, batch, run, write = said
    return BatchId(as_text(stream, "stream"), as_whole(batch, "batch"), as_text(run, "run"), as_whole(write, "write"))
