"""A checker of the events that an entry leaves for readers of the log: they tell what the entry did, and nothing that
was refused or had been done before.
"""

from collections import Counter
from collections.abc import Sequence

from store.commands.transactions import Decided
from store.commands.views import Row
from store.errors import Refused
from store.messages.outcomes import OutcomeOf
from store.messages.topics import SYSTEM_TOPICS

from .retention import Place
from .violation import Violation

_DECISIONS = {"COMMIT": "committed", "ROLLBACK": "rolled_back"}


class EntryEvents:
    """The effects of one entry: the messages that it made visible, and the transactions that it decided."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._stored: Counter[tuple[str | None, int | None, int | None, int]] = Counter()
        self._decided: Counter[tuple[str | None, str]] = Counter()

    def on_command(self, result: object, before: str | None, rows: Sequence[tuple[Place, Row]]) -> None:
        """Take in the result of a command with the rows that it has made visible. A transaction that it was about was
        in the state `before`.
        """
        self._stored.update(
            (topic, queue, row.base_offset, row.count)
            for (topic, queue), row in rows
            if topic not in SYSTEM_TOPICS  # they show what is told of otherwise
        )
        if isinstance(result, Decided) and result.state not in ("prepared", before):
            self._decided[result.transaction_id, result.state] += 1

    def check(self, outcomes: Sequence[OutcomeOf], results: Sequence[object]) -> None:
        """Check the entry's events after its last command."""
        events = [event for each in outcomes for event in each.outcome.events]
        if events and all(isinstance(result, Refused) for result in results):
            raise Violation("events", f"entry {self._index} was refused, and tells of {events}")
        published = Counter(
            (event.topic, event.queue, event.offset, event.rows) for event in events if event.type == "PUBLISH"
        )
        if published != self._stored:
            raise Violation("events", f"entry {self._index} has stored {self._stored}, and tells of {published}")
        told = Counter((event.transaction_id, _DECISIONS[event.type]) for event in events if event.type in _DECISIONS)
        if told != self._decided:
            raise Violation("events", f"entry {self._index} has decided {self._decided}, and tells of {told}")
