"""The rows that each command of an entry has made visible, as the state machine has written them.

A row that is stored and removed within one entry can be read at no time; the models hear of it from here.
"""

from collections.abc import Sequence
from types import GeneratorType
from typing import Any

from store.commands.views import Row
from store.index import keys
from store.index.index import Index
from store.messages.placement import At
from store.messages.queues import _decode, _row
from store.messages.topics import SYSTEM_TOPICS, topic_id_of
from store.state.handlers import Handler
from store.state.machine import StateMachine
from store.steps import Steps

from .retention import Place

Write = tuple[bytes, ...]


class WritesByCommand:
    """Records where in the writes of an entry each command begins and ends, that a state machine over `index` carries
    out. What an entry writes at its end belongs to no command.
    """

    def __init__(self, machine: StateMachine, index: Index) -> None:
        self._writes = index.touched
        self._raft_index = 0
        self._begins: list[int] = []
        self._ends: list[int] = []
        handlers = machine._handlers
        machine._handlers = {kind: self._watched(handlers[kind]) for kind in handlers}

    def _watched(self, handler: Handler) -> Handler:
        def handle(command: Any, at: At, block_offsets: tuple[int, ...]) -> Any:
            if at.raft_index != self._raft_index:
                self._raft_index = at.raft_index
                self._begins.clear()
                self._ends.clear()
            self._begins.append(len(self._writes))
            result = None
            try:
                result = handler(command, at, block_offsets)
            finally:
                if type(result) is not GeneratorType:
                    self._ends.append(len(self._writes))
            return self._to_its_end(result) if type(result) is GeneratorType else result

        return handle

    def _to_its_end(self, steps: Steps[Any]) -> Steps[Any]:
        try:
            return (yield from steps)
        finally:
            self._ends.append(len(self._writes))

    def take(self) -> list[Sequence[Write]]:
        """Return the writes of each command of the last entry that was handled."""
        return [self._writes[begin:end] for begin, end in zip(self._begins, self._ends, strict=True)]


class StoredRows:
    """Reads rows out of writes. Topics are known by their ids from the writes of before."""

    def __init__(self) -> None:
        self._names = dict(enumerate(SYSTEM_TOPICS, start=1))

    def read(self, writes: Sequence[Write]) -> list[tuple[Place, Row]]:
        """Return the rows with topic and queue, in the order in which they were stored."""
        rows: list[tuple[Place, Row]] = []
        for write in writes:
            key, value = write[0], write[1] if len(write) == 2 else b""  # or it deletes
            if key.startswith(keys.ROW) and value and not value.startswith(keys.ROW):
                place = (self._names[keys.read_u32(key[1:5])], int.from_bytes(key[5:7]))
                rows.append((place, _row(key, _decode(value))))
            elif key.startswith(keys.TOPIC) and value:
                self._names[topic_id_of(value)] = key[1:].decode()
        return rows
