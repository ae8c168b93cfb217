"""A drawing is well-formed XML, whatever names a record holds."""

from __future__ import annotations

from xml.dom.minidom import parseString

import pytest

from lockprovider.lanes import Box, Lane, Mark, draw_lanes


@pytest.mark.parametrize("name", ["\x00", "a\x1b[31m", "\ufffe", "\ud800", "<&>\"'", "\U0001f512"], ids=ascii)
def test_drawing_is_well_formed_with_any_character_in_a_name(name: str) -> None:
    lane = Lane(name * 20, [Box(0, 9, "red", name, name)], [Mark(5, "dot", "red", name, name)])
    parseString(draw_lanes(name, name, [lane], legend=[Mark(0, "dot", "red", name)]).encode())  # noqa: S318 - own text
