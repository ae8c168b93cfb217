"""`lockprovider state get`, `put`, `edit`, `history`, `diff`, `rollback`, `who` and `unlock`."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fsspec_cas import InvalidInput
from fsspec_cas.command import DONE, REFUSED, complain, storage_options
from lockprovider.commands.place import Commands, add_object_command, say
from lockprovider.commands.state import tflock
from lockprovider.recipes.state.document import NOT_THERE, Json, Raw
from lockprovider.state import Editor, Revision, State
from lockprovider.words import moment, until


class _Stored:
    """Values as they are stored: bytes where they are bytes, else what JSON says."""

    def encode(self, value: Any) -> Any:
        """See `Codec`."""
        if value is None:
            raise InvalidInput("null is no state: give {} or [] for an empty one")
        return Raw().encode(value) if isinstance(value, bytes) else Json().encode(value)

    def decode(self, stored: Any) -> Any:
        """See `Codec`."""
        is_bytes = isinstance(stored, dict) and [*stored] == ["base64"]
        return Raw().decode(stored) if is_bytes else stored


def add(commands: Commands) -> None:
    """Register them."""
    get = _command(commands, "get", _get, "Say what the state is.")
    get.add_argument("--serial", type=int, metavar="N", help="an earlier one, from the history")
    put = _command(commands, "put", _put, "Replace the state by what is on stdin.")
    put.add_argument("--bytes", action="store_true", help="stdin as it is, not as JSON")
    put.add_argument("--expected", type=int, metavar="N", help="only if its serial is N (0: there is none)")
    put.add_argument("--fence", type=int, metavar="EPOCH", help="refused if a newer epoch has written")
    put.add_argument("--reason", default="", help="kept in the history")
    edit = _command(commands, "edit", _edit, "Open the state in an editor, under a lease, and write what was saved.")
    edit.add_argument("--editor", default=None, metavar="COMMAND", help="default: $VISUAL, $EDITOR, or vi")
    edit.add_argument("--reason", default="", help="shown to those who wait, and kept in the history")
    edit.add_argument("--timeout", type=float, default=None, metavar="S", help="wait so long for other editors")
    history = _command(commands, "history", _history, "List the newest revisions.")
    history.add_argument("--last", type=int, default=20, metavar="N", help="how many (default: 20)")
    diff = _command(commands, "diff", _diff, "Say at which places two revisions differ.")
    diff.add_argument("before", type=int, metavar="SERIAL")
    diff.add_argument("after", type=int, metavar="SERIAL")
    rollback = _command(commands, "rollback", _rollback, "Write an earlier revision again, as the next one.")
    rollback.add_argument("serial", type=int, metavar="SERIAL")
    rollback.add_argument("--reason", default="", help="kept in the history")
    who = _command(commands, "who", _who, "Say who edits the state, and since when.")
    tflock.add_style(who)
    unlock = _command(commands, "unlock", _unlock, "Break the lock of an edit; what its holder edits is refused then.")
    unlock.add_argument("--yes", action="store_true", help="do not ask")
    unlock.add_argument("--id", metavar="ID", help="with --style tflock: only if it is this one; does not ask")
    tflock.add_style(unlock)


def _command(commands: Commands, name: str, run: Callable[[Any], int], text: str) -> Any:
    return add_object_command(commands, name, run, text, "the state's object: s3://bucket/folder/orders.json")


def _opened(arguments: Any, codec: Any = None) -> State[Any]:
    """The state that the arguments name."""
    return State.open(arguments.url, storage_options=storage_options(arguments), codec=codec or _Stored())


def _get(arguments: Any) -> int:
    state = _opened(arguments)
    found = state.read() if arguments.serial is None else state.at(arguments.serial)
    if found.serial == 0 or found.value is None:
        complain("lockprovider", f"there is no state at {arguments.url}")
        return REFUSED
    if arguments.json:
        say(arguments, _fields(found, value=True), "")
    elif isinstance(found.value, bytes):
        sys.stdout.buffer.write(found.value)
        sys.stdout.buffer.flush()
    else:
        print(json.dumps(found.value, indent=2, ensure_ascii=False))
    return DONE


def _put(arguments: Any) -> int:
    data = sys.stdin.buffer.read()
    value = data if arguments.bytes else _parsed(data)
    state = _opened(arguments)
    done = state.put(value, expected=arguments.expected, fence=arguments.fence, reason=arguments.reason)
    return _wrote(arguments, done)


def _edit(arguments: Any) -> int:
    editor = arguments.editor or os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with _opened(arguments).edit(reason=arguments.reason, timeout=arguments.timeout) as doc:
        raw = isinstance(doc.value, bytes)
        old = doc.value if raw else f"{json.dumps(doc.value, indent=2, ensure_ascii=False)}\n".encode()
        new = _by_hand(old, editor)
        doc.value = new if raw else _parsed(new)
    return _wrote(arguments, doc.revision)


def _by_hand(old: bytes, editor: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "state.json"
        file.write_bytes(old)
        try:
            code = subprocess.run([*shlex.split(editor), str(file)], check=False).returncode  # noqa: S603 - its purpose
        except OSError as error:
            raise InvalidInput(f"{editor}: {error.strerror}; name another with --editor") from error
        if code:
            raise InvalidInput(f"{editor} ended with {code}: nothing was written")
        return file.read_bytes()


def _history(arguments: Any) -> int:
    revisions = _opened(arguments).history(arguments.last)
    for one in revisions:
        words = f"{one.serial:>6}  {moment(one.at_ms)}  {one.by}{_behind(one.reason)}"
        say(arguments, _fields(one), words)
    return DONE


def _diff(arguments: Any) -> int:
    for one in _opened(arguments).diff(arguments.before, arguments.after):
        sides = {"before": one.before, "after": one.after}
        there = {name: side for name, side in sides.items() if side is not NOT_THERE}
        before, after = (json.dumps(there[name], ensure_ascii=False) if name in there else "absent" for name in sides)
        say(arguments, {"where": one.where, **there}, f"{one.where or '/'}: {before} -> {after}")
    return DONE


def _rollback(arguments: Any) -> int:
    return _wrote(arguments, _opened(arguments).rollback(arguments.serial, reason=arguments.reason))


def _who(arguments: Any) -> int:
    if arguments.style == tflock.STYLE:
        return tflock.say_holder(arguments)
    who = _opened(arguments).who()
    fields = {"state": who.state, "by": who.by, "since_ms": who.since_ms, "reason": who.reason}
    fields["valid_until_ms"] = who.valid_until_ms
    words = "nobody edits it" if who.state != "held" else _editing(who)
    say(arguments, fields, words)
    return DONE


def _editing(who: Editor) -> str:
    until_ms = until(who.valid_until_ms, who.status.now_ms)
    return f"{who.by} since {moment(who.since_ms)}, until {until_ms} unless it is renewed{_behind(who.reason)}"


def _unlock(arguments: Any) -> int:
    if arguments.style == tflock.STYLE:
        return tflock.unlock(arguments, lambda words: _refused(arguments, words))
    if arguments.id is not None:
        raise InvalidInput(f"--id {arguments.id} is of a lock file: add --style {tflock.STYLE}")
    state = _opened(arguments)
    shown = state.who()
    if shown.state != "held":
        say(arguments, {"outcome": "not_held"}, "nobody edits it: nothing was broken")
        return DONE
    words = _editing(shown)
    if (refused := _refused(arguments, words)) is not None:
        return refused
    state.unlock(shown)
    say(arguments, {"outcome": "broken", "by": shown.by, "reason": shown.reason}, f"broken: it was edited by {words}")
    return DONE


def _refused(arguments: Any, words: str) -> int | None:
    """None: to break it was confirmed."""
    if arguments.yes:
        return None
    if not sys.stdin.isatty():
        raise InvalidInput("nobody is there to be asked; look with `lockprovider state who` and add --yes")
    print(f"{words}\nBreak it? Type yes: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() == "yes":
        return None
    complain("lockprovider", "not confirmed; nothing was broken")
    return REFUSED


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError as error:
        raise InvalidInput(f"what was given is not JSON ({error}); with `put --bytes` it is kept as it is") from error


def _wrote(arguments: Any, revision: Revision[Any] | None) -> int:
    if revision is not None:
        say(arguments, {"outcome": "written", **_fields(revision)}, f"written: serial {revision.serial}")
    return DONE


def _fields(one: Revision[Any], *, value: bool = False) -> dict[str, Any]:
    fields = {"serial": one.serial, "by": one.by, "at_ms": one.at_ms, "reason": one.reason, "epoch": one.epoch}
    return {**fields, "value": _Stored().encode(one.value)} if value else fields


def _behind(reason: str) -> str:
    return f"  {reason}" if reason else ""
