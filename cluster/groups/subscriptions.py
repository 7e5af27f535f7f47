"""Subscriptions of group members: the topics and filters in a join are checked before it is proposed."""

from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta

from cluster.core.core import Core
from cluster.filters.errors import InvalidFilter
from cluster.filters.selection import by_expression, tag_set
from cluster.http.requests import ClientId, Id, Request, Tags
from cluster.limits import GROUP_QUEUES_MAX, GROUP_TOPICS_MAX, SESSION_TIMEOUT_MS_MAX, SESSION_TIMEOUT_MS_MIN
from cluster.problems import Problem
from store.commands.groups import TopicFilter


class JoinRequest(Request, kw_only=True, frozen=True):
    topics: Annotated[tuple[str, ...], Meta(min_length=1, max_length=GROUP_TOPICS_MAX)]
    client_id: ClientId = ""
    session_timeout_ms: Annotated[int, Meta(ge=SESSION_TIMEOUT_MS_MIN, le=SESSION_TIMEOUT_MS_MAX)] = 30_000
    member_id: Id | None = None
    tags: dict[str, Tags] = msgspec.field(default_factory=dict)
    filters: dict[str, str] = msgspec.field(default_factory=dict)


def require_queues(core: Core, topics: Iterable[str]) -> None:
    """Raise Problem `invalid_request` if the topics have more queues together than a group may subscribe to."""
    found = map(core.state.topic, {*topics})
    queues = sum(topic.queues for topic in found if topic is not None)
    if queues > GROUP_QUEUES_MAX:
        raise Problem(
            "invalid_request", f"topics: they have {queues} queues together, a group at most {GROUP_QUEUES_MAX}"
        )


def topic_filters(request: JoinRequest) -> tuple[TopicFilter, ...]:
    """Return one filter for each topic that is not read as a whole. Tags are sorted, so that their order is irrelevant.

    Raises Problem `invalid_request` or `invalid_filter`.
    """
    for name in ("tags", "filters"):
        foreign = getattr(request, name).keys() - set(request.topics)
        if foreign:
            raise Problem("invalid_request", f"{name}: {min(foreign)!r} is not among the topics")
    both = request.tags.keys() & request.filters.keys()
    if both:
        raise Problem("invalid_request", f"tags and filters: topic {min(both)} is in both")
    found = [TopicFilter(topic, "sql", _checked(topic, text)) for topic, text in request.filters.items()]
    for topic, text in request.tags.items():
        try:
            tags = tag_set(text)
        except ValueError as error:
            raise Problem("invalid_request", f"tags of topic {topic}: {error}") from None
        if tags is not None:
            found.append(TopicFilter(topic, "tags", " || ".join(sorted(tags))))
    return tuple(sorted(found, key=lambda each: each.topic))


def pop_filter(topic: str, tags: str | None, expression: str | None) -> TopicFilter:
    """Return the filter of a pop, from either `tags` or `expression`, in the form that is compared with other pops'."""
    if expression is not None:
        return TopicFilter(topic, "sql", _checked(topic, expression))
    return TopicFilter(topic, "tags", " || ".join(sorted(tag_set(tags or "") or ())))


def _checked(topic: str, expression: str) -> str:
    """Return the expression without surrounding blanks, as it is compared with other members' expressions.

    Raises Problem `invalid_filter` when it is not valid.
    """
    try:
        by_expression(expression)
    except InvalidFilter as error:
        raise Problem(
            "invalid_filter", f"topic {topic}, {error.detail}", {"topic": topic, "position": error.position}
        ) from None
    return expression.strip()
