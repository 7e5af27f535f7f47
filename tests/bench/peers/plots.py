"""Plots as SVG: throughput against latency, and the cumulative distribution of latencies."""

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

from tests.bench.peers.comparison import Comparison
from tests.bench.peers.rows import Row

WIDTH, HEIGHT = 900, 520
LEFT, RIGHT, TOP, BOTTOM = 80, 240, 40, 60
COLOURS: Final = ("#d62728", "#1f77b4", "#2ca02c", "#ff7f0e", "#9467bd", "#8c564b", "#17becf", "#7f7f7f")
LOADS_OF_A_LINE: Final = ("one", "senders", "saturating")
LEGEND_STEP: Final = 20

Point = tuple[float, float]


class Series(NamedTuple):
    name: str
    points: Sequence[Point]


class Axis:
    """Maps values to pixels, linearly or by their logarithm."""

    def __init__(self, values: Sequence[float], begin: float, end: float, *, logarithmic: bool) -> None:
        self._log = logarithmic
        low, high = (min(values), max(values)) if values else (1.0, 10.0)
        if logarithmic:
            low, high = 10.0 ** math.floor(math.log10(low)), 10.0 ** math.ceil(math.log10(high) + 1e-9)
        else:
            low, high = 0.0, high or 1.0
        self._low, self._high = self._place(low), self._place(high if high > low else low * 10)
        self._begin, self._end = begin, end
        first, last = round(self._low), round(self._high)
        self.ticks = [10.0**power for power in range(first, last + 1)] if logarithmic else [0, 0.25, 0.5, 0.75, 1.0]

    def pixel(self, value: float) -> float:
        share = (self._place(value) - self._low) / (self._high - self._low)
        return self._begin + share * (self._end - self._begin)

    def _place(self, value: float) -> float:
        return math.log10(value) if self._log else value


def chart(title: str, across: str, upward: str, series: Sequence[Series], *, shares: bool = False) -> str:
    """Return the SVG of lines over logarithmic axes; with `shares` the values upward are shares from 0 to 1."""
    points = [point for each in series for point in each.points]
    x = Axis([point[0] for point in points], LEFT, WIDTH - RIGHT, logarithmic=True)
    y = Axis([point[1] for point in points], HEIGHT - BOTTOM, TOP, logarithmic=not shares)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(WIDTH / 2, 22, title, anchor="middle", size=15),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 15, across, anchor="middle"),
        f'<g transform="translate(20 {HEIGHT / 2}) rotate(-90)">{_text(0, 0, upward, anchor="middle")}</g>',
    ]
    for tick in x.ticks:
        parts += [_line(x.pixel(tick), TOP, x.pixel(tick), HEIGHT - BOTTOM)]
        parts += [_text(x.pixel(tick), HEIGHT - BOTTOM + 18, f"{tick:,g}", anchor="middle")]
    for tick in y.ticks:
        parts += [_line(LEFT, y.pixel(tick), WIDTH - RIGHT, y.pixel(tick))]
        parts += [_text(LEFT - 8, y.pixel(tick) + 4, f"{tick:,g}", anchor="end")]
    for number, each in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        places = [(x.pixel(across_value), y.pixel(value)) for across_value, value in each.points]
        line = " ".join(f"{left:.1f},{top:.1f}" for left, top in places)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        if not shares:
            parts += [f'<circle cx="{left:.1f}" cy="{top:.1f}" r="4" fill="{colour}"/>' for left, top in places]
        top = TOP + 10 + LEGEND_STEP * number
        parts.append(f'<rect x="{WIDTH - RIGHT + 20}" y="{top - 9}" width="12" height="12" fill="{colour}"/>')
        parts.append(_text(WIDTH - RIGHT + 40, top + 2, each.name))
    return "\n".join([*parts, "</svg>\n"])


def draw(comparison: Comparison, directory: Path) -> list[Path]:
    """Write the plots of what was measured, and return their files."""
    made = []
    for size in sorted({row.bytes for row in comparison.rows if row.kind in LOADS_OF_A_LINE}):
        chosen = [row for row in comparison.rows if row.bytes == size and row.kind in LOADS_OF_A_LINE]
        lines = _throughput(comparison, chosen)
        if lines:
            title = f"{size:,} bytes: one sender, 64 senders, as many as it takes"
            svg = chart(title, "messages per second", "latency p50, ms", lines)
            made.append(_write(directory / f"throughput-{size}.svg", svg))
    for row in comparison.rows:
        cells = [(variant.title, comparison.cells[row, variant.name]) for variant in comparison.variants]
        series = [Series(title, cell.distribution()) for title, cell in cells if cell.turns]
        if series:
            svg = chart(row.name, "latency, ms", "share of messages", series, shares=True)
            made.append(_write(directory / f"latency-{row.name.replace(' ', '-')}.svg", svg))
    return made


def _throughput(comparison: Comparison, rows: Sequence[Row]) -> list[Series]:
    lines = []
    for variant in comparison.variants:
        cells = [comparison.cells[row, variant.name] for row in rows]
        points = [(cell.per_second, cell.latency_ms(0.5)) for cell in cells if cell.turns]
        if points:
            lines.append(Series(variant.title, points))
    return lines


def _write(file: Path, content: str) -> Path:
    file.write_text(content)
    return file


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#ddd"/>'
