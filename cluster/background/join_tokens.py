"""Removes join tokens that nobody has used in time. Nothing accepts them any more; their users would stay for ever."""

import asyncio
import logging
from typing import Final

from cluster.core.core import Core
from cluster.limits import JOIN_PREFIX
from store.commands.users import DeleteUser
from store.errors import USER_CHANGED, USER_NOT_FOUND, Refused
from store.users.users import User

logger = logging.getLogger(__name__)

USERS_AT_A_TIME: Final = 100


async def remove_expired_join_tokens(core: Core) -> None:
    """Delete the users of join tokens that have expired, while this node leads and is sure of the time. One whose token
    was used or replaced meanwhile is left alone.
    """
    after = JOIN_PREFIX
    while users := [each for each in core.state.users.after(after, USERS_AT_A_TIME) if _is_join_token(each)]:
        for user in users:
            if not core.is_leader() or not core.clock_is_sure():
                return
            if _has_expired(user, core.now_ms()):
                await _delete(core, user)
        after = users[-1].user
        await asyncio.sleep(0)


async def _delete(core: Core, user: User) -> None:
    try:
        await core.propose(DeleteUser(user.user, user.revision))
    except Refused as refused:
        if refused.code not in (USER_CHANGED, USER_NOT_FOUND):
            raise
    else:
        logger.info("the join token of node %s has expired and is deleted", user.user.removeprefix(JOIN_PREFIX))


def _is_join_token(user: User) -> bool:
    return user.user.startswith(JOIN_PREFIX)


def _has_expired(user: User, now_ms: int) -> bool:
    return all(token.expires_at_ms and token.expires_at_ms <= now_ms for token in user.tokens)
