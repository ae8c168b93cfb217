"""Java's properties text, both ways.

Promised: what is written here `java.util.Properties` reads back equal, and the other way round.

Source: the documentation of `java.util.Properties.load` and `store`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from lockprovider.table.errors import Corrupt

_ESCAPES = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f", **{mark: f"\\{mark}" for mark in "\\=:#!"}}
_UNESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_SEQUENCE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.)|$)", re.DOTALL)
_KEY = re.compile(r"((?:[^\\=: \t\f]|\\.)*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_UTF16_UNIT = re.compile(rb"(..)", re.DOTALL)


def pairs(text: str) -> Iterator[tuple[str, str]]:
    """The (key, value) pairs of properties text, unescaped, in file order."""
    for line in _logical_lines(text):
        found = _KEY.fullmatch(line)
        if found is not None:
            yield _unescape(found[1]), _unescape(found[2])


def _logical_lines(text: str) -> Iterator[str]:
    joined, continues = "", False
    for natural in re.split(r"\r\n|\r|\n", text):
        line = natural.lstrip(" \t\f")
        if not continues and (not line or line[0] in "#!"):
            continue
        trailing = len(line) - len(line.rstrip("\\"))
        continues = trailing % 2 == 1
        joined += line[:-1] if continues else line
        if not continues:
            yield joined
            joined = ""
    if joined:
        yield joined


def _unescape(text: str) -> str:
    def one(found: re.Match[str]) -> str:
        if found[1]:
            return chr(int(found[1], 16))
        return _UNESCAPES.get(found[2] or "", found[2] or "")

    units = _SEQUENCE.sub(one, text)
    # Java escapes UTF-16 units: two that form one character are put together again.
    return units.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "replace")


def escape_key(text: str) -> str:
    """Escape a key: every space too, since a bare one would end it."""
    return _escape_all(text).replace(" ", "\\ ")


def escape_value(text: str) -> str:
    """Escape a value: of its spaces only the first one, which reading would skip."""
    out = _escape_all(text)
    return f"\\{out}" if out.startswith(" ") else out


def _escape_all(text: str) -> str:
    return "".join(map(_escape_one, text))


def _escape_one(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if " " <= char <= "~":
        return char
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{int.from_bytes(unit, 'big'):04X}" for unit in _UTF16_UNIT.findall(units))


def list_at(raw: Mapping[str, str], key: str) -> tuple[str, ...]:
    """The values of a property that has several, with commas between; none if it is not there."""
    return tuple(part.strip() for part in raw.get(key, "").split(",") if part.strip())


def flag_at(raw: Mapping[str, str], key: str, *, default: bool) -> bool:
    """Whether a property is true; `default` if it is not there, or empty."""
    value = raw.get(key, "").strip().lower()
    return value == "true" if value else default


def number_at(raw: Mapping[str, str], key: str, file_name: str) -> int:
    """A property that is a whole number.

    Raises:
        Corrupt: it is not there, or none; the message names the file.
    """
    try:
        return int(raw[key])
    except (KeyError, ValueError) as error:
        raise Corrupt(f"{file_name} has {key}={raw.get(key)!r}; it must be a number, restore the file") from error


def flag_text(value: bool) -> str:  # noqa: FBT001 - it is the value written
    """A flag as Java writes it."""
    return "true" if value else "false"
