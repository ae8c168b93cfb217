"""Names of arguments that have changed: the old one is accepted for one release, with a `DeprecationWarning`."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

GOES_WITH = "0.3"


def renamed(**new_names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Accept keywords by their old names too: `@renamed(timeout_s="timeout")`. Type checkers see the new ones."""

    def accepting(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **named: P.kwargs) -> R:
            for old in new_names.keys() & named.keys():
                new = new_names[old]
                if new in named:
                    raise TypeError(f"{function.__qualname__}() got {new}= and {old}=, which is its old name: give one")
                deprecated(f"{old}= is called {new}= now")
                named[new] = named.pop(old)
            return function(*args, **named)

        return call

    return accepting


def deprecated(sentence: str, *, stacklevel: int = 2) -> None:
    """Warn the caller's caller."""
    warnings.warn(f"{sentence}; the old name goes with {GOES_WITH}", DeprecationWarning, stacklevel=stacklevel + 1)
