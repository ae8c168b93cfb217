"""Methods of an async class, for sync callers: each is written once.

class Store:
read = sync(AsyncStore.read)
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from fsspec_cas.bridge.drive import Drive

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)


class Twin(Protocol[A_co]):
    """A sync class over an async one."""

    @property
    def _async(self) -> A_co: ...

    @property
    def _drive(self) -> Drive: ...


def sync(method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Twin[A], P], T]:
    """The same method, driven to its end: with its arguments, errors and docstring, whose example awaits nothing."""

    @wraps(method)
    def call(self: Twin[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._drive.run(method(self._async, *args, **kwargs))

    lines = (method.__doc__ or "").split("\n")
    call.__doc__ = "\n".join(
        line.replace("async ", "").replace("await ", "") if line.lstrip().startswith((">>> ", "... ")) else line
        for line in lines
    )
    return call
