"""Looking again from the start, when others have changed the table in the middle of a look."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_LOOKS = 10  # what has changed so often is changed faster than it can be read


class Stale(Exception):
    """A look went by what others may have changed meanwhile; `error` is what is said if it goes on like that."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def look_again(look: Callable[[], T]) -> T:
    """What `look` finds; it looks from the start as long as it raises `Stale`, ten times at most.

    Raises:
        the error of the last look that was stale, and whatever else a look does.
    """
    for _ in range(_LOOKS - 1):
        try:
            return look()
        except Stale:
            continue
    try:
        return look()
    except Stale as stale:
        raise stale.error from None
