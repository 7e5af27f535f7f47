"""Pictures of any size are readable: no arrow runs behind a box, and no label lies on another one."""

import re
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple
from xml.etree import ElementTree

import pytest

from keelmq_spark.queries.drawing import Arrow, Box, draw
from keelmq_spark.queries.placing import BOX_WIDTH, spread
from tests.lineage_pictures import PICTURES, SIZES, picture

SVG = "{http://www.w3.org/2000/svg}"
Point = tuple[float, float]


class Area(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: "Area") -> bool:
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )


def boxes_of(svg: str) -> list[Area]:
    rects = [each.attrib for each in ElementTree.fromstring(svg).iter(f"{SVG}rect") if "rx" in each.attrib]
    return [
        Area(x := float(each["x"]), y := float(each["y"]), x + BOX_WIDTH, y + float(each["height"])) for each in rects
    ]


def labels_of(svg: str) -> list[Area]:
    """Return where labels are, if a character is as wide as in the usual fonts."""
    found = []
    for each in ElementTree.fromstring(svg).iter(f"{SVG}text"):
        if each.get("font-size") == "10":
            x, y, width = float(each.attrib["x"]), float(each.attrib["y"]), 6 * len(each.text or "")
            left = x - width if each.attrib["text-anchor"] == "end" else x
            found.append(Area(left, y - 8, left + width, y + 1))
    return found


def points_of(path: str) -> Iterator[Point]:
    """Yield points of a path of SVG, close to each other."""
    x = y = 0.0
    for command, text in re.findall(r"([MHVC])([^MHVC]*)", path):
        numbers = [float(number) for number in re.findall(r"-?[0-9.]+", text)]
        if command == "M":
            x, y = numbers
        elif command == "C":
            yield from curve((x, y), numbers)
            x, y = numbers[-2:]
        else:
            to = (numbers[0], y) if command == "H" else (x, numbers[0])
            yield from ((x + (to[0] - x) * part / 40, y + (to[1] - y) * part / 40) for part in range(41))
            x, y = to


def curve(begin: Point, numbers: Sequence[float]) -> Iterator[Point]:
    xs, ys = (begin[0], *numbers[::2]), (begin[1], *numbers[1::2])
    for part in range(41):
        t = part / 40
        weights = (1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3
        yield sum(w * x for w, x in zip(weights, xs, strict=True)), sum(w * y for w, y in zip(weights, ys, strict=True))


def behind(path: str, columns: dict[float, list[Area]]) -> Iterator[Area]:
    """Yield boxes that an arrow runs behind; they are given by their left sides."""
    for x, y in points_of(path):
        for left, boxes in columns.items():
            if left < x < left + BOX_WIDTH:
                yield from (box for box in boxes if box.top < y < box.bottom)


def faults(svg: str) -> list[str]:
    root = ElementTree.fromstring(svg)
    boxes, labels = boxes_of(svg), labels_of(svg)
    columns: dict[float, list[Area]] = {}
    for box in boxes:
        columns.setdefault(box.left, []).append(box)
    paths = [each.attrib["d"] for each in root.iter(f"{SVG}path") if "marker-end" in each.attrib]
    found = [f"{path} is behind {box}" for path in paths for box in behind(path, columns)]
    found += [f"{one} and {other}" for one, other in combinations([*boxes, *labels], 2) if one.meets(other)]
    page = Area(0, 0, float(root.attrib["width"]), float(root.attrib["height"]))
    return found + [f"{each} is cut off" for each in boxes if each.right > page.right or each.bottom > page.bottom]


@pytest.mark.parametrize("boxes", SIZES)
def test_a_picture_of_many_topics_is_readable_and_the_documented_one(boxes: int) -> None:
    svg = picture(boxes)
    assert len(boxes_of(svg)) == boxes
    assert faults(svg) == []
    assert (PICTURES / f"lineage-topics-{boxes}.svg").read_text() == svg, "run python -m tests.lineage_pictures"


def test_arrows_of_circles_go_around() -> None:
    boxes = [Box(key, "topic", key, ("topic",)) for key in "abcd"]
    arrows = [Arrow(ends[0], ends[1], "9,999") for ends in ("ab", "bc", "cd", "da", "db", "aa", "ac", "ad")]
    svg = draw(boxes, arrows, "A circle")
    assert len(labels_of(svg)) == len(arrows)
    assert faults(svg) == []
    assert faults(draw([], [], "Nothing")) == []


def test_positions_are_as_close_to_the_wanted_ones_as_they_may_be() -> None:
    assert spread([0, 100], [10]) == [0, 100]
    assert spread([50, 50, 50], [10, 10]) == [40, 50, 60]
    assert spread([5, 0, 100], [10, 10]) == [-2.5, 7.5, 100]
