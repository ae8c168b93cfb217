"""A service that is told to end gives back what it holds."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from lockprovider.errors import LockError

_FIRST_CODE = 128  # of a process that ended by a signal, as shells say it


@contextlib.contextmanager
def until_signal(*numbers: int) -> Iterator[None]:
    """End this block by `SystemExit(128 + N)` when signal N comes (default: SIGTERM), as Ctrl-C ends it.

        with lockprovider.until_signal(), lockprovider.lock(url) as lease:
            serve(lease)

    So each `with` is left and each lock given back; leases of other threads are when the interpreter ends. Without
    this a process ends at once by SIGTERM, and others wait until the lease has lapsed. A second signal does nothing
    more. A signal that is ignored already (nohup) stays ignored. Not promised: anything after SIGKILL; that other
    threads end, which the interpreter waits for unless they are daemons.

    Raises:
        LockError: this is not the main thread, which alone may say what a signal does.

    >>> with lockprovider.until_signal(), lockprovider.lock("memory://docs/lock") as lease:
    ...     lease.check()  # SIGTERM leaves the block, which gives the lock back
    """
    if threading.current_thread() is not threading.main_thread():
        raise LockError("until_signal() sets signal handlers, which only the main thread may: enter it there")
    came = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal came
        del frame
        if not came:
            came = True
            raise SystemExit(_FIRST_CODE + number)

    before = {number: signal.getsignal(number) for number in numbers or (signal.SIGTERM,)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
