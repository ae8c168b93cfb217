"""What a lock record says of this process, for people: whose it is, and what runs in it."""

from __future__ import annotations

import os
import pwd
import sys
from pathlib import PurePath

_LONGEST = 60


def user() -> str:
    """The name of whom this process acts for; the number, where that has none."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def command() -> str:
    """The program's name: never its arguments, which may be secrets."""
    first = sys.argv[0] if getattr(sys, "argv", None) else ""
    path = PurePath(first)
    if path.name == "__main__.py":
        return f"python -m {path.parent.name}"[:_LONGEST]
    return (path.name if first not in ("", "-c") else "python")[:_LONGEST]
