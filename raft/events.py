"""Events that one node tells its owner, the process that it runs in."""

from collections.abc import Callable
from dataclasses import dataclass

from store.features import LevelOf


@dataclass(frozen=True)
class NodeEvents:
    """Each is called on the event loop, all but `on_feature_level` at most once: the node promises nothing after it."""

    on_fatal: Callable[[str], None]
    """Going on could lose or fork data, for the reason given: the process must end."""
    on_outdated: Callable[[str], None] | None = None
    """Called when this build does not know the cluster's feature level; by default `on_fatal` is."""
    on_installed: Callable[[], None] = lambda: None
    """A snapshot was taken: the node has to be stopped, closed and opened again to start with it."""
    on_forgotten: Callable[[], None] = lambda: None
    """The disk was put back to an earlier state: the node has to be opened again with another incarnation."""
    on_feature_level: Callable[[LevelOf], None] = lambda _: None
    """The log's feature level, told at the start and before a new one is written."""
