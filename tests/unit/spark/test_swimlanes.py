"""Stories on a time axis: each bar is in its lane and at its time, and no arrow runs behind a bar."""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from keelmq_spark.queries.graph import Graph
from keelmq_spark.queries.lane_drawing import COLOURS
from keelmq_spark.queries.pictures import story_picture
from keelmq_spark.queries.story_lanes import DEAD, GIVEN_BACK, OPEN, OTHER, PROCESSED, UNKNOWN, WAITS, Story, story_of
from keelmq_spark.queries.swimlanes import BAR_HEIGHT, PLOT, THIN_HEIGHT, Bar, Link, Placed, Row, place_lanes
from keelmq_spark.tables import schema
from tests.lineage_pictures import PICTURES
from tests.lineage_stories import STORIES, order_history, story
from tests.unit.spark.history import History, shop


def told(path: Path, log: History, node_id: str) -> Story:
    log.write(path)
    with Graph(path) as graph:
        return story_of(graph, node_id)


def states(of: Story, key: str) -> list[str]:
    (row,) = [row for row in of.rows if row.key == key]
    return [bar.state for bar in row.bars]


def lines(path: str) -> Iterator[tuple[float, float, float, float]]:
    """Yield the parts of an arrow: left, top, right and bottom."""
    begin, *parts = re.findall(r"[MHV]([-0-9.,]+)", path)
    kinds = re.findall(r"[HV]", path)
    x, y = map(float, begin.split(","))
    for kind, text in zip(kinds, parts, strict=True):
        to_x, to_y = (float(text), y) if kind == "H" else (x, float(text))
        yield min(x, to_x), min(y, to_y), max(x, to_x), max(y, to_y)
        x, y = to_x, to_y


def faults(of: Story, placed: Placed) -> list[str]:
    """Return what is wrong with a placement."""
    found = []
    lanes = {row.key: row.lane for row in of.rows}
    spans = list(placed.lanes.values())
    found += [f"{above} and {below}" for above, below in pairwise(spans) if above.end > below.begin]
    boxes = []
    for bar in placed.bars:
        y, lane = placed.rows[bar.row], placed.lanes[lanes[bar.row]]
        height = THIN_HEIGHT if bar.bar.is_thin else BAR_HEIGHT
        if not lane.begin < y - height / 2 < y + height / 2 < lane.end:
            found.append(f"{bar} is not in its lane")
        if not bar.pieces or any(piece.begin >= piece.end for piece in bar.pieces):
            found.append(f"{bar} is not to be seen")
        if min(piece.begin for piece in bar.pieces) < placed.points[bar.bar.begin]:
            found.append(f"{bar} begins before its time")
        end = bar.bar.end
        if end is not None and end > bar.bar.begin and max(piece.end for piece in bar.pieces) > placed.points[end]:
            found.append(f"{bar} ends after its time")
        boxes += [(piece.begin, y - height / 2, piece.end, y + height / 2) for piece in bar.pieces]
    found += [f"{one} and {other}" for one in boxes for other in boxes if one != other and _meet(one, other)]
    for path in placed.paths:
        found += [f"{path} runs behind {box}" for line in lines(path) for box in boxes if _meet(line, box)]
    xs = [x for _, x in sorted(placed.points.items())]
    found += [f"{one} is not before {other}" for one, other in pairwise(xs) if one >= other]
    if xs and (xs[0] < PLOT or xs[-1] > placed.width):
        found.append("a time is out of the picture")
    return found


def _meet(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    """Tell whether two areas share more than an edge; coordinates of paths are rounded."""
    near = 0.06
    return (
        one[0] < other[2] - near and other[0] < one[2] - near and one[1] < other[3] - near and other[1] < one[3] - near
    )


@pytest.mark.parametrize("messages", [1, 2, 14, 52])
def test_no_arrow_runs_behind_a_bar_and_each_bar_is_in_its_lane_and_time(messages: int, tmp_path: Path) -> None:
    of = told(tmp_path, order_history(messages), "message:orders/order-17")
    placed = place_lanes(of.rows, of.links, 50)
    assert faults(of, placed) == []
    for link, path in zip(of.links, placed.paths, strict=True):
        *_, (x, y, end, _) = lines(path)
        assert (y, end) == (placed.rows[link.target], round(placed.points[link.at], 1))
        assert x < end


@pytest.mark.parametrize(
    "node_id",
    [
        *("message:orders/a-0", "message:orders/later-0", "message:orders/never-0", "message:shipments/s-1"),
        *("transaction:t1", "transaction:t2", "transaction:t3"),
    ],
)
def test_every_story_of_the_shop_is_drawn(node_id: str, tmp_path: Path) -> None:
    of = told(tmp_path, shop(), node_id)
    assert of.rows
    assert faults(of, place_lanes(of.rows, of.links, 50)) == []


@pytest.mark.parametrize("boxes", STORIES)
def test_a_story_is_the_documented_picture(boxes: int) -> None:
    assert (PICTURES / f"lineage-story-{boxes}.svg").read_text() == story(boxes), "run python -m tests.lineage_pictures"


def test_what_became_of_a_message_is_told_by_states(tmp_path: Path) -> None:
    of = told(tmp_path, shop(), "message:orders/later-0")
    assert states(of, "message:orders/later-0") == [schema.SCHEDULED, schema.PUBLISHED]
    assert states(of, "message:orders/later-0@audit") == [PROCESSED]
    assert states(of, "message:orders/later-0@shipping") == [GIVEN_BACK, WAITS, DEAD, WAITS]
    assert states(of, "message:orders/later-0@topic:%DLQ%shipping") == [DEAD]
    assert [row.lane for row in of.rows] == [
        "service:web", "topic:orders", "service:audit", "service:shipping", "topic:%DLQ%shipping",
    ]  # fmt: skip


def test_transactions_are_told_from_prepared_to_decided(tmp_path: Path) -> None:
    of = told(tmp_path, shop(), "transaction:t2")
    assert states(of, "transaction:t2") == [schema.ROLLED_BACK]
    assert states(of, "message:orders/t2-0") == [schema.HALF, schema.ROLLED_BACK]
    with Graph(tmp_path) as graph:
        discarded = story_of(graph, "transaction:t3")
        committed = story_of(graph, "message:orders/t1-0")
    assert states(discarded, "transaction:t3") == [schema.DISCARDED] * 3, "until the check, the discard, and now"
    assert states(discarded, "message:orders/t3-0") == [schema.HALF, schema.DISCARDED]
    assert states(committed, "transaction:t1") == [schema.COMMITTED]
    assert committed.labels["message:orders/b-0@shipping"] == "orders/b-0", "outside the story, it has its topic"
    assert {(link.source, link.target) for link in committed.links} >= {
        ("transaction:t1", "message:orders/t1-0"),
        ("message:orders/t1-0", "message:orders/t1-0@shipping"),
        ("message:orders/t1-0@shipping", "message:shipments/s-1"),
        ("message:orders/b-0@shipping", "message:shipments/s-1"),
    }


def test_handlers_that_are_at_work_unknown_causes_and_traces_are_told(tmp_path: Path) -> None:
    log = History()
    log.publish("orders", "o-0", group="web", trace_id="ab" * 16)
    log.publish("bills", "b-0", group="billing", causation_id="orders/o-0", trace_id="ab" * 16)
    log.publish("other", "a-0")
    log.publish("bills", "b-1", causation_id="orders/o-0,gone/x-0,other/a-0")
    of = told(tmp_path, log, "message:orders/o-0")
    assert states(of, "message:orders/o-0@billing") == [OPEN]
    lanes = {row.key: row.lane for row in of.rows}
    assert (lanes["message:gone/x-0"], lanes["message:other/a-0"]) == (UNKNOWN, OTHER)
    assert ("message:orders/o-0", "message:bills/b-1") in {(link.source, link.target) for link in of.links}
    assert of.traces == ["ab" * 16]
    assert faults(of, place_lanes(of.rows, of.links, 50)) == []


@pytest.mark.parametrize("group", ["ledger", None])
def test_the_other_messages_of_a_batch_handler_have_one_row(group: str | None, tmp_path: Path) -> None:
    log = History()
    names = [f"r-{number}" for number in range(20)]
    log.publish("readings", *names, group="meter")
    log.publish("totals", "t-0", group=group, causation_id=",".join(f"readings/{name}" for name in names))
    log.ack("ledger", "readings", 0, 20)
    of = told(tmp_path, log, "message:readings/r-7")
    assert len(of.rows) == 5, "the producer, the message, at the group, the others, the total"
    assert of.labels["message:totals/t-0@other causes"] == "19 other messages"
    assert faults(of, place_lanes(of.rows, of.links, 50)) == []


def test_names_with_a_bar_and_groups_with_the_words_of_rows_are_told_apart(tmp_path: Path) -> None:
    log = History()
    names = [f"r-{number}" for number in range(5)]
    log.publish("a|b", *names, group="meter")
    log.publish("totals", "t-0", group="ledger", causation_id=",".join(f"a|b/{name}" for name in names))
    log.ack("causes", "totals", 0, 1)
    log.retry("%DLQ%g", "totals", 0, "t-0", kind="DLQ")
    of = told(tmp_path, log, "message:totals/t-0")
    assert states(of, "message:totals/t-0@causes") == [PROCESSED]
    assert {"message:totals/t-0@causes", "message:totals/t-0@%DLQ%g"} < {row.key for row in of.rows}
    root = ElementTree.fromstring(drawn(tmp_path, "message:a|b/r-0"))
    links = {each.attrib["href"] for each in root.iter() if "href" in each.attrib}
    assert {"message:a|b-r-0.html", "topic:a|b.html"} <= links
    titles = [each.text or "" for each in root.iter("{http://www.w3.org/2000/svg}title")]
    assert any(title.startswith("a|b/r-0: published") for title in titles)
    marked = [each.text for each in root.iter() if each.attrib.get("class") == "label" and "font-weight" in each.attrib]
    assert "r-0" in marked


def test_messages_that_are_too_many_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keelmq_spark.queries.story_lanes.MESSAGES_MAX", 3)
    of = told(tmp_path, order_history(14), "message:orders/order-17")
    assert of.messages_left_out > 3
    assert "more messages are not shown" in drawn(tmp_path, "message:orders/order-17")


def drawn(path: Path, node_id: str) -> str:
    with Graph(path) as graph:
        return story_picture(graph, node_id, lambda key: f"{key.replace('/', '-')}.html")


def test_the_picture_has_the_trace_a_legend_of_what_is_there_and_links(tmp_path: Path) -> None:
    order_history(1).write(tmp_path)
    root = ElementTree.fromstring(drawn(tmp_path, "message:orders/order-17"))
    texts = [each.text or "" for each in root.iter()]
    assert "trace 4bf92f3577b34da6a3ce929d0e0e4736" in texts
    assert "half: waits for its transaction" in texts
    assert "scheduled: waits for its time" not in texts
    links = {each.attrib["href"] for each in root.iter() if "href" in each.attrib}
    assert {"message:orders-order-17.html", "topic:orders.html", "service:billing.html"} <= links
    fills = {each.attrib["fill"] for each in root.iter() if each.attrib.get("class") == "bar"}
    assert fills <= set(COLOURS.values())


def test_the_picture_of_a_topic_or_group_has_its_last_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keelmq_spark.queries.pictures.BOXES_MAX", 4)
    log = History()
    for number in range(5):
        log.publish("orders", f"m-{number}", group="web")
    log.write(tmp_path)
    for node_id in ("topic:orders", "producer_group:web"):
        texts = {each.text for each in ElementTree.fromstring(drawn(tmp_path, node_id)).iter()}
        assert {"m-4", "m-3", "m-2", "and 2 more"} <= texts
        assert "m-1" not in texts


def test_nothing_and_one_time_are_placed_too() -> None:
    assert place_lanes([], [], 10).width > PLOT
    rows = [Row("a", "x", [Bar((5, 1, 0), (5, 1, 0), "half")]), Row("b", "y", [Bar((5, 1, 1), None, "half")])]
    placed = place_lanes(rows, [Link("a", "b", (5, 1, 1))], 10)
    assert faults(Story(rows, [], {}, [], 0), placed) == []
    assert placed.dots == []
