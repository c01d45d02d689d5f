"""Small SVG charts for the demos' reports; imports the standard library only.

A chart is a string of SVG without colours of its own: classes (`s0`, `s1`, `grid`, `tick`, ...) take
their colours from the page, so one drawing serves light and dark. Text is sized for a chart that is
shown between 320 and 560 pixels wide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 460, 270
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 12, 40


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart: its name in the legend, and its points."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    # Points are marked where they are few; a dense line stands alone.
    marked: bool = True


@dataclass(frozen=True, slots=True)
class Guide:
    """A horizontal line for comparison, with its label."""

    label: str
    y: float


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about `count` round numbers (1, 2 or 5 times a power of ten) within [low, high]."""
    if not high > low:
        return [low]
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return round numbers for a logarithmic axis: 1, 2, 5 a decade, or fewer over many decades."""
    decades = math.log10(high / low)
    steps = (1, 2, 5) if decades < 2.2 else (1, 3) if decades < 3.2 else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [m * 10.0**p for p in powers for m in steps]
    inside = [t for t in ticks if low * 0.999 <= t <= high * 1.001]
    # A narrow range may hold no such number: round steps serve it as well.
    return inside if len(inside) >= 3 else nice_ticks(low, high)


class _Axes:
    """The ranges of a chart, and where values are in the picture."""

    def __init__(
        self,
        points: Sequence[tuple[float, float]],
        others: Sequence[float],
        log_y: bool,
        percent: bool,
        from_zero: bool,
    ) -> None:
        self.log_y, self.percent = log_y, percent
        xs, ys = [x for x, _ in points], [*(y for _, y in points), *others]
        self.x_low, self.x_high = min(xs), max(xs)
        self.y_low, self.y_high = _padded(min(ys), max(ys), log_y, percent)
        if from_zero:
            self.y_low = 0.0
        if self.x_low == self.x_high:
            self.x_low, self.x_high = self.x_low - 1, self.x_high + 1

    def place_x(self, x: float) -> float:
        """Return the horizontal position of a value, in the picture's units."""
        return LEFT + (x - self.x_low) / (self.x_high - self.x_low) * (WIDTH - LEFT - RIGHT)

    def place_y(self, y: float) -> float:
        """Return the vertical position of a value, in the picture's units."""
        if self.log_y:
            share = math.log(y / self.y_low) / math.log(self.y_high / self.y_low)
        else:
            share = (y - self.y_low) / (self.y_high - self.y_low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    def drawn(self, x_label: str) -> list[str]:
        """Return the grid, the ticks and the horizontal axis with its label."""
        parts = []
        ticks = log_ticks if self.log_y else nice_ticks
        for tick in ticks(self.y_low, self.y_high):
            y = self.place_y(tick)
            parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
            parts.append(
                f'<text class="tick" x="{LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">'
                f"{number(tick, self.percent)}</text>"
            )
        bottom = HEIGHT - BOTTOM
        for tick in nice_ticks(self.x_low, self.x_high, 6):
            if self.x_high - self.x_low < 12 and tick != round(tick):
                continue
            parts.append(
                f'<text class="tick" x="{self.place_x(tick):.1f}" y="{bottom + 17}" text-anchor="middle">'
                f"{number(tick)}</text>"
            )
        parts.append(f'<path class="axis" d="M{LEFT} {bottom}H{WIDTH - RIGHT}"/>')
        middle = (LEFT + WIDTH - RIGHT) / 2
        parts.append(
            f'<text class="label" x="{middle:.0f}" y="{HEIGHT - 5}" text-anchor="middle">'
            f"{escape(x_label)}</text>"
        )
        return parts


def _line(
    i: int, series: Series, line: Sequence[tuple[float, float]], axes: _Axes, x_label: str
) -> list[str]:
    """Return the drawing of line number `i`, with its points where they are marked."""
    path = "L".join(f"{axes.place_x(x):.1f} {axes.place_y(y):.1f}" for x, y in line)
    parts = [f'<path class="line s{i}" d="M{path}"/>']
    if series.marked or len(line) == 1:
        radius = 3.2 if len(line) <= 30 else 2.0
        for x, y in line:
            told = f"{x_label} {number(x)}: {series.name} {number(y, axes.percent)}"
            parts.append(
                f'<circle class="dot s{i}" cx="{axes.place_x(x):.1f}" cy="{axes.place_y(y):.1f}" r="{radius}">'
                f"<title>{escape(told)}</title></circle>"
            )
    return parts


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    y_label: str,
    log_y: bool = False,
    percent: bool = False,
    from_zero: bool = False,
    guides: Sequence[Guide] = (),
) -> str:
    """Return an SVG line chart. Values that are not finite (or, with `log_y`, not positive) are left out."""
    lines = [
        (s, [(x, y) for x, y in zip(s.xs, s.ys) if math.isfinite(y) and (y > 0 or not log_y)])
        for s in series
    ]
    points = [point for _, line in lines for point in line]
    if not points:
        return ""
    axes = _Axes(points, [g.y for g in guides], log_y, percent, from_zero)
    parts = [
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(_spoken(title, lines, percent))}">',
        *axes.drawn(x_label),
    ]
    for guide in guides:
        y = axes.place_y(guide.y)
        parts.append(f'<path class="guide" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(
            f'<text class="label" x="{WIDTH - RIGHT}" y="{y - 5:.1f}" text-anchor="end">'
            f"{escape(guide.label)}</text>"
        )
    for i, (s, line) in enumerate(lines):
        parts += _line(i, s, line, axes, x_label)
    parts.append("</svg>")
    legend = "".join(
        f'<span><i class="swatch s{i}"></i>{escape(s.name)}</span>' for i, s in enumerate(series)
    )
    return (
        f'<figure><figcaption><b>{escape(title)}</b><span class="unit">{escape(y_label)}</span>'
        f'<span class="legend">{legend}</span></figcaption>{"".join(parts)}</figure>'
    )


def pixel_picture(rows: Sequence[Sequence[float]], label: str) -> str:
    """Return an SVG of a small grey picture, values from 0 (paper) to 1 (ink), one square a pixel."""
    height, width = len(rows), len(rows[0])
    squares = "".join(
        # A little overlap hides the seams that scaling would show between neighbours.
        f'<path fill-opacity="{value:.2f}" d="M{x} {y}h1.02v1.02h-1.02z"/>'
        for y, row in enumerate(rows)
        for x, value in enumerate(row)
        if value > 0
    )
    return (
        f'<svg class="pixels" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(label)}">{squares}</svg>'
    )


def number(value: float, percent: bool = False) -> str:
    """Return a short text for a tick or a tooltip: 1500 -> "1,500", 0.02 -> "0.02"."""
    if percent:
        return f"{value * 100:.4g} %"
    if value == round(value) and abs(value) < 1e7:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _padded(low: float, high: float, log_y: bool, percent: bool) -> tuple[float, float]:
    if log_y:
        return (low / 1.2, high * 1.2) if high > low else (low / 2, high * 2)
    pad = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    # An accuracy above 100 % would be a strange thing to leave room for.
    return low - pad, min(high + pad, 1.0) if percent and high <= 1.0 else high + pad


def _spoken(
    title: str, lines: Sequence[tuple[Series, list[tuple[float, float]]]], percent: bool
) -> str:
    """Say in words what the drawing shows, for readers who do not see it."""
    ends = [
        f"{s.name} from {number(line[0][1], percent)} to {number(line[-1][1], percent)}"
        for s, line in lines
        if line
    ]
    return f"{title}: " + "; ".join(ends)
