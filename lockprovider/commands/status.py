"""`lockprovider status URL`: who holds the lock."""

from __future__ import annotations

from typing import Any

from fsspec_cas import Machine
from fsspec_cas.command import DONE
from lockprovider.commands.place import Commands, add_command, add_request_timeout, place, say
from lockprovider.storage_lock.inspect import look
from lockprovider.storage_lock.status import lines, status_fields


def add(commands: Commands) -> None:
    """Register it."""
    text = "Say who holds the lock, since when, until when, and what is pending."
    more = "It only reads. Lapsed or not goes by the store's own clock, where the store says its time."
    add_request_timeout(add_command(commands, "status", _status, text, more=more))


def _status(arguments: Any) -> int:
    at = place(arguments)
    status = look(at.store, at.path, Machine(), timeout_s=arguments.timeout)
    say(
        arguments,
        {"url": at.url, "path": at.path, **status_fields(status)},
        "\n".join([f"lock     {at}", *lines(status)]),
    )
    return DONE
