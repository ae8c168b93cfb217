"""The file objects that `open` gives in exclusive mode: `io` on the outside, `Exclusive` on the inside."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable
from typing import Any

from fsspec_cas.exclusive import Exclusive
from fsspec_cas.outcome import Outcome
from fsspec_cas.version import Version

_log = logging.getLogger(__name__)

Settle = Callable[[], Outcome]


class ExclusiveFile(io.BufferedIOBase):
    """A file for writing, whose object appears on a clean close, and only if nothing is there then.

    `version` is the object's after that. A file that is left by an exception, or that nobody closes, leaves nothing.
    fsspec's `OpenFile` and others close a file also while an exception is on its way out; that discards as well.

    Raises:
        AlreadyExists: from `close`: the race was lost.
        OutcomeUnknown: from `close`: it may be there.
    """

    mode = "xb"

    def __init__(self, writer: Exclusive, won: Callable[[Settle], Version], *, autocommit: bool = True) -> None:
        self.version: Version | None = None
        self.path = self.name = writer.path
        self.autocommit = autocommit
        self._writer = writer
        self._won = won
        self._around = sys.exc_info()[1]  # opened while handling this one: no reason to discard

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.discard()
        else:
            self.close()

    def __del__(self) -> None:
        """Not `close`, as other files do: nobody said that it is complete. The writer drops its parts itself."""

    def writable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Bytes written."""
        return self._writer.written

    def write(self, data: Any) -> int:
        """Take the bytes; full parts are sent on the way."""
        if self.closed:
            raise ValueError("write to a closed file")
        return self._writer.write(data)

    def close(self) -> None:
        """Make the object, unless an exception is on its way out, or a transaction decides later."""
        if self.closed:
            return
        super().close()
        error = sys.exc_info()[1]
        if error is not None and error is not self._around:
            _log.warning("%r was closed by %s and is not written", self.path, type(error).__name__)
            self._writer.abort()
        elif self.autocommit:
            self.commit()

    def commit(self) -> None:
        """Make the object; for transactions."""
        self.version = self._won(self._writer.close)

    def discard(self) -> None:
        """Drop what was written."""
        super().close()
        self._writer.abort()


class ExclusiveText(io.TextIOWrapper):
    """The same for text."""

    def __init__(self, file: ExclusiveFile, **options: Any) -> None:
        super().__init__(file, **options)
        self.file = file

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.file.discard()
        else:
            self.close()

    def __del__(self) -> None:
        """Not `close`, see `ExclusiveFile`."""
