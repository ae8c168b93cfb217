"""`lockprovider queue work URL -- COMMAND`: a command for each message."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from functools import partial
from types import FrameType
from typing import Any

from fsspec_cas import InvalidInput
from fsspec_cas.command import DONE, complain, storage_options
from fsspec_cas.waiting import Worker
from lockprovider.commands.place import Commands, add_object_command, say
from lockprovider.queue import Job, Queue
from lockprovider.recipes.errors import ClaimLost

LATER = 75  # sysexits' EX_TEMPFAIL
_FORM = "write -- between the options and the command: lockprovider queue work URL [options] -- COMMAND [ARGUMENT ...]"
_LOOK_S = 0.2
_MORE = """The command gets the message on stdin (text as it is, JSON as JSON), and QUEUE_MESSAGE (the message's id, the
same at each delivery), QUEUE_ATTEMPT, QUEUE_KEY and QUEUE_EPOCH (rises with each claim: a fencing token).

Its exit code: 0 acks the message; 75 gives it back, and does not count the attempt; any other gives it back, and after
the queue's attempts it is a dead letter. It is ended (TERM) when the claim is lost. TERM, INT or HUP to this process:
no more messages are claimed, and it ends when those that are worked on are done.

Not promised: that a message is delivered once."""


def add(commands: Commands) -> None:
    """Register it."""
    text = "Run a command for each message."
    parser = add_object_command(commands, "work", _work, text, "the queue's object", more=_MORE)
    parser.usage = "lockprovider queue work URL [options] -- COMMAND [ARGUMENT ...]"
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="so many at once (default: 1)")
    parser.add_argument("--visible", type=float, default=None, metavar="S", help="a claim's life without heartbeat")
    parser.add_argument(
        "--broker", action="store_true", help="of the processes here that say so, one writes for all: less waiting"
    )
    parser.add_argument("--until-empty", action="store_true", help="end when there is no message left")


def _work(arguments: Any) -> int:
    words: list[str] = arguments.words
    if not words:
        raise InvalidInput(f"no command; {_FORM}")
    queue = Queue.open(arguments.url, storage_options=storage_options(arguments), broker=arguments.broker)
    queue.stat()  # what is wrong with the place is said before anything is run
    for name in ("SIGTERM", "SIGINT", "SIGHUP"):
        signal.signal(getattr(signal, name), lambda _number, _frame: _stop(queue, _frame))
    worked = queue.work(
        lambda job: _run(words, job),
        threads=arguments.threads,
        visible_s=arguments.visible,
        until_empty=arguments.until_empty,
        on_error=lambda job, error: complain("lockprovider", f"message {job.n}: {error}"),
    )
    words_of_it = f"acked: {worked.acked}; given back or buried: {worked.failed}"
    say(arguments, {"outcome": "ended", "acked": worked.acked, "failed": worked.failed}, words_of_it)
    return DONE


def _stop(queue: Queue, frame: FrameType | None) -> None:
    del frame
    Worker(queue.stop, "queue-stop").start()  # not here: the main thread may hold what it needs


def _run(words: list[str], job: Job) -> None:
    """The command for one message.

    Raises:
        RuntimeError: it failed.
        ClaimLost: the claim was lost, and the command was ended.
    """
    more = {"QUEUE_MESSAGE": job.id, "QUEUE_ATTEMPT": str(job.attempt)}
    more |= {"QUEUE_KEY": job.key, "QUEUE_EPOCH": str(job.epoch)}
    given = job.body if isinstance(job.body, bytes) else body_text(job.body).encode()
    child = subprocess.Popen(  # noqa: S603 - running it is the purpose
        words, stdin=subprocess.PIPE, env={**os.environ, **more}, start_new_session=True
    )
    feeding = Worker(partial(_feed, child, given), "queue-feed")
    feeding.start()
    while True:
        try:
            code = child.wait(_LOOK_S)
        except subprocess.TimeoutExpired:
            try:
                job.check()
            except ClaimLost:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGTERM)
                child.wait()
                raise
        else:
            break
    feeding.join()
    if code == LATER:
        job.nack(error="later", counts=False)
    elif code:
        raise RuntimeError(f"exit code {code}" if code > 0 else f"ended by signal {-code}")


def _feed(child: subprocess.Popen[bytes], given: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):
        if child.stdin is not None:
            with child.stdin as pipe:
                pipe.write(given)


def body_text(body: Any) -> str:
    """A body as a command and people get it."""
    if isinstance(body, bytes):
        return body.decode(errors="replace")
    return body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)
