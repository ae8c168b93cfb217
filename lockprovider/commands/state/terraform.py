"""`lockprovider state run URL -- terraform apply`, and `state serve`: Terraform's and OpenTofu's state on any store."""

from __future__ import annotations

import signal
from typing import Any

from fsspec_cas import InvalidInput, Machine
from fsspec_cas.command import DONE, complain, storage_options
from fsspec_cas.waiting import Worker
from lockprovider.commands.child import run_child
from lockprovider.commands.place import Commands, add_object_command, say
from lockprovider.commands.state.serving import StateServer
from lockprovider.state import State

_FORM = "write -- between the options and the command: lockprovider state run URL [options] -- terraform apply"
_MORE = """The configuration has `terraform { backend "http" {} }`, and nothing more: address and password are in the
environment. The lock lapses if this process dies; a run that was overtaken is refused, and Terraform leaves its state
in errored.tfstate. `lockprovider state history` has every state that ever was, until it is trimmed.

A state of another lineage, with a lower serial, or with the same serial and another content is refused, also if
Terraform was told -force, of which its `http` backend does not tell the server: use --force as well.

Not promised: anything for runs that use the same state by another backend."""


def add(commands: Commands) -> None:
    """Register them."""
    what = "the state's object: s3://bucket/infra/network.json"
    text = "Run Terraform or OpenTofu with its state in this object, on any store."
    run = add_object_command(commands, "run", _run, text, what, more=_MORE)
    run.usage = "lockprovider state run URL [options] -- COMMAND [ARGUMENT ...]"
    text = "Answer Terraform's `http` backend on loopback, until it is interrupted."
    serve = add_object_command(commands, "serve", _serve, text, what, more=_MORE)
    serve.add_argument("--port", type=int, default=0, help="on 127.0.0.1 (default: a free one)")
    for command in (run, serve):
        command.add_argument("--force", action="store_true", help="take states of another lineage or a lower serial")


def _server(arguments: Any, port: int = 0) -> StateServer:
    state: State[bytes] = State.open(arguments.url, storage_options=storage_options(arguments), codec=bytes)
    state.read()  # what is wrong with the place is said before anything is run
    return StateServer(state, Machine().new_id(), port, told=lambda said: complain("lockprovider", said))


def _run(arguments: Any) -> int:
    words = arguments.words
    if not words:
        raise InvalidInput(f"no command; {_FORM}")
    server = _server(arguments)
    serving = Worker(server.serve, "state")
    serving.start()
    try:
        return run_child(words, server.environment(force=arguments.force))
    finally:
        server.shutdown()
        serving.join()


def _serve(arguments: Any) -> int:
    server = _server(arguments, arguments.port)
    environment = server.environment(force=arguments.force)
    shown = "\n".join(f"export {name}='{value}'" for name, value in environment.items())
    say(arguments, environment, shown)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        server.serve()
    except KeyboardInterrupt:
        return DONE
    return DONE
