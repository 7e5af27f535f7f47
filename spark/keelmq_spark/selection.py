"""Selects the events of the log that a query wants: by its options, and by Spark's filters on topic and type.

Nodes are asked for these events only, as far as they understand. They may send others: nodes of 0.2.0 cannot select,
and the beginning of a name stands for a regular expression. So what they send is looked at again, for the options by
the source, and for Spark's filters by Spark.
"""

import functools
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self
from urllib.parse import quote_plus

from pyspark.sql.datasource import EqualNullSafe, EqualTo, Filter, In, StringStartsWith

from keelmq.limits import GROUP_TOPIC_PREFIXES, LOG_TOPICS_MAX
from keelmq_spark.log_reader import Select
from keelmq_spark.options import SourceOptions
from keelmq_spark.views.event_types import TYPES

ENCODED_BYTES_MAX: Final = 1_500
"""Maximum bytes of the topics in a URL, which has 2,048. Beyond it nodes are asked for the events of all topics."""
ANY: Final = "*"
"""Ends the beginning of names; no topic has the character."""
_LITERAL: Final = re.compile(r"[A-Za-z0-9_%-]*")
_NAME: Final = re.compile(r"[A-Za-z0-9_%|-]+\*?")
"""A name that a topic can have, or the beginning of one; a node refuses others."""
_REPEATS_MAYBE_NEVER: Final = ("*", "?", "{")
_NOT_SPLIT: Final = frozenset("([\\")
"""Characters behind which a `|` need not separate alternatives."""

_EXTENSION: Final = "(?"
"""Begin of a group that may match nothing, such as a comment: what follows it then counts for what is before it."""

log = logging.getLogger("keelmq.spark")


@dataclass(frozen=True)
class Selection:
    """Topics, some of them beginnings of names with a `*` behind, and types of the wanted events; None for all."""

    topics: tuple[str, ...] | None = None
    types: tuple[str, ...] | None = None

    @classmethod
    def of(cls, options: SourceOptions) -> Self:
        topics = options.topics or None if options.pattern is None else names_of_pattern(options.pattern)
        return cls(topics, ("PUBLISH",) if options.view == "messages" else None)

    @property
    def is_empty(self) -> bool:
        return self.topics == () or self.types == ()

    def narrowed(self, filters: Iterable[Filter], *, has_types: bool) -> Self:
        """Return the selection of rows that also satisfy the understood filters."""
        found = self
        for each in filters:
            values = _values_of(each)
            attribute = getattr(each, "attribute", None)
            if values is not None and attribute == ("topic",):
                found = replace(found, topics=_both(found.topics, values))
            elif values is not None and attribute == ("type",) and has_types and TYPES.issuperset(values):
                found = replace(found, types=_both(found.types, values))
        return found

    def select(self) -> Select:
        """Return what to ask nodes for: without topics if they are too many for a request."""
        topics = self.topics or ()
        if len(topics) > LOG_TOPICS_MAX or len(quote_plus(",".join(topics))) > ENCODED_BYTES_MAX:
            log.info("%d topics do not fit a request: reading the events of all topics", len(topics))
            topics = ()
        return Select(topics, self.types or ())


def is_wanted_of(options: SourceOptions) -> Callable[[str], bool] | None:
    """Return whether a topic is one of the options; None for all. Each topic is looked at once."""
    if options.pattern is None:
        return frozenset(options.topics).__contains__ if options.topics else None
    matches = re.compile(options.pattern).fullmatch
    return functools.cache(lambda topic: not topic.startswith(GROUP_TOPIC_PREFIXES) and matches(topic) is not None)


def names_of_pattern(pattern: str) -> tuple[str, ...] | None:
    """Return names and beginnings of names that cover all that the regular expression matches; None for any name."""
    alternatives = pattern.split("|")
    if _EXTENSION in pattern:
        return None
    if len(alternatives) > 1 and not _NOT_SPLIT.isdisjoint(pattern):
        return None
    names = [_name_of(each.removeprefix("^")) for each in alternatives]
    return None if ANY in names else tuple(dict.fromkeys(names))


def _name_of(alternative: str) -> str:
    found = _LITERAL.match(alternative)
    literal = "" if found is None else found.group()
    rest = alternative[len(literal) :]
    if not rest:
        return literal or ANY
    return (literal[:-1] if rest.startswith(_REPEATS_MAYBE_NEVER) else literal) + ANY


def _values_of(filter: Filter) -> Sequence[str] | None:
    """Return what the filter wants the column to be, or to begin with; None when that is not known."""
    values: Sequence[Any]
    if isinstance(filter, EqualTo | EqualNullSafe):
        values = (filter.value,)
    elif isinstance(filter, In):
        values = tuple(filter.value)
    elif isinstance(filter, StringStartsWith):
        values = (f"{filter.value}{ANY}",)  # an empty one is no name
    else:
        return None
    return values if all(isinstance(each, str) and _NAME.fullmatch(each) for each in values) else None


def _both(some: tuple[str, ...] | None, others: Sequence[str]) -> tuple[str, ...]:
    """Return names and beginnings of names that are in both."""
    if some is None:
        return tuple(others)
    met = (_common(one, other) for one in some for other in others)
    return tuple(dict.fromkeys(each for each in met if each is not None))


def _common(one: str, other: str) -> str | None:
    if one == other:
        return one
    for narrow, wide in ((one, other), (other, one)):
        if wide.endswith(ANY) and narrow.startswith(wide.removesuffix(ANY)):
            return narrow
    return None
