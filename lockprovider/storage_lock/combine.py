"""Group commit, decided without I/O, clock or randomness.

Decided is what a write of the lock record at its version says. So two who combine cannot both win, and one that is
late decides nothing. Whoever writes has read the record, and then listed the intents: so what was withdrawn before a
version cannot be decided at that version or after it. An intent is judged by its writer up to its place of the log, by
who combines against all entries since, and against those chosen before it in the same write. Whatever ends the log (a
JVM writer, a clean, a rollback, a restore) voids all intents at once.

    combine    the record that decides these
    verdict    what the record says of one intent
    next_act   what a client does that has something to be decided, or is on duty

Whoever is on duty has said in the record that it looks at the intents again; it is a hint, and safety does not depend
on it. It is a length of time, counted by each from when it first saw that version: clocks need not agree.

What is decided is applied in the order of the log by who is on duty, one after the other: for those who only list the
store, a publish never appears before one that was decided earlier. Where all readers go by the record (`at_once`), what
one write decides is applied at once; it is told to those who wait when all before it is there, too.
"""

from __future__ import annotations

import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol
from urllib.parse import quote, unquote

from fsspec_cas.given import LARGEST_NUMBER
from lockprovider.bounded import inflate
from lockprovider.storage_lock.commit_log import LARGEST, Entry, Log, Pending, tells
from lockprovider.storage_lock.machine import hand_over_s, late_ms, not_there
from lockprovider.storage_lock.record import (
    LONGEST_S,
    LockRecord,
    goes_first_s,
    guest_ms,
    left_alone_ms,
    lies_free_s,
    others_wait,
    rests_s,
)
from lockprovider.storage_lock.states import Me, Moment

_LONGEST = 255  # bytes of a name: MinIO's limit, and of many file systems
_SUM = 4  # bytes


@dataclass(frozen=True, slots=True)
class Intent:
    """A publish that waits for its decision: an object under the name of what its writer has seen, created once.

    It says: all that it needs is there, and it asks to be published. It holds for one log of the lock record, from the
    place on up to which its writer has judged itself, and nowhere else. An intent without a body is withdrawn. A short
    body stands in the name, too, deflated by what is much like it and known to whoever decides: a sample of the
    decider's, and the last entry before its place. That spares a read.

    Attributes:
        log: the name of the log by which its writer has judged itself.
        place: up to which place of that log.
        stem: what the path that is going to be published begins with; no other publish's ever does.
        body: what the decider needs to judge it and to publish it.
        told: the body as it stands in its name; empty where it does not.
    """

    log: str
    place: int
    stem: str
    body: bytes
    told: str = field(default="", compare=False)

    @property
    def name(self) -> str:
        """Its path below the folder of the intents."""
        name = f"{intents_folder(self.log)}{self.place}.{quote(self.stem, safe='')}"
        return f"{name}!{self.told}" if self.told else name

    def telling(self, log: Log, sample: bytes) -> Intent:
        """The same with its body in its name, if there is room for that."""
        told = replace(self, told=_packed(self.body, sample + _before(log, self.place)))
        return told if len(told.name) - len(intents_folder(self.log)) <= _LONGEST else self

    def read(self, log: Log, sample: bytes) -> Intent:
        """The same with the body that its name tells; without one, if it tells none, or not by these."""
        return replace(self, body=_unpacked(self.told, sample + _before(log, self.place)))


def intents_folder(log: str) -> str:
    """Where the intents of one log are; those of others are void."""
    return f"{quote(log, safe='')}/"


def is_over(intent: Intent, log: Log | None) -> bool:
    """Whether no write can decide it any more, now that the record has this log: also should it be posted again."""
    if log is None or log.name != intent.log or intent.place < log.first:
        return True
    return any(entry.path.startswith(intent.stem) for entry in log.entries)


def parse_intent(name: str, body: bytes) -> Intent | None:
    """The intent of that name; None if it is none."""
    log, slash, rest = name.partition("/")
    rest, _, told = rest.partition("!")
    place, dot, stem = rest.partition(".")
    if not (slash and dot and stem and place.isdecimal() and int(place) <= LARGEST_NUMBER and len(body) <= LARGEST):
        return None
    return Intent(unquote(log), int(place), unquote(stem), body, told)


def _before(log: Log, place: int) -> bytes:
    """The last that was published before that place, as far as the log goes back."""
    since = log.since(place - 1)
    return (since[0].data or b"") if since else b""


def _packed(body: bytes, like: bytes) -> str:
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS, 9, zlib.Z_DEFAULT_STRATEGY, like)
    packed = zlib.crc32(body).to_bytes(_SUM, "big") + packer.compress(body) + packer.flush()
    return urlsafe_b64encode(packed).decode().rstrip("=")


def _unpacked(told: str, like: bytes) -> bytes:
    """Nothing, if it was packed with something else."""
    try:
        packed = urlsafe_b64decode(told + "=" * (-len(told) % 4))
        body = inflate(packed[_SUM:], most=LARGEST, wbits=-zlib.MAX_WBITS, like=like)
    except (ValueError, zlib.error):
        return b""
    return body if zlib.crc32(body).to_bytes(_SUM, "big") == packed[:_SUM] else b""


MOST_UNAPPLIED = 16  # decided and not there yet: they are put there one after the other, within `HAND_OVER_S`


class JudgeAnew(Exception):
    """What came since cannot be compared with the intent; its writer has to look at the protected data again."""


class Decider(Protocol):
    """Who knows what the publishes mean."""

    @property
    def at_once(self) -> bool:
        """Whether what one write decides may appear in any order; by what `refresh` has read, if it was called."""

    @property
    def sample(self) -> bytes:
        """What the bodies of intents are much like, the same for most who decide the same; nothing depends on it."""

    def refresh(self, seen_s: float) -> None:
        """Read what the decisions depend on besides the log, if it was not read since then, on the monotonic clock.

        That is when the record was seen that is written next: what was read after that is of now, if it is written.
        """

    def refuse(self, intent: Intent, since: Sequence[Entry]) -> None:
        """Return if the intent may follow these entries; for all who ask that is the same.

        Raises:
            JudgeAnew: that cannot be said from here.
            Exception: it may not, for good; what its writer gets.
        """

    def pending(self, intent: Intent, log: Log, now_ms: int) -> Pending | None:
        """What is published if it is decided next after that log: a `sole` publish, with its bytes.

        None: not from here; by what `refresh` has read.
        """


# -- what one write decides --------------------------------------------------------------------------------------------


def may_write(record: LockRecord) -> bool:
    """Whether a write may decide publishes although nobody holds the lock.

    Not one that lapsed: its holder may be at work. Not without a log: it would not tell what happened before.
    """
    sole = all(pending.sole for pending in record.unapplied)
    return record.given and record.log is not None and sole and record.tells_all


def choose(
    log: Log, unapplied: tuple[Pending, ...], intents: Iterable[Intent], decider: Decider, now_ms: int
) -> tuple[Pending, ...]:
    """What of these can follow the log, in the order of their stems, as far as there is room; the rest is left.

    `unapplied`: what may not be there yet of what was decided before.
    """
    chosen: list[Pending] = []
    begun = log
    for intent in sorted(set(intents), key=lambda one: (one.stem, one.place)):
        if len(unapplied) + len(chosen) >= MOST_UNAPPLIED:
            break
        if not isinstance(verdict(begun, intent, decider), Undecided) or not intent.body:
            continue
        pending = _pending(decider, intent, begun, now_ms)
        if pending is None or not tells(pending):
            continue
        chosen.append(pending)
        begun = begun.judged_with(pending)
    while chosen and not log.plus(*chosen).ends_with((*unapplied, *chosen)):
        chosen.pop()  # what is not there yet must be told by the log
    return tuple(chosen)


def _pending(decider: Decider, intent: Intent, log: Log, now_ms: int) -> Pending | None:
    """None also where the intent is wrong, whoever has posted it: that keeps nobody else from being decided.

    What is published under another name than the intent's would be decided again and again. One's own is asked for once
    more by its writer, who gets the error.
    """
    try:
        pending = decider.pending(intent, log, now_ms)
    except Exception:  # noqa: BLE001 - see above
        return None
    return pending if pending is not None and pending.path.startswith(intent.stem) else None


def combine(
    me: Me,
    seen: LockRecord,
    batch: Sequence[Pending],
    at: Moment,
    *,
    there: Pending | None,
    duty_ms: int = 0,
    rest_ms: int = 0,
    epoch: int = 0,
) -> LockRecord:
    """The record that decides `batch`, to be written at the version at which `seen` was read.

    Where nothing is left to do the lock is released plainly: those who know nothing of ours find it free.

    `there`: the last publish that is known to be applied, with all before it. `epoch`: the highest that was seen.
    """
    unapplied = (*not_there(seen, there), *batch)
    return LockRecord(
        owner=me.owner,
        valid_until_ms=at.now_ms + round(hand_over_s(me.settings) * 1000),
        expired=not unapplied,
        handed=bool(unapplied),
        epoch=max(seen.epoch + 1, epoch + 1, at.now_ms),
        nonce=at.nonce,
        holder=me.holds_since(at.now_ms),
        line=() if lies_free_s(seen, at.now_ms) > goes_first_s(seen) else seen.line,
        turn_ms=seen.turn_ms,
        freed_ms=at.now_ms,
        late_ms=late_ms(seen, at.now_ms, me.owner),
        log=seen.log and seen.log.plus(*(pending for pending in batch if not seen.log.has(pending))),
        pending=unapplied[-1] if unapplied else None,
        earlier=unapplied[:-1],
        guest_ms=guest_ms(seen, at.now_ms),
        rest_ms=rest_ms or left_alone_ms(seen, at.now_ms, lies_free=not unapplied and not duty_ms),
        duty_ms=duty_ms,
    )


# -- what became of one intent -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Decided:
    """It stands in the log, under this path, at this place. `posted`: where its intent is left, if there is one."""

    path: str
    posted: str = ""
    place: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Refused:
    """No write can decide it any more: what was decided since is in its way."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Void:
    """The log has ended, or does not go back to its place, or only its writer can say whether it may follow.

    It may have been decided before that; its writer looks whether it is there. It cannot be decided any more.
    """


@dataclass(frozen=True, slots=True)
class Undecided:
    """It can be decided."""


_Verdict = Decided | Refused | Void | Undecided


def verdict(log: Log | None, intent: Intent, decider: Decider) -> _Verdict:
    """What the log in the record says of the intent."""
    if log is None or log.name != intent.log:
        return Void()
    found = next((at for at, entry in enumerate(log.entries) if entry.path.startswith(intent.stem)), None)
    if found is not None:
        return Decided(log.entries[found].path, place=log.first + found)
    since = log.since(intent.place)
    if since is None:
        return Void()
    try:
        decider.refuse(intent, since)
    except JudgeAnew:
        return Void()
    except Exception as error:  # noqa: BLE001 - for the writer of the intent
        return Refused(error)
    return Undecided()


# -- what to do next ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Standing:
    """Of one who is not on duty. `posted`: all is posted that it wants to be decided.

    `refused`: writes in a row that others were faster than. `age_s`: for how long it knows the record as it is.
    `waits_s`: for how long it wants something. `name`: that of its process in the line, unless one there wants to hold.
    `writes`: after how many more writes of the record it can know more.
    """

    posted: bool = False
    refused: int = 0
    age_s: float = 0.0
    waits_s: float = 0.0
    name: str = ""
    writes: int = 1


@dataclass(frozen=True, slots=True)
class WriteRecord:
    """Write the record, with what is wanted and nothing else: who lists first is outrun by those who do not.

    With `duty` it is announced: who has won like that combines from then on.
    """

    duty: bool = False


@dataclass(frozen=True, slots=True)
class Post:
    """Somebody is on duty: post what is to be decided."""


@dataclass(frozen=True, slots=True)
class LookAgain:
    """Look at the record again after so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Hold:
    """It must be done under a lock that is held: the log has ended, or what is unapplied needs a holder."""


@dataclass(frozen=True, slots=True)
class Combine:
    """List what is posted, and decide on it by `after_listing`."""


@dataclass(frozen=True, slots=True)
class StepDown:
    """Be on duty no more. `frees`: write the record once more, which releases the lock plainly."""

    frees: bool = False


@dataclass(frozen=True, slots=True)
class AwaitOthers:
    """Look for the object itself: another client applies it, and the record does not soon say that it is there."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing until what is applied here is there, or until the next round."""


@dataclass(frozen=True, slots=True)
class Free:
    """Write the record once more, which releases the lock plainly: all that was decided is there."""


@dataclass(frozen=True, slots=True)
class Rest:
    """Nothing is left to do."""


Act = WriteRecord | Post | LookAgain | Hold | Combine | StepDown | AwaitOthers | Wait | Free | Rest


@dataclass(frozen=True, slots=True)
class Situation:
    """What a client of group commit knows besides the record.

    Attributes:
        unapplied: the pending publishes of the record that may not be there yet.
        standing: what it waits for; None if it is on duty, or wants nothing.
        undecided: the log says nothing yet of something that it wants.
        leads: it is on duty.
        applies: it is applying something.
        fails: its last run of applying has ended early. `is_stuck`: because something never can be there.
        others_apply: all that it wants is decided, and it watches how another client applies that.
        is_waited_for: a client in the line wants to hold the lock.
        wrote: the record is the last one that it has written, as far as it knows.
    """

    unapplied: tuple[Pending, ...] = ()
    standing: Standing | None = None
    undecided: bool = False
    leads: bool = False
    applies: bool = False
    fails: bool = False
    is_stuck: bool = False
    others_apply: bool = False
    is_waited_for: bool = False
    wrote: bool = False


def next_act(record: LockRecord, mine: Situation, now_ms: int, poll_s: float) -> Act:
    """Choose what a client of group commit does next, by the record as it knows it.

    Whoever has stepped down asks again.
    """
    if mine.leads:
        cannot_go_on = mine.is_waited_for or (mine.fails and mine.unapplied)
        return StepDown() if cannot_go_on or not may_write(record) else Combine()
    if mine.standing is None:
        if mine.applies:
            return Wait()
        all_there = mine.wrote and record.handed and not mine.unapplied
        return Free() if all_there and not mine.is_waited_for else Rest()
    if not mine.undecided and mine.applies:
        return Wait()
    if not mine.undecided and mine.others_apply:
        return AwaitOthers()
    act = next_step(record, mine.standing, now_ms, poll_s)
    return Hold() if isinstance(act, WriteRecord) and mine.is_stuck else act


def after_listing(
    record: LockRecord, mine: Situation, batch: Sequence[Pending], *, rests: bool, is_due: bool, empty_rounds: int
) -> WriteRecord | StepDown | Wait:
    """Choose what a client on duty does once it has listed what is posted.

    Args:
        record: as the client knows it.
        mine: what the client knows besides.
        batch: what the next write can decide.
        rests: the lock is due to be left to foreign clients; then nothing was listed.
        is_due: the record was not written for as long as a round takes.
        empty_rounds: how many rounds in a row had nothing to do before this one.
    """
    news = len(mine.unapplied) < len(record.unapplied)
    if rests and not mine.unapplied:
        return StepDown(frees=True)
    if not (batch or news or is_due):
        return Wait()
    if not (batch or mine.unapplied or news) and empty_rounds + 1 >= _EMPTY_ROUNDS:
        return StepDown(frees=not mine.is_waited_for)
    return WriteRecord(duty=True)


def next_step(record: LockRecord, mine: Standing, now_ms: int, poll_s: float) -> Act:
    """What one who wants something, and is not on duty, does about the record; looks are to be spread by a draw."""
    if not record.given and not record.lapsed_at(now_ms):
        lapses_s = (record.lapses_ms - now_ms) / 1000
        return LookAgain(min(_pause_s(mine, poll_s), max(_SOONEST_S, lapses_s)))
    if not may_write(record):
        return Hold()
    if rest_s := rests_s(record, now_ms):
        return LookAgain(rest_s)
    duty_s = min(record.duty_ms / 1000, LONGEST_S)
    if mine.age_s < duty_s:
        pause_s = max(_until_told_s(record, mine, now_ms, duty_s / DUTY_ROUNDS), mine.waits_s / _SLOWER)
        return LookAgain(min(pause_s, duty_s - mine.age_s + _SOONEST_S)) if mine.posted else Post()
    if others_wait(record, mine.name) and max(lies_free_s(record, now_ms), mine.waits_s) <= goes_first_s(record):
        return LookAgain(_pause_s(mine, poll_s))  # whoever wants to hold it goes first
    return WriteRecord(duty=mine.posted or mine.refused > 0)


def _until_told_s(record: LockRecord, mine: Standing, now_ms: int, round_s: float) -> float:
    """Until the write that tells more, if rounds go on to take so long.

    By two clocks: where they differ it is looked at too often, or that many rounds too late.
    """
    due_s = mine.writes * round_s - (now_ms - record.freed_ms) / 1000
    return min(max(due_s, round_s / 2), mine.writes * round_s)


def latest_first_look_s(record: LockRecord) -> float:
    """When one that has posted looks first, at the latest, however long it took of late; in seconds from now.

    After a few rounds, unless more waits than one write decides: then it may take many.
    """
    if len(record.unapplied) >= MOST_UNAPPLIED:
        return _FIRST_LOOK_S
    return min(_FIRST_LOOK_S, record.duty_ms / 1000 * _FIRST_LOOK_ROUNDS / DUTY_ROUNDS)


def _pause_s(mine: Standing, poll_s: float) -> float:
    return min(poll_s, max(_FIRST_S, mine.waits_s / 4))


_FIRST_S = 0.05
_SOONEST_S = 0.001
_FIRST_LOOK_S = 4.0
_FIRST_LOOK_ROUNDS = 4
_EMPTY_ROUNDS = 2  # in a row, and the duty is over
DUTY_ROUNDS = 3  # for so many rounds duty is announced
_SLOWER = 8  # the longer one waits, the more seldom it looks
