"""Weighs what a command costs apply beyond its own bytes: costly ones must not share an entry, which is written
and answered as a whole.
"""

from typing import Final

from store.commands.entry import Command
from store.commands.groups import CloneOffsets, ResetOffsets
from store.commands.topics import DeleteTopic, PutTopic
from store.commands.transactions import Decide
from store.state.machine import StateMachine

ROW_BYTES: Final = 8
"""Bytes of a command that cost apply as much as a row that is written with many others: 0.7 us."""
RESET_BYTES: Final = 40
"""Bytes of a command that cost apply as much as the reset of a queue: 4 us."""
REBALANCED_PER_ROW: Final = 16
"""Queues and members that a rebalance looks at in the time of one row."""


def further_work_bytes(command: Command, state: StateMachine) -> int:
    """Return the bytes of commands that cost apply as much as what the command carries out of the state."""
    if isinstance(command, Decide):
        return state.transaction_bytes(command.transaction_id) if command.decision == "commit" else 0
    if isinstance(command, ResetOffsets):
        return RESET_BYTES * len(command.offsets)
    if isinstance(command, CloneOffsets):
        return RESET_BYTES * state.queues_read(command.source, command.topic)
    if isinstance(command, PutTopic | DeleteTopic):
        topic = state.topic(command.topic)
        queues = 0 if topic is None else topic.queues
        if isinstance(command, PutTopic):
            queues = max(0, (command.queues or queues) - queues)
        if not queues:
            return 0
        rebalanced = state.rebalanced_with(command.topic) // REBALANCED_PER_ROW
        return ROW_BYTES * (rebalanced + queues * state.readers(command.topic))
    return 0
