"""Draws the story of a message as SVG: swim-lanes of services and topics on a time axis."""

from datetime import UTC, datetime
from typing import Final

from keelmq_spark.queries import story_lanes, swimlanes
from keelmq_spark.queries.drawing import AddressOf, cut, linked, no_address, shown
from keelmq_spark.queries.story_lanes import Story, node_of
from keelmq_spark.queries.swimlanes import (
    BAR_HEIGHT,
    LANE_WIDTH,
    MARGIN,
    PLOT,
    ROW_HEIGHT,
    THIN_HEIGHT,
    Placed,
    PlacedBar,
    Span,
)
from keelmq_spark.tables import schema

COLOURS: Final = {
    schema.HALF: "#fbbf24",
    schema.PREPARED: "#fbbf24",
    schema.SCHEDULED: "#a78bfa",
    schema.PUBLISHED: "#3b82f6",
    schema.COMMITTED: "#0d9488",
    schema.ROLLED_BACK: "#e11d48",
    schema.DISCARDED: "#78716c",
    schema.CANCELLED: "#78716c",
    schema.EXPIRED: "#78716c",
    story_lanes.PURGED: "#78716c",
    story_lanes.PROCESSED: "#22c55e",
    story_lanes.GIVEN_BACK: "#f97316",
    story_lanes.WAITS: "#cbd5e1",
    story_lanes.DEAD: "#dc2626",
    story_lanes.OPEN: "#93c5fd",
}
"""Colour of each state, in the order of the legend."""
MEANINGS: Final = {
    schema.HALF: "half: waits for its transaction",
    schema.PREPARED: "transaction, not decided",
    schema.SCHEDULED: "scheduled: waits for its time",
    schema.PUBLISHED: "published in its topic",
    schema.COMMITTED: "transaction, committed",
    schema.ROLLED_BACK: "rolled back",
    story_lanes.PROCESSED: "at a group, then processed",
    story_lanes.GIVEN_BACK: "at a group, then given back",
    story_lanes.WAITS: "waits for the next delivery",
    story_lanes.OPEN: "at a group, not processed yet",
}
_LANE_FILLS: Final = {schema.TOPIC: "#f0fdf4", "service": "#fffbeb"}
_LINE: Final = "#475569"
_LABEL_LENGTH_MAX: Final = 25
_LANE_LENGTH_MAX: Final = 19
_LEGEND_WIDTH: Final = 210
_LEGEND_HEIGHT: Final = 18


def draw_story(story: Story, node_id: str, link: AddressOf = no_address) -> str:
    """Return an SVG document; `link` returns the address of a message, topic or group, where it has one."""
    heading, facts = shown(f"The story of {node_id}"), _facts(story)
    states = {bar.state for row in story.rows for bar in row.bars}
    legend = [state for state in COLOURS if state in states]
    top = MARGIN + 22 + 16 * len(facts) + 8
    placed = swimlanes.place_lanes(story.rows, story.links, top)
    width = round(max(placed.width, 900))
    columns = max(1, (width - 2 * MARGIN) // _LEGEND_WIDTH)
    legend_top = placed.height + 18
    height = round(legend_top + _LEGEND_HEIGHT * (1 + (len(legend) - 1) // columns) + MARGIN)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="DejaVu Sans, Arial, sans-serif" font-size="11">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        f'<path d="M0,0 L8,4 L0,8 z" fill="{_LINE}"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{MARGIN}" y="{MARGIN + 6}" font-size="15" font-weight="bold">{heading}</text>',
        *(
            f'<text x="{MARGIN}" y="{MARGIN + 26 + 16 * number}" fill="#475569">{shown(fact)}</text>'
            for number, fact in enumerate(facts)
        ),
        *(_lane(lane, span, width - MARGIN) for lane, span in placed.lanes.items()),
        *_axis(placed, top),
        *(_bar(bar, placed) for bar in placed.bars),
        *_arrows(story, placed),
        '<g id="side">',  # stays in sight where a script moves it
        *(_lane(lane, span, PLOT - 20) for lane, span in placed.lanes.items()),
        *(_lane_title(lane, span, link) for lane, span in placed.lanes.items()),
        *_labels(story, placed, node_id, link),
        "</g>",
        *(
            _legend(state, MARGIN + number % columns * _LEGEND_WIDTH, legend_top + number // columns * _LEGEND_HEIGHT)
            for number, state in enumerate(legend)
        ),
        "</svg>",
    ]
    return "\n".join(parts)


def _facts(story: Story) -> list[str]:
    begin = min((bar.begin for row in story.rows for bar in row.bars), default=None)
    facts = []
    if story.traces:
        more = f" and {len(story.traces) - 1} more" if len(story.traces) > 1 else ""
        facts.append(f"trace {story.traces[0]}{more}")
    if begin is not None:
        at = datetime.fromtimestamp(begin[0] / 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        facts.append(f"begins at {at} UTC; a bar at a group begins when the group could get the message")
    if story.messages_left_out:
        facts.append(f"{story.messages_left_out} more messages are not shown")
    return facts


def _lane(lane: str, span: Span, width: float) -> str:
    fill = _LANE_FILLS.get(lane.partition(":")[0], "#f8fafc")
    return (
        f'<rect x="{MARGIN / 2}" y="{span.begin:.1f}" width="{width}" height="{span.end - span.begin:.1f}" '
        f'fill="{fill}" stroke="#e2e8f0"/>'
    )


def _lane_title(lane: str, span: Span, link: AddressOf) -> str:
    kind, _, name = lane.partition(":")
    href = link(schema.node(schema.TOPIC, name)) if kind == schema.TOPIC else link(lane)
    y = span.begin + 19
    text = f'<text x="{MARGIN}" y="{y:.1f}" font-weight="bold">{shown(cut(name or kind, _LANE_LENGTH_MAX))}</text>'
    title = linked(href, f"<g><title>{shown(lane)}</title>{text}</g>")
    if span.end - span.begin > 2 * ROW_HEIGHT and name:
        title += f'<text x="{MARGIN}" y="{y + 14:.1f}" font-size="10" fill="#64748b">{shown(kind)}</text>'
    return title


def _axis(placed: Placed, top: float) -> list[str]:
    begin = placed.ticks[0].us if placed.ticks else 0
    texts = [_after(tick.us - begin) for tick in placed.ticks]
    new = [text if text != before else "" for text, before in zip(texts, ["", *texts], strict=False)]
    ticks = [
        f'<path d="M{tick.x:.1f},{top + 16:.1f} V{placed.height:.1f}" stroke="#e2e8f0"/>'
        f'<text x="{tick.x:.1f}" y="{top + 11:.1f}" font-size="10" fill="#64748b">{text}</text>'
        for tick, text in zip(placed.ticks, new, strict=True)
        if text
    ]
    shortened = [
        f'<path d="M{x - 4:.1f},{top + 20:.1f} l3,-8 m2,8 l3,-8" stroke="#64748b" fill="none">'
        "<title>shortened</title></path>"
        for x in placed.breaks
    ]
    return ticks + shortened


def _after(us: int) -> str:
    """Return a duration in a unit that suits it."""
    for unit, length, least in (("d", 86_400_000_000, 3), ("h", 3_600_000_000, 3), ("min", 60_000_000, 10)):
        if us >= length * least:
            return f"+{us / length:.4g} {unit}"
    return f"+{us / 1_000_000:.4g} s" if us >= 1_000_000 else f"+{us / 1000:.4g} ms"


def _bar(placed: PlacedBar, all_placed: Placed) -> str:
    middle = all_placed.rows[placed.row]
    bar = placed.bar
    lasted = "" if bar.end is None or bar.end[0] <= bar.begin[0] else f", {_after(bar.end[0] - bar.begin[0])[1:]}"
    colour = COLOURS.get(bar.state, "#78716c")
    height = THIN_HEIGHT if bar.is_thin else BAR_HEIGHT
    pale = ' fill-opacity="0.55" stroke-dasharray="3 2"' if placed.is_open and not bar.is_thin else ""
    rects = "".join(
        f'<rect class="bar" x="{piece.begin:.1f}" y="{middle - height / 2:.1f}" width="{piece.end - piece.begin:.1f}" '
        f'height="{height}" fill="{colour}" stroke="{_darker(colour)}" stroke-width="0.5"{pale}/>'
        for piece in placed.pieces
    )
    name = node_of(placed.row).partition(":")[2]
    return f'<g data-key="{shown(placed.row)}">{rects}<title>{shown(f"{name}: {bar.text}{lasted}")}</title></g>'


def _darker(colour: str) -> str:
    return "#" + "".join(f"{int(colour[at : at + 2], 16) * 7 // 10:02x}" for at in (1, 3, 5))


def _arrows(story: Story, placed: Placed) -> list[str]:
    parts = [
        f'<path class="arrow" data-from="{shown(link.source)}" data-to="{shown(link.target)}" d="{path}" fill="none" '
        f'stroke="{_LINE}" marker-end="url(#tip)"><title>{shown(f"{link.source} → {link.target}")}</title></path>'
        for link, path in zip(story.links, placed.paths, strict=True)
    ]
    parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{_LINE}"/>' for x, y in placed.dots]
    return parts


def _labels(story: Story, placed: Placed, node_id: str, link: AddressOf) -> list[str]:
    parts = []
    for key, y in placed.rows.items():
        marked = ' font-weight="bold" fill="#1d4ed8"' if node_of(key) == node_id else ' fill="#334155"'
        text = (
            f'<text class="label" x="{MARGIN + LANE_WIDTH}" y="{y + 4:.1f}"{marked}>'
            f"{shown(cut(story.labels[key], _LABEL_LENGTH_MAX))}</text>"
        )
        text = linked(link(node_of(key)), text)
        parts.append(f'<g data-key="{shown(key)}"><title>{shown(key)}</title>{text}</g>')
    return parts


def _legend(state: str, x: float, y: float) -> str:
    colour = COLOURS[state]
    height = THIN_HEIGHT if state == story_lanes.WAITS else 10
    meaning = MEANINGS.get(state, state.replace("_", " "))
    return (
        f'<rect x="{x:.1f}" y="{y + 5 - height / 2:.1f}" width="14" height="{height}" fill="{colour}" '
        f'stroke="{_darker(colour)}" stroke-width="0.5"/>'
        f'<text x="{x + 20:.1f}" y="{y + 9:.1f}" font-size="10" fill="#334155">{shown(meaning)}</text>'
    )
