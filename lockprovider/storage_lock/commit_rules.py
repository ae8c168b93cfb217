"""Rules of group commit, pure; see "Group commit" in `lockprovider/SPECIFICATION.md`."""

from __future__ import annotations

import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol
from urllib.parse import quote, unquote

from fsspec_cas.arguments import LARGEST_NUMBER
from lockprovider.bounded import inflate
from lockprovider.storage_lock.polling import (
    LONGEST_S,
    foreign_seen_ms,
    free_for_s,
    last_yield_until_ms,
    others_wait,
    waiters_first_s,
    yield_left_s,
)
from lockprovider.storage_lock.record import (
    LARGEST_ENTRY,
    Entry,
    LockRecord,
    Log,
    Me,
    Moment,
    Pending,
    fits_log,
    hand_over_s,
    pending_after,
    pending_until_ms,
)

_LONGEST = 255  # bytes of a name: MinIO's limit
_DIGITS = len(str(LARGEST_NUMBER))
_SUM = 4


@dataclass(frozen=True, slots=True)
class Intent:
    """Writer's request to decide a publish: an object whose name shows what its writer has read.

    All that the publish needs is stored before.

    Attributes:
        body: what the decider needs to judge and publish it.
        packed_body: body as in the name, deflated, or empty.
    """

    log: str
    position: int
    stem: str
    body: bytes
    packed_body: str = field(default="", compare=False)

    @property
    def name(self) -> str:
        name = f"{intents_folder(self.log)}{self.position}.{quote(self.stem, safe='')}"
        return f"{name}!{self.packed_body}" if self.packed_body else name

    def with_packed_body(self, log: Log, sample: bytes) -> Intent:
        packed_body = replace(self, packed_body=_packed(self.body, sample + _before(log, self.position)))
        return packed_body if len(packed_body.name) - len(intents_folder(self.log)) <= _LONGEST else self

    def read(self, log: Log, sample: bytes) -> Intent:
        return replace(self, body=_unpacked(self.packed_body, sample + _before(log, self.position)))


def intents_folder(log: str) -> str:
    return f"{quote(log, safe='')}/"


def is_over(intent: Intent, log: Log | None) -> bool:
    """Whether, by the log alone, no write can decide the intent."""
    if log is None or log.name != intent.log or intent.position < log.first:
        return True
    return any(entry.path.startswith(intent.stem) for entry in log.entries)


def parse_intent(name: str, body: bytes) -> Intent | None:
    """Parse an intent's path below the intents' folder, and enclose `body`.

    None for a path of another form, or a body above 32 KiB.
    """
    log, slash, rest = name.partition("/")
    rest, _, packed_body = rest.partition("!")
    position, dot, stem = rest.partition(".")
    if not (slash and dot and stem and position.isdecimal()):
        return None
    if len(position) > _DIGITS or int(position) > LARGEST_NUMBER or len(body) > LARGEST_ENTRY:
        return None
    return Intent(unquote(log), int(position), unquote(stem), body, packed_body)


def _before(log: Log, position: int) -> bytes:
    since = log.since(position - 1)
    return (since[0].data or b"") if since else b""


def _packed(body: bytes, like: bytes) -> str:
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS, 9, zlib.Z_DEFAULT_STRATEGY, like)
    packed = zlib.crc32(body).to_bytes(_SUM, "big") + packer.compress(body) + packer.flush()
    return urlsafe_b64encode(packed).decode().rstrip("=")


def _unpacked(packed_body: str, like: bytes) -> bytes:
    try:
        packed = urlsafe_b64decode(packed_body + "=" * (-len(packed_body) % 4))
        body = inflate(packed[_SUM:], most=LARGEST_ENTRY, wbits=-zlib.MAX_WBITS, like=like)
    except (ValueError, zlib.error):
        return b""
    return body if zlib.crc32(body).to_bytes(_SUM, "big") == packed[:_SUM] else b""


MOST_PENDING = 16  # applied within `HAND_OVER_S`


class JudgeAnew(Exception):
    """The log cannot judge the intent: its writer must read again."""


class Decider(Protocol):
    """Application's rules: which publish may follow which, as of the last `refresh`."""

    @property
    def unordered(self) -> bool:
        """Whether one write's publishes may appear in any order."""

    @property
    def sample(self) -> bytes:
        """Bytes that resemble most intents' bodies; affects only names' sizes."""

    def refresh(self, seen_s: float) -> None:
        """Read what decisions depend on besides the log, unless read since `seen_s` (monotonic)."""

    def refuse(self, intent: Intent, since: Sequence[Entry]) -> None:
        """Return if the intent may follow these entries; all clients must agree.

        Raises:
            JudgeAnew: the entries do not show it.
            Exception: the intent may never follow; its writer gets this error.
        """

    def pending(self, intent: Intent, log: Log, now_ms: int) -> Pending | None:
        """`unshared` publish to decide after `log`; None if it cannot be built here."""


def may_write(record: LockRecord) -> bool:
    """Whether a write without the lock may decide publishes.

    The record must be released (a lapsed holder may still work), its log have the bytes of all pending publishes, all
    `unshared`.
    """
    unshared = all(pending.unshared for pending in record.all_pending)
    return record.is_free and record.log is not None and unshared and record.log_has_pending


def choose(
    log: Log, all_pending: tuple[Pending, ...], intents: Iterable[Intent], decider: Decider, now_ms: int
) -> tuple[Pending, ...]:
    """Choose the intents that one write can decide after the log, sorted by stem; returns their publishes.

    With `all_pending` they are at most 16. All others are silently left out.
    """
    chosen: list[Pending] = []
    begun = log
    for intent in sorted(set(intents), key=lambda posted: (posted.stem, posted.position)):
        if len(all_pending) + len(chosen) >= MOST_PENDING:
            break
        if not isinstance(verdict(begun, intent, decider), Undecided) or not intent.body:
            continue
        pending = _pending(decider, intent, begun, now_ms)
        if pending is None or not fits_log(pending):
            continue
        chosen.append(pending)
        begun = begun.with_candidate(pending)
    while chosen and not log.plus(*chosen).ends_with((*all_pending, *chosen)):
        chosen.pop()  # the log must have all pending bytes
    return tuple(chosen)


def _pending(decider: Decider, intent: Intent, log: Log, now_ms: int) -> Pending | None:
    try:
        pending = decider.pending(intent, log, now_ms)
    except Exception:  # noqa: BLE001 - its writer's error
        return None
    return pending if pending is not None and pending.path.startswith(intent.stem) else None


def combine(
    me: Me,
    record: LockRecord,
    batch: Sequence[Pending],
    at: Moment,
    *,
    last_applied: Pending | None,
    combiner_ms: int = 0,
    yield_until_ms: int = 0,
    epoch: int = 0,
) -> LockRecord:
    """Build the released record that decides `batch` over `record`.

    It drops pending publishes up to `last_applied`, and all waiters once they are late. `epoch` is the highest seen.
    `combiner_ms`, if not 0, announces a leader, `yield_until_ms` a yield window.
    """
    all_pending = (*pending_after(record.all_pending, last_applied), *batch)
    return LockRecord(
        owner=me.owner,
        valid_until_ms=at.now_ms + round(hand_over_s(me.settings) * 1000),
        expired=not all_pending,
        released_pending=bool(all_pending),
        epoch=max(record.epoch + 1, epoch + 1, at.now_ms),
        nonce=at.nonce,
        holder=me.holds_since(at.now_ms),
        waiters=() if free_for_s(record, at.now_ms) > waiters_first_s(record) else record.waiters,
        turn_ms=record.turn_ms,
        freed_ms=at.now_ms,
        pending_until_ms=pending_until_ms(record, at.now_ms, me.owner),
        log=record.log and record.log.plus(*(pending for pending in batch if not record.log.has(pending))),
        pending=all_pending[-1] if all_pending else None,
        pending_before=all_pending[:-1],
        foreign_seen_ms=foreign_seen_ms(record, at.now_ms),
        yield_until_ms=yield_until_ms
        or last_yield_until_ms(record, at.now_ms, lies_free=not all_pending and not combiner_ms),
        combiner_ms=combiner_ms,
    )


@dataclass(frozen=True, slots=True)
class Decided:
    """The log has the publish. `posted`: its intent's path, if any."""

    path: str
    posted: str = ""
    position: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Refused:
    """A later publish conflicts."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Void:
    """No write can decide the intent now, but one may have before."""


@dataclass(frozen=True, slots=True)
class Undecided:
    """A write can still decide it."""


_Verdict = Decided | Refused | Void | Undecided


def verdict(log: Log | None, intent: Intent, decider: Decider) -> _Verdict:
    """Judge an intent: `Decided` if the log has it, `Refused` with any error of the decider, else `Undecided`.

    `Void` if the log is None or another, lacks the intent's position, or on `JudgeAnew`.
    """
    if log is None or log.name != intent.log:
        return Void()
    index = next((number for number, entry in enumerate(log.entries) if entry.path.startswith(intent.stem)), None)
    if index is not None:
        return Decided(log.entries[index].path, position=log.first + index)
    since = log.since(intent.position)
    if since is None:
        return Void()
    try:
        decider.refuse(intent, since)
    except JudgeAnew:
        return Void()
    except Exception as error:  # noqa: BLE001 - its writer gets it
        return Refused(error)
    return Undecided()


@dataclass(frozen=True, slots=True)
class Waiting:
    """Client that waits and does not lead.

    `refused`: lost writes in a row. `age_s`: since it first read this version. `name`: empty if its process wants the
    lock. `writes`: of the record, to wait for.
    """

    posted: bool = False
    refused: int = 0
    age_s: float = 0.0
    waits_s: float = 0.0
    name: str = ""
    writes: int = 1


@dataclass(frozen=True, slots=True)
class WriteRecord:
    """Write the record with own publishes; `leads` announces a leader."""

    leads: bool = False


@dataclass(frozen=True, slots=True)
class Post:
    """Post the intents: another client leads."""


@dataclass(frozen=True, slots=True)
class PollAgain:
    """Read the record after a pause."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Hold:
    """Publish under a held lock: the last lease lapsed, the log has ended, or pending publishes need it."""


@dataclass(frozen=True, slots=True)
class Combine:
    """List the posted intents, then ask `after_listing`."""


@dataclass(frozen=True, slots=True)
class StepDown:
    """Stop leading; `frees`: first write the record as released."""

    frees: bool = False


@dataclass(frozen=True, slots=True)
class AwaitOthers:
    """Read until another client has applied the publish."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for own publishes, or the next round."""


@dataclass(frozen=True, slots=True)
class Free:
    """Write the record as released: all is applied."""


@dataclass(frozen=True, slots=True)
class Rest:
    """Nothing is left to do."""


Act = WriteRecord | Post | PollAgain | Hold | Combine | StepDown | AwaitOthers | Wait | Free | Rest


@dataclass(frozen=True, slots=True)
class Situation:
    """What a client knows besides the record.

    `undecided`: the log does not decide all its requests. `fails`: its last run of applying ended early. `is_stuck`: a
    publish can never be applied. `wrote`: the record is its own.
    """

    all_pending: tuple[Pending, ...] = ()
    waiting: Waiting | None = None
    undecided: bool = False
    leads: bool = False
    applies: bool = False
    fails: bool = False
    is_stuck: bool = False
    others_apply: bool = False
    is_waited_for: bool = False
    wrote: bool = False


def next_act(record: LockRecord, situation: Situation, now_ms: int, poll_s: float) -> Act:
    """Choose the next act: a leader combines, or steps down if waiters, a failure or the record stop it.

    Other clients await decided requests, else take `next_step` (`Hold` if stuck), or without requests wait, free the
    record or rest.
    """
    if situation.leads:
        cannot_go_on = situation.is_waited_for or (situation.fails and situation.all_pending)
        return StepDown() if cannot_go_on or not may_write(record) else Combine()
    if situation.waiting is None:
        if situation.applies:
            return Wait()
        all_applied = situation.wrote and record.released_pending and not situation.all_pending
        return Free() if all_applied and not situation.is_waited_for else Rest()
    if not situation.undecided and situation.applies:
        return Wait()
    if not situation.undecided and situation.others_apply:
        return AwaitOthers()
    act = next_step(record, situation.waiting, now_ms, poll_s)
    return Hold() if isinstance(act, WriteRecord) and situation.is_stuck else act


def after_listing(
    record: LockRecord, situation: Situation, batch: Sequence[Pending], *, yields: bool, is_due: bool, empty_rounds: int
) -> WriteRecord | StepDown | Wait:
    """After a listing, write for a `batch` or newly applied publishes, or if a round `is_due`; else wait.

    The leader steps down instead, and `frees`, for a due yield window (`yields`) with nothing pending. After two empty
    rounds too, where it `frees` unless other clients wait.
    """
    news = len(situation.all_pending) < len(record.all_pending)
    if yields and not situation.all_pending:
        return StepDown(frees=True)
    if not (batch or news or is_due):
        return Wait()
    if not (batch or situation.all_pending or news) and empty_rounds + 1 >= _EMPTY_ROUNDS:
        return StepDown(frees=not situation.is_waited_for)
    return WriteRecord(leads=True)


def next_step(record: LockRecord, waiting: Waiting, now_ms: int, poll_s: float) -> Act:
    """Choose the act of a waiting client that does not lead.

    While held, `PollAgain`; if no write is allowed, `Hold`. For a yield window or waiters `PollAgain`, under a leader
    `Post`, then `PollAgain`, else `WriteRecord`. Pauses lack jitter.
    """
    if not record.is_free and not record.lapsed_at(now_ms):
        lapses_s = (record.lapses_ms - now_ms) / 1000
        return PollAgain(min(_pause_s(waiting, poll_s), max(_SOONEST_S, lapses_s)))
    if not may_write(record):
        return Hold()
    if yield_s := yield_left_s(record, now_ms):
        return PollAgain(yield_s)
    leading_s = min(record.combiner_ms / 1000, LONGEST_S)
    if waiting.age_s < leading_s:
        pause_s = max(_until_decided_s(record, waiting, now_ms, leading_s / LEADER_ROUNDS), waiting.waits_s / _SLOWER)
        return PollAgain(min(pause_s, leading_s - waiting.age_s + _SOONEST_S)) if waiting.posted else Post()
    if others_wait(record, waiting.name) and max(free_for_s(record, now_ms), waiting.waits_s) <= waiters_first_s(
        record
    ):
        return PollAgain(_pause_s(waiting, poll_s))
    return WriteRecord(leads=waiting.posted or waiting.refused > 0)


def _until_decided_s(record: LockRecord, waiting: Waiting, now_ms: int, round_s: float) -> float:
    due_s = waiting.writes * round_s - (now_ms - record.freed_ms) / 1000
    return min(max(due_s, round_s / 2), waiting.writes * round_s)


def latest_first_poll_s(record: LockRecord) -> float:
    if len(record.all_pending) >= MOST_PENDING:
        return _FIRST_POLL_S
    return min(_FIRST_POLL_S, record.combiner_ms / 1000 * _FIRST_POLL_ROUNDS / LEADER_ROUNDS)


def _pause_s(waiting: Waiting, poll_s: float) -> float:
    return min(poll_s, max(_FIRST_S, waiting.waits_s / 4))


_FIRST_S = 0.05
_SOONEST_S = 0.001
_FIRST_POLL_S = 4.0
_FIRST_POLL_ROUNDS = 4
_EMPTY_ROUNDS = 2
LEADER_ROUNDS = 3
_SLOWER = 8
