"""A batch of operations of a log, between this process and the broker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from lockprovider.recipes.broker import Broker, Foreign, NotHere, left_in_doubt, own
from lockprovider.recipes.wal.appending import Append, Appending, Forgotten, LogOperation, Need, NoMore
from lockprovider.recipes.wal.slot import Head

LogGiven = LogOperation | Foreign[LogOperation]


class Handover:
    """What is known of it: of each operation, whether another may have carried it out, and who was asked."""

    def __init__(self, given: Sequence[LogGiven], broker: Broker[LogOperation] | None) -> None:
        self._given = given
        self._broker = broker
        self._asked: set[str] = set()
        self._dropped: dict[int, NotHere] = {}
        self.handed = tuple(isinstance(one, Foreign) and one.sent for one in given)
        self.clients = {one.client for one in given if isinstance(one, Append)}

    def asked(self, turn: Appending, last: Head) -> Appending | None:
        """Another writes behind this slot: the batch with what came of that. None: it is carried out here."""
        if self._broker is None:
            return None
        handed = self._broker.hand_over(last.broker, self._given, turn.sent, self._asked)
        if handed is None:
            return None
        self.handed = handed.sent
        if handed.results is None:
            return replace(turn, need=Need.END, sent=handed.sent)
        return replace(turn, need=Need.DONE, results=tuple(handed.results))

    def wanted(self, turn: Appending, last: Head) -> Appending:
        """Without those of others who have hung up, or whose names are not in the table: that they add themselves."""
        operations = list(turn.operations)
        gone: dict[int, bool] = {}
        for n, one in enumerate(self._given):
            if isinstance(one, Foreign) and n not in self._dropped:
                name = one.operation.producer if isinstance(one.operation, Append) else ""
                if gone.setdefault(id(one.bundle), not one.bundle.wanted()) or name not in last.producers:
                    self._dropped[n] = NotHere("its name is to be added by its own client", sent=turn.sent[n])
                    operations[n] = NoMore()
        return replace(turn, operations=tuple(operations))

    def told(self, results: Sequence[Any]) -> Iterator[tuple[Any, bool]]:
        """The results, and of each whether it says too much: nobody can tell."""
        for n, (result, handed) in enumerate(zip(results, self.handed, strict=True)):
            answer = self._dropped.get(n, result)
            is_told = isinstance(answer, NotHere)
            yield answer, not is_told and (isinstance(answer, Forgotten) or left_in_doubt(answer, sent=handed))


def operations_of(given: Sequence[LogGiven]) -> tuple[LogOperation, ...]:
    """Without whose they are."""
    return tuple(own(one) for one in given)
