"""Storage of one node on its disk, as its owner has opened it."""

from collections.abc import Callable
from dataclasses import dataclass

from store.log.commit_log import CommitLog
from store.log.differs import DiffersMark
from store.log.disk import BackgroundSync
from store.log.hard_state import HardState
from store.log.watermarks import Watermarks
from store.snapshots.install import SnapshotStore
from store.state.machine import StateMachine


@dataclass(frozen=True)
class Storage:
    """The parts belong to one data directory. The node uses them from `start` to `stop` and does not close them."""

    log: CommitLog
    hard_state: HardState
    state_machine: StateMachine
    watermarks: Watermarks
    snapshots: SnapshotStore | None = None
    """None for a node that neither sends nor takes snapshots."""
    differs: DiffersMark | None = None
    """None for a node that forgets with its process that its replica differs."""
    background_sync: Callable[[], BackgroundSync | None] = lambda: None
    """Opens what syncs the log for the node, which closes it; a thread does when it returns None."""
