"""Draws a graph of boxes and arrows as SVG from left to right, causes left of effects. No dependencies, no scripts."""

from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

from keelmq.printable import one_line

BOX_WIDTH: Final = 230
LINE_HEIGHT: Final = 16
PADDING: Final = 10
COLUMN_GAP: Final = 110
ROW_GAP: Final = 22
MARGIN: Final = 24
TEXT_LENGTH_MAX: Final = 32
LOW_ARROW: Final = 60

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


class _Placed(NamedTuple):
    box: Box
    x: int
    y: int
    height: int

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


def draw(boxes: Sequence[Box], arrows: Sequence[Arrow], heading: str) -> str:
    """Return an SVG document. Arrows between boxes that are not given are left out."""
    keys = {box.key for box in boxes}
    arrows = [arrow for arrow in arrows if arrow.source in keys and arrow.target in keys]
    placed, width, height = _place(boxes, arrows, max(len(heading) * 9, 300))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="DejaVu Sans, Arial, sans-serif" font-size="12">',
        '<defs><marker id="end" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#64748b"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{MARGIN}" y="{MARGIN}" font-size="15" font-weight="bold">{_shown(heading)}</text>',
        *(_arrow(placed[arrow.source], placed[arrow.target], arrow.label) for arrow in arrows),
        *(_box(each) for each in placed.values()),
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


def _place(boxes: Sequence[Box], arrows: Sequence[Arrow], width: int) -> tuple[dict[str, _Placed], int, int]:
    columns: dict[int, list[Box]] = {}
    layer = _layers(boxes, arrows)
    for box in boxes:
        columns.setdefault(layer[box.key], []).append(box)
    placed: dict[str, _Placed] = {}
    top = 2 * MARGIN + LINE_HEIGHT
    height = top
    for number in sorted(columns):
        y = top
        sources = {a.target: placed[a.source].middle for a in arrows if a.source in placed}
        for box in sorted(columns[number], key=lambda each: sources.get(each.key, 0.0)):
            box_height = 2 * PADDING + LINE_HEIGHT * (1 + len(box.lines))
            placed[box.key] = _Placed(box, MARGIN + number * (BOX_WIDTH + COLUMN_GAP), y, box_height)
            y += box_height + ROW_GAP
        height = max(height, y)
    width = max(width, MARGIN * 2 + len(columns) * (BOX_WIDTH + COLUMN_GAP) - COLUMN_GAP)
    return placed, width, height + MARGIN + LOW_ARROW


def _layers(boxes: Sequence[Box], arrows: Sequence[Arrow]) -> dict[str, int]:
    """Return the column of each box: right of all its predecessors. Arrows that would close a cycle do not count."""
    following: dict[str, list[str]] = {box.key: [] for box in boxes}
    for arrow in arrows:
        if arrow.source != arrow.target:
            following[arrow.source].append(arrow.target)
    order: list[str] = []
    state: dict[str, int] = {}  # 1: on the way, 2: done
    counted: list[tuple[str, str]] = []
    for box in boxes:
        stack = [(box.key, iter(following[box.key]))] if box.key not in state else []
        state.setdefault(box.key, 1)
        while stack:
            key, rest = stack[-1]
            target = next(rest, None)
            if target is None:
                state[key] = 2
                order.append(key)
                stack.pop()
            elif state.get(target) != 1:
                counted.append((key, target))
                if target not in state:
                    state[target] = 1
                    stack.append((target, iter(following[target])))
    layer = dict.fromkeys(following, 0)
    outgoing: dict[str, list[str]] = {}
    for source, target in counted:
        outgoing.setdefault(source, []).append(target)
    for key in reversed(order):
        for target in outgoing.get(key, ()):
            layer[target] = max(layer[target], layer[key] + 1)
    used = {number: at for at, number in enumerate(sorted(set(layer.values())))}
    return {key: used[number] for key, number in layer.items()}


def _box(placed: _Placed) -> str:
    box, x, y, height = placed
    stroke = ' stroke="#1d4ed8" stroke-width="3"' if box.marked else ' stroke="#94a3b8"'
    parts = [
        f'<rect x="{x}" y="{y}" width="{BOX_WIDTH}" height="{height}" rx="6" '
        f'fill="{COLOURS.get(box.kind, COLOURS["more"])}"{stroke}/>',
        f"<title>{_shown(box.key)}</title>",
    ]
    for number, line in enumerate((box.title, *box.lines)):
        weight = ' font-weight="bold"' if number == 0 else ' fill="#334155"'
        baseline = y + PADDING + 12 + number * LINE_HEIGHT
        parts.append(f'<text x="{x + PADDING}" y="{baseline}"{weight}>{_shown(_cut(line))}</text>')
    return f"<g>{''.join(parts)}</g>"


def _arrow(source: _Placed, target: _Placed, label: str) -> str:
    x1, y1 = float(source.x + BOX_WIDTH), source.middle
    x2, y2 = float(target.x), target.middle
    if x2 - x1 > BOX_WIDTH + COLUMN_GAP:  # the arrow passes other boxes below them
        low = float(max(source.y + source.height, target.y + target.height) + LOW_ARROW)
        bend = COLUMN_GAP * 2.0
        path = f"M{x1},{y1} C{x1 + bend},{low} {x2 - bend},{low} {x2},{y2}"
        text_x, text_y = (x1 + x2) / 2, (y1 + y2) / 8 + low * 3 / 4 - 4
    elif x2 > x1:
        bend = (x2 - x1) / 2
        path = f"M{x1},{y1} C{x1 + bend},{y1} {x2 - bend},{y2} {x2},{y2}"
        text_x, text_y = (x1 + x2) / 2, (y1 + y2) / 2 - 4
    else:  # the arrow goes back to the left, below both boxes
        low = max(source.y + source.height, target.y + target.height) + ROW_GAP / 2
        x1, x2 = source.x + BOX_WIDTH / 2, target.x + BOX_WIDTH / 2
        y1, y2 = float(source.y + source.height), float(target.y + target.height)
        path = f"M{x1},{y1} C{x1},{low + 10} {x2},{low + 10} {x2},{y2}"
        text_x, text_y = (x1 + x2) / 2, low
    text = (
        f'<text x="{text_x}" y="{text_y}" text-anchor="middle" font-size="10" fill="#475569" stroke="#ffffff" '
        f'stroke-width="3" paint-order="stroke">{_shown(label)}</text>'
    )
    return f'<path d="{path}" fill="none" stroke="#64748b" marker-end="url(#end)"/>{text}'


def _shown(text: str) -> str:
    """Return a foreign text for SVG and HTML: XML has no control characters, and not the last two of 16 bits."""
    return escape(one_line(text).replace("\ufffe", "\\ufffe").replace("\uffff", "\\uffff"))


def _cut(text: str) -> str:
    """Shorten a text in the middle, because the end tells ids apart and the beginning names their kind."""
    if len(text) <= TEXT_LENGTH_MAX:
        return text
    half = (TEXT_LENGTH_MAX - 1) // 2
    return f"{text[:half]}…{text[-half:]}"
