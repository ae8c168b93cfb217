"""Guard for decoders of stored bytes: damaged bytes raise `Corrupt`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from lockprovider.bounded import Undecodable
from lockprovider.table.errors import Corrupt, TableError

_SHORT = 200  # characters of a decoder's message


@contextlib.contextmanager
def undamaged(text: str) -> Iterator[None]:
    """Raise `Corrupt` from any error of the block, except a `TableError`, which passes unchanged.

    `text` names the file and its fault. The block must only decode bytes.
    """
    try:
        yield
    except TableError:
        raise
    except Exception as error:
        why = str(error) if isinstance(error, Undecodable) else repr(error)
        raise Corrupt(f"{text} ({why[:_SHORT]}); restore the file, or remove it") from error
