"""Selects events of the log by topic and type, so that a reader of few topics is not sent the events of all."""

from typing import Final, get_args

from cluster.http.requests import check_topic
from cluster.limits import LOG_TOPICS_MAX
from cluster.problems import Problem
from store.messages.outcomes import EventType

_ANY: Final = "*"
"""Ends the beginning of names; no topic has the character."""
_TYPES: Final = frozenset(get_args(EventType))


class EventSelection:
    """Selects events of some topics and types; None selects all. An event without a topic is of none."""

    def __init__(self, topics: frozenset[str] | None, prefixes: tuple[str, ...], types: frozenset[str] | None) -> None:
        self._topics = topics
        self._prefixes = prefixes
        self._types = types

    @property
    def names_topics(self) -> bool:
        return self._topics is not None

    def has_type(self, type: EventType) -> bool:
        return self._types is None or type in self._types

    def has_topic(self, topic: str | None) -> bool:
        if self._topics is None:
            return True
        return topic is not None and (topic in self._topics or topic.startswith(self._prefixes))


def selection_of(topics: str | None, types: str | None) -> EventSelection | None:
    """Return the selection that the parameters of a query ask for: names with commas between, of topics also beginnings
    with a `*` behind. Raises Problem invalid_request or invalid_topic.
    """
    if topics is None and types is None:
        return None
    names: frozenset[str] | None = None
    prefixes: tuple[str, ...] = ()
    if topics is not None:
        given = topics.split(",")
        if len(given) > LOG_TOPICS_MAX:
            raise Problem("invalid_request", f"topics: at most {LOG_TOPICS_MAX} names, not {len(given)}")
        names = frozenset(check_topic(name) for name in given if not name.endswith(_ANY))
        prefixes = tuple(check_topic(name.removesuffix(_ANY)) for name in given if name.endswith(_ANY))
    return EventSelection(names, prefixes, None if types is None else _types_of(types))


def _types_of(text: str) -> frozenset[str]:
    types = frozenset(text.split(","))
    for unknown in types - _TYPES:
        raise Problem("invalid_request", f"types: {unknown[:40]!r} is none of {', '.join(sorted(_TYPES))}")
    return types
