"""Broken ways to turn committed entries into state, and to write state to disk."""

from typing import Any

from raft.health.clock import ReplicatedClock
from store.commands.entry import DecodedEntry, Result
from store.errors import Refused
from store.features import FEATURES
from store.index.index import Index
from store.messages.block_location import BlockLocation
from store.messages.placement import At
from store.messages.queues import Queues
from store.messages.topics import Topic, Topics
from store.state.machine import StateMachine
from store.steps import Steps
from tests.sim.threads import Running
from tests.sim.variant import Swap, mutant

_init, _carry_out, _commit = StateMachine.__init__, StateMachine._carry_out, StateMachine._commit
_take_level, _level_applied = StateMachine._take_level, StateMachine._level_applied


def skips_an_entry_after_a_restart(machine: StateMachine, index: Index, **options: Any) -> None:
    """A node that starts again goes on one entry too late."""
    _init(machine, index, **options)
    if machine.applied_index:
        machine._applied.index += 1


def applies_an_entry_again_after_a_restart(machine: StateMachine, index: Index, **options: Any) -> None:
    """A node that starts again goes on one entry too early."""
    _init(machine, index, **options)
    if machine.applied_index > 1:
        machine._applied.index -= 1


def goes_on_at_the_level_of_its_start(machine: StateMachine, level: int) -> None:
    """A node that runs applies at the feature level that it started with, whatever level is raised."""
    if not hasattr(machine, "feature_level"):
        _take_level(machine, level)


def starts_again_at_its_own_level(machine: StateMachine) -> int:
    """A node that starts again applies at the highest feature level that it knows, whatever is in force."""
    return FEATURES.maximum if machine.applied_index else _level_applied(machine)


def _is_due(machine: StateMachine) -> bool:
    """Return True every tenth time, since a flush takes long."""
    machine._times = getattr(machine, "_times", 0) + 1  # type: ignore[attr-defined]
    return bool(machine._times % 10 == 0)  # type: ignore[attr-defined]


def index_is_ahead_of_its_effects(machine: StateMachine) -> bool:
    """`applied_index` reaches the disk before the applied effects: a crash in between loses them."""
    index = machine._index
    effects = dict(index._staged)
    if _is_due(machine):
        index._staged.clear()
        _commit(machine)
        index.flush()
        index._staged.update(effects)
        index.commit()
    return _commit(machine)


def index_is_behind_its_effects(machine: StateMachine) -> bool:
    """`applied_index` reaches the disk after the applied effects: a crash in between applies them again."""
    if _is_due(machine):
        machine._index.commit()
        machine._index.flush()
    return _commit(machine)


def stamps_with_the_own_clock(machine: StateMachine, decoded: DecodedEntry, at: At) -> Steps[list[Result | Refused]]:
    """Each replica takes the time of an entry that it applies from its own clock, not from the entry."""
    node: Any = Running.node
    return _carry_out(machine, decoded, at._replace(clock_ms=node._wall_ms()))


def lets_the_clock_fall(machine: StateMachine, decoded: DecodedEntry, at: At) -> Steps[list[Result | Refused]]:
    """Leaders stamp what their wall clocks say, and the replicated clock follows one that is behind."""
    machine._applied.clock_ms = decoded.timestamp_ms
    return _carry_out(machine, decoded, at._replace(clock_ms=decoded.timestamp_ms))


def _wall_ms(clock: ReplicatedClock) -> int:
    return clock._clock.wall_ms()


def keeps_half_of_a_refused_entry(
    machine: StateMachine, decoded: DecodedEntry, at: At
) -> Steps[list[Result | Refused]]:
    """A refused command refuses the commands that shared its entry, but only in the answers."""
    results = yield from _carry_out(machine, decoded, at)
    refused = next((result for result in results if isinstance(result, Refused)), None)
    return results if refused is None else [refused] * len(results)


_advance = Topics.advance


def leaves_gaps(topics: Topics, topic: Topic, queue: int, count: int, row_bytes: int) -> int:
    """An offset is taken now and then and given to no message."""
    base_offset = _advance(topics, topic, queue, count, row_bytes)
    return base_offset if base_offset % 10 else _advance(topics, topic, queue, 1, 0)


def forgets_queue_ends(topics: Topics, topic: Topic, queue: int, count: int, row_bytes: int) -> int:
    """The end of a queue is kept in memory only: after a restart its offsets begin anew."""
    base_offset = topic.ends[queue]
    topic.ends[queue] = base_offset + count
    return base_offset


_append = Queues.append


def points_at_the_wrong_body(
    queues: Queues, topic: Topic, queue: int, block: BlockLocation, *more: Any, **rest: Any
) -> int:
    """A committed half message is looked for in the entry of its commit."""
    if rest.get("transaction_id") is not None and not topic.system:
        block = BlockLocation(block.position, 0, block.length, block.crc32c, block.batch_id)
    return _append(queues, topic, queue, block, *more, **rest)


MUTANTS = (
    mutant(8, Swap(StateMachine, "__init__", skips_an_entry_after_a_restart)),
    mutant(8, Swap(StateMachine, "__init__", applies_an_entry_again_after_a_restart)),
    mutant(8, Swap(StateMachine, "_commit", index_is_ahead_of_its_effects)),
    mutant(8, Swap(StateMachine, "_commit", index_is_behind_its_effects)),
    mutant(8, Swap(StateMachine, "_carry_out", stamps_with_the_own_clock)),
    mutant(4, Swap(StateMachine, "_carry_out", lets_the_clock_fall), Swap(ReplicatedClock, "__call__", _wall_ms)),
    mutant(11, Swap(StateMachine, "_carry_out", keeps_half_of_a_refused_entry)),
    mutant(4, Swap(Topics, "advance", leaves_gaps)),
    mutant(4, Swap(Topics, "advance", forgets_queue_ends)),
    mutant(5, Swap(Queues, "append", points_at_the_wrong_body)),
    mutant(23, Swap(StateMachine, "_take_level", goes_on_at_the_level_of_its_start)),
    mutant(23, Swap(StateMachine, "_level_applied", starts_again_at_its_own_level)),
)
