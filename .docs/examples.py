"""A griffe extension: examples in docstrings are blocks of code on the site."""

from __future__ import annotations

import re
from typing import Any

import griffe

# From a prompt to the next empty line.
_EXAMPLE = re.compile(r"^(?=>>> )(?:.+\n?)+", re.MULTILINE)


class Examples(griffe.Extension):
    """Fence the examples that begin with a prompt, which Markdown would take for quotations."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the object's docstring."""
        if obj.docstring:
            obj.docstring.value = _EXAMPLE.sub(_fenced, obj.docstring.value)


def _fenced(example: re.Match[str]) -> str:
    return f"```pycon\n{example[0].rstrip()}\n```\n"
