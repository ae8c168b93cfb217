"""Methods of fsspec's interface that call the target's method, with our prefix stripped from paths."""

from __future__ import annotations

import inspect
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

from fsspec.asyn import AsyncFileSystem

_PATHS = {"path", "path1", "path2", "paths", "rpath", "root", "fn"}
# Methods about the instance, or built from overridable ones.
_KEPT = {
    "clear_instance_cache",
    "current",
    "from_dict",
    "from_json",
    "get_mapper",
    "stat",
    "to_dict",
    "to_json",
    "upload",
    "write_bytes",
}


def plain(path: Any) -> Any:
    """Return a path without our prefix (`cas::`, `cas://`).

    A list, tuple or set becomes a list; of a dict the keys change; other values stay.
    """
    match path:
        case os.PathLike():
            return plain(os.fspath(path))
        case str():
            return path.removeprefix("cas::").removeprefix("cas://")
        case dict():
            return {plain(key): value for key, value in path.items()}
        case list() | tuple() | set():
            return [plain(item) for item in path]
    return path


def attach(kind: type) -> None:
    """Add to a class each method of fsspec's interface that it lacks; its instances have the target as `fs`."""
    ours = [base for base in kind.__mro__ if base.__module__.startswith(__package__)]
    for name in dir(AsyncFileSystem):
        method = inspect.getattr_static(AsyncFileSystem, name)
        own = any(name in vars(base) for base in ours) or name in _KEPT or name.startswith("__")
        if inspect.isfunction(method) and not own and (_suspends(method) or not name.startswith("_")):
            setattr(kind, name, _forwarded(name, method))


def _suspends(method: Any) -> bool:
    return inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)


def _forwarded(name: str, method: Any) -> Callable[..., Any]:
    """Return a function, coroutine or generator that calls the target's method `name`."""
    arguments = _arguments_of(method)

    async def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        positional, named = arguments(args, kwargs)
        return await getattr(self.fs, name)(*positional, **named)

    async def iterate(self: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        positional, named = arguments(args, kwargs)
        async for item in getattr(self.fs, name)(*positional, **named):
            yield item

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        positional, named = arguments(args, kwargs)
        return getattr(self.fs, name)(*positional, **named)

    suspending: Callable[..., Any] = iterate if inspect.isasyncgenfunction(method) else wait
    chosen = suspending if _suspends(method) else call
    chosen.__name__, chosen.__doc__ = name, f"See `{name}` of the target."
    return chosen


def _arguments_of(method: Any) -> Callable[[tuple[Any, ...], dict[str, Any]], tuple[list[Any], dict[str, Any]]]:
    """Return a function that strips our prefix from the path arguments of a call of `method`."""
    names = list(inspect.signature(method).parameters)[1:]
    places = {position for position, parameter in enumerate(names) if parameter in _PATHS}

    def arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        positional = [plain(arg) if position in places else arg for position, arg in enumerate(args)]
        return positional, {key: plain(value) if key in _PATHS else value for key, value in kwargs.items()}

    return arguments
