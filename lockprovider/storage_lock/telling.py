"""What every error of a lock says besides its cause: which lock, who holds it, since and until when, what to do."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from lockprovider.errors import LockError
from lockprovider.holder import held_by
from lockprovider.storage_lock.record import HUDI_LOCK_PATH, LockRecord


@contextlib.contextmanager
def telling(url: str, record: Callable[[], LockRecord | None], now_ms: Callable[[], int]) -> Iterator[None]:
    """Let an error of the lock at `url` say all of it, once; `record` is what is known without asking."""
    try:
        yield
    except LockError as error:
        if not error.url:
            say_all(error, url, record(), now_ms())
        raise


def say_all(error: LockError, url: str, record: LockRecord | None, now_ms: int) -> None:
    """Add to the message, and to the attributes, what they do not have."""
    said, more = str(error), [] if url in str(error) else [f"the lock is {url}"]
    error.url = url
    if record is not None and not record.given:
        error.holder = error.holder or record.holder
        error.owner, error.valid_until_ms = error.owner or record.owner, error.valid_until_ms or record.valid_until_ms
        more += [] if "held by" in said else [held_by(record.owner, record.holder, record.valid_until_ms, now_ms)]
    step = error.next_step.format(url=_place(url))
    ends = [", ".join(more)] if more else []
    ends += [step] if step and step not in said else []
    error.args = ("; ".join([said, *ends]), *error.args[1:])


def _place(url: str) -> str:
    """As the commands name it."""
    if url.endswith(f"/{HUDI_LOCK_PATH}"):
        return url.removesuffix(f"/{HUDI_LOCK_PATH}")
    folder, _, name = url.rpartition("/")
    return f"{folder} --on {name}" if folder else url
