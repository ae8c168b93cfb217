"""Cached reads and batched writes of a queue's object and segments, for all callers of a process.

The first write tests an unknown, untested S3 endpoint; may raise NotSupported.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fsspec_cas import Cached, Outcome, OutcomeUnknown, Store, StoreError, Unavailable, Unknown, Version, Won, World
from fsspec_cas.machine import Signal
from fsspec_cas.sender import delay_s
from lockprovider.recipes.base import StoreCheck
from lockprovider.recipes.broker import Broker, Handover
from lockprovider.recipes.broker_rules import Bundle, Foreign, flatten, regroup, without_bundle
from lockprovider.recipes.errors import CoordinationError, Fenced, MalformedObject, NoQueue, QueueFull
from lockprovider.recipes.queue.contents import (
    Contents,
    Message,
    Segment,
    SegmentWanted,
    decode_queue,
    decode_segment,
    promote,
    with_messages,
)
from lockprovider.recipes.queue.operations import (
    Beat,
    End,
    Put,
    QueueOperation,
    Take,
    Watch,
    carry_out_all,
    number_of,
    results_of,
    sent_of,
)
from lockprovider.recipes.values import UNNAMED, FailedNumbers, ProducerNumber

_EVER = float("inf")
_BROKER = "broker"
Given = QueueOperation | Foreign[QueueOperation]


class Segments:
    """Segments of a queue, in `<queue>.d/segments`."""

    def __init__(self, store: Store, path: str, timeout_s: float) -> None:
        self._store = store
        self._folder = f"{path}.d/segments/"
        self._timeout_s = timeout_s

    def read(self, name: str, queue_id: str) -> tuple[Message, ...] | None:
        path = f"{self._folder}{name}"
        content = self._store.read_or_none(path, timeout=self._timeout_s)
        return None if content is None else decode_segment(content.data, queue_id, path)

    def write(self, segment: Segment, queue_id: str) -> None:
        path = f"{self._folder}{segment.name}"
        outcome = self._store.put_if_absent(path, segment.encode(queue_id), timeout=self._timeout_s)
        if isinstance(outcome, Unknown):
            raise Unavailable(f"the store did not answer whether {path!r} exists: try again", path=path)

    def remove(self, names: Iterable[str]) -> None:
        if paths := [f"{self._folder}{name}" for name in names]:
            self._store.delete_all(paths, timeout=self._timeout_s)

    def names(self) -> set[str]:
        return {entry.path.rpartition("/")[2] for entry in self._store.list(self._folder, timeout=self._timeout_s)}


class _SegmentGone(Exception):
    """The queue's object and segments changed."""


@dataclass(slots=True)
class _Progress:
    """`tries`: results of each write, by its id.

    `in_doubt`: one's outcome is unknown. `touched`: segments made or promoted; `base`: version that the last try was to
    replace; `full`: why no messages are added.
    """

    handover: Handover[QueueOperation]
    tries: dict[str, list[Any]] = field(default_factory=dict)
    in_doubt: bool = False
    touched: set[str] = field(default_factory=set)
    base: Version | None = None
    full: QueueFull | None = None

    @property
    def sent(self) -> tuple[bool, ...]:
        return tuple(map(operator.or_, self.handover.handed, sent_of(self.tries, len(self.handover.handed))))

    @property
    def is_sent(self) -> bool:
        return bool(self.tries) or any(self.handover.handed)


class QueueWriter:
    def __init__(self, store: Store, path: str, timeout_s: float, world: World, broker: Broker[QueueOperation]) -> None:
        self.store = store
        self.path = path
        self.world = world
        self.id = ""  # once read
        self._timeout_s = timeout_s
        self.segments = Segments(store, path, timeout_s)
        self._object = Cached(store, path, timeout=timeout_s, world=world)
        self._cached: tuple[Version, Contents] | None = None
        self._watch = Watch()
        self._store_check = StoreCheck(store, path)
        self._broker = broker
        self.reset()

    def reset(self) -> None:
        self._arrived = Signal()
        self._order = FailedNumbers()
        self._broker.reset()

    def create(self, contents: Contents) -> bool:
        return self._store_check.create(self.path, contents.encode(), self._timeout_s)

    def read(self, *, max_age_s: float = 0.0) -> tuple[Contents, Version]:
        """Read and cache the queue, unless the cache is at most `max_age_s` old. Do not change the contents.

        Raises NoQueue, MalformedObject, or Fenced if created anew.
        """
        content = self._object.get(max_age_s=max_age_s)
        if content is None and max_age_s:  # it may have been created since
            content = self._object.get()
        if content is None:
            raise NoQueue(
                f"no queue exists at {self.path!r}: create it with `lockprovider queue create URL` or Queue.create()"
            )
        cached = self._cached
        if cached is not None and cached[0] == content.version:
            return cached[1], cached[0]
        contents = decode_queue(content.data, self.path)
        self.id = self.id or contents.id
        if contents.id != self.id:
            raise Fenced(f"the queue at {self.path!r} was removed and created anew: open it again")
        self._cached = (content.version, contents)
        return contents, content.version

    def commit(self, operations: Sequence[QueueOperation | Bundle[QueueOperation]]) -> list[Any]:
        flattened = flatten(operations)
        return regroup(operations, self._order.run_allowed(flattened, [*map(_numbered, flattened)], self._commit))

    def _commit(self, operations: Sequence[Given]) -> list[Any]:
        """Write a batch, or let a broker do it; return each operation's result or error.

        Tries again after lost races and answers until the timeout. Raises OutcomeUnknown, or the error of a batch never
        sent. Removes segments its tries left unnamed.
        """
        deadline_s = self.world.monotonic_s() + self._timeout_s
        handover = Handover(operations, self._broker)
        progress = _Progress(handover)
        max_age_s = _EVER
        while True:
            contents, version = self._look(progress, deadline_s, max_age_s)
            if (written := results_of(contents, progress.tries)) is not None:
                self._remove_unnamed(progress, contents)
                return handover.outcomes(written, self._unknown)
            if (handed := handover.ask(contents.more.get(_BROKER), progress.sent)) is not None:
                if handed.results:
                    return handover.outcomes(handed.results, self._unknown)
                max_age_s = 0.0
                continue
            results, outcome = self._try_once(progress, operations, contents, version)
            if isinstance(outcome, Won):
                return handover.outcomes(results, self._unknown)
            if outcome is None and results and not max_age_s:
                if version != progress.base:  # else the last try may be done
                    self._remove_unnamed(progress, contents)
                return handover.outcomes(results, self._unknown)
            if outcome is not None:
                self._pause(len(progress.tries), deadline_s)
            max_age_s = 0.0

    def _try_once(
        self, progress: _Progress, operations: Sequence[Given], contents: Contents, version: Version
    ) -> tuple[list[Any], Outcome | None]:
        """Carry out the batch on a copy, and write changes; return results ([]: read again), and any outcome.

        Notes tries in `progress`. A won write is cached, wakes callers for added messages, and removes segments it no
        longer names. Errors pass, as OutcomeUnknown while an earlier try is in doubt. QueueFull is each one's result;
        but at first, if only some operations add messages, the next try refuses these.
        """
        tries = progress.tries
        try:
            draft, results, batch = self._drafted(contents, version, operations, progress)
            progress.touched |= _names(draft) ^ _names(contents)
            outcome = self._write(draft, contents, version) if draft.changed else None
        except _SegmentGone:
            return [], None
        except (StoreError, CoordinationError) as error:
            if progress.in_doubt or any(progress.handover.handed):
                raise self._unknown(str(error)) from error
            if not isinstance(error, QueueFull):
                raise
            if progress.full is not None or {*map(_adds_messages, operations)} != {True, False}:
                return [error] * len(operations), None
            progress.full = error
            return [], None
        if outcome is not None:
            tries[batch], progress.base = results, version
            progress.in_doubt |= isinstance(outcome, Unknown)
        if isinstance(outcome, Won):
            self._cached = (outcome.version, with_messages(draft, {}))
            self._note(draft, draft.waiting - contents.waiting)
            self._remove_unnamed(progress, draft)
        return results, outcome

    def _pause(self, tries: int, deadline_s: float) -> None:
        if self.world.monotonic_s() > deadline_s:
            raise self._unknown(f"in each of {tries} tries another writer was faster or the store did not answer")
        if tries > 1:
            self.world.sleep(delay_s(tries - 1, self.world.random()))

    def _drafted(
        self, contents: Contents, version: Version, operations: Sequence[Given], progress: _Progress
    ) -> tuple[Contents, list[Any], str]:
        """Apply overdue lapses and the batch to a copy, reading segments; return copy, results, and write id.

        With `progress.full` operations that add messages get that error; foreign ones left out, noted in `progress`,
        get NotHere. May start a broker. Records claims' heartbeats, perhaps by a HEAD. Raises as `_messages`.
        """
        self._note(contents, 0)
        lapsed = self._watch.lapsed(self.world.monotonic_s())
        batch, now_ms = self.world.new_id(), self.world.now_ms()
        to_carry_out = progress.handover.to_carry_out(
            progress.sent, Beat(()), lambda operation: _adds_forgettable(operation, contents)
        )
        refused = [progress.full is not None and _adds_messages(other) for other in operations]
        to_carry_out = [Beat(()) if no else other for other, no in zip(to_carry_out, refused, strict=True)]
        late = (isinstance(other, Foreign) and isinstance(other.operation, Take) for other in operations)
        # a foreign claim may be made elsewhere
        sent = (*(False for _ in lapsed), *map(operator.or_, progress.sent, late))
        loaded: dict[str, tuple[Message, ...]] = {}
        while True:
            draft = with_messages(contents.copy(), loaded)
            try:
                results = carry_out_all(draft, [*lapsed, *to_carry_out], now_ms, batch, sent=sent)
            except SegmentWanted as segment:
                loaded[segment.name] = self._messages(segment.name, version)
            else:
                if draft.changed and (offers := self._broker.offers(draft.more.get(_BROKER))) is not None:
                    draft.more = {**draft.more, _BROKER: offers}
                answers = zip(results[len(lapsed) :], refused, strict=True)
                results = [progress.full if no else result for result, no in answers]
                return draft, progress.handover.with_left_out(results), batch

    def _write(self, draft: Contents, contents: Contents, version: Version) -> Outcome:
        self._store_check.require()
        data = draft.encode()
        for segment in draft.segments:
            if segment.messages is not None and segment not in contents.segments:
                self.segments.write(segment, self.id)
        return self._object.put_if_match(data, version)

    def _remove_unnamed(self, progress: _Progress, contents: Contents) -> None:
        with contextlib.suppress(StoreError):
            self.segments.remove(progress.touched - _names(contents))

    def next_messages(self, limit: int) -> list[Message]:
        """Read the queue and needed segments; return the first `limit` ready messages, also delayed ones, in order."""
        while True:
            contents, version = self.read()
            shown = contents.copy()
            with contextlib.suppress(_SegmentGone):
                while shown.segments and (
                    len(shown.ready) <= limit or shown.ready[limit].order > shown.segments[0].first
                ):
                    name = shown.segments[0].name
                    shown = with_messages(shown, {name: self._messages(name, version)})
                    promote(shown, shown.segments[0])
                return shown.ready[:limit]

    def _messages(self, name: str, version: Version) -> tuple[Message, ...]:
        """Read a segment of the queue's `version`.

        Missing: MalformedObject, or _SegmentGone if the queue changed.
        """
        messages = self.segments.read(name, self.id)
        if messages is not None:
            return messages
        if self.read()[1] != version:
            raise _SegmentGone
        message = f"the queue at {self.path!r} names the segment {name}, which was removed: "
        raise MalformedObject(f"{message}restore that object, or create the queue anew")

    def _look(self, progress: _Progress, deadline_s: float, max_age_s: float) -> tuple[Contents, Version]:
        """Read the queue, unless the cache is at most `max_age_s` old.

        Once the batch may have been sent, retries Unavailable until `deadline_s`; other errors become OutcomeUnknown.
        """
        failures = 0
        while True:
            try:
                return self.read(max_age_s=max_age_s)
            except (StoreError, CoordinationError) as error:
                if not progress.is_sent:
                    raise
                if not isinstance(error, Unavailable) or self.world.monotonic_s() > deadline_s:
                    raise self._unknown(str(error)) from error
            failures += 1
            self.world.sleep(delay_s(failures, self.world.random()))

    def _note(self, contents: Contents, more: int) -> None:
        """Record claims' heartbeats, first by the store's clock (a HEAD).

        `more` added messages wake callers.
        """
        now_ms = self.world.now_ms()
        if self._watch.deadlines is None and contents.claims:
            said_ms = self.store.head(self.path, timeout=self._timeout_s).answered_ms
            now_ms = now_ms if said_ms is None else said_ms
        self._watch.look(contents, self.world.monotonic_s(), now_ms)
        if more > 0:
            self.wake()

    def wake(self) -> None:
        arrived, self._arrived = self._arrived, Signal()
        arrived.set()

    def wait_for_messages(self, timeout_s: float) -> None:
        self._arrived.wait(min(timeout_s, self._watch.next_s(self.world.monotonic_s()) + 0.001))

    def _unknown(self, why: str) -> OutcomeUnknown:
        message = f"the operation may have been applied to the queue {self.path!r}: {why}"
        return OutcomeUnknown(message, path=self.path)


def _adds_messages(operation: Given) -> bool:
    other = without_bundle(operation)
    return isinstance(other, Put) or (isinstance(other, End) and bool(other.then))


def _adds_forgettable(operation: QueueOperation, contents: Contents) -> bool:
    if not isinstance(operation, Put) or not operation.producer.startswith(UNNAMED):
        return False
    return operation.producer not in contents.producers


def _numbered(operation: Given) -> ProducerNumber | None:
    return None if isinstance(operation, Foreign) else number_of(operation)


def _names(contents: Contents) -> set[str]:
    return {segment.name for segment in contents.segments}
