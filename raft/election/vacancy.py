"""Says why nobody leads: from what this node knows of every voter, and of itself.

The log, the 503s, `waits_for` in `/v1/cluster`, the alarms and `keelmq doctor` all take it from here.
"""

import logging
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from raft.copies.own_copy import OwnCopy
from raft.copies.replicas import Replicas
from raft.health.presence import Presence
from raft.health.vital_signs import VitalSigns
from raft.library import now
from raft.state import RaftState

log = logging.getLogger(__name__)

SAID_AGAIN_S: Final = 30.0
"""While a node waits for the same, it says so this often."""
START: Final = "start the nodes that are down, and see that this one reaches them"
RECOVER: Final = (
    "too few disks are left that may vote. Stop the nodes, run `keelmqd recover` where the log is longest, and add the "
    "others with empty directories and `--join` (docs/backup.md, Recovery from a survivor)"
)
FORGO: Final = "docs/reliability.md, Going on without committed entries, says how to go on without the entry"
LOOK: Final = "`keelmq doctor` asks every node, and their logs say what holds them back"


class _Why(NamedTuple):
    """Obstacles to a leader; without `waits` there are none, as far as this node knows."""

    silent: tuple[int, ...]
    voteless: dict[int, str]
    """Voters that answer and may not vote, each with the reason."""
    own: str
    """The reason why this node does not stand; empty if nothing holds it back."""
    refusing: tuple[int, ...]
    """Voters that may vote and have refused this node two pre-votes running."""
    able: frozenset[int]
    """Voters that are there and may vote."""
    waits: bool


class Vacancy:
    """Judges by what this node has heard. Loop-only."""

    def __init__(
        self,
        state: RaftState,
        presence: Presence,
        replicas: Replicas,
        vital_signs: VitalSigns,
        own_copy: OwnCopy,
        hindrance: Callable[[], str],
    ) -> None:
        """`hindrance()` returns in words why this node does not stand for election; empty if nothing holds it back."""
        self._state = state
        self._presence = presence
        self._replicas = replicas
        self._vital_signs = vital_signs
        self._own_copy = own_copy
        self._hindrance = hindrance
        self._granted: frozenset[int] | None = None  # pre-votes, when this node asked last
        self._granted_before: frozenset[int] | None = None
        self._said: tuple[object, float] = None, float("-inf")

    def note_asked(self, granted: Collection[int] | None) -> None:
        """Note that this node's election is due once more, and which pre-votes it was granted since the last time; None
        if it did not ask. The reason is logged when it changes, and again after SAID_AGAIN_S.
        """
        self._granted_before, self._granted = self._granted, None if granted is None else frozenset(granted)
        waits_for, (said, said_at_s) = self.waits_for(), self._said
        if waits_for is None:
            return
        why = self._why()
        key = tuple(self._missing_in_first_election()) if self.is_first_election else (why.silent, why[1:4])
        if key != said or now() - said_at_s >= SAID_AGAIN_S:
            log.warning("no leader: %s", waits_for)
            self._said = key, now()

    def end(self) -> None:
        """Note that somebody leads."""
        self._granted = self._granted_before = None
        self._said = None, float("-inf")

    # --- in words ----------------------------------------------------------------------------------------------

    def why_nobody_leads(self) -> str:
        """Return the reason for clients that are told that there is no leader."""
        waits_for = self.waits_for()
        return "no leader is known" if waits_for is None else f"no leader is known: {waits_for}"

    def waits_for(self) -> str | None:
        """Return the obstacles to an election: silent voters first, then voters that may not vote, then the reasons
        that hold this node back if it is a voter. None while a leader is known, or nothing is known to be in the way.
        """
        state = self._state
        if state.leader_id is not None or state.configuration.find(state.node_id) is None:
            return None
        if state.is_voter and self.is_first_election:
            missing = self._missing_in_first_election()
            named = ", ".join(f"{peer} ({self._last_word(peer)})" for peer in missing)
            return f"the first election of a cluster needs every node: no vote from {named}" if missing else None
        why = self._why()
        return self._in_words(why) if why.waits else None

    def next_step(self) -> str:
        """Return the next step of an operator while `waits_for` is not None."""
        why, configuration = self._why(), self._state.configuration
        if self.is_first_election:
            return START
        is_lost = not configuration.has_majority(why.able | set(why.silent))
        if why.silent:
            return f"{START}. That is not enough: {RECOVER}" if is_lost else START
        if is_lost:
            return RECOVER
        return FORGO if self._lacks_entry else LOOK

    def _in_words(self, why: _Why) -> str:
        state, parts = self._state, []
        silent = ", ".join(f"{peer} ({self._last_word(peer)})" for peer in why.silent)
        if not state.configuration.has_majority(why.able):
            rule = f"{state.majority} of {len(state.configuration.voters)} voters are needed"
            parts.append(f"{rule}, not heard: {silent}" if silent else rule)
        elif silent:
            parts.append(f"not heard: {silent}")
        if why.voteless:
            named = ", ".join(f"{peer} ({reason})" for peer, reason in why.voteless.items())
            parts.append(f"answering without a vote: {named}")
        if why.own:
            parts.append(f"this node does not stand for election: {why.own}")
        if why.refusing:
            parts.append(f"no vote from {', '.join(f'{peer} ({self._why_refused(peer)})' for peer in why.refusing)}")
        return "; ".join(parts)

    def _last_word(self, peer: int) -> str:
        """Return in words when that peer was heard last."""
        silent_s = self._presence.silent_s(peer)
        if silent_s is None:
            return "never heard"
        if self._presence.is_present(peer):
            return "answers and gives none: it held another cluster before, and its data directory has to be emptied"
        return f"last heard {silent_s:.0f} s ago"

    def _why_refused(self, peer: int) -> str:
        committed, last = self._vital_signs.known_committed(peer), self._state.log.last_index
        if committed > last:
            return f"it knows that entry {committed} is committed, and the log here ends at entry {last}"
        return "it answers and refuses"

    # --- what is known -----------------------------------------------------------------------------------------

    @property
    def is_first_election(self) -> bool:
        """True while, as far as this node knows, the cluster has had no leader yet."""
        return self._state.has_blank_log and not self.elders

    @property
    def elders(self) -> list[int]:
        """Voters that answer and have applied entries of a cluster that has had a leader."""
        return [peer for peer in self._state.other_voters if self._replicas.applied_by(peer) > 1]

    @property
    def _lacks_entry(self) -> bool:
        entries = self._state.log
        return not self._state.knowledge.is_complete(entries.last_term, entries.last_index)

    def _missing_in_first_election(self) -> list[int]:
        voters = self._state.other_voters
        if self._granted is None:
            return self._silent()
        return [each for each in voters if each not in self._granted]

    def _silent(self) -> list[int]:
        return [peer for peer in self._state.other_voters if not self._presence.is_present(peer)]

    def _why(self) -> _Why:
        state = self._state
        configuration, silent = state.configuration, self._silent()
        own = self._hindrance() if state.is_voter else ""
        heard = [peer for peer in state.other_voters if peer not in silent]
        voteless = {peer: reason for peer in heard if (reason := self._replicas.why_voteless(peer))}
        able = set(heard) - voteless.keys()
        if self._own_copy.votes:
            able.add(state.node_id)
        refusing = self._refusing() & able
        if own or configuration.has_majority(able - refusing):
            refusing = set()
        waits = bool(own or refusing) or not configuration.has_majority(able)
        return _Why(tuple(silent), voteless, own, tuple(sorted(refusing)), frozenset(able), waits)

    def _refusing(self) -> set[int]:
        """Return the other voters that have granted neither of the last two pre-votes."""
        if self._granted is None or self._granted_before is None:
            return set()
        return set(self._state.other_voters) - self._granted - self._granted_before
