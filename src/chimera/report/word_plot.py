"""The plot of frequent words: points at the projections of their vectors, with labels that do not overlap."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from chimera.report.curves import Floats
from chimera.report.run_files import RunFiles
from chimera.report.word_vectors import Words, project_to_plane

_FONT_PX = 13.0
_WIDTHS = {"i": 0.28, "j": 0.28, "l": 0.28, "f": 0.36, "t": 0.4, "r": 0.42, "'": 0.28, "-": 0.37, "m": 1.0, "w": 0.85}
_WIDTHS |= {"M": 0.87, "W": 1.0}
_LETTER, _CAPITAL, _OTHER = 0.64, 0.8, 1.05  # the widest of other characters, in ems
_MAX_CHARACTERS = 24
_LEFT, _BOTTOM, _MARGIN = 24, 26, 12  # room for axis labels; margin around the points
_SIDE = 44  # additional room for labels at the left and right
_RADIUS, _GAP = 2.3, 5.0
_CLEAR = 4.8  # distance from the centre of a point to labels of other points
_ASCENT, _DESCENT = 10.5, 3.5
_SHAPES = {"wide": (1140, 0.4, 0.6), "narrow": (560, 0.7, 1.15)}
"""For wide and narrow pages: width in px, and minimum and maximum height as fractions of the width."""


class Box(NamedTuple):
    """The rectangle of a label, in px; y grows downwards."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: Box) -> bool:
        """Return whether two rectangles overlap."""
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom


def word_plot(run: RunFiles) -> str:
    """Return the plot as HTML, for wide and for narrow pages; empty for a run without words."""
    if run.words is None:
        return ""
    points, shares = project_to_plane(run.words.vectors)
    if not any(shares):
        return "<p class='note'>The vectors of the most frequent words are all equal.</p>"
    return '<div class="words">' + "".join(_picture(run.words, points, shares, kind) for kind in _SHAPES) + "</div>"


def labels(points: Floats, widths: Sequence[float], size: tuple[float, float]) -> list[Box | None]:
    """Return the rectangle of each point's label; None if it would overlap another label, its point, or the edge.

    Parameters
    ----------
    points : shape (n, 2), in px, in order of priority.
    widths : widths of the labels, in px.
    size : width and height of the plot, in px.
    """
    dots = [Box(x - _CLEAR, y - _CLEAR, x + _CLEAR, y + _CLEAR) for x, y in points.tolist()]
    placed: list[Box | None] = []
    taken: list[Box] = []  # labels
    owned: list[Box] = []  # the dots of these labels
    for dot, (x, y), width in zip(dots, points.tolist(), widths, strict=True):
        best = None
        if not any(map(dot.overlaps, taken)):
            free = (box for box in _candidates(x, y, width) if not any(map(box.overlaps, (*taken, *owned))))
            able = (box for box in free if _is_inside(box, size))
            best = min(able, key=lambda box: sum(map(box.overlaps, dots)), default=None)
        if best is not None:
            taken.append(best)
            owned.append(dot)
        placed.append(best)
    return placed


def width_of(word: str) -> float:
    """Return an upper bound of a label's width, in px, for any sans-serif font."""
    return _FONT_PX * sum(map(_width, word))


def _width(character: str) -> float:
    if unicodedata.combining(character):
        return 0.0
    if character in _WIDTHS:
        return _WIDTHS[character]
    if not character.isascii() or not character.isalnum():
        return _OTHER
    return _CAPITAL if character.isupper() else _LETTER


def _candidates(x: float, y: float, width: float) -> list[Box]:
    """Return candidate rectangles for a label next to a point, the best ones first."""
    middle = _ASCENT / 2 - 1
    lefts = (x + _GAP, x - _GAP - width, x - width / 2, x - width / 2, x + 3, x + 3, x - 3 - width, x - 3 - width)
    lines = (y + middle, y + middle, y - 6, y + 14, y - 5, y + 13, y - 5, y + 13)
    places = zip(lefts, lines, strict=True)
    return [Box(left, line - _ASCENT, left + width, line + _DESCENT) for left, line in places]


def _is_inside(box: Box, size: tuple[float, float]) -> bool:
    width, height = size
    return box.left >= _LEFT and box.right <= width - 1 and box.top >= 1 and box.bottom <= height - _BOTTOM


def _picture(words: Words, points: Floats, shares: tuple[float, float], kind: str) -> str:
    at, size = _scaled(points, *_SHAPES[kind])
    shown = [_shown(word) for word in words.words]
    boxes = labels(at, [width_of(word) for word in shown], size)
    dots, texts = [], []
    for word, rank, (x, y), box in zip(shown, words.ranks, at.tolist(), boxes, strict=True):
        title = f"<title>{escape(word)}, number {rank:,} of the vocabulary</title>"
        dots.append(f'<circle class="dot{" bare" if box is None else ""}" cx="{x:.1f}" cy="{y:.1f}" r="{_RADIUS}">')
        dots.append(f"{title}</circle>")
        if box is not None:
            where = f'x="{(box.left + box.right) / 2:.1f}" y="{box.bottom - _DESCENT:.1f}"'
            texts.append(f'<text class="word" {where} text-anchor="middle">{escape(word)}{title}</text>')
    width, height = size
    bottom = height - _BOTTOM
    label = f"The {len(shown)} most frequent words in the plane of the first two principal components of their vectors"
    parts = [f'<svg class="chart" viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{label}">']
    parts.append(f'<path class="axis" d="M{_LEFT} 0V{bottom}H{width:g}"/>')
    middle, names = (_LEFT + width) / 2, [f"{share:.1%} of the variance".replace("%", " %") for share in shares]
    parts.append(f'<text class="label" x="{middle:g}" y="{height - 8:g}" text-anchor="middle">First axis: {names[0]}')
    parts.append(f'</text><text class="label" transform="translate(14 {bottom / 2:g}) rotate(-90)" ')
    parts.append(f'text-anchor="middle">Second axis: {names[1]}</text>')
    svg = "".join([*parts, *dots, *texts, "</svg>"])
    return f'<figure class="{kind}">{svg}<p class="note">{_note(words, sum(box is not None for box in boxes))}</p></figure>'


def _note(words: Words, count: int) -> str:
    stop = ", without stop words" if words.without_stop_words else ""
    rest = "; the others are dots without labels, for lack of space" if count < len(words.words) else ""
    return (
        f"Labelled: {count} of the {len(words.words)} most frequent words{stop}{rest}. Words are close to each other if their"
        " vectors have similar directions, as far as two principal components show it."
    )


def _scaled(points: Floats, width: int, least: float, most: float) -> tuple[Floats, tuple[float, float]]:
    """Return the points in px, with the same scale on both axes, and the size of the plot."""
    low, high = points.min(axis=0), points.max(axis=0)
    spread = np.maximum(high - low, 1e-9 * float((high - low).max()))
    plot_width = width - _LEFT - 2 * (_MARGIN + _SIDE)
    around = _BOTTOM + 2 * _MARGIN
    height = round(min(max(plot_width * spread[1] / spread[0] + around, least * width), most * width))
    scale = float(min(plot_width / spread[0], (height - around) / spread[1]))
    middle = np.array([(_LEFT + width) / 2, (height - _BOTTOM) / 2])
    at: Floats = middle + (points - (low + high) / 2) * scale * np.array([1.0, -1.0])
    return at, (float(width), float(height))


def _shown(word: str) -> str:
    """Return a printable word of bounded length."""
    plain = "".join(character if character.isprintable() else "?" for character in word)
    return plain if len(plain) <= _MAX_CHARACTERS else plain[: _MAX_CHARACTERS - 1] + "…"
