"""Draws a graph of boxes and arrows as SVG from left to right, causes left of effects. No dependencies, no scripts."""

from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

from keelmq.printable import one_line
from keelmq_spark.queries.placing import BOX_WIDTH, MARGIN, Place, Route, place

LINE_HEIGHT: Final = 16
PADDING: Final = 10
TEXT_LENGTH_MAX: Final = 32

COLOURS: Final = {
    "message": "#dbeafe",
    "topic": "#dcfce7",
    "producer_group": "#fef3c7",
    "consumer_group": "#fae8ff",
    "transaction": "#ffe4e6",
    "more": "#f3f4f6",
}


class Box(NamedTuple):
    key: str
    kind: str
    title: str
    lines: tuple[str, ...] = ()
    marked: bool = False
    """Drawn with a thick border, to show the requested node."""


class Arrow(NamedTuple):
    source: str
    target: str
    label: str = ""


def draw(boxes: Sequence[Box], arrows: Sequence[Arrow], heading: str) -> str:
    """Return an SVG document. Arrows between boxes that are not given are left out."""
    keys = {box.key for box in boxes}
    arrows = [arrow for arrow in arrows if arrow.source in keys and arrow.target in keys]
    links = [(arrow.source, arrow.target) for arrow in arrows]
    placed = place({box.key: _height_of(box) for box in boxes}, links, 2 * MARGIN + LINE_HEIGHT)
    width, height = round(max(placed.width, len(heading) * 9 + MARGIN, 300)), round(placed.height)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="DejaVu Sans, Arial, sans-serif" font-size="12">',
        '<defs><marker id="end" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#64748b"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{MARGIN}" y="{MARGIN}" font-size="15" font-weight="bold">{_shown(heading)}</text>',
        *map(_arrow, arrows, placed.routes),
        *(_box(box, placed.boxes[box.key]) for box in boxes),
        *map(_label, arrows, placed.routes),
        "</svg>",
    ]
    return "\n".join(parts)


def html(svg: str, heading: str, table: Sequence[Sequence[object]]) -> str:
    """Return a page with the picture and a table below it; the first row of `table` is its header."""
    head, *rows = table or [[]]
    head_row = "".join(f"<th>{_shown(str(cell))}</th>" for cell in head)
    body = "\n".join(
        "<tr>" + "".join(f"<td>{_shown('' if cell is None else str(cell))}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{_shown(heading)}</title><style>'
        "body{font:13px DejaVu Sans,Arial,sans-serif;margin:24px}table{border-collapse:collapse;margin-top:24px}"
        "td,th{border:1px solid #cbd5e1;padding:4px 8px;text-align:left}th{background:#f1f5f9}</style></head><body>"
        f"{svg}\n<table><thead><tr>{head_row}</tr></thead><tbody>\n{body}\n</tbody></table></body></html>"
    )


def _box(box: Box, placed: Place) -> str:
    x, y, height = placed
    stroke = ' stroke="#1d4ed8" stroke-width="3"' if box.marked else ' stroke="#94a3b8"'
    parts = [
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{BOX_WIDTH}" height="{height:.1f}" rx="6" '
        f'fill="{COLOURS.get(box.kind, COLOURS["more"])}"{stroke}/>',
        f"<title>{_shown(box.key)}</title>",
    ]
    begin = y + (height - _height_of(box)) / 2 + PADDING + 12
    for number, line in enumerate((box.title, *box.lines)):
        weight = ' font-weight="bold"' if number == 0 else ' fill="#334155"'
        baseline = begin + number * LINE_HEIGHT
        parts.append(f'<text x="{x + PADDING:.1f}" y="{baseline:.1f}"{weight}>{_shown(_cut(line))}</text>')
    return f"<g>{''.join(parts)}</g>"


def _height_of(box: Box) -> int:
    return 2 * PADDING + LINE_HEIGHT * (1 + len(box.lines))


def _arrow(arrow: Arrow, route: Route) -> str:
    """Return the path, with the names of its ends as a tooltip."""
    ends = f"<title>{_shown(f'{arrow.source} → {arrow.target}: {arrow.label}')}</title>"
    return f'<path d="{route.path}" fill="none" stroke="#64748b" marker-end="url(#end)">{ends}</path>'


def _label(arrow: Arrow, route: Route) -> str:
    anchor = "end" if route.is_label_at_end else "start"
    return (
        f'<text x="{route.label_x:.1f}" y="{route.label_y:.1f}" text-anchor="{anchor}" font-size="10" fill="#475569" '
        f'stroke="#ffffff" stroke-width="3" paint-order="stroke">{_shown(arrow.label)}</text>'
    )


def _shown(text: str) -> str:
    """Return a foreign text for SVG and HTML: XML has no control characters, and not the last two of 16 bits."""
    return escape(one_line(text).replace("\ufffe", "\\ufffe").replace("\uffff", "\\uffff"))


def _cut(text: str) -> str:
    """Shorten a text in the middle, because the end tells ids apart and the beginning names their kind."""
    if len(text) <= TEXT_LENGTH_MAX:
        return text
    half = (TEXT_LENGTH_MAX - 1) // 2
    return f"{text[:half]}…{text[-half:]}"
