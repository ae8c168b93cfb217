"""Commands of queues."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

from fsspec_cas import InvalidInput
from fsspec_cas.arguments import shown
from fsspec_cas.command import complain, storage_options
from fsspec_cas.machine import Worker
from lockprovider.commands.arguments import (
    CODES,
    READS,
    RUNS,
    Commands,
    add_command,
    add_group,
    exit_codes,
    flag,
    integer,
    option,
    positive,
    say,
    seconds,
    stdin_lines,
    whole,
)
from lockprovider.commands.running import command_of
from lockprovider.queue import Job, Letter, Queue
from lockprovider.recipes.errors import ClaimLost
from lockprovider.recipes.queue.contents import MAX_ATTEMPTS, MAX_BYTES, VISIBLE_S

_EXAMPLES = """examples:
  lockprovider queue create s3://bucket/backfill.json --visible 600
  seq 1 3000 | lockprovider queue put s3://bucket/backfill.json --producer backfill-7
  lockprovider queue work s3://bucket/backfill.json --threads 8 -- ./job.sh
  lockprovider queue stat s3://bucket/backfill.json
  lockprovider queue redrive s3://bucket/backfill.json"""


_command = partial(add_command, url="the queue's object: s3://bucket/backfill.json")
_reading = partial(_command, codes=exit_codes(**READS))
_ANEW = "refused: another queue was created at this path meanwhile"
_FULL = "unavailable: the store did not answer or kept throttling, or the queue is full"


def add_queue(commands: Commands) -> None:
    """Register `queue`."""
    codes = (
        f"{CODES}\n\n`queue work` gives the exit codes of its command a meaning: see `lockprovider queue work --help`."
    )
    text = "Put messages into a work queue and process them. The queue is one object."
    queue = add_group(commands, "queue", text, _EXAMPLES, codes)
    create = _command(queue, "create", _create, "Create the queue; does nothing if it exists with the same settings.")
    text = "seconds that a claim lasts without heartbeat (default: %(default)g)"
    option(create, "--visible", seconds, text, VISIBLE_S)
    text = "deliveries before a message becomes a dead letter (default: %(default)s)"
    option(create, "--max-attempts", positive, text, MAX_ATTEMPTS)
    option(create, "--max-bytes", positive, "largest size of the queue's object (default: %(default)s)", MAX_BYTES)
    text = "Put messages into the queue: the arguments, or each line of stdin. After an error, some may be put."
    refused = "refused: a newer epoch (--fence), a number out of order, or another queue"
    put = _command(queue, "put", _put, text, codes=exit_codes(refused, unavailable=_FULL))
    option(put, "messages", "MESSAGE", "a message: JSON, or else text", nargs="*", type=str)
    option(put, "--producer", "NAME", "number the messages from 1, so that a repeated command puts none twice")
    put.add_argument("--key", default="", help="process at most one message of this key at a time")
    option(put, "--priority", integer, "higher ones are delivered first (default: 0)", 0)
    option(put, "--delay", seconds, "seconds until messages may be delivered (default: 0)", 0.0)
    option(put, "--fence", positive, "refuse messages if a newer epoch has put some", metavar="EPOCH")
    text, anew = "Run a command for each message.", exit_codes(_ANEW, unavailable=_FULL)
    work = _command(queue, "work", _work, text, codes=anew, more=_WORK_MORE, usage=RUNS)
    option(work, "--threads", positive, "messages to process at the same time (default: 1)", 1)
    option(work, "--visible", seconds, "seconds that a claim lasts without heartbeat (default: the queue's)")
    flag(work, "--broker", "share one writer with the other processes of this machine that use --broker")
    flag(work, "--until-empty", "end when no message is left")
    _reading(queue, "stat", _stat, "Show how many messages wait, are claimed, and are dead.")
    peek = _reading(queue, "peek", _peek, "Show the next messages without claiming them.")
    option(peek, "--last", positive, "show at most N messages (default: 20)", 20)
    _reading(queue, "dead", _dead, "Show the dead letters with their errors.")
    text = "Deliver dead letters again, with all their attempts."
    redrive = _command(queue, "redrive", _redrive, text, codes=anew)
    option(redrive, "numbers", positive, "numbers of letters (default: all)", nargs="*")
    _command(queue, "clean", _clean, "Remove the segments that dead writers left.", codes=exit_codes(_ANEW))
    text = "Remove ready messages and dead letters, if the queue is unchanged since `stat`."
    purge = _command(queue, "purge", _purge, text, codes=exit_codes("refused: the queue has changed since `stat`"))
    option(purge, "--expected", whole, "the `rev` that `stat` has shown", metavar="REV", required=True)


def _opened(arguments: Any) -> Queue:
    return Queue.open(arguments.url, storage_options=storage_options(arguments))


def _create(arguments: Any) -> None:
    """Create the queue; an existing one with equal settings stays, with others raises CoordinationError."""
    Queue.create(
        arguments.url,
        visible_s=arguments.visible,
        max_attempts=arguments.max_attempts,
        max_bytes=arguments.max_bytes,
        storage_options=storage_options(arguments),
    )
    say(arguments, {"outcome": "there", "url": arguments.url}, f"exists: {arguments.url}")


def _put(arguments: Any) -> None:
    """Put messages, JSON or else text, from arguments or stdin's lines.

    Prints counts: new, put by `--producer` before. A key, priority or delay puts one by one. InvalidInput: any of these
    with `--producer`.
    """
    are_plain = not (arguments.key or arguments.priority or arguments.delay)
    if arguments.producer is not None and not are_plain:
        raise InvalidInput("--producer puts plain messages: leave out --key, --priority and --delay")
    bodies, queue, fence = _bodies(arguments), _opened(arguments), arguments.fence
    if are_plain:
        receipts = queue.put_many(bodies, producer=arguments.producer, fence=fence)
    else:
        how = {"key": arguments.key, "priority": arguments.priority, "delay_s": arguments.delay}
        receipts = [queue.put(body, **how, fence=fence) for body in bodies]
    again = sum(receipt.again for receipt in receipts)
    added = len(receipts) - again
    say(arguments, {"outcome": "put", "put": added, "again": again}, f"put: {added}; already there: {again}")


def _bodies(arguments: Any) -> Iterator[Any]:
    for text in arguments.messages or map(_text, stdin_lines()):
        try:
            yield json.loads(text, parse_constant=_finite, parse_float=_finite)
        except (ValueError, RecursionError):
            yield text


def _text(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"the line {shown(line)} of stdin is not UTF-8 text") from error


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is not JSON")
    return number


def _stat(arguments: Any) -> None:
    fields = asdict(_opened(arguments).stat())
    say(arguments, fields, "\n".join(f"{name:<8} {value}" for name, value in fields.items()))


def _peek(arguments: Any) -> None:
    _show(arguments, _opened(arguments).peek(arguments.last))


def _dead(arguments: Any) -> None:
    _show(arguments, _opened(arguments).dead())


def _show(arguments: Any, letters: list[Letter]) -> None:
    for letter in letters:
        body, why = _body_text(letter.body), letter.why or letter.error
        fields = asdict(letter) | ({"body": body} if isinstance(letter.body, bytes) else {})
        say(arguments, fields, f"{letter.n:>6}  {body}{f'  ({why})' if why else ''}")


def _redrive(arguments: Any) -> None:
    count = _opened(arguments).redrive(arguments.numbers or None)
    say(arguments, {"outcome": "redriven", "messages": count}, f"dead letters to deliver again: {count}")


def _purge(arguments: Any) -> None:
    count = _opened(arguments).purge(expected=arguments.expected)
    say(arguments, {"outcome": "purged", "messages": count}, f"removed messages: {count}")


def _clean(arguments: Any) -> None:
    count = _opened(arguments).clean()
    say(arguments, {"outcome": "cleaned", "segments": count}, f"removed unused segments: {count}")


LATER = 75  # sysexits' EX_TEMPFAIL
_LOOK_S = 0.2
_WORK_MORE = """The command gets the message on stdin: text unchanged, other values as JSON. It also gets the variables
QUEUE_MESSAGE (the message's id, the same at each delivery), QUEUE_ATTEMPT, QUEUE_KEY, and QUEUE_EPOCH, which rises with
each claim and serves as a fencing token.

Exit codes of the command:
  0      the message is done
  75     the message is returned to the queue, and the attempt is not counted
  other  the message is returned to the queue; after the queue's attempts it becomes a dead letter

When the claim is lost, the command gets TERM. After TERM, INT or HUP this program claims no more messages, and ends
when its running commands have ended.

Not promised: that a message is delivered only once."""


def _work(arguments: Any) -> None:
    """Run the command for each message, ack it or give it back; print failures, and at the end counts.

    Ends by TERM, INT or HUP (unless ignored), or with `--until-empty` if no message is left; running commands end
    first. InvalidInput: no such command.
    """
    words = command_of(arguments, "queue work")
    if shutil.which(words[0]) is None:
        raise InvalidInput(f"{words[0]!r} is no command that can be run; no message was claimed")
    queue = Queue.open(arguments.url, storage_options=storage_options(arguments), broker=arguments.broker)
    queue.stat()  # raises for a wrong place
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            # The main thread may hold what `stop` needs.
            signal.signal(number, lambda *_: Worker(queue.stop, "queue-stop").start())
    worked = queue.work(
        lambda job: _run(words, job),
        threads=arguments.threads,
        visible_s=arguments.visible,
        until_empty=arguments.until_empty,
        on_error=lambda job, error: complain("lockprovider", f"message {job.n}: {error}"),
    )
    fields = {"outcome": "ended", "acked": worked.acked, "failed": worked.failed}
    say(arguments, fields, f"acked: {worked.acked}; failed: {worked.failed}")


def _run(words: list[str], job: Job) -> None:
    """Run the command with the message as stdin; exit code 75 gives it back, uncounted.

    Returns after 75, with `job.ended` set, or 0, not acked. RuntimeError: it failed. ClaimLost: the claim was lost; a
    running command got TERM, and ended.
    """
    more = {"QUEUE_MESSAGE": job.id, "QUEUE_ATTEMPT": str(job.attempt)}
    more |= {"QUEUE_KEY": job.key, "QUEUE_EPOCH": str(job.epoch)}
    body = job.body if isinstance(job.body, bytes) else _body_text(job.body).encode()
    with tempfile.TemporaryFile() as stdin:  # a pipe is too small for a command that reads late
        stdin.write(body)
        stdin.seek(0)
        env = {**os.environ, **more}
        child = subprocess.Popen(words, stdin=stdin, env=env, start_new_session=True)  # noqa: S603 - its purpose
    while child.returncode is None:
        try:
            child.wait(_LOOK_S)
        except subprocess.TimeoutExpired:
            try:
                job.check()
            except ClaimLost:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGTERM)
                child.wait()
                raise
    if child.returncode == LATER:
        job.nack(error="later", counts=False)
    elif code := child.returncode:
        raise RuntimeError(f"exit code {code}" if code > 0 else f"ended by signal {-code}")


def _body_text(body: Any) -> str:
    if isinstance(body, bytes):
        return body.decode(errors="replace")
    return body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)
