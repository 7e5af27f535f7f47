"""Clones of a group's offsets, in entries of a limited number of queues, as a clone is applied in one step."""

from collections.abc import Iterator
from typing import Final

import msgspec
from aiohttp import web

from cluster.core.core import Core
from store.commands.entry import Proposal
from store.commands.groups import CloneOffsets, OffsetsReset, QueueOffset
from store.errors import INVALID_REQUEST, TOPIC_NOT_FOUND, Refused

CLONED_AT_ONCE: Final = 1_024
"""Number of queues whose offsets are cloned by one entry; a topic has no more."""
PROPOSED_AT_ONCE: Final = 64
"""Number of topics that are proposed in one step of the loop."""


class Cloned(msgspec.Struct, frozen=True):
    offsets: list[tuple[QueueOffset, ...]]
    """The offsets that were set, entry by entry."""
    generation: int


async def clone_offsets(core: Core, command: CloneOffsets, by: web.Request) -> Cloned:
    """Clone the offsets: by one entry if they are at most CLONED_AT_ONCE, else topic by topic, each as it is by then. A
    topic that is deleted meanwhile is left out. The caller lets no two of them clone onto one group at a time, else the
    group would get some topics of one source and some of the other; a turn on the leader is enough, since it alone
    proposes, and what a former leader has proposed comes before that in the log.

    Raises as `Core.propose` does, with nothing changed if there is one entry, else with some topics cloned; repeating
    the call completes it, as long as the group has no members.
    """
    read = core.state.topics_read(command.source)
    if read is None or command.topic is not None or sum(queues for _, queues in read) <= CLONED_AT_ONCE:
        reset: OffsetsReset = (await core.propose(command, by=by)).result
        return Cloned([reset.offsets], reset.generation)
    offsets: list[tuple[QueueOffset, ...]] = []
    refused: Refused | None = None
    generation, principal = 0, core.access.proved_name(by)
    for topics in _portions(read):
        parts = [msgspec.structs.replace(command, topic=topic) for topic in topics]
        for outcome in await core.propose_all([Proposal(part, principal=principal) for part in parts]):
            if isinstance(outcome, Refused) and outcome.code in (TOPIC_NOT_FOUND, INVALID_REQUEST):
                refused = outcome
                continue  # since then the topic is gone, or was made anew and is not read
            if isinstance(outcome, Exception):
                raise outcome
            offsets.append(outcome.result.offsets)
            generation = outcome.result.generation
    if not offsets and refused is not None:  # for all topics, as for a clone of a group onto itself
        raise refused
    return Cloned(offsets, generation)


def _portions(read: list[tuple[str, int]]) -> Iterator[list[str]]:
    """Yield the topics in portions of at most CLONED_AT_ONCE queues and PROPOSED_AT_ONCE topics."""
    portion: list[str] = []
    width = 0
    for topic, queues in read:
        if portion and (width + queues > CLONED_AT_ONCE or len(portion) == PROPOSED_AT_ONCE):
            yield portion
            portion, width = [], 0
        portion.append(topic)
        width += queues
    if portion:
        yield portion
