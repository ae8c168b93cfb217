"""A command that runs beside what `state run` and `state lock` hold for it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from types import FrameType

from fsspec_cas import InvalidInput


def run_child(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """The command's own exit code. What the terminal sends it gets itself; TERM is passed on."""
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
    return 128 - status if status < 0 else status
