"""Is a history linearizable? Exact, in the time of a sort, because every write has an id of its own.

A write that takes effect names the state that it replaces: "nothing" (create) or one id (match, delete). So the ids
form chains, each begun by a create and perhaps ended by a delete, and while a chain goes on no other write can take
effect: between an id and its successor lies nothing. Two writes that both replace the same id are a lost update.

What is left is time.

- Within a chain the order is known. It is possible if and only if nothing bound to an id returned before something
  bound to an earlier id was called (a write is bound to the id it makes, a read to the id it shows).
- Between chains: let f be the first return in a chain and s the last call. If f < s, the chain went on from f to s, at
  least; a chain that nothing ends goes on for ever. Two such stretches may not overlap. A chain with s <= f fits into
  any one moment from s to f, and so does a read of "nothing" into its own time: it is possible if and only if not all
  of these moments lie inside one stretch. (Gibbons and Korach, "Testing Shared Memories", SIAM J. Comput. 26, 1997,
  prove this for registers whose values are unique; a chain, being contiguous, is such a value.)

A lost write is a read of what its look showed: its version had been known before the call, so any other state during
the call came after, and the refusal was right. An unknown write took effect if anybody saw its id; if nobody did, it
can be left out, as no other call needs it. An unknown delete took effect only if nothing else replaced what it names;
then to assume that it did takes nothing from any other call. Neither has to have happened before it returned.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

from linearize.history import NEVER, History, Kind, Op, Result, check_form


@dataclass(frozen=True, slots=True)
class Violation:
    """Why no order of the calls explains what was seen."""

    why: str
    ops: tuple[Op, ...] = ()


@dataclass(slots=True)
class _Chain:
    """One life of the object: the ops bound to each of its states in turn."""

    states: list[list[Op]] = field(default_factory=list)
    ended: bool = False

    @property
    def ops(self) -> list[Op]:
        return [op for state in self.states for op in state]

    @property
    def first_return(self) -> float:
        return min(op.ends for op in self.ops)

    @property
    def last_call(self) -> float:
        return max(op.called for op in self.ops) if self.ended else NEVER


def check(history: History) -> Violation | None:
    """Nothing, or why it is not linearizable. The object is absent at first.

    Raises:
        Malformed: it is no history of clients.
    """
    check_form(history)
    writes = {op.write: op for op in history if op.write is not None}
    reads: dict[str | None, list[Op]] = defaultdict(list)
    for op in history:
        if op.kind is Kind.READ or op.result is Result.LOST:
            reads[op.seen].append(op)
    effective = {w: op for w, op in writes.items() if op.result is Result.OK or (w in reads)}
    if found := _unwritten(effective, reads) or _forks(effective, history):
        return found
    chains = _chains(effective, reads, history)
    return _rootless(effective, chains) or _in_time(chains, reads[None])


def _unwritten(effective: dict[str, Op], reads: dict[str | None, list[Op]]) -> Violation | None:
    for seen, by in reads.items():
        if seen is None:
            continue
        if seen not in effective:
            return Violation(f"{seen!r} was seen, and never written", tuple(by[:1]))
        if effective[seen].result is Result.LOST:
            return Violation(f"{seen!r} was reported lost, and seen", (effective[seen], by[0]))
    return None


def _forks(effective: dict[str, Op], history: History) -> Violation | None:
    """Two that replaced the same state, and a successor of what never was."""
    replaced: dict[str, Op] = {}
    deletes = [op for op in history if op.kind is Kind.DELETE and op.result is Result.OK]
    for op in [*effective.values(), *deletes]:
        if op.expected is None:
            continue
        if op.expected not in effective:
            return Violation(f"{op.expected!r} was replaced, and never written", (op,))
        if op.expected in replaced:
            return Violation(f"{op.expected!r} was replaced twice: an update was lost", (replaced[op.expected], op))
        replaced[op.expected] = op
    return None


def _rootless(effective: dict[str, Op], chains: list[_Chain]) -> Violation | None:
    """Updates that go round in a circle, with no create at their beginning."""
    begun = {state[0].write for chain in chains for state in chain.states}
    loose = [op for write, op in effective.items() if write not in begun]
    return Violation("it goes back to no create", tuple(loose[:1])) if loose else None


def _chains(effective: dict[str, Op], reads: dict[str | None, list[Op]], history: History) -> list[_Chain]:
    follows = {op.expected: op for op in effective.values() if op.kind is Kind.MATCH}
    deletes: dict[str | None, list[Op]] = defaultdict(list)
    for op in history:
        if op.kind is Kind.DELETE and op.result is not Result.LOST:
            deletes[op.expected].append(op)
    chains = []
    for create in (op for op in effective.values() if op.kind is Kind.CREATE):
        chain, op = _Chain(), create
        while True:
            chain.states.append([op, *reads[op.write]])
            if op.write not in follows:
                break
            op = follows[op.write]
        if end := _end(deletes[op.write]):
            chain.states.append([end])
            chain.ended = True
        chains.append(chain)
    return chains


def _end(deletes: list[Op]) -> Op | None:
    """The delete that ended a chain: one that is known, else the earliest that may have."""
    known = [op for op in deletes if op.result is Result.OK]
    maybe = sorted((op for op in deletes if op.result is Result.UNKNOWN), key=lambda op: op.called)
    return next(iter([*known, *maybe]), None)


def _in_time(chains: list[_Chain], absent: list[Op]) -> Violation | None:
    return (
        next((found for chain in chains if (found := _within(chain))), None)
        or _overlap(chains)
        or _covered([(c.last_call, c.first_return, c.ops) for c in chains], chains)
        or _covered([(op.called, op.ends, [op]) for op in absent], chains)
    )


def _within(chain: _Chain) -> Violation | None:
    """Nothing bound to a state ended before what must precede it was called."""
    latest: Op | None = None
    for write, *reads in chain.states:
        latest = write if latest is None else max(latest, write, key=lambda op: op.called)
        for op in (write, *reads):
            if op.ends < latest.called:
                return Violation("it was over before something that must come earlier was called", (op, latest))
        latest = max([latest, *reads], key=lambda op: op.called)
    return None


def _stretches(chains: list[_Chain]) -> list[_Chain]:
    return sorted((c for c in chains if c.first_return < c.last_call), key=lambda c: c.first_return)


def _overlap(chains: list[_Chain]) -> Violation | None:
    stretches = _stretches(chains)
    for one, two in pairwise(stretches):
        if two.first_return < one.last_call:
            return Violation("two lives of the object overlap", (one.states[0][0], two.states[0][0]))
    return None


def _covered(moments: list[tuple[float, float, list[Op]]], chains: list[_Chain]) -> Violation | None:
    """What fits into any moment from s to f, but all of these lie inside one stretch."""
    stretches = _stretches(chains)
    starts = [chain.first_return for chain in stretches]
    for s, f, ops in moments:
        if s > f:
            continue  # a stretch itself
        # The last stretch that begins strictly before s.
        place = bisect_right(starts, s) - 1
        while place >= 0 and starts[place] >= s:
            place -= 1
        if place >= 0 and f < stretches[place].last_call:
            return Violation("it happened inside another life of the object", (ops[0], stretches[place].states[0][0]))
    return None
