"""The leader expires group members that fall silent. Heartbeats are not in the log, but the expiry of a member is.

A new leader knows no heartbeats, so every member gets a whole session timeout before it may expire: neither a failover
nor a failed hand-over causes a rebalance.
"""

import asyncio
import logging
from collections.abc import Iterator
from typing import Final

from cluster.budgets.turns import ALL_GROUPS
from cluster.core.core import Core
from cluster.groups.sessions import Session, Sessions
from cluster.problems import Problem
from raft.errors import RaftError
from store.commands.groups import LeaveGroup
from store.errors import Refused
from store.log.errors import LogError

logger = logging.getLogger(__name__)

EXPIRY_INTERVAL_S: Final = 0.5
GROUPS_PER_STEP: Final = 256
MEMBERS_PER_STEP: Final = 512
"""A step of the walk through groups ends after GROUPS_PER_STEP groups, or after the group that completes
MEMBERS_PER_STEP members. It takes a millisecond."""


class SessionExpiry:
    """Expires silent members in rounds. Use on the event loop only. Call `start` once the Raft node runs, before the
    first heartbeat.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self.sessions = Sessions(lambda: core.steady_ms() / 1000, self._timeout_ms_of)
        self._task = core.background.task("group-expiry", "expire silent members of groups", self._round)
        self._met_to: str | None = None
        """Name of the group after which the walk goes on; None at its beginning."""

    def start(self) -> None:
        self._task.start(EXPIRY_INTERVAL_S)

    async def stop(self) -> None:
        await self._task.stop()

    def _timeout_ms_of(self, session: Session) -> int | None:
        try:
            member = self._core.state.membership(*session)
        except Refused:
            return None
        return None if member is None else member.session_timeout_ms

    async def _round(self) -> float:
        if not self._core.is_leader():
            self.sessions.lead_lost()
            return EXPIRY_INTERVAL_S
        await self._meet_members()
        silent = self.sessions.expired() if self._core.is_leader() else []
        # All at once: one by one, each with a round through the log, members could fall silent faster than they expire.
        await asyncio.gather(*map(self._expire, silent))
        return EXPIRY_INTERVAL_S

    async def _meet_members(self) -> None:
        """Meet the members of all groups.

        A new leader meets all members before it expires any, and lets the event loop go on after each step. Later
        rounds take one step each, to meet members whose join was applied after its request had ended.
        """
        is_new = self.sessions.begin(self._core.raft.term)
        if is_new:
            self._met_to = None
        for _ in self._walk():
            if not is_new:
                return
            await asyncio.sleep(0)

    def _walk(self) -> Iterator[None]:
        """Walk through all groups and yield after each step. The next walk after the last group begins anew."""
        members = groups = 0
        while names := self._core.state.group_names(self._met_to, 1):
            self._met_to = names[0]
            for member_id in self._core.state.group_members(names[0]):
                self.sessions.meet(names[0], member_id)
                members += 1
            groups += 1
            if groups >= GROUPS_PER_STEP or members >= MEMBERS_PER_STEP:
                members = groups = 0
                yield
        self._met_to = None

    async def _expire(self, session: Session) -> None:
        core = self._core
        try:
            async with core.turn(core.rebalance_turns, ALL_GROUPS, core.state.rebalance_size(session.group)):
                if not self.sessions.is_silent(core.raft.term, session):
                    return
                await core.propose(LeaveGroup(session.group, session.member_id, "expired"))
        except (RaftError, Refused, LogError, Problem) as error:
            logger.warning("member %s of %s could not be expired: %s", session.member_id, session.group, error)
        else:
            self.sessions.forget(*session)
            self._core.metrics.expired_members.inc()
            logger.info("member %s of group %s expired", session.member_id, session.group)
