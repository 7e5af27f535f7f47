"""Puts topics, and grows them in entries of a limited number of rows, as the rows of an entry are written at once."""

from collections.abc import Callable
from typing import Final

import msgspec
from aiohttp import web

from cluster.core.core import Core
from cluster.core.entry_work import REBALANCED_PER_ROW
from store.commands.topics import PutTopic, TopicPut
from store.errors import TOPIC_EXISTS_WITH_MORE_QUEUES, TOPIC_NOT_FOUND, Refused

GROWN_ROWS_MAX: Final = 4_096
"""Number of offsets that one entry begins: each group that has read the topic begins each of the new queues. Every
entry rebalances the groups whose members read the topic, so entries are larger where that costs more."""
GROWN_QUEUES_MIN: Final = 4
"""Number of queues that an entry adds however many groups there are, so that a topic is grown by 256 at most."""


async def put_topic(core: Core, command: PutTopic, check: Callable[[], None], by: web.Request) -> TopicPut:
    """Create or change the topic. Queues that many groups have to begin come with several entries, all with the same
    settings. `check()` is called before each, and raises when it may not be proposed.

    Raises as `Core.propose` does, with nothing changed by the entry; the topic may have got some of the queues before.
    Raises Refused (`topic_not_found`) when the topic is deleted before it has all of them, also if it was made anew.
    """
    topic_id = core.state.topic_id(command.topic)
    while core.state.topic_id(command.topic) == topic_id:
        check()
        part = _part(core, command)
        try:
            put: TopicPut = (await core.propose(part, by=by)).result
        except Refused as refused:
            if refused.code == TOPIC_EXISTS_WITH_MORE_QUEUES and part != command:
                continue  # another request has added queues meanwhile
            raise
        if part == command:
            return put
    raise Refused(TOPIC_NOT_FOUND, f"topic {command.topic} was deleted while it got its queues; create it again")


def _part(core: Core, command: PutTopic) -> PutTopic:
    """Return the command with as many queues as one entry may add."""
    topic = core.state.topic(command.topic)
    readers = core.state.readers(command.topic)
    if command.queues is None or topic is None or not readers:
        return command
    rows = GROWN_ROWS_MAX + core.state.rebalanced_with(command.topic) // REBALANCED_PER_ROW
    queues = topic.queues + max(GROWN_QUEUES_MIN, rows // readers)
    return command if queues >= command.queues else msgspec.structs.replace(command, queues=queues)
