"""A command as a child process that does not outlive the lock it runs under.

It leads a group of its own, so that what it starts is signalled with it; where it shares a terminal it stays in the
terminal's group, to be able to read from it, and is signalled alone. A small shell beside it ends it when this process
dies without a word (kill -9).

Not promised: that anything ends it while this process is merely stopped (SIGSTOP), or on a machine that freezes.

`run_child` is for what holds no lease: no guard, no group, no grace.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from types import FrameType

from fsspec_cas import InvalidInput
from fsspec_cas.waiting import Worker

# The first line names a process, or a group by its negative number; $1: seconds between asking and forcing. End of file
# means that the writer is gone; a second line, that all is well.
_GUARD = 'read -r it || exit; read -r _ && exit; kill -s TERM -- "$it" 2>&-; sleep "$1"; kill -s KILL -- "$it" 2>&-'
_SIGNALLED = 128


class Child:
    """One running command.

    `on_start` is called right after it was started, `on_end` from another thread as soon as it has ended.
    """

    def __init__(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        grace_s: float,
        *,
        on_start: Callable[[], None],
        on_end: Callable[[], None],
    ) -> None:
        self._grace_s = grace_s
        self._on_end = on_end
        self._own_group = not sys.stdin.isatty()
        self._guard = self._start_guard()  # first: nothing shall run unguarded but for the next line
        try:
            self._process = subprocess.Popen(  # noqa: S603 - running it is the purpose
                words, env={**os.environ, **environment}, start_new_session=self._own_group
            )
            on_start()
        except BaseException:
            self._tell_guard(b"")
            raise
        self._name_it()
        self.ended = threading.Event()
        Worker(self._wait, "command").start()

    @property
    def own_group(self) -> bool:
        """Whether signals from the terminal do not reach it by themselves."""
        return self._own_group

    def send(self, number: int) -> None:
        """Pass a signal on."""
        with contextlib.suppress(ProcessLookupError, PermissionError):  # the second: macOS, for a group of zombies
            if self._own_group:
                os.killpg(self._process.pid, number)
            else:
                os.kill(self._process.pid, number)

    def end(self) -> None:
        """Ask it to end, and after the grace make it."""
        self.send(signal.SIGTERM)
        self.ended.wait(self._grace_s)
        self.send(signal.SIGKILL)  # also what it has left behind
        self.ended.wait()

    def code(self) -> int:
        """Its exit code once it has ended, 128 + N if signal N ended it; it is gone after this."""
        self.ended.wait()
        self._tell_guard(b"\n")
        status = self._process.wait()
        return _SIGNALLED - status if status < 0 else status

    def _start_guard(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - fixed words
            ["/bin/sh", "-c", _GUARD, "guard", f"{self._grace_s:.3f}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _name_it(self) -> None:
        pipe = self._guard.stdin
        target = -self._process.pid if self._own_group else self._process.pid
        with contextlib.suppress(BrokenPipeError):
            if pipe is not None:
                pipe.write(b"%d\n" % target)
                pipe.flush()

    def _tell_guard(self, last: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._guard.communicate(last)

    def _wait(self) -> None:
        if hasattr(os, "waitid"):  # leaves it a zombie: as long as it is one, its number is nobody else's
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        else:
            self._process.wait()
        self.ended.set()
        self._on_end()


def run_child(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command to its end and return its exit code; TERM and HUP are passed on."""
    child: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        del frame
        for one in child:
            one.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGHUP)}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        child.append(subprocess.Popen(words, env={**os.environ, **environment}))  # noqa: S603 - its purpose
        status = child[0].wait()
    except OSError as error:
        raise InvalidInput(f"{words[0]}: {error.strerror}") from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return _SIGNALLED - status if status < 0 else status
