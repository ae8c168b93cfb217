"""What a store keeps beside an object's bytes: checked before anything is sent, so that nothing is left out unseen."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fsspec_cas.attributes import Attributes
from fsspec_cas.errors import InvalidInput, NotSupported

# HTTP headers carry them: S3 makes names lower case, and Azure wants them to be identifiers.
_NAME = re.compile(r"[a-z_][a-z0-9_-]*")
_OF_THE_CALL = ("content_type", "metadata", "create_once", "timeout")


@dataclass(frozen=True, slots=True)
class AttributeRules:
    """What a kind of store keeps.

    Attributes:
        keeps: a content type and metadata, at all.
        own: what else its API takes by name, for one write.
        same: its API's names for the content type and the metadata.
        instead: what of its API stands for one of ours, and may not be given with it.
        refused: what its API takes and a single write cannot be given, with the reason.
        hyphens: whether the names of metadata may have some.
        reserved: the metadata that carries a write's identity.
    """

    keeps: bool = True
    own: frozenset[str] = frozenset()
    same: Mapping[str, str] = field(default_factory=dict)
    instead: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    hyphens: bool = True
    reserved: str = "cas-id"


def attributes_of(
    kind: str, rules: AttributeRules, content_type: str | None, metadata: Mapping[str, str] | None, own: dict[str, Any]
) -> Attributes | None:
    """What a caller asked for; None for nothing.

    Raises:
        InvalidInput: naming what no object can be made with.
        NotSupported: this kind of store keeps nothing beside an object's bytes.
    """
    given: dict[str, Any] = {"content_type": content_type, "metadata": metadata}
    left = {name: value for name, value in own.items() if value is not None}
    for name in rules.same.keys() & left.keys():
        if given[rules.same[name]] is not None:
            raise InvalidInput(f"{name} and {rules.same[name]} say the same: give one of them")
        given[rules.same[name]] = left.pop(name)
    for name in left:
        _check_own(kind, rules, name)
        if given.get(rules.instead.get(name, "")) is not None:
            raise InvalidInput(f"{name} and {rules.instead[name]} say the same: give one of them")
    kept = {name: value for name, value in given.items() if value is not None}
    if kept and not rules.keeps:
        raise NotSupported(f"{' and '.join(kept)} given, but {kind} objects are bytes alone: leave it out")
    _check_type(given["content_type"])
    _check_metadata(rules, given["metadata"])
    if not (kept or left):
        return None
    return Attributes(given["content_type"], dict(given["metadata"] or {}), left)


def _check_own(kind: str, rules: AttributeRules, name: str) -> None:
    if name in rules.own:
        return
    if name in rules.refused:
        raise NotSupported(f"{name} cannot be given to one write: {rules.refused[name]}")
    from difflib import get_close_matches  # noqa: PLC0415 - only for a message

    known = sorted({*rules.own, *rules.same, *_OF_THE_CALL})
    alike = get_close_matches(name, known, n=1) or [one for one in known if _plain(one) == _plain(name)]
    hint = f"did you mean {alike[0]}?" if alike else f"there are {', '.join(known)}"
    raise InvalidInput(f"a conditional write to {kind} takes no {name!r}: {hint}")


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def _check_type(given: object) -> None:
    if given is not None and not (isinstance(given, str) and _is_header(given) and "/" in given):
        raise InvalidInput(f"content_type={given!r} is none: write e.g. content_type='application/json'")


def _check_metadata(rules: AttributeRules, given: object) -> None:
    if given is None:
        return
    if not isinstance(given, Mapping):
        raise InvalidInput(f"metadata={given!r} must be a dict of names and texts, e.g. metadata={{'made_by': 'me'}}")
    for name, value in given.items():
        if not (isinstance(name, str) and _NAME.fullmatch(name)) or ("-" in name and not rules.hyphens):
            hyphens = ", - " if rules.hyphens else " "
            raise InvalidInput(f"metadata has the name {name!r}: use a-z, 0-9, _{hyphens}and begin with a letter or _")
        if name == rules.reserved:
            raise InvalidInput(f"metadata has the name {name!r}, which carries the identity of a write: use another")
        if not (isinstance(value, str) and _is_header(value)):
            raise InvalidInput(f"metadata[{name!r}]={value!r} must be printable ASCII text without blanks at its ends")


def _is_header(text: str) -> bool:
    return bool(text) and text.isascii() and text.isprintable() and text == text.strip()
