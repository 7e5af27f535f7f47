"""Broken ways to keep the dedupe window."""

from collections.abc import Iterable
from typing import Any

from store.index import keys
from store.index.index import Index
from store.messages.dedupe import DedupeWindow, SeenBatch, SeenMessage
from tests.sim.threads import Running
from tests.sim.variant import Swap, mutant

_init, _batch, _remember, _end_entry = (
    DedupeWindow.__init__,
    DedupeWindow.batch,
    DedupeWindow._remember,
    DedupeWindow.end_entry,
)


def knows_no_batch(window: DedupeWindow, topic_id: int, batch_id: str) -> SeenBatch | None:
    """A batch that is sent again is appended again."""
    return None


def knows_no_message(window: DedupeWindow, topic_id: int, message_ids: Iterable[str | None]) -> dict[str, SeenMessage]:
    """A message with an explicit id that comes again in another batch is appended again."""
    return {}


def forgets_ids_at_a_restart(window: DedupeWindow, topic_id: int, batch_id: str) -> SeenBatch | None:
    """The window is in memory only."""
    seen = _batch(window, topic_id, batch_id)
    return seen if keys.batch_id(topic_id, batch_id) in getattr(window, "_since_start", ()) else None


def _notes_in_memory(window: DedupeWindow, key: bytes, value: bytes) -> None:
    window._since_start = {*getattr(window, "_since_start", ()), key}  # type: ignore[attr-defined]
    _remember(window, key, value)


def stays_ignorant(window: DedupeWindow, key: bytes, value: bytes) -> None:
    """A batch id that was looked for in vain once is taken for unknown ever after."""
    window._index.put(key, value)
    window._remembered.append(key)


def ignores_the_topic(topic_id: int, value: str) -> bytes:
    """An id that was used on one topic counts as known on all."""
    return keys.BATCH_ID + value.encode()


def forgets_the_youngest_ids(window: DedupeWindow, index: Index, counters: Any, **options: Any) -> None:
    """Ids are forgotten by their age alone, here after a second: a retry that comes later is stored twice."""
    _init(window, index, counters, window_ms=1_000, min_entries=0)


def measures_age_by_its_own_clock(window: DedupeWindow, clock_ms: int, *, by_age: bool = True) -> None:
    """Each replica forgets ids by its own clock."""
    node: Any = Running.node
    _end_entry(window, node._wall_ms())


MUTANTS = (
    mutant(9, Swap(DedupeWindow, "batch", knows_no_batch)),
    mutant(9, Swap(DedupeWindow, "messages", knows_no_message)),
    mutant(9, Swap(DedupeWindow, "batch", forgets_ids_at_a_restart), Swap(DedupeWindow, "_remember", _notes_in_memory)),
    mutant(9, Swap(DedupeWindow, "_remember", stays_ignorant)),
    mutant(9, Swap(keys, "batch_id", ignores_the_topic)),
    mutant(9, Swap(DedupeWindow, "__init__", forgets_the_youngest_ids), rare=True),
    mutant(
        9,
        Swap(DedupeWindow, "end_entry", measures_age_by_its_own_clock),
        Swap(DedupeWindow, "__init__", forgets_the_youngest_ids),
        rare=True,
    ),
)
