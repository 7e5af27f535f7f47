"""Places rows of bars on a time axis, in lanes, with arrows between them that run behind no bar.

A point is a time of the log and a stop: what an entry did comes in steps, so that a cause is left of its effect,
although both have one time. An arrow runs down or up in a channel of its own, left of the point at which its target
begins, and then to the right into the target. A bar that an arrow has to pass has a gap there.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

MARGIN: Final = 24
LANE_WIDTH: Final = 150
LABEL_WIDTH: Final = 190
PLOT: Final = MARGIN + LANE_WIDTH + LABEL_WIDTH
"""Left end of the time axis."""
AXIS_HEIGHT: Final = 22
ROW_HEIGHT: Final = 20
BAR_HEIGHT: Final = 12
THIN_HEIGHT: Final = 4
LANE_PADDING: Final = 5
MARK_WIDTH: Final = 10
"""Width of a bar that begins and ends at one point."""
TRUNK_GAP: Final = 6
"""Distance of two arrows in a channel."""
TRUNK_END: Final = 9
"""Length of the last part of an arrow, with its head."""
CUT: Final = 3
"""Half of the width of the gap where an arrow passes a bar."""
GAP_MIN: Final = 14
GAP_MAX: Final = 200
"""Most width that a time without an event gets; what is longer is shortened, and marked."""
POINT_WIDTH: Final = 42
"""Width of the picture per point, if it is not wider because of its arrows."""
WIDTHS: Final = (620, 2000)
"""Least width of the time axis, and the one up to which it grows with the number of its points."""
TICK_GAP: Final = 74
OPEN_WIDTH: Final = 36
"""Length of a bar without an end behind the last point."""

Point = tuple[int, int, int]
"""Microseconds since 1970, the Raft index, and the stop within what this entry did."""


class Bar(NamedTuple):
    """A state that lasted from `begin` to `end`, or lasts still when the end is None."""

    begin: Point
    end: Point | None
    state: str
    text: str = ""
    is_thin: bool = False


class Row(NamedTuple):
    key: str
    lane: str
    bars: Sequence[Bar] = ()


class Link(NamedTuple):
    """An arrow from one row to the bar that begins in another one `at` this point."""

    source: str
    target: str
    at: Point


class Span(NamedTuple):
    """A piece of a bar, or the height of a lane: from `begin` to `end`."""

    begin: float
    end: float


class PlacedBar(NamedTuple):
    row: str
    bar: Bar
    pieces: Sequence[Span]
    is_open: bool


class Trunk(NamedTuple):
    """The vertical part that all arrows share that lead from one row to what begins at one point."""

    x: float
    at: Point
    source: str
    targets: tuple[str, ...]


class Tick(NamedTuple):
    x: float
    us: int


class Placed(NamedTuple):
    rows: Mapping[str, float]
    """The middle of each row."""
    lanes: Mapping[str, Span]
    bars: Sequence[PlacedBar]
    dots: Sequence[tuple[float, float]]
    """Places where arrows begin in rows that have no bar there."""
    paths: Sequence[str]
    """The paths of the links in SVG, in their order."""
    ticks: Sequence[Tick]
    breaks: Sequence[float]
    """Places where time is shortened."""
    points: Mapping[Point, float]
    width: float
    height: float


def place_lanes(rows: Sequence[Row], links: Sequence[Link], top: float) -> Placed:
    """Place the rows, which are given lane by lane, below `top`. Both ends of a link have to be among them."""
    middles, lanes = _middles([(row.key, row.lane) for row in rows], top + AXIS_HEIGHT)
    channels: dict[Point, dict[str, list[str]]] = {}
    for link in links:
        channels.setdefault(link.at, {}).setdefault(link.source, []).append(link.target)
    begins = {bar.begin for row in rows for bar in row.bars}
    ends = {bar.end for row in rows for bar in row.bars if bar.end is not None}
    points = sorted({*begins, *ends, *channels})
    xs, breaks = _times(points, {at: len(sources) for at, sources in channels.items()})
    trunks = list(_trunks(channels, xs, middles))
    width = max(xs.values(), default=PLOT) + OPEN_WIDTH + MARGIN
    bars = [_placed(row.key, bar, xs, trunks, middles) for row in rows for bar in row.bars]
    beginnings = _beginnings(trunks, bars, xs)
    dots = [(each.x, middles[each.source]) for each in trunks if beginnings[each] is None]
    by_source = {(trunk.at, trunk.source): trunk for trunk in trunks}
    chosen = [by_source[link.at, link.source] for link in links]
    paths = [_path(each, beginnings[each], link, xs, middles) for each, link in zip(chosen, links, strict=True)]
    bottom = max((lane.end for lane in lanes.values()), default=top + AXIS_HEIGHT)
    return Placed(middles, lanes, bars, dots, paths, _ticks(points, xs), breaks, xs, width, bottom)


def _middles(rows: Sequence[tuple[str, str]], top: float) -> tuple[dict[str, float], dict[str, Span]]:
    """Return the middle of each row, and the lanes."""
    middles: dict[str, float] = {}
    lanes: dict[str, Span] = {}
    y = top
    for key, lane in rows:
        known = lanes.get(lane)
        begin = known.begin if known else y
        y = known.end - LANE_PADDING if known else y + LANE_PADDING
        middles[key] = y + ROW_HEIGHT / 2
        y += ROW_HEIGHT + LANE_PADDING
        lanes[lane] = Span(begin, y)
    return middles, lanes


def _times(points: Sequence[Point], trunks: Mapping[Point, int]) -> tuple[dict[Point, float], list[float]]:
    """Return where the points are on the axis, and where it is shortened. Later points are further right; the width
    between two is that of the time, within limits, and has place for the arrows.
    """
    if not points:
        return {}, []
    least = [
        max(GAP_MIN, MARK_WIDTH + TRUNK_END + TRUNK_GAP * (trunks[point] + 1) if point in trunks else 0.0)
        for point in points
    ]
    passed = [0, *(later[0] - earlier[0] for earlier, later in pairwise(points))]
    wanted = max(min(max(WIDTHS[0], POINT_WIDTH * len(points)), WIDTHS[1]), 1.2 * sum(least))
    low, high = 0.0, float(GAP_MAX)  # pixels for each microsecond
    for _ in range(60):
        scale = (low + high) / 2
        if sum(_gap(least_width, us, scale) for least_width, us in zip(least, passed, strict=True)) < wanted:
            low = scale
        else:
            high = scale
    gaps = [_gap(least_width, us, low) for least_width, us in zip(least, passed, strict=True)]
    xs = list(accumulate(gaps, initial=float(PLOT)))[1:]
    is_cut = [us * low > 1.05 * GAP_MAX for us in passed]
    breaks = [x - gap / 2 for x, gap, cut in zip(xs, gaps, is_cut, strict=True) if cut]
    return dict(zip(points, xs, strict=True)), breaks


def _gap(least: float, us: int, scale: float) -> float:
    return max(least, min(us * scale, GAP_MAX))


def _trunks(
    channels: Mapping[Point, Mapping[str, Sequence[str]]], xs: Mapping[Point, float], middles: Mapping[str, float]
) -> Iterator[Trunk]:
    """Yield the trunks: in each channel that of the lowest source is the leftmost, so that it does not cross others."""
    for at, sources in channels.items():
        ordered = sorted(sources, key=lambda key: middles[key])
        for number, source in enumerate(ordered):
            yield Trunk(xs[at] - TRUNK_END - TRUNK_GAP * number, at, source, tuple(sources[source]))


def _placed(
    row: str, bar: Bar, xs: Mapping[Point, float], trunks: Sequence[Trunk], middles: Mapping[str, float]
) -> PlacedBar:
    """Return a bar of the row, with gaps where arrows between other rows pass it."""
    begin = xs[bar.begin]
    end = xs[bar.end] if bar.end is not None else max(xs.values()) + OPEN_WIDTH
    if bar.end is not None and bar.end <= bar.begin:
        end = begin + MARK_WIDTH
    y = middles[row]
    passing = sorted(
        Span(trunk.x - CUT, xs[trunk.at] if row in trunk.targets else trunk.x + CUT)
        for trunk in trunks
        if trunk.source != row and begin < trunk.x < end and _passes(trunk, y, middles)
    )
    pieces, left = [], begin
    for gap in passing:
        if gap.begin > left:
            pieces.append(Span(left, gap.begin))
        left = max(left, gap.end)
    if end > left:
        pieces.append(Span(left, end))
    return PlacedBar(row, bar, pieces, bar.end is None)


def _passes(trunk: Trunk, y: float, middles: Mapping[str, float]) -> bool:
    ends = [middles[trunk.source], *(middles[target] for target in trunk.targets)]
    return min(ends) <= y <= max(ends)


class _Beginning(NamedTuple):
    """The place where an arrow leaves a bar: half of its height above or below the middle, or the right end of a bar
    without a duration.
    """

    half_height: float
    right: float | None = None


def _beginnings(
    trunks: Sequence[Trunk], bars: Sequence[PlacedBar], xs: Mapping[Point, float]
) -> dict[Trunk, _Beginning | None]:
    """Return where the arrows leave their rows, None where there is no bar."""
    of_rows: dict[str, list[PlacedBar]] = {}
    for bar in bars:
        of_rows.setdefault(bar.row, []).append(bar)
    found: dict[Trunk, _Beginning | None] = {}
    for trunk in trunks:
        found[trunk] = None
        for bar in of_rows.get(trunk.source, ()):
            if any(piece.begin <= trunk.x <= piece.end for piece in bar.pieces):
                found[trunk] = _Beginning((THIN_HEIGHT if bar.bar.is_thin else BAR_HEIGHT) / 2)
                break
            if bar.bar.begin[:2] == trunk.at[:2] and bar.bar.begin < trunk.at and bar.bar.end == bar.bar.begin:
                found[trunk] = _Beginning(0, xs[bar.bar.begin] + MARK_WIDTH)
    return found


def _path(
    trunk: Trunk,
    beginning: _Beginning | None,
    link: Link,
    xs: Mapping[Point, float],
    middles: Mapping[str, float],
) -> str:
    source, target = middles[link.source], middles[link.target]
    down = f"V{target:.1f} H{xs[link.at]:.1f}"
    if beginning is not None and beginning.right is not None:
        return f"M{beginning.right:.1f},{source:.1f} H{trunk.x:.1f} {down}"
    half = beginning.half_height if beginning is not None else 0
    return f"M{trunk.x:.1f},{source + (half if target > source else -half):.1f} {down}"


def _ticks(points: Sequence[Point], xs: Mapping[Point, float]) -> list[Tick]:
    """Return times to write at the axis, with room for each."""
    ticks: list[Tick] = []
    for point in points:
        if not ticks or (xs[point] - ticks[-1].x >= TICK_GAP and point[0] != ticks[-1].us):
            ticks.append(Tick(xs[point], point[0]))
    return ticks
