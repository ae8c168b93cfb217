"""What the pictures share: one sheet of SVG that needs nothing else, times along it, and the colours of its paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 1200
INK, FAINT, GRID, LINE, RED = "#24292f", "#6e7781", "#e7eaee", "#d0d7de", "#cf222e"
LEAST_PX = 2.0  # what happened is seen, however short it was
_TITLE = 80  # letters that fit, in bold and in wide fonts


@dataclass(frozen=True, slots=True)
class Scale:
    """Milliseconds to pixels, from `left` to `right` of the sheet."""

    start_ms: int
    end_ms: int
    left: int = 132
    right: int = WIDTH - 28

    @classmethod
    def around(cls, start_ms: int, end_ms: int) -> Scale:
        """With a little room at both ends, so that nothing sticks to the border."""
        room = max(1, (end_ms - start_ms) // 60)
        return cls(start_ms - room, end_ms + room)

    def x(self, at_ms: float) -> float:
        """Where a moment is, kept inside the drawing."""
        inside = min(max(at_ms, self.start_ms), self.end_ms)
        return self.left + (inside - self.start_ms) / (self.end_ms - self.start_ms) * (self.right - self.left)

    def extent(self, start_ms: int, end_ms: int) -> tuple[float, float]:
        """Where a stretch of time begins, and how wide it is."""
        x = self.x(start_ms)
        return x, max(LEAST_PX, self.x(end_ms) - x)


def sheet(height: int, body: Sequence[str]) -> str:
    """The SVG document: a white sheet, `WIDTH` pixels wide."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="Helvetica, Arial, sans-serif" font-size="13" fill="{INK}">'
    )
    return "\n".join([head, f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>', *body, "</svg>", ""])


def text(x: float, y: float, words: str, **style: str) -> str:
    """Words with their baseline's left end there; `style` holds SVG attributes, `_` for `-`."""
    attributes = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in style.items())
    return f'<text x="{x:.1f}" y="{y:.1f}"{attributes}>{escape(words)}</text>'


def heading(title: str, words: str, colour: str = FAINT) -> list[str]:
    """The title, of which the end says most if it is too long, and one line that says what there is to see."""
    shown = title if len(title) <= _TITLE else f"…{title[1 - _TITLE :]}"
    return [
        text(24, 36, shown, font_size="20", font_weight="bold"),
        text(24, 60, words, fill=colour, font_size="14"),
    ]


def rule(y: int) -> str:
    """The line above a lane."""
    return f'<line x1="24" y1="{y}" x2="{WIDTH - 28}" y2="{y}" stroke="{LINE}"/>'


def tick(x: float, top: int, bottom: int, words: str) -> list[str]:
    """One line of the time axis with its label below."""
    return [
        f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{bottom}" stroke="{GRID}"/>',
        text(x, bottom + 19, words, text_anchor="middle", fill=FAINT),
    ]
