"""The events of an entry are what the entry did."""

from store.commands.transactions import Decided
from store.commands.views import Row
from store.errors import TRANSACTION_CONFLICT, Refused
from store.messages.outcomes import Event, MessagesOf, Outcome, OutcomeOf

from .broken import broken
from .checkers.events import EntryEvents
from .checkers.retention import Place

NOW_MS = 1_000


def row() -> tuple[Place, Row]:
    return ("orders", 0), Row(5, 0, 0, 9, 2, 0, "b", NOW_MS, 7, "t", ())


def told(*events: Event) -> list[OutcomeOf]:
    return [OutcomeOf(7, Outcome(1, NOW_MS, events))]


def test_events_are_what_an_entry_did() -> None:
    published = Event("PUBLISH", None, "orders", 0, 5, messages=MessagesOf(0, 0, 2))
    commit = Event("COMMIT", "t")
    entry = EntryEvents(7)
    done = Decided("t", "committed", ())
    entry.on_command(done, "prepared", [row()])
    entry.on_command(done, "committed", ())
    entry.check(told(published, commit), [done])
    for wrong in (told(commit), told(published), told(published, published, commit), told(published, commit, commit)):
        broken("events", lambda: entry.check(wrong, [done]))  # noqa: B023  # called before the next one


def test_an_entry_that_was_refused_tells_of_nothing() -> None:
    refused = Refused(TRANSACTION_CONFLICT, "")
    entry = EntryEvents(7)
    entry.on_command(refused, "committed", ())
    entry.check([], [refused])
    broken("events", lambda: entry.check(told(Event("CHECK", "t")), [refused]))
