"""Draws the pictures of docs/lineage.md: `python -m tests.lineage_pictures` writes them into docs/images.

The topics and services are made up, the same ones each time. A test compares the pictures with what is drawn now.
"""

import random
from typing import Any, Final

from keelmq_spark.queries.pictures import topics_picture
from tests.lineage_stories import story
from tests.requirements import REPOSITORY

SIZES: Final = (10, 50, 200)
PICTURES: Final = REPOSITORY / "docs" / "images"
_AREAS: Final = (
    *("orders", "billing", "shipping", "stock", "points", "search"),
    *("mail", "fraud", "prices", "audit", "returns", "ads"),
)
_KINDS: Final = ["done", "failed", "events", "eu", "us", "daily", "v2"]
_PRODUCERS: Final = ["web", "app", "shop", "partner", "import", "meter", "pos", "edge", "crm", "cron"]
_WORK: Final = ["bill", "ship", "enrich", "route", "score", "index", "notify", "sync", "join", "export"]
_DEPTH_MAX: Final = 4


def facts(boxes: int) -> list[dict[str, Any]]:
    """Return topics and groups, of about that number together: producers send to a few topics, services consume one or
    two topics, and most of them send to another one. Some send back to an earlier one.
    """
    drawn = random.Random(boxes)
    found: list[dict[str, Any]] = []
    depths: dict[str, int] = {}

    def fact(source: str | None, group: str, target: str | None) -> None:
        messages = drawn.randint(10, 99_999)
        numbers = {"messages": messages, "per_second": messages / 700, "lag": None, "dead_letters": None}
        if target is None:
            numbers |= {"lag": drawn.choice((0, 0, 0, drawn.randint(1, 5_000)))}
            numbers |= {"dead_letters": drawn.choice((0,) * 9 + (drawn.randint(1, 40),))}
        found.append({"source": source, "group": group, "target": target, **numbers})

    def new_topic(depth: int) -> str:
        number = len(depths)
        area, kind = _AREAS[number % len(_AREAS)], number // len(_AREAS)
        name = area if not kind else f"{area}-{_KINDS[(kind - 1) % len(_KINDS)]}"
        depths[name] = depth
        return name

    for number in range(max(1, boxes // 20)):
        fact(None, _PRODUCERS[number], new_topic(0))
    groups = len(found)
    while len(depths) + groups < boxes:
        group = f"{drawn.choice(_WORK)}-{groups}"
        groups += 1
        sources = [name for name, depth in depths.items() if depth < _DEPTH_MAX]
        consumed = {drawn.choice(sources) for _ in range(drawn.choice((1, 1, 1, 2)))}
        for source in sorted(consumed):
            fact(source, group, None)
        if len(depths) + groups < boxes and drawn.random() < 0.75:
            fact(min(consumed), group, new_topic(1 + max(depths[source] for source in consumed)))
        elif drawn.random() < 0.1:
            fact(min(consumed), group, drawn.choice(sources))
    return found


def picture(boxes: int) -> str:
    return topics_picture(facts(boxes)) + "\n"


def main() -> None:
    for boxes in SIZES:
        (PICTURES / f"lineage-topics-{boxes}.svg").write_text(picture(boxes))
        (PICTURES / f"lineage-story-{boxes}.svg").write_text(story(boxes))


if __name__ == "__main__":
    main()
