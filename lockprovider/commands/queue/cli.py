"""`lockprovider queue`: its commands."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

from fsspec_cas import InvalidInput
from fsspec_cas.command import DONE, storage_options
from lockprovider.commands.place import CODES, Commands, add_object_command, say
from lockprovider.commands.queue import work
from lockprovider.queue import Letter, Queue
from lockprovider.recipes.queue.contents import MAX_ATTEMPTS, MAX_BYTES, VISIBLE_S

_EXAMPLES = """examples:
  lockprovider queue create s3://bucket/backfill.json --visible 600
  seq 1 3000 | lockprovider queue put s3://bucket/backfill.json --producer backfill-7
  lockprovider queue work s3://bucket/backfill.json --threads 8 -- ./job.sh
  lockprovider queue stat s3://bucket/backfill.json
  lockprovider queue redrive s3://bucket/backfill.json"""
_WHAT = "the queue's object: s3://bucket/backfill.json"


def add(commands: Commands) -> None:
    """Register `queue` and all its commands."""
    text = "Messages that many put and many work on, in one object."
    parent = commands.add_parser(
        "queue",
        help=text,
        description=text,
        epilog=f"{_EXAMPLES}\n\n{CODES}\n\n`lockprovider queue work --help` has codes of its own.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    queue = parent.add_subparsers(required=True, metavar="COMMAND")
    create = _command(queue, "create", _create, "Make the queue; one that is there with the same settings is left.")
    create.add_argument(
        "--visible", type=float, default=VISIBLE_S, metavar="S", help="life of a claim without heartbeat"
    )
    create.add_argument("--max-attempts", type=int, default=MAX_ATTEMPTS, metavar="N", help="then it is a dead letter")
    create.add_argument("--max-bytes", type=int, default=MAX_BYTES, metavar="N", help="how large the object may become")
    put = _command(queue, "put", _put, "Put messages: those that are given, or each line of stdin.")
    put.add_argument("messages", nargs="*", metavar="MESSAGE", help="JSON, or else text")
    put.add_argument("--producer", metavar="NAME", help="number them from 1: done again, nothing is put twice")
    put.add_argument("--key", default="", help="one of a key is worked on at a time")
    put.add_argument("--priority", type=int, default=0, metavar="N", help="the higher goes first")
    put.add_argument("--delay", type=float, default=0.0, metavar="S", help="not to be delivered before")
    put.add_argument("--fence", type=int, metavar="EPOCH", help="refused if a newer epoch has put")
    work.add(queue)
    _command(queue, "stat", _stat, "Say how many messages wait, are worked on, and are dead.")
    peek = _command(queue, "peek", _peek, "Show the next messages; none is claimed.")
    peek.add_argument("--last", type=int, default=20, metavar="N", help="how many (default: 20)")
    _command(queue, "dead", _dead, "Show the dead letters, and why they are.")
    redrive = _command(queue, "redrive", _redrive, "Deliver dead letters again, as if they were new.")
    redrive.add_argument("numbers", nargs="*", type=int, metavar="N", help="these (default: all)")
    _command(queue, "clean", _clean, "Remove the segments that writers left who died while they wrote.")
    purge = _command(queue, "purge", _purge, "Remove what is ready and dead, if nothing was written since `stat`.")
    purge.add_argument("--expected", type=int, required=True, metavar="REV", help="as `stat` has shown it")


def _command(commands: Commands, name: str, run: Callable[[Any], int], text: str) -> argparse.ArgumentParser:
    return add_object_command(commands, name, run, text, _WHAT)


def _opened(arguments: Any) -> Queue:
    return Queue.open(arguments.url, storage_options=storage_options(arguments))


def _create(arguments: Any) -> int:
    Queue.create(
        arguments.url,
        visible_s=arguments.visible,
        max_attempts=arguments.max_attempts,
        max_bytes=arguments.max_bytes,
        storage_options=storage_options(arguments),
    )
    say(arguments, {"outcome": "there", "url": arguments.url}, f"there: {arguments.url}")
    return DONE


def _put(arguments: Any) -> int:
    if arguments.producer is not None and (arguments.key or arguments.priority or arguments.delay):
        raise InvalidInput("--producer puts plain messages: leave out --key, --priority and --delay")
    bodies = _bodies(arguments)
    queue = _opened(arguments)
    if arguments.producer is not None:
        receipts = queue.put_many(bodies, producer=arguments.producer, fence=arguments.fence)
    else:
        how = {"key": arguments.key, "priority": arguments.priority, "delay_s": arguments.delay}
        plain = not arguments.key and not arguments.priority and not arguments.delay
        fence = arguments.fence
        puts = (queue.put(body, **how, fence=fence) for body in bodies)
        receipts = queue.put_many(bodies, fence=fence) if plain else [*puts]
    again = sum(one.again for one in receipts)
    new = len(receipts) - again
    say(arguments, {"outcome": "put", "put": new, "again": again}, f"put: {new}; there before: {again}")
    return DONE


def _bodies(arguments: Any) -> Iterator[Any]:
    for text in arguments.messages or (line.rstrip("\n") for line in sys.stdin):
        try:
            yield json.loads(text, parse_constant=_no_number)
        except ValueError:
            yield text


def _no_number(text: str) -> float:
    raise ValueError(f"{text} ({math.nan}) is not JSON")


def _stat(arguments: Any) -> int:
    stat = _opened(arguments).stat()
    fields = {"ready": stat.ready, "delayed": stat.delayed, "claimed": stat.claimed, "dead": stat.dead}
    more = {"put": stat.put, "bytes": stat.bytes, "rev": stat.rev, "segments": stat.segments}
    say(arguments, {**fields, **more}, "\n".join(f"{name:<8} {value}" for name, value in (fields | more).items()))
    return DONE


def _peek(arguments: Any) -> int:
    return _show(arguments, _opened(arguments).peek(arguments.last))


def _dead(arguments: Any) -> int:
    return _show(arguments, _opened(arguments).dead())


def _show(arguments: Any, letters: list[Letter]) -> int:
    for one in letters:
        body = work.body_text(one.body)
        fields = {"n": one.n, "body": body if isinstance(one.body, bytes) else one.body, "key": one.key}
        fields |= {"priority": one.priority, "attempts": one.attempts, "error": one.error, "why": one.why}
        say(arguments, fields, f"{one.n:>6}  {body}{f'  ({one.why or one.error})' if one.why or one.error else ''}")
    return DONE


def _redrive(arguments: Any) -> int:
    done = _opened(arguments).redrive(arguments.numbers or None)
    say(arguments, {"outcome": "redriven", "messages": done}, f"to be delivered again: {done}")
    return DONE


def _purge(arguments: Any) -> int:
    done = _opened(arguments).purge(expected=arguments.expected)
    say(arguments, {"outcome": "purged", "messages": done}, f"removed: {done}")
    return DONE


def _clean(arguments: Any) -> int:
    done = _opened(arguments).clean()
    say(arguments, {"outcome": "cleaned", "segments": done}, f"segments removed that nothing names: {done}")
    return DONE
