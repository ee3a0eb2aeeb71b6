"""Curves over time as an SVG: panels one below the other, each with axes, labels and a legend.

In: panels of named series. Out: the text of a file. No library is needed for that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

Points = Sequence[tuple[float, float]]

_WIDTH: Final = 860
_HEIGHT: Final = 190
"""Of a panel."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 170, 30, 30
_COLORS: Final = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf")
_FONT: Final = 'font-family="sans-serif" font-size="11" fill="#333"'


@dataclass(frozen=True, slots=True)
class Panel:
    """``unit``: of the values."""

    title: str
    unit: str
    series: Mapping[str, Points]


def plot(panels: Sequence[Panel], *, x_label: str) -> str:
    """The whole file."""
    height = _HEIGHT * len(panels) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}"'
        f' viewBox="0 0 {_WIDTH} {height}">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
    ]
    for number, panel in enumerate(panels):
        parts += _panel(panel, number * _HEIGHT)
    parts += [_text(_WIDTH - _RIGHT, height - 8, x_label, "end"), "</svg>", ""]
    return "\n".join(parts)


def ticks(largest: float, wanted: int = 5) -> list[float]:
    """Round numbers from 0 to at least ``largest``."""
    if largest <= 0:
        return [0.0, 1.0]
    rough = largest / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    return [step * number for number in range(math.ceil(largest / step - 1e-9) + 1)]


def _panel(panel: Panel, top: float) -> list[str]:
    points = [point for series in panel.series.values() for point in series]
    x_ticks = ticks(max((x for x, _ in points), default=0.0), 8)
    y_ticks = ticks(max((y for _, y in points), default=0.0), 4)
    bottom, right = top + _HEIGHT - _BOTTOM, _WIDTH - _RIGHT

    def place(x: float, y: float) -> tuple[float, float]:
        across = _LEFT + x / x_ticks[-1] * (right - _LEFT)
        return across, bottom - y / y_ticks[-1] * (bottom - top - _TOP)

    parts = [_text(_LEFT, top + 18, f"{panel.title}, {panel.unit}", "start", bold=True)]
    for value in y_ticks:
        _, y = place(0, value)
        parts += [_line(_LEFT, y, right, y), _text(_LEFT - 6, y + 4, f"{value:,.10g}", "end")]
    for value in x_ticks:
        x, _ = place(value, 0)
        parts += [_line(x, bottom, x, bottom + 4), _text(x, bottom + 16, f"{value:,.10g}")]
    for number, (name, series) in enumerate(panel.series.items()):
        color = _COLORS[number % len(_COLORS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in series))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.2"/>')
        y = top + _TOP + 8 + 16 * number
        parts += [
            f'<rect x="{right + 12}" y="{y - 7}" width="12" height="4" fill="{color}"/>',
            _text(right + 30, y, name, "start"),
        ]
    return parts


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#ccc"/>'


def _text(x: float, y: float, text: str, anchor: str = "middle", *, bold: bool = False) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    weight = ' font-weight="bold"' if bold else ""
    return f"<text {place} {_FONT}{weight}>{escape(text)}</text>"
