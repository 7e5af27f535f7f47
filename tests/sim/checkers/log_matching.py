"""Log matching: logs that agree on the term of an index agree on everything up to it.

Checked by induction at every append: (index, term) determines the payload and the term of the entry before it.
"""

from .violation import Violation


class LogMatching:
    def __init__(self) -> None:
        self._entries: dict[tuple[int, int], tuple[int, bytes]] = {}  # (index, term) -> (term before, payload)

    def on_append(self, node_id: int, index: int, term: int, previous_term: int, payload: bytes) -> None:
        known = self._entries.setdefault((index, term), (previous_term, payload))
        if known != (previous_term, payload):
            raise Violation(
                "log_matching",
                f"node {node_id} has at index {index}, term {term}, the entry {payload[:40]!r} after term "
                f"{previous_term}; elsewhere it is {known[1][:40]!r} after term {known[0]}",
            )
