"""What stops a demonstration before it has written anything."""

from __future__ import annotations


class CannotStart(Exception):
    """The demonstration cannot begin: the message names the bad value and the next step.

    Promised: nothing was written to the target when this is raised.
    """


class TableIsThere(CannotStart):
    """The target holds a table already."""
