"""Tells since when a message waits for a group."""

from cluster.core.core import Core
from store.commands.views import GroupOffset


def waits_since_ms(core: Core, offset: GroupOffset) -> int | None:
    """Return when the first message was stored that the group has not processed, in Unix ms; None without one."""
    if not offset.lag or core.state.topic(offset.topic) is None:  # deleted since
        return None
    rows = core.state.rows(offset.topic, offset.queue, offset.processed, 1, 1)
    return rows[0].stored_at_ms if rows else None
