"""Commands of documents and of Terraform's states."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from fsspec_cas import InvalidInput, Machine
from fsspec_cas.command import REFUSED, complain, storage_options
from fsspec_cas.machine import Worker
from lockprovider.commands.arguments import (
    READS,
    RUNS,
    Commands,
    add_command,
    add_group,
    confirmed,
    exit_codes,
    flag,
    json_argument,
    option,
    positive,
    say,
    wait,
    whole,
)
from lockprovider.commands.running import (
    LOST,
    NOT_ACQUIRED,
    CommandOrder,
    CommandResult,
    codes,
    command_of,
    explained,
    passed_signals,
    reported,
)
from lockprovider.commands.state_server import StateServer
from lockprovider.recipes.errors import MalformedObject, StateConflict, StateLocked
from lockprovider.recipes.state.document import NOT_THERE, Json, Raw, difference
from lockprovider.recipes.state.terraform import TerraformState, TfLock, TfLockFile, lock_in_words
from lockprovider.state import Editor, Revision, State
from lockprovider.words import moment, until

_EXAMPLES = """examples:
  lockprovider state get s3://bucket/pipelines/orders.json
  echo '{"day": "2026-11-22"}' | lockprovider state put s3://bucket/pipelines/orders.json --expected 41
  lockprovider state edit s3://bucket/pipelines/orders.json --reason 'migration 12'
  lockprovider state history s3://bucket/pipelines/orders.json
  lockprovider state diff s3://bucket/pipelines/orders.json 41 43
  lockprovider state run s3://bucket/infra/network.json -- terraform apply
  lockprovider state lock s3://bucket/infra/network.tfstate --style tflock -- ./migrate.sh"""


def add_state(commands: Commands) -> None:
    """Register `state`."""
    state = add_group(commands, "state", "Read, write and edit a shared document with a history.", _EXAMPLES)
    url = "the state's object: s3://bucket/folder/orders.json"
    missing = exit_codes("no such state or revision exists", **READS)
    get = add_command(state, "get", _get, "Print the state.", url, codes=missing)
    option(get, "--serial", whole, "print revision N of the history (default: the newest)")
    refused = exit_codes("refused, nothing was written: another serial, a newer epoch, or an edit in progress")
    put = add_command(state, "put", _put, "Replace the state with the content of stdin.", url, codes=refused)
    flag(put, "--bytes", "store the bytes of stdin unchanged instead of JSON")
    option(put, "--expected", whole, "write only if the state's serial is N (0: no state exists)")
    option(put, "--fence", positive, "refuse the write if a newer epoch has written", metavar="EPOCH")
    put.add_argument("--reason", default="", help="a note for the history")
    text = "Open the state in an editor, under a lease, and write the saved file."
    refused = exit_codes("refused, nothing was written: others edited for --timeout seconds, or broke this edit")
    edit = add_command(state, "edit", _edit, text, url, codes=refused)
    option(edit, "--editor", "COMMAND", "the editor (default: $VISUAL, $EDITOR, or vi)")
    edit.add_argument("--reason", default="", help="a note for waiting editors and for the history")
    option(edit, "--timeout", wait, "seconds to wait for other editors")
    history = add_command(state, "history", _history, "List the newest revisions.", url, codes=exit_codes(**READS))
    option(history, "--last", positive, "list N revisions at most (default: 20)", 20)
    diff = add_command(state, "diff", _diff, "Show where two revisions differ.", url, codes=missing)
    diff.add_argument("before", type=whole, metavar="SERIAL")
    diff.add_argument("after", type=whole, metavar="SERIAL")
    text = "Write an earlier revision again, as the newest one."
    refused = "no such revision, no state in it, or an edit in progress"
    rollback = add_command(
        state, "rollback", _rollback, text, url, codes=exit_codes(f"refused, nothing was written: {refused}")
    )
    rollback.add_argument("serial", type=whole, metavar="SERIAL")
    rollback.add_argument("--reason", default="", help="a note for the history")
    text = "Show who edits the state, and since when."
    who = add_command(state, "who", _who, text, url, codes=exit_codes(**READS))
    text = "Break the lock of an edit; the write of its holder is then refused."
    refused = exit_codes("refused, nothing was written: not confirmed, or the lock has changed or has another ID")
    unlock = add_command(state, "unlock", _unlock, text, url, codes=refused)
    flag(unlock, "--yes", "do not ask for confirmation")
    option(unlock, "--id", "ID", "with --style tflock: unlock only the lock with this ID, without confirmation")
    text = f"edit: the lock of `state edit` (default); {_STYLE}: Terraform's own lock file next to the state"
    for parser in (who, unlock):
        parser.add_argument("--style", choices=("edit", _STYLE), default="edit", help=text)
    _add_terraform(state)


def _add_terraform(state: Commands) -> None:
    """Register `state run`, `state serve` and `state lock`."""
    url = "the state's object: s3://bucket/infra/network.json"
    text = "Run Terraform or OpenTofu with its state in this object, on any store."
    command = partial(reported, work=_run_served)
    run = add_command(state, "run", command, text, url, codes=_RUN_CODES, more=_RUN_MORE, usage=RUNS)
    text = "Serve the state to Terraform's `http` backend on loopback until Ctrl-C."
    serve = add_command(state, "serve", _serve, text, url, more=_RUN_MORE)
    option(serve, "--port", whole, "port on 127.0.0.1 (default: a free one)", 0)
    for parser in (run, serve):
        flag(parser, "--force", "accept states of another lineage or a lower serial")
    text = "Hold Terraform's own lock of a state while a command runs, or until `state unlock`."
    url = "the state's object, bucket and key: s3://bucket/infra/network.tfstate"
    lock = add_command(state, "lock", _lock, text, url, codes=_LOCK_CODES, more=_LOCK_MORE)
    lock.usage = "lockprovider state lock URL --style tflock [options] [-- COMMAND [ARGUMENT ...]]"
    lock.add_argument("--style", choices=(_STYLE,), required=True, help="the kind of lock")
    option(lock, "--timeout", wait, "seconds to wait for other holders (default: 0)", 0.0)
    lock.add_argument("--reason", default="", help="a note for waiting clients")


class _Stored:
    """Codec of bytes and of JSON."""

    def encode(self, value: Any) -> Any:
        """Return bytes as {"base64": ...}, a JSON value unchanged.

        InvalidInput for None, other values, and an object with the one field `base64`.
        """
        if value is None:
            raise InvalidInput("null is not a state: give {} or [] for an empty state")
        if isinstance(value, dict) and [*value] == ["base64"]:
            raise InvalidInput(
                "an object with the one field base64 is how bytes are stored: add a field, or put the bytes"
            )
        return Raw().encode(value) if isinstance(value, bytes) else Json().encode(value)

    def decode(self, stored: Any) -> Any:
        is_bytes = isinstance(stored, dict) and [*stored] == ["base64"]
        return Raw().decode(stored) if is_bytes else stored


def _opened(arguments: Any) -> State[Any]:
    return State.open(arguments.url, storage_options=storage_options(arguments), codec=_Stored())


def _get(arguments: Any) -> int | None:
    """Print the newest value, or that of `--serial`: bytes unchanged, others as JSON; with `--json` the whole revision.

    REFUSED without a state; NoRevision: no such serial, or trimmed.
    """
    state = _opened(arguments)
    revision = state.read() if arguments.serial is None else state.at(arguments.serial)
    if revision.serial == 0 or revision.value is None:
        complain("lockprovider", f"no state exists at {arguments.url}")
        return REFUSED
    if arguments.json:
        say(arguments, _fields(revision, value=True), "")
    elif isinstance(revision.value, bytes):
        sys.stdout.buffer.write(revision.value)
        sys.stdout.buffer.flush()
    else:
        print(json.dumps(revision.value, indent=2, ensure_ascii=False))
    return None


def _put(arguments: Any) -> None:
    data = sys.stdin.buffer.read()
    value = data if arguments.bytes else _parsed(data)
    state = _opened(arguments)
    revision = state.put(value, expected=arguments.expected, fence=arguments.fence, reason=arguments.reason)
    _wrote(arguments, revision)


def _edit(arguments: Any) -> None:
    """Open the value in an editor under a lease, and write what it saved, even unchanged.

    InvalidInput: the editor failed, or saved no JSON for a JSON value.
    """
    editor = _editor(arguments.editor or os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
    with _opened(arguments).edit(reason=arguments.reason, timeout=arguments.timeout) as doc:
        raw = isinstance(doc.value, bytes)
        old = doc.value if raw else f"{json.dumps(doc.value, indent=2, ensure_ascii=False)}\n".encode()
        new = _by_hand(old, editor)
        doc.value = new if raw else _parsed(new)
    _wrote(arguments, doc.revision)


def _editor(command: str) -> list[str]:
    with contextlib.suppress(ValueError):
        words = shlex.split(command)
        if words and shutil.which(words[0]) is not None:
            return words
    raise InvalidInput(f"the editor {command} is no command that can be run; name another with --editor")


def _by_hand(content: bytes, editor: list[str]) -> bytes:
    """Run the editor on a temporary copy; return what it saved, or raise InvalidInput if it failed."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "state.json"
        file.write_bytes(content)
        code = subprocess.run([*editor, str(file)], check=False).returncode  # noqa: S603 - its purpose
        if code:
            raise InvalidInput(f"the editor {editor[0]} ended with exit code {code}; nothing was written")
        return file.read_bytes()


def _history(arguments: Any) -> None:
    revisions = _opened(arguments).history(arguments.last)
    for revision in revisions:
        words = f"{revision.serial:>6}  {moment(revision.at_ms)}  {revision.by}{_behind(revision.reason)}"
        say(arguments, _fields(revision), words)


def _diff(arguments: Any) -> None:
    state = _opened(arguments)
    for found in difference(*(_comparable(state.at(serial).value) for serial in (arguments.before, arguments.after))):
        sides = {"before": found.before, "after": found.after}
        present = {name: side for name, side in sides.items() if side is not NOT_THERE}
        texts = (json.dumps(present[name], ensure_ascii=False) if name in present else "absent" for name in sides)
        say(arguments, {"where": found.where, **present}, f"{found.where or '/'}: {' -> '.join(texts)}")


def _comparable(value: Any) -> Any:
    """Return a Terraform state as JSON, other bytes as stored, a JSON value unchanged."""
    if not isinstance(value, bytes):
        return value
    try:
        return TerraformState.decode(value).content
    except MalformedObject:
        return Raw().encode(value)


def _rollback(arguments: Any) -> None:
    _wrote(arguments, _opened(arguments).rollback(arguments.serial, reason=arguments.reason))


def _who(arguments: Any) -> None:
    """Print who edits the state or, with `--style tflock`, holds Terraform's lock file, if any."""
    if arguments.style == _STYLE:
        shown = _file_lock(arguments).shown()
        fields = {"state": "absent"} if shown is None else {"state": "held", **_lock_fields(shown)}
        say(arguments, fields, "not locked" if shown is None else _who_holds(shown))
        return
    who = _opened(arguments).who()
    fields = {name: getattr(who, name) for name in ("state", "by", "since_ms", "reason", "valid_until_ms")}
    say(arguments, fields, "not being edited" if who.state != "held" else _editing(who))


def _editing(who: Editor) -> str:
    until_ms = until(who.valid_until_ms, who.status.now_ms)
    return f"{who.by} since {moment(who.since_ms)}, until {until_ms} unless it is renewed{_behind(who.reason)}"


def _unlock(arguments: Any) -> int | None:
    """After confirmation, break the current edit, so that its write is refused.

    Returns None, also without an edit; REFUSED if declined. StateConflict: changed since. With `--style tflock`,
    deletes the lock file instead. InvalidInput: `--id` without it.
    """
    if arguments.style == _STYLE:
        return _unlock_file(arguments)
    if arguments.id is not None:
        raise InvalidInput(f"--id {arguments.id} names a lock file: add --style {_STYLE}")
    state = _opened(arguments)
    shown = state.who()
    if shown.state != "held":
        say(arguments, {"outcome": "not_held"}, "the state is not being edited; nothing was broken")
        return None
    words = _editing(shown)
    if not confirmed(arguments, f"{words}\nBreak it?", "state who"):
        return REFUSED
    state.unlock(shown)
    say(arguments, {"outcome": "broken", "by": shown.by, "reason": shown.reason}, f"broken: the edit of {words}")
    return None


def _parsed(data: bytes) -> Any:
    return json_argument(data, "the new state", "; `lockprovider state put --bytes` stores any bytes unchanged")


def _wrote(arguments: Any, revision: Revision[Any] | None) -> None:
    if revision is not None:
        say(arguments, {"outcome": "written", **_fields(revision)}, f"written: serial {revision.serial}")


def _fields(revision: Revision[Any], *, value: bool = False) -> dict[str, Any]:
    fields = {name: getattr(revision, name) for name in ("serial", "by", "at_ms", "reason", "epoch")}
    return {**fields, "value": _Stored().encode(revision.value)} if value else fields


def _behind(reason: str) -> str:
    return f"  {lock_in_words(reason)}" if reason else ""


_RUN_CODES = codes("the state")
_RUN_MORE = """Configure Terraform with `terraform { backend "http" {} }` alone: address and password come from the
environment. If this process dies, Terraform gets TERM, and the lock lapses. The write of an overtaken run is refused,
and Terraform leaves its state in errored.tfstate. `lockprovider state history` lists all states until they are trimmed.

A state with another lineage, a lower serial, or the same serial and other content is refused. Terraform's own -force
does not reach its `http` backend: add --force to this command as well.

Not promised: anything for runs that use the same state through another backend."""


def _server(arguments: Any, port: int = 0) -> StateServer:
    state: State[bytes] = State.open(arguments.url, storage_options=storage_options(arguments), codec=bytes)
    state.read()  # raises for a wrong place
    return StateServer(state, Machine().new_id(), port, on_rejected=lambda message: complain("lockprovider", message))


def _run_served(arguments: argparse.Namespace, result: CommandResult) -> CommandResult:
    """Serve the state by HTTP on a thread while the command runs with Terraform's variables.

    Then releases its locks; returns `result`, filled in.
    """
    words = command_of(arguments, "state run")
    with passed_signals() as signals:
        server = _server(arguments)
        serving = Worker(server.serve, "state")
        serving.start()
        try:
            result = CommandOrder(words, signals).run(server.environment(force=arguments.force), result)
        finally:
            server.shutdown()
            serving.join()
    if result.outcome == "ended" and not server.was_asked:
        result.why = 'the command did not ask for the state: if it uses one, is its block `backend "http" {}` missing?'
    return result


def _serve(arguments: Any) -> None:
    """Print Terraform's variables, as `export` lines or JSON, and serve the state until INT or TERM.

    Then releases its locks.
    """
    server = _server(arguments, arguments.port)
    environment = server.environment(force=arguments.force)
    shown = "\n".join(f"export {name}='{value}'" for name, value in environment.items())
    say(arguments, environment, shown)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        server.serve()


_STYLE = "tflock"
_LOCK_CODES = codes(
    "the lock",
    "not acquired: other clients held the lock for --timeout seconds; the command was not started",
    "lost: another process unlocked it before the command ended",
).replace("exit codes:", "exit codes with a COMMAND:", 1)
_HELD_CODES = exit_codes("not acquired: other clients held the lock for --timeout seconds").partition("\n\n")[0]
_LOCK_CODES = f"{_HELD_CODES.replace(':', ' without a COMMAND:', 1)}\n\n{_LOCK_CODES}"
_LOCK_MORE = f"""The lock is the file URL.{_STYLE}, which Terraform and OpenTofu create with `use_lockfile = true`. It
stops their runs on this state. The command gets LOCKPROVIDER_LOCK_ID. Without a command the state stays locked, and the
lock's ID is printed: unlock it with `lockprovider state unlock URL --style {_STYLE} --id ID`.

Not promised: that the state is unlocked if this process is killed, because the file has no lease. Prefer
`lockprovider state run`, whose lock lapses and whose writes are fenced."""


def _file_lock(arguments: Any) -> TfLock:
    return TfLock.open(arguments.url, storage_options=storage_options(arguments))


def _who_holds(shown: TfLockFile) -> str:
    parts = (shown.who or "an unnamed holder", f"since {shown.created}", f"ID {shown.id}", shown.operation, shown.info)
    return "  ".join(word for word in parts if word)


def _unlock_file(arguments: Any) -> int | None:
    """Delete the lock file, if confirmed or `--id` is its ID; return None, also without one.

    REFUSED if declined, StateConflict for another ID or a lock created since.
    """
    lock = _file_lock(arguments)
    shown = lock.shown()
    if shown is None:
        say(arguments, {"outcome": "not_held"}, "not locked; nothing was unlocked")
        return None
    if arguments.id is not None and arguments.id != shown.id:
        raise StateConflict(f"another client holds the lock: {_who_holds(shown)}; nothing was unlocked")
    if arguments.id is None and not confirmed(arguments, f"{_who_holds(shown)}\nBreak it?", "state who"):
        return REFUSED
    lock.unlock(shown)
    say(arguments, {"outcome": "unlocked", **_lock_fields(shown)}, f"unlocked: {_who_holds(shown)}")
    return None


def _lock(arguments: argparse.Namespace) -> int | None:
    if arguments.words:
        return reported(arguments, _run_locked)
    held = _file_lock(arguments).acquire(operation="lock", info=arguments.reason, timeout=arguments.timeout)
    say(arguments, {"outcome": "locked", **_lock_fields(held)}, held.id)
    return None


def _run_locked(arguments: argparse.Namespace, result: CommandResult) -> CommandResult:
    """Create the lock file, run the command, delete the file; return `result`, filled in.

    Only prints a failed delete. A new "not_acquired" if others hold it for `--timeout`. "lost", known at the end, if
    another process deleted or replaced it.
    """
    words, lock = command_of(arguments, "state lock"), _file_lock(arguments)
    with passed_signals() as signals:
        try:
            held = lock.acquire(operation=words[0], info=arguments.reason, timeout=arguments.timeout)
        except StateLocked as refusal:
            return CommandResult("not_acquired", NOT_ACQUIRED, f"not acquired: {refusal}")
        try:
            CommandOrder(words, signals).run({"LOCKPROVIDER_LOCK_ID": held.id}, result)
        finally:
            signals.stop()
            try:
                existed = lock.unlock(held)
            except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the command has ended
                existed = not isinstance(error, StateConflict)
                check = f"check with `lockprovider state who {arguments.url} --style {_STYLE}`"
                complain("lockprovider", f"the unlock failed: {explained(error)}; {check}")
    if not existed:
        result.why = f"another process unlocked the state; the command ended with exit code {result.code}"
        result.outcome, result.code = "lost", LOST
    return result


def _lock_fields(lock: TfLockFile) -> dict[str, str]:
    return {"id": lock.id, "who": lock.who, "operation": lock.operation, "info": lock.info, "created": lock.created}
