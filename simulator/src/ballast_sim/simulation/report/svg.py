"""Line charts and scatter plots as inline SVG; colours come from the page's CSS variables, so both themes work."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, MARGIN_BOTTOM = 52.0, 14.0, 10.0, 40.0
LINE_HEIGHT = 13.0

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Axis:
    """From data to a share of the axis. A logarithmic one needs `low` above 0."""

    label: str
    low: float
    high: float
    log: bool = False
    percent: bool = False

    def share(self, value: float) -> float:
        """The position of a value: 0 at `low`, 1 at `high`; clipped to that range."""
        low, high = self.low, self.high
        if self.log:
            value, low, high = math.log10(max(value, low)), math.log10(low), math.log10(high)
        return min(1.0, max(0.0, (value - low) / (high - low)))

    def ticks(self) -> list[float]:
        """Round values within the range, about five of them."""
        if self.log:
            exponents = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            steps = (1, 2, 5) if len(exponents) <= 4 else (1,)
            return [m * 10.0**e for e in exponents for m in steps if self.low <= m * 10.0**e <= self.high * 1.0001]
        step = 10.0 ** math.floor(math.log10((self.high - self.low) / 4))
        step *= next(m for m in (1, 2, 2.5, 5, 10) if (self.high - self.low) / (step * m) <= 6)
        first = math.ceil(self.low / step - 1e-9)
        return [k * step for k in range(first, math.floor(self.high / step + 1e-9) + 1)]

    def text(self, value: float) -> str:
        """A tick's label."""
        return f"{value * 100:g} %" if self.percent else f"{value:.10g}"


def linear(
    label: str, values: Sequence[float], *, percent: bool = False, from_zero: bool = True, least_span: float = 0.0
) -> Axis:
    """An axis that shows all values, with a little room. It spans `least_span` of the largest one at least."""
    low = 0.0 if from_zero else min(values, default=0.0)
    high = max(values, default=1.0)
    if high <= low:
        high = low + (abs(low) or 1.0)
    if high - low < least_span * high:
        low, high = (low + high - least_span * high) / 2, (low + high + least_span * high) / 2
    room = (high - low) * 0.05
    return Axis(label, low if from_zero else max(0.0, low - room), high + room, percent=percent)


def logarithmic(label: str, values: Sequence[float]) -> Axis:
    """As `linear`, by decades; values must be above 0."""
    low, high = min(values, default=1.0), max(values, default=10.0)
    return Axis(label, low / 1.1, max(high * 1.1, low * 2), log=True)


@dataclass(frozen=True, slots=True)
class Series:
    """A line; `style` is a CSS class, `title` the tooltip."""

    points: Sequence[Point]
    style: str
    title: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A dot with a label beside it."""

    at: Point
    style: str
    label: str
    title: str


@dataclass(frozen=True, slots=True)
class Chart:
    """What is drawn into one frame."""

    name: str
    x: Axis
    y: Axis
    series: Sequence[Series] = ()
    marks: Sequence[Mark] = ()
    width: float = 520.0
    height: float = 300.0
    guides: Sequence[tuple[str, float]] = field(default=())
    """Dashed lines: ("x" or "y", value)."""

    def render(self) -> str:
        """The `<svg>` element."""
        parts = [
            f'<svg viewBox="0 0 {self.width:g} {self.height:g}" role="img" aria-label="{escape(self.name)}">',
            *self._frame(),
            *(self._guide(axis, value) for axis, value in self.guides),
            *(self._line(series) for series in self.series if series.points),
            *self._dots(),
            "</svg>",
        ]
        return "".join(parts)

    def _x(self, value: float) -> float:
        return MARGIN_LEFT + self.x.share(value) * (self.width - MARGIN_LEFT - MARGIN_RIGHT)

    def _y(self, value: float) -> float:
        return self.height - MARGIN_BOTTOM - self.y.share(value) * (self.height - MARGIN_TOP - MARGIN_BOTTOM)

    def _frame(self) -> list[str]:
        left, right = MARGIN_LEFT, self.width - MARGIN_RIGHT
        top, bottom = MARGIN_TOP, self.height - MARGIN_BOTTOM
        parts = []
        for value in self.x.ticks():
            x = self._x(value)
            parts.append(f'<line class="grid" x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{bottom}"/>')
            parts.append(f'<text class="tick mid" x="{x:.1f}" y="{bottom + 15}">{self.x.text(value)}</text>')
        for value in self.y.ticks():
            y = self._y(value)
            parts.append(f'<line class="grid" x1="{left}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>')
            parts.append(f'<text class="tick end" x="{left - 6}" y="{y + 3.5:.1f}">{self.y.text(value)}</text>')
        parts.append(
            f'<text class="axis mid" x="{(left + right) / 2:.1f}" y="{self.height - 6}">{escape(self.x.label)}</text>'
        )
        middle = (top + bottom) / 2
        parts.append(
            f'<text class="axis mid" transform="translate(12 {middle:.1f}) rotate(-90)">{escape(self.y.label)}</text>'
        )
        return parts

    def _guide(self, axis: str, value: float) -> str:
        if axis == "x":
            x, top, bottom = self._x(value), MARGIN_TOP, self.height - MARGIN_BOTTOM
            return f'<line class="guide" x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{bottom}"/>'
        y = self._y(value)
        return f'<line class="guide" x1="{MARGIN_LEFT}" y1="{y:.1f}" x2="{self.width - MARGIN_RIGHT}" y2="{y:.1f}"/>'

    def _line(self, series: Series) -> str:
        path = " ".join(f"{self._x(x):.1f},{self._y(y):.1f}" for x, y in series.points)
        return f'<polyline class="{series.style}" points="{path}"><title>{escape(series.title)}</title></polyline>'

    def _dots(self) -> list[str]:
        """Every mark; a label that would lie on another one moves down."""
        parts, taken = [], list[Point]()
        for mark in self.marks:
            x, y = self._x(mark.at[0]), self._y(mark.at[1])
            title = f"<title>{escape(mark.title)}</title>"
            parts.append(f'<circle class="{mark.style}" cx="{x:.1f}" cy="{y:.1f}" r="5">{title}</circle>')
            if not mark.label:
                continue
            while any(abs(x - other_x) < 110 and abs(y - other_y) < LINE_HEIGHT for other_x, other_y in taken):
                y += LINE_HEIGHT
            taken.append((x, y))
            side, x = ("end", x - 9) if self.x.share(mark.at[0]) > 0.7 else ("", x + 9)
            parts.append(f'<text class="label {side}" x="{x:.1f}" y="{y + 4:.1f}">{escape(mark.label)}</text>')
        return parts
