"""The subscription of a group's members. All must have the same one: otherwise each would skip, and commit, messages
that the others are to process.
"""

import functools
from typing import NamedTuple

from store.commands.groups import TopicFilter
from store.errors import SUBSCRIPTION_MISMATCH, Refused


class Subscription(NamedTuple):
    """The topics of a subscription and their filters, both sorted by topic."""

    topics: tuple[str, ...]
    filters: tuple[TopicFilter, ...]


def check_subscription(group: str, generation: int, recorded: Subscription, requested: Subscription) -> None:
    """Refuse (`subscription_mismatch`) a member whose subscription differs from that of the present members."""
    if recorded.topics != requested.topics:
        detail = (
            f"the members of group {group} subscribe to {', '.join(recorded.topics)}: all must subscribe to the same"
        )
        raise Refused(SUBSCRIPTION_MISMATCH, detail, {"topics": list(recorded.topics), "generation": generation})
    for topic in requested.topics if recorded.filters != requested.filters else ():
        there, here = _selection(recorded.filters, topic), _selection(requested.filters, topic)
        if there != here:
            detail = (
                f"the members of group {group} read {there} of topic {topic}, this one {here}: "
                "all must read the same; a member that is alone may change it"
            )
            extra = {"topic": topic, "subscribed": there, "requested": here, "generation": generation}
            raise Refused(SUBSCRIPTION_MISMATCH, detail, extra)


def selecting(filters: tuple[TopicFilter, ...], topic: str) -> str | None:
    """Return the filter of a topic's messages as an SQL92 expression; None when all are selected."""
    found = next((item for item in filters if item.topic == topic), None)
    if found is None or found.type == "sql":
        return found.expression if found is not None else None
    return _of_tags(found.expression)


@functools.lru_cache(256)
def _of_tags(expression: str) -> str:
    tags = ("'" + tag.replace("'", "''") + "'" for tag in expression.split(" || "))
    return f"TAGS IN ({', '.join(tags)})"


def _selection(filters: tuple[TopicFilter, ...], topic: str) -> str:
    """Return the selection of a topic's messages in words, which are equal only for equal selections."""
    found = next((item for item in filters if item.topic == topic), None)
    if found is None:
        return "all messages"
    return f"the tags {found.expression}" if found.type == "tags" else f"what matches [{found.expression}]"
