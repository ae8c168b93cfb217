"""The pictures of the specifications are what the library does now."""

from __future__ import annotations

import pytest

from benchmarks.pictures import FOLDER, PICTURES


@pytest.mark.parametrize("name", PICTURES)
def test_picture_is_what_its_program_draws(name: str) -> None:
    drawn = PICTURES[name]()
    assert drawn == (FOLDER / f"{name}.svg").read_text(encoding="utf-8"), "run python -m benchmarks.pictures, and look"
