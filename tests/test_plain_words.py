"""The pages of the packages keep the rules of plain words: short sentences with a noun as their subject.

A list of words is a reminder; reading is the check.
"""

from __future__ import annotations

import re

import pytest
from test_documents import NAMES, text_of

PAGES = [
    name
    for name in NAMES
    if name.startswith(("lockprovider/table/", "lockprovider/recipes/"))
    or "/guides/" in name
    or name in {"lockprovider/README.md", "lockprovider/SPECIFICATION.md"}
]
MOST_WORDS = 25
_OPENINGS = re.compile(r"(?:Who|Whoever|What is|What the|One that|Those who|Those that|Somebody|Nobody)\b")
_PRINTED = re.compile(r"<!-- types.*?<!-- /types -->|^\| `hoodie.*?$", re.DOTALL | re.MULTILINE)
_BLOCK = re.compile(r"^```.*?^```$|^    .*?$", re.DOTALL | re.MULTILINE)


def sentences(text: str) -> list[str]:
    """The sentences of a page's prose, cells of tables and items of lists; not what is printed from code."""
    prose = _BLOCK.sub("", _PRINTED.sub("", text))
    lines = re.sub(r"\n(?!\n|[-|#]|\d+\. )\s*", " ", prose).splitlines()
    parts = [cell for line in lines for cell in (line.split("|") if line.lstrip().startswith("|") else [line])]
    found = [sentence.strip(" #-*") for part in parts for sentence in re.split(r"(?<=[.:;!?])\s+", part)]
    return [sentence for sentence in found if re.search(r"\w", sentence)]


def too_long(text: str) -> list[str]:
    return [sentence for sentence in sentences(text) if len(re.findall(r"\S*\w\S*", sentence)) > MOST_WORDS]


@pytest.mark.parametrize("name", PAGES)
def test_page_has_no_long_sentence(name: str) -> None:
    assert too_long(text_of(name)) == []


@pytest.mark.parametrize("name", PAGES)
def test_page_has_no_sentence_without_a_noun_as_subject(name: str) -> None:
    assert [sentence for sentence in sentences(text_of(name)) if _OPENINGS.match(sentence)] == []


def test_long_sentence_and_forbidden_opening_are_found() -> None:
    text = f"Who opens a table reads it. A writer\nwrites. {'word ' * 26}."
    assert [sentence for sentence in sentences(text) if _OPENINGS.match(sentence)] == ["Who opens a table reads it."]
    assert len(too_long(text)) == 1
