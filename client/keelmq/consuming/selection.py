"""Selection of messages by a consumer: tags or an SQL92 expression, evaluated by the broker."""

from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

import msgspec

from keelmq.errors import InvalidRequest
from keelmq.limits import check_text, check_topic

PerTopic = str | Mapping[str, str] | None
"""One text for all topics, or a mapping for the named topics; all messages of other topics are read."""


class Selection(msgspec.Struct, frozen=True):
    """Selects messages by tags or by filter, at most one of the two; without either it selects every message."""

    tags: str | None = None
    filter: str | None = None

    def __post_init__(self) -> None:
        """Raise InvalidRequest for what is no text."""
        for name, text in (("tags", self.tags), ("filter", self.filter)):
            if text is not None:
                check_text(name, text)

    @property
    def is_everything(self) -> bool:
        return self.tags is None and self.filter is None

    @property
    def query(self) -> str:
        """Part of a pull's query that requests this selection, beginning with `&`; empty for every message."""
        given = {"tags": self.tags, "filter": self.filter}
        return "".join(f"&{urlencode({name: text})}" for name, text in given.items() if text is not None)


EVERYTHING = Selection()


def check_topics(topics: str | Sequence[str]) -> list[str]:
    """Return the names of one or more topics. Raises InvalidRequest."""
    names = [topics] if isinstance(topics, str) else list(topics)
    if not names:
        raise InvalidRequest("invalid_request", "topics: a consumer needs at least one")
    for topic in names:
        check_topic(topic)
    return names


def selections_of(topics: Sequence[str], tags: PerTopic, filter: PerTopic) -> dict[str, Selection]:
    """Return a selection for each topic. Raises InvalidRequest; the broker checks the expressions."""
    tags_of, filter_of = _per_topic("tags", tags, topics), _per_topic("filter", filter, topics)
    both = tags_of.keys() & filter_of.keys()
    if both:
        raise InvalidRequest("invalid_request", f"tags or filter, not both for topic {min(both)}")
    return {topic: Selection(tags_of.get(topic), filter_of.get(topic)) for topic in topics}


def _per_topic(name: str, given: PerTopic, topics: Sequence[str]) -> dict[str, str]:
    if given is None:
        return {}
    found = dict.fromkeys(topics, given) if isinstance(given, str) else dict(given)
    for topic, text in found.items():
        if topic not in topics:
            raise InvalidRequest("invalid_request", f"{name}: {topic!r} is not among the topics")
        if not isinstance(text, str):
            raise InvalidRequest("invalid_request", f"{name} must be a string, not {type(text).__name__}")
    return found
