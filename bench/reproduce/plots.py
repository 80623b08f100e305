"""Plots of the report as SVG files of their own: light and dark, with a legend, nothing loaded from anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from typing import Protocol

from ballast_sim.simulation.report.svg import Axis, Chart, Point, Series, linear, logarithmic
from bench.reproduce.results import Measured

ROW_HEIGHT, LABEL_WIDTH, BOTTOM, TOP, RIGHT = 20.0, 190.0, 42.0, 8.0, 18.0
LEGEND_HEIGHT, TITLE_HEIGHT, GAP = 20.0, 20.0, 12.0
COLOURS = 8


class Drawing(Protocol):
    """A part of a plot: a chart of the simulator's reports, or `Whiskers`."""

    @property
    def name(self) -> str:
        """Stands above it."""
        ...

    @property
    def width(self) -> float:
        """Of its own coordinates."""
        ...

    @property
    def height(self) -> float:
        """Of its own coordinates."""
        ...

    def render(self) -> str:
        """The `<svg>` element."""
        ...


@dataclass(frozen=True, slots=True)
class Whisker:
    """A row: our mean with its interval, and the paper's value as a hollow diamond."""

    label: str
    ours: Measured | None
    paper: float | None = None
    style: str = "c0"


@dataclass(frozen=True, slots=True)
class Whiskers:
    """Rows of means with intervals over one axis. An empty label separates groups of rows."""

    name: str
    label: str
    """Of the axis."""
    rows: Sequence[Whisker]
    log: bool = False
    from_zero: bool = True
    guide: float | None = None
    """Where a dashed line stands, such as 0 of changes."""
    width: float = 520.0

    @property
    def height(self) -> float:
        """By the number of rows."""
        return TOP + BOTTOM + ROW_HEIGHT * len(self.rows)

    def render(self) -> str:
        """See `Drawing`."""
        axis = self._axis()
        bottom = self.height - BOTTOM
        parts = [f'<svg viewBox="0 0 {self.width:g} {self.height:g}" role="img" aria-label="{escape(self.name)}">']
        for tick in axis.ticks():
            x = self._x(axis, tick)
            parts.append(f'<line class="grid" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}"/>')
            parts.append(f'<text class="tick mid" x="{x:.1f}" y="{bottom + 15}">{axis.text(tick)}</text>')
        if self.guide is not None:
            x = self._x(axis, self.guide)
            parts.append(f'<line class="guide" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}"/>')
        middle = (LABEL_WIDTH + self.width - RIGHT) / 2
        parts.append(f'<text class="axis mid" x="{middle:.1f}" y="{self.height - 6}">{escape(self.label)}</text>')
        for index, row in enumerate(self.rows):
            parts += self._row(axis, row, TOP + ROW_HEIGHT * (index + 0.5))
        return "".join([*parts, "</svg>"])

    def _axis(self) -> Axis:
        seen = [value for row in self.rows if row.ours is not None for value in (row.ours.low, row.ours.high)]
        seen += [row.ours.value for row in self.rows if row.ours is not None]
        seen += [row.paper for row in self.rows if row.paper is not None]
        if self.guide is not None:
            seen.append(self.guide)
        if self.log:
            return logarithmic(self.label, [value for value in seen if value > 0])
        if min(seen, default=0.0) < 0:
            low, high = min(seen), max(*seen, 0.0)
            room = 0.05 * (high - low)
            return Axis(self.label, low - room, high + room)
        return linear(self.label, seen, from_zero=self.from_zero)

    def _x(self, axis: Axis, value: float) -> float:
        return LABEL_WIDTH + axis.share(value) * (self.width - LABEL_WIDTH - RIGHT)

    def _row(self, axis: Axis, row: Whisker, y: float) -> list[str]:
        parts = [f'<text class="tick end" x="{LABEL_WIDTH - 8}" y="{y + 3.5:.1f}">{escape(row.label)}</text>']
        if row.ours is not None:
            low, high, at = (self._x(axis, value) for value in (row.ours.low, row.ours.high, row.ours.value))
            if high > low:
                points = f"{low:.1f},{y:.1f} {high:.1f},{y:.1f}"
                parts.append(f'<polyline class="line {row.style}" points="{points}"/>')
            title = f"<title>{escape(row.label)}: {row.ours.value:.4g}</title>"
            parts.append(f'<circle class="dot {row.style}" cx="{at:.1f}" cy="{y:.1f}" r="4.5">{title}</circle>')
        if row.paper is not None:
            x = self._x(axis, row.paper)
            parts.append(_diamond(x, y, f"the paper: {row.paper:.4g}"))
        return parts


def _diamond(x: float, y: float, title: str) -> str:
    points = f"{x:.1f},{y - 6:.1f} {x + 6:.1f},{y:.1f} {x:.1f},{y + 6:.1f} {x - 6:.1f},{y:.1f}"
    return f'<polygon class="paper" points="{points}"><title>{escape(title)}</title></polygon>'


def lines(
    name: str,
    x: str,
    y: str,
    series: Sequence[tuple[str, Sequence[Point]]],
    *,
    log_x: bool = False,
    log_y: bool = False,
    from_zero: bool = True,
) -> Chart:
    """A line chart; every series gets a colour, and its name stands in the legend."""
    xs = [point[0] for _, points in series for point in points]
    ys = [point[1] for _, points in series for point in points]
    drawn = [Series(points, f"line {colour(index)}", label) for index, (label, points) in enumerate(series)]
    return Chart(
        name,
        logarithmic(x, xs) if log_x else linear(x, xs, from_zero=False),
        logarithmic(y, ys) if log_y else linear(y, ys, from_zero=from_zero),
        drawn,
    )


def colour(index: int) -> str:
    """The CSS class of the n-th series."""
    return f"c{index % COLOURS}" + (" dashed" if index >= COLOURS else "")


def svg_file(caption: str, drawings: Sequence[Drawing]) -> str:
    """Drawings one below the other, each with its name and a legend of its lines."""
    width = max(drawing.width for drawing in drawings)
    parts: list[str] = []
    y = 0.0
    for drawing in drawings:
        parts.append(f'<text class="label" x="8" y="{y + 14:.1f}">{escape(drawing.name)}</text>')
        y += TITLE_HEIGHT
        for row in _legend_rows(_legend(drawing), width):
            parts += _legend_row(row, y)
            y += LEGEND_HEIGHT
        inner = drawing.render().replace(
            "<svg ", f'<svg y="{y:g}" width="{drawing.width:g}" height="{drawing.height:g}" ', 1
        )
        parts.append(inner)
        y += drawing.height + GAP
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {y:g}" width="{width:g}" height="{y:g}" '
        f'role="img" aria-label="{escape(caption)}">'
    )
    return f"{head}<style>{_style()}</style>{''.join(parts)}</svg>\n"


def _style() -> str:
    css = resources.files("ballast_sim.simulation.report").joinpath("style.css").read_text(encoding="utf-8")
    variables, rules = css[: css.index("body {")], css[css.index("svg text") :]
    return variables + rules + ".paper { fill: var(--page); stroke: var(--ink); stroke-width: 1.4; }"


def _legend(drawing: Drawing) -> list[tuple[str, str]]:
    """(name, style) of the lines, or of what a row of whiskers shows."""
    if isinstance(drawing, Chart):
        return list(dict.fromkeys((series.title, series.style.removeprefix("line ")) for series in drawing.series))
    if isinstance(drawing, Whiskers) and any(row.paper is not None for row in drawing.rows):
        return [("ours, mean and 95 % interval", "c0"), ("the paper", "paper")]
    return []


def _legend_rows(items: Sequence[tuple[str, str]], width: float) -> list[list[tuple[str, str, float]]]:
    rows: list[list[tuple[str, str, float]]] = []
    x = width
    for name, style in items:
        needed = 34 + 6.4 * len(name)
        if x + needed > width:
            rows.append([])
            x = 8.0
        rows[-1].append((name, style, x))
        x += needed
    return rows


def _legend_row(row: Sequence[tuple[str, str, float]], y: float) -> list[str]:
    parts = []
    for name, style, x in row:
        if style == "paper":
            parts.append(_diamond(x + 8, y + 9, "the paper"))
        else:
            parts.append(f'<polyline class="line {style}" points="{x:.1f},{y + 9:.1f} {x + 16:.1f},{y + 9:.1f}"/>')
        parts.append(f'<text x="{x + 21:.1f}" y="{y + 13:.1f}">{escape(name)}</text>')
    return parts
