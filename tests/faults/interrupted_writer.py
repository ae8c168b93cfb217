"""A process that makes one call, and says on stdout how it ended: run by a test that interrupts it.

Its standard input is JSON: url, options, key, call (create, match, delete), version, asynchronous.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import sys
from base64 import b64encode
from typing import Any

from fsspec_cas import AsyncStore, Outcome, OutcomeUnknown, Store, Version

MINE = b"mine, and interrupted"


def call(store: Store | AsyncStore, asked: dict[str, Any]) -> Any:
    key, version = asked["key"], asked["version"] and Version.parse(asked["version"])
    match asked["call"]:
        case "create":
            return store.put_if_absent(key, MINE)
        case "match":
            return store.put_if_match(key, MINE, version)
        case "delete":
            return store.delete_if_match(key, version)
    raise AssertionError(asked)


def told(stop: BaseException, outcome: Outcome | None) -> dict[str, Any]:
    """How the call ended, and what resolve() in this very process said then."""
    cause = stop.__cause__
    return {
        "raised": type(stop).__name__,
        "cause": type(cause).__name__,
        "error": b64encode(pickle.dumps(cause)).decode(),
        "resolved": None if outcome is None else type(outcome).__name__,
        "version": str(getattr(outcome, "version", "")),
    }


def unknown_in(stop: BaseException):
    return stop.__cause__.outcome if isinstance(stop.__cause__, OutcomeUnknown) else None


def run(asked: dict[str, Any]) -> dict[str, Any]:
    store = Store.from_url(asked["url"], asked["options"])
    try:
        return {"returned": repr(call(store, asked))}
    except KeyboardInterrupt as stop:
        unknown = unknown_in(stop)
        resolved = store.resolve(unknown) if unknown is not None and asked["call"] != "delete" else None
        return told(stop, resolved)


async def run_async(asked: dict[str, Any], said: list[dict[str, Any]]) -> None:
    async with AsyncStore.from_url(asked["url"], asked["options"]) as store:
        try:
            said.append({"returned": repr(await call(store, asked))})
        except asyncio.CancelledError as stop:
            unknown = unknown_in(stop)
            said.append(told(stop, await store.resolve(unknown) if unknown is not None else None))
            raise


def main() -> None:
    asked = json.load(sys.stdin)
    said: list[dict[str, Any]] = []
    if asked["asynchronous"]:
        try:
            asyncio.run(run_async(asked, said))
        except KeyboardInterrupt:
            said[0]["ended"] = "KeyboardInterrupt"
    else:
        said.append(run(asked))
    print(json.dumps(said[0]))  # noqa: T201 (how it answers)


if __name__ == "__main__":
    main()
