"""Who could lead, who should, and whom an election waits for. Asks the handlers, and changes nothing of theirs."""

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING

from raft.fitness import FIT, Fitness
from raft.library import LEADER, now

if TYPE_CHECKING:
    from raft.election import ElectionHandlers

log = logging.getLogger(__name__)

PATIENCE_TIMEOUTS = 5
"""A node that is less fit to lead lets the others stand first: for this many election timeouts without a leader."""
SAID_AGAIN_S = 30.0
"""While a node waits for the same others, it says so this often."""


class Leadership:
    """Of one node, by what it has heard. Loop-only."""

    def __init__(self, raft: "ElectionHandlers") -> None:
        self._raft = raft
        self._node_id: int = raft.config.node_id
        self._granted: frozenset[int] | None = None  # pre-votes, when this node asked last
        self._said: tuple[frozenset[int], float] = frozenset(), float("-inf")

    # --- who should ------------------------------------------------------------------------------------------------

    def fitness(self, node_id: int) -> Fitness:
        """What hinders that node from leading well, as far as this one knows."""
        raft = self._raft
        return Fitness(
            raft.vital_signs.has_backlog(node_id),
            raft.disks.is_low(node_id),
            raft.disks.is_slow(node_id),
            raft.clocks.is_wrong(node_id),
        )

    @property
    def own_fitness(self) -> Fitness:
        return self.fitness(self._node_id)

    def successor(self) -> int | None:
        """Leader: a voter that answers, has caught up and is fitter than this node; None without one."""
        own = self.own_fitness
        if own == FIT or self._raft.role != LEADER:
            return None
        return next((peer for peer in self._raft.successors() if self.fitness(peer) < own), None)

    def lets_others_stand_first(self, leaderless_since_s: float) -> bool:
        """Others are there that are fitter. Once they had their time this one stands: writing must not depend on it."""
        raft = self._raft
        if now() - leaderless_since_s >= PATIENCE_TIMEOUTS * raft.config.election_timeout_ms / 1000:
            return False
        own = self.own_fitness
        return own != FIT and any(
            raft.presence.is_present(peer) and self.fitness(peer) < own for peer in raft.other_voters
        )

    # --- who could -------------------------------------------------------------------------------------------------

    def has_majority(self) -> bool:
        """Leader: whether a majority of the voters has answered lately."""
        return self._raft.configuration.has_majority(self._raft.answering_voters())

    def full_disks(self) -> list[int]:
        """The voters for want of whose room this node, as leader, could not carry a write out; empty if it could.

        That is so when no majority both is there and has room; or when this node has none, and nobody to hand over to.
        """
        raft = self._raft
        low = raft.disks.low()
        if not low:
            return []
        voters = raft.configuration.voters
        able = {each for each in voters - low if each == self._node_id or raft.presence.is_present(each)}
        if raft.configuration.has_majority(able) and (self._node_id not in low or self.successor() is not None):
            return []
        return sorted(low & (voters | {self._node_id}))

    # --- nobody does -----------------------------------------------------------------------------------------------

    def note_asked(self, granted: Collection[int] | None) -> None:
        """This node asks for pre-votes once more; `granted` had come when it did so before."""
        self._granted = None if granted is None else frozenset(granted)
        missing, (said, said_at_s) = frozenset(self._missing()), self._said
        if missing and (missing != said or now() - said_at_s >= SAID_AGAIN_S):
            log.warning("no leader: %s", self.waits_for())
            self._said = missing, now()

    def why_nobody_leads(self) -> str:
        """In words, for those who are told that there is no leader."""
        waits_for = self.waits_for()
        return "no leader is known" if waits_for is None else f"no leader is known: {waits_for}"

    def waits_for(self) -> str | None:
        """Whom an election needs and has not heard, and by which rule; None while a leader is known, or nobody is
        missing.
        """
        raft, missing = self._raft, self._missing()
        if not missing:
            return None
        named = ", ".join(f"{peer} ({self._last_word(peer)})" for peer in missing)
        if raft.has_blank_log:
            return f"the first election of a cluster needs every node: no vote from {named}"
        return f"{raft.majority} of {len(raft.configuration.voters)} voters are needed, not heard: {named}"

    def _missing(self) -> list[int]:
        raft = self._raft
        if raft.leader_id is not None or not raft.is_voter:
            return []
        silent = [peer for peer in raft.other_voters if not raft.presence.is_present(peer)]
        if raft.has_blank_log:
            return (
                silent if self._granted is None else [each for each in raft.other_voters if each not in self._granted]
            )
        return silent if len(raft.configuration.voters) - len(silent) < raft.majority else []

    def _last_word(self, peer: int) -> str:
        """In words."""
        presence = self._raft.presence
        silent_s = presence.silent_s(peer)
        if silent_s is None:
            return "never heard"
        if presence.is_present(peer):
            return "answers and gives none: it held another cluster before, and its data directory has to be emptied"
        return f"last heard {silent_s:.0f} s ago"
