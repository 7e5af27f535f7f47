"""Draws a graph of boxes and arrows as SVG from left to right, causes left of effects. No dependencies, no scripts."""

from collections.abc import Callable, Sequence
from html import escape
from typing import Final, NamedTuple

from keelmq.printable import one_line
from keelmq_spark.queries.placing import BOX_WIDTH, MARGIN, Place, Route, place

LINE_HEIGHT: Final = 16
PADDING: Final = 10
LETTER: Final = 6
"""Width of a letter of a label."""
TEXT_LENGTH_MAX: Final = 32

AddressOf = Callable[[str], str | None]
"""Returns the address of the page about a node, where there is one."""


def no_address(_: str) -> str | None:
    """Return that there are no other pages."""
    return None


COLOURS: Final = {
    "message": "#dbeafe",
    "topic": "#dcfce7",
    "producer_group": "#fef3c7",
    "consumer_group": "#fae8ff",
    "transaction": "#ffe4e6",
    "more": "#f3f4f6",
}
LINES: Final = {"line": "#64748b", "warning": "#b45309", "alarm": "#b91c1c"}
"""Colours of arrows, and of what is written below them."""


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
    warning: str = ""
    """Written below the arrow, which gets another colour."""
    is_alarm: bool = False


def draw(boxes: Sequence[Box], arrows: Sequence[Arrow], heading: str, link: AddressOf = no_address) -> str:
    """Return an SVG document. Arrows between boxes that are not given are left out."""
    keys = {box.key for box in boxes}
    arrows = [arrow for arrow in arrows if arrow.source in keys and arrow.target in keys]
    links = [(arrow.source, arrow.target) for arrow in arrows]
    labels = [LETTER * max(len(arrow.label), len(arrow.warning)) + 14 for arrow in arrows]
    lines = 2 if any(arrow.warning for arrow in arrows) else 1
    placed = place({box.key: _height_of(box) for box in boxes}, links, 2 * MARGIN + LINE_HEIGHT, labels, lines)
    width, height = round(max(placed.width, len(heading) * 9 + MARGIN, 300)), round(placed.height)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="DejaVu Sans, Arial, sans-serif" font-size="12">',
        "<defs>",
        *(
            f'<marker id="{name}" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
            f'markerUnits="userSpaceOnUse" orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="{colour}"/></marker>'
            for name, colour in LINES.items()
        ),
        "</defs>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{MARGIN}" y="{MARGIN}" font-size="15" font-weight="bold">{shown(heading)}</text>',
        *map(_arrow, arrows, placed.routes),
        *(_box(box, placed.boxes[box.key], link(box.key)) for box in boxes),
        *map(_label, arrows, placed.routes),
        "</svg>",
    ]
    return "\n".join(parts)


def _box(box: Box, placed: Place, href: str | None) -> str:
    x, y, height = placed
    stroke = ' stroke="#1d4ed8" stroke-width="3"' if box.marked else ' stroke="#94a3b8"'
    parts = [
        f'<rect class="box" x="{x:.1f}" y="{y:.1f}" width="{BOX_WIDTH}" height="{height:.1f}" rx="6" '
        f'fill="{COLOURS.get(box.kind, COLOURS["more"])}"{stroke}/>',
        f"<title>{shown(box.key)}</title>",
    ]
    begin = y + (height - _height_of(box)) / 2 + PADDING + 12
    for number, line in enumerate((box.title, *box.lines)):
        weight = ' font-weight="bold"' if number == 0 else ' fill="#334155"'
        baseline = begin + number * LINE_HEIGHT
        text = f'<text x="{x + PADDING:.1f}" y="{baseline:.1f}"{weight}>{shown(cut(line))}</text>'
        parts.append(linked(href, text) if number == 0 else text)
    return f'<g data-key="{shown(box.key)}">{"".join(parts)}</g>'


def _height_of(box: Box) -> int:
    return 2 * PADDING + LINE_HEIGHT * (1 + len(box.lines))


def _kind(arrow: Arrow) -> str:
    return "alarm" if arrow.is_alarm else "warning" if arrow.warning else "line"


def _ends(arrow: Arrow) -> str:
    return f'data-from="{shown(arrow.source)}" data-to="{shown(arrow.target)}"'


def _arrow(arrow: Arrow, route: Route) -> str:
    """Return the path, with the names of its ends as a tooltip."""
    words = ", ".join(filter(None, (arrow.label, arrow.warning)))
    kind = _kind(arrow)
    return (
        f'<path {_ends(arrow)} d="{route.path}" fill="none" stroke="{LINES[kind]}" marker-end="url(#{kind})">'
        f"<title>{shown(f'{arrow.source} → {arrow.target}: {words}')}</title></path>"
    )


def _label(arrow: Arrow, route: Route) -> str:
    anchor = "end" if route.is_label_at_end else "start"
    colour = LINES[_kind(arrow)] if arrow.warning else "#475569"
    texts = ((arrow.label, route.label_y, "#475569"), (arrow.warning, route.label_y + 15, colour))
    return "".join(
        f'<text {_ends(arrow)} x="{route.label_x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="10" '
        f'fill="{fill}" stroke="#ffffff" stroke-width="3" paint-order="stroke">{shown(text)}</text>'
        for text, y, fill in texts
        if text
    )


def shown(text: str) -> str:
    """Return a foreign text for SVG and HTML: XML has no control characters, and not the last two of 16 bits."""
    return escape(one_line(text).replace("\ufffe", "\\ufffe").replace("\uffff", "\\uffff"))


def cut(text: str, length_max: int = TEXT_LENGTH_MAX) -> str:
    """Shorten a text in the middle, because the end tells ids apart and the beginning names their kind."""
    if len(text) <= length_max:
        return text
    half = (length_max - 1) // 2
    return f"{text[:half]}…{text[-half:]}"


def linked(href: str | None, content: str) -> str:
    """Return SVG that leads to this address when it is clicked."""
    return content if href is None else f'<a href="{escape(href)}">{content}</a>'
