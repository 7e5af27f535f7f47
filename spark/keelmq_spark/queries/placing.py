"""Places boxes in columns and arrows between them, so that no arrow runs behind a box.

Each box is right of those that lead to it. An arrow that passes a column has a place of its own there, like a low box,
and bends between the columns only. Columns are ordered so that arrows cross seldom, and moved so that they are short.
Arrows that lead back to the left, or stay in their column, go around below all boxes.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

BOX_WIDTH: Final = 230
BEND: Final = 70
"""Width between two columns in which arrows bend."""
ROW_GAP: Final = 22
MARGIN: Final = 24
LINE_GAP: Final = 14
"""Least distance of two arrows that end at the same side of a box, for each line of the labels."""
PASSING_HEIGHT: Final = 6
LANE_GAP: Final = 14
STRAIGHT: Final = 45
"""Least length of the straight ends of an arrow, beside which its label is."""
LANES_BESIDE: Final = 6
"""Number of different places in the gap between two columns for arrows that go around."""
ROUNDS: Final = 12
"""Number of times that the columns are ordered, and then moved, in alternate directions."""

Link = tuple[str, str]


class Place(NamedTuple):
    """The left upper corner of a box, and its height."""

    x: float
    y: float
    height: float


class Route(NamedTuple):
    """The path of an arrow in SVG, and where its label is written: before the end, or behind the begin."""

    path: str
    label_x: float
    label_y: float
    is_label_at_end: bool


class _Gap(NamedTuple):
    """The room between two columns: the lengths of the straight ends of arrows."""

    left: float
    right: float

    @property
    def width(self) -> float:
        return self.left + BEND + self.right


class Placed(NamedTuple):
    boxes: dict[str, Place]
    routes: list[Route]
    """Routes of the links, in their order."""
    width: float
    height: float


class _Slot:
    """A box, or the passage of an arrow through a column; `y` is its middle."""

    __slots__ = ("column", "height", "lefts", "rights", "y")

    def __init__(self, column: int, height: float) -> None:
        self.column = column
        self.height = height
        self.y = 0.0
        self.lefts: list[_Slot] = []
        self.rights: list[_Slot] = []


def place(
    heights: Mapping[str, float], links: Sequence[Link], top: float, labels: Sequence[float] = (), lines: int = 1
) -> Placed:
    """Place boxes of at least these heights below `top`. Every link has to be between two of them; `labels` are the
    widths of what is written at the links, in one line or two.
    """
    layer = layers(list(heights), links)
    around = [layer[target] <= layer[source] for source, target in links]
    ends = _ends(heights, links)
    at_end = [layer[target] > 0 and len(ends[target][0]) <= len(ends[source][1]) for source, target in links]
    gaps = _gaps(links, layer, labels, at_end)
    lefts = list(accumulate((BOX_WIDTH + gap.width for gap in gaps), initial=float(MARGIN)))
    slots = {
        key: _Slot(layer[key], max(height, LINE_GAP * lines * (1 + max(map(len, ends[key])))))
        for key, height in heights.items()
    }
    columns: list[list[_Slot]] = [[] for _ in range(1 + max(layer.values(), default=0))]
    for slot in slots.values():
        columns[slot.column].append(slot)
    chains = [
        [] if back else _chain(slots[link[0]], slots[link[1]], columns)
        for link, back in zip(links, around, strict=True)
    ]
    _order(columns)
    _move(columns, top)
    boxes = {key: Place(lefts[slot.column], slot.y - slot.height / 2, slot.height) for key, slot in slots.items()}
    bottom = max((box.y + box.height for box in boxes.values()), default=top)
    ports = _ports(chains, boxes, ends)
    routes = _routes(links, chains, boxes, ports, at_end, gaps, bottom)
    width = lefts[-1] + MARGIN - (0 if any(around) else gaps[-1].width)
    return Placed(boxes, routes, width, bottom + MARGIN + LANE_GAP * (1 + sum(around)))


def _gaps(
    links: Sequence[Link], layer: Mapping[str, int], labels: Sequence[float], at_end: Sequence[bool]
) -> list[_Gap]:
    """Return the room right of each column, with a place for the labels there."""
    count = 1 + max(layer.values(), default=0)
    rooms = [[float(STRAIGHT)] * 2 for _ in range(count + 1)]
    for (source, target), width, is_at_end in zip(links, labels, at_end, strict=False):
        room = rooms[layer[target] - 1 if is_at_end else layer[source]]
        room[is_at_end] = max(room[is_at_end], width)
    return [_Gap(*room) for room in rooms[:count]]


def _ends(keys: Mapping[str, float], links: Sequence[Link]) -> dict[str, tuple[list[int], list[int]]]:
    """Return the numbers of the links that end at a box and of those that begin there."""
    found: dict[str, tuple[list[int], list[int]]] = {key: ([], []) for key in keys}
    for number, (source, target) in enumerate(links):
        found[target][0].append(number)
        found[source][1].append(number)
    return found


def _chain(source: _Slot, target: _Slot, columns: Sequence[list[_Slot]]) -> list[_Slot]:
    """Return the slots of an arrow to the right, with a new one in each column that it passes."""
    passed = [_Slot(column, PASSING_HEIGHT) for column in range(source.column + 1, target.column)]
    for slot in passed:
        columns[slot.column].append(slot)
    chain = [source, *passed, target]
    for left, right in pairwise(chain):
        left.rights.append(right)
        right.lefts.append(left)
    return chain


def _order(columns: Sequence[list[_Slot]]) -> None:
    """Sort each column by the middle of the slots that its slots are linked with, from left to right and back."""
    for column in columns:
        _number(column)
    for turn in range(ROUNDS):
        rightwards = turn % 2 == 0
        for column in columns[1:] if rightwards else columns[-2::-1]:
            column.sort(key=lambda slot: _mean_of(slot.lefts if rightwards else slot.rights, slot.y))
            _number(column)


def _number(column: Sequence[_Slot]) -> None:
    for at, slot in enumerate(column):
        slot.y = (at + 0.5) / len(column)


def _move(columns: Sequence[list[_Slot]], top: float) -> None:
    """Give each slot a place near those that it is linked with, in the order of its column and below `top`."""
    for column in columns:
        heights = [slot.height + ROW_GAP for slot in column]
        for slot, begin in zip(column, accumulate(heights, initial=0.0), strict=False):
            slot.y = begin + slot.height / 2
    for turn in range(ROUNDS):
        rightwards = turn % 2 == 0
        for column in columns[1:] if rightwards else columns[-2::-1]:
            wanted = [_mean_of(slot.lefts if rightwards else slot.rights, slot.y) for slot in column]
            apart = [(above.height + below.height) / 2 + _gap(above, below) for above, below in pairwise(column)]
            for slot, y in zip(column, spread(wanted, apart), strict=True):
                slot.y = y
    up = min((slot.y - slot.height / 2 for column in columns for slot in column), default=top) - top
    for column in columns:
        for slot in column:
            slot.y -= up


def _gap(above: _Slot, below: _Slot) -> float:
    return ROW_GAP / 2 if PASSING_HEIGHT in (above.height, below.height) else ROW_GAP


def _mean_of(slots: Sequence[_Slot], otherwise: float) -> float:
    return sum(slot.y for slot in slots) / len(slots) if slots else otherwise


def spread(wanted: Sequence[float], apart: Sequence[float]) -> list[float]:
    """Return the positions closest to the wanted ones of which each is at least that far `apart` from the next."""
    offsets = list(accumulate(apart, initial=0.0))
    blocks: list[tuple[float, int]] = []
    for value, offset in zip(wanted, offsets, strict=True):
        total, count = value - offset, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / count:
            before, others = blocks.pop()
            total, count = total + before, count + others
        blocks.append((total, count))
    means = [total / count for total, count in blocks for _ in range(count)]
    return [mean + offset for mean, offset in zip(means, offsets, strict=True)]


def _ports(
    chains: Sequence[Sequence[_Slot]],
    boxes: Mapping[str, Place],
    ends: Mapping[str, tuple[list[int], list[int]]],
) -> tuple[list[float], list[float]]:
    """Return the heights at which the links begin and end, in the order of what they lead to."""
    begin_y, end_y = [0.0] * len(chains), [0.0] * len(chains)
    for key, (incoming, outgoing) in ends.items():
        box = boxes[key]
        below = float("inf")  # those that go around are at the bottom
        incoming.sort(key=lambda number: chains[number][-2].y if chains[number] else below)
        outgoing.sort(key=lambda number: chains[number][1].y if chains[number] else below)
        for numbers, ports in ((incoming, end_y), (outgoing, begin_y)):
            for at, number in enumerate(numbers, start=1):
                ports[number] = box.y + box.height * at / (len(numbers) + 1)
    return begin_y, end_y


def _routes(
    links: Sequence[Link],
    chains: Sequence[Sequence[_Slot]],
    boxes: Mapping[str, Place],
    ports: tuple[Sequence[float], Sequence[float]],
    at_end: Sequence[bool],
    gaps: Sequence[_Gap],
    bottom: float,
) -> list[Route]:
    routes: list[Route] = []
    lane = 0
    for number, (source, target) in enumerate(links):
        begin = boxes[source].x + BOX_WIDTH, ports[0][number]
        end = boxes[target].x, ports[1][number]
        if chains[number]:
            chain = chains[number]
            path = _bent(begin, [slot.y for slot in chain[1:-1]], end, gaps[chain[0].column :])
        else:
            lane += 1
            path = _around(begin, end, bottom + LANE_GAP * lane, 30 + lane % LANES_BESIDE * 6)
        x, y = (end[0] - 10, end[1]) if at_end[number] else (begin[0] + 4, begin[1])
        routes.append(Route(path, x, y - 4, at_end[number]))
    return routes


def _bent(begin: tuple[float, float], passed_y: Sequence[float], end: tuple[float, float], gaps: Sequence[_Gap]) -> str:
    """Return a path that bends between columns, and is straight where it passes one."""
    x, y = begin
    parts = [f"M{x:.1f},{y:.1f}"]
    for next_y, gap in zip((*passed_y, end[1]), gaps, strict=False):
        left, middle, right = x + gap.left, x + gap.left + BEND / 2, x + gap.width - gap.right
        parts.append(f"H{left:.1f} C{middle:.1f},{y:.1f} {middle:.1f},{next_y:.1f} {right:.1f},{next_y:.1f}")
        x, y = x + gap.width + BOX_WIDTH, next_y
    return " ".join((*parts, f"H{end[0]:.1f}"))


def _around(begin: tuple[float, float], end: tuple[float, float], lane_y: float, beside: float) -> str:
    right, left = begin[0] + beside, end[0] - beside
    down = f"M{begin[0]:.1f},{begin[1]:.1f} H{right:.1f} V{lane_y:.1f}"
    return f"{down} H{left:.1f} V{end[1]:.1f} H{end[0]:.1f}"


def layers(keys: Sequence[str], links: Sequence[Link]) -> dict[str, int]:
    """Return the column of each box: right of all its predecessors. Arrows that would close a cycle do not count."""
    following: dict[str, list[str]] = {key: [] for key in keys}
    for source, target in links:
        if source != target:
            following[source].append(target)
    order: list[str] = []
    state: dict[str, int] = {}  # 1: on the way, 2: done
    counted: list[tuple[str, str]] = []
    for begin in keys:
        stack = [(begin, iter(following[begin]))] if begin not in state else []
        state.setdefault(begin, 1)
        while stack:
            key, rest = stack[-1]
            following_key = next(rest, None)
            if following_key is None:
                state[key] = 2
                order.append(key)
                stack.pop()
            elif state.get(following_key) != 1:
                counted.append((key, following_key))
                if following_key not in state:
                    state[following_key] = 1
                    stack.append((following_key, iter(following[following_key])))
    layer = dict.fromkeys(following, 0)
    outgoing: dict[str, list[str]] = {}
    for source, target in counted:
        outgoing.setdefault(source, []).append(target)
    for key in reversed(order):
        for target in outgoing.get(key, ()):
            layer[target] = max(layer[target], layer[key] + 1)
    used = {number: at for at, number in enumerate(sorted(set(layer.values())))}
    return {key: used[number] for key, number in layer.items()}
