"""Deliveries in the topics of groups, by offset and by the message that is delivered.

The state has the former alone; the latter is derived from it, for each topic in which it is asked for.
"""

from keelmq_spark.folding.fold_state import GROUP_PLACES_MAX, Delivery

NO_DELIVERIES: dict[int, Delivery] = {}


class Deliveries:
    """Keeps `places`, the deliveries by `%RETRY%` or `%DLQ%` topic and offset, which it changes in place."""

    def __init__(self, places: dict[str, dict[int, Delivery]]) -> None:
        self._places = places
        self._by_origin: dict[str, dict[str, list[int]]] = {}
        """Offsets of each message's deliveries by topic, in the order of the state."""

    def of(self, topic: str) -> dict[int, Delivery]:
        return self._places.get(topic, NO_DELIVERIES)

    def add(self, topic: str, offset: int, delivery: Delivery) -> None:
        """Remember a delivery, and forget the first one of more than GROUP_PLACES_MAX."""
        places = self._places.setdefault(topic, {})
        if offset in places:  # the topic was deleted and made again: the order of the state is not the one of offsets
            self._by_origin.pop(topic, None)
        places[offset] = delivery
        index = self._by_origin.get(topic)
        if index is not None:
            index.setdefault(delivery.origin, []).append(offset)
        if len(places) > GROUP_PLACES_MAX:
            self.forget(topic, next(iter(places)))

    def forget(self, topic: str, offset: int) -> None:
        origin = self._places[topic].pop(offset).origin
        index = self._by_origin.get(topic)
        if index is not None:
            index[origin].remove(offset)
            if not index[origin]:
                del index[origin]

    def last(self, topic: str, origin: str) -> int | None:
        """Return the offset of the last delivery of a message; None when there is none."""
        if topic not in self._places:
            return None
        index = self._by_origin.get(topic)
        if index is None:
            index = self._by_origin[topic] = {}
            for offset, delivery in self._places[topic].items():
                index.setdefault(delivery.origin, []).append(offset)
        offsets = index.get(origin)
        return offsets[-1] if offsets else None
