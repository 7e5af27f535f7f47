"""Appends entries to this node's log and cuts them off, with the configurations among them in force at once."""

import logging
from collections.abc import Callable

from raft.membership import decode_configuration
from raft.sender import Sender
from raft.state import RaftState
from store.features import LevelOf
from store.log.record import KIND_CONFIG, Entry

log = logging.getLogger(__name__)


class LogWriter:
    """Invariant: the configuration in force is the last one in the log, committed or not. Loop-only."""

    def __init__(self, state: RaftState, sender: Sender, on_configuration: Callable[[], None]) -> None:
        """`on_configuration()` is called when another configuration is in force."""
        self.on_feature_level: Callable[[LevelOf], None] = lambda _: None
        """Called before a configuration is written to the log, and when one is taken back: with the level then."""
        self._state = state
        self._sender = sender
        self._on_configuration = on_configuration

    def append(self, entry: Entry) -> None:
        """Append an entry behind the last one. Not durable on return. Raises DiskFull with nothing appended."""
        state = self._state
        configuration = decode_configuration(entry.payload) if entry.kind == KIND_CONFIG else None
        if configuration is not None:
            self.on_feature_level(configuration.level)
        state.log.append(entry.index, entry.term, entry.kind, entry.payload)
        if configuration is not None:
            state.membership.append(entry.index, configuration)
            self._on_configuration()

    def cut_from(self, index: int) -> None:
        """Remove the entries from `index` on; durable on return, with the configuration of before in force.

        None of them may be committed. Promises that speak of them are taken back.
        """
        state = self._state
        self._sender.gate.discard()
        state.knowledge.note_cut(state.term)
        state.log.truncate_from(index)
        if state.membership.truncate_from(index):
            log.warning("the change of the cluster's nodes was not committed and is taken back")
            self.on_feature_level(state.configuration.level)
            self._on_configuration()
