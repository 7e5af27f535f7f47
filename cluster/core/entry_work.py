"""Weighs what a command costs apply beyond its own bytes: costly ones must not share an entry, which is written
and answered as a whole.
"""

from collections.abc import Callable
from typing import Any, Final

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
    weigh = _WEIGHED.get(type(command))  # a look-up, since every proposal passes here
    return 0 if weigh is None else weigh(command, state)


def _of_decision(command: Decide, state: StateMachine) -> int:
    return state.transaction_bytes(command.transaction_id) if command.decision == "commit" else 0


def _of_growth(command: PutTopic, state: StateMachine) -> int:
    topic = state.topic(command.topic)
    return 0 if topic is None else _of_queues(command.topic, (command.queues or topic.queues) - topic.queues, state)


def _of_deletion(command: DeleteTopic, state: StateMachine) -> int:
    topic = state.topic(command.topic)
    return 0 if topic is None else _of_queues(command.topic, topic.queues, state)


def _of_queues(topic: str, queues: int, state: StateMachine) -> int:
    """Return the cost of giving queues of the topic to its readers, or of taking them away."""
    if queues <= 0:
        return 0
    rebalanced = state.rebalanced_with(topic) // REBALANCED_PER_ROW
    return ROW_BYTES * (rebalanced + queues * state.readers(topic))


_WEIGHED: Final[dict[type, Callable[[Any, StateMachine], int]]] = {
    Decide: _of_decision,
    ResetOffsets: lambda command, _: RESET_BYTES * len(command.offsets),
    CloneOffsets: lambda command, state: RESET_BYTES * state.queues_read(command.source, command.topic),
    PutTopic: _of_growth,
    DeleteTopic: _of_deletion,
}
