"""A log's records and their results as JSON, for a broker. Pure."""

from __future__ import annotations

import base64
from typing import Any

from lockprovider.recipes.wal.appending import Append, LogOperation
from lockprovider.recipes.wal.reports import Appended, Position


class LogCodec:
    """See `WireCodec`. A client's first record takes its name: that it appends itself."""

    @staticmethod
    def may_hand_over(operation: LogOperation) -> bool:
        """See `WireCodec`."""
        return isinstance(operation, Append) and operation.took > 0 and operation.since is not None

    @staticmethod
    def say(operation: LogOperation) -> list[Any]:
        """An operation that may be handed over."""
        match operation:
            case Append(data, producer, seq, client, took, known, epoch, int(since)):
                text = base64.b64encode(data).decode()
                return ["append", text, producer, seq, client, took, known, epoch, since]
            case _:
                raise TypeError(f"{operation!r} is not handed over")

    @staticmethod
    def understand(said: list[Any]) -> LogOperation:
        """See `WireCodec`."""
        match said:
            case [
                "append",
                str(text),
                str(producer),
                int(seq),
                str(client),
                int(took),
                int(known),
                int(epoch),
                int(since),
            ] if took > 0:
                data = base64.b64decode(text, validate=True)
                return Append(data, producer, seq, client, took, known, epoch, since)
            case _:
                raise ValueError(f"{said!r} is no operation")

    @staticmethod
    def say_result(operation: LogOperation, result: Any) -> Any:
        """See `WireCodec`."""
        del operation
        position = result.position
        return [None, None, result.again] if position is None else [position.slot, position.offset, result.again]

    @staticmethod
    def understand_result(operation: LogOperation, said: Any) -> Any:
        """See `WireCodec`."""
        del operation
        match said:
            case [None, None, bool(again)]:
                return Appended(None, again)
            case [int(slot), int(offset), bool(again)]:
                return Appended(Position(slot, offset), again)
            case _:
                raise ValueError(f"{said!r} is no result")
