"""The state of one Raft node that all of its parts go by.

Each field has one owner, the only part that changes it; `log` has one for each kind of change:

* role, term, vote, leader, election deadline, commit index and applied index: `library`, the translator to PySyncObj,
  which writes terms and votes through `journal`;
* `log`, its records: LogWriter appends and cuts (raft/entries/log_writer.py); a new leader's no-op comes from the
  library, by `journal`; RetentionService removes segments from the front (cluster/background/retention_service.py);
* `log`, its synced end: LogSync (raft/syncing/log_sync.py);
* `log`, its chain, which follows the records by itself: SafeRaft begins one as a leader whose log has none
  (raft/handlers.py), Follower takes its beginning over from the leader (raft/replication/chain_check.py);
* `membership`: LogWriter, when a configuration enters or leaves the log; SafeRaft, when one is committed;
* `knowledge` and `distrust`: themselves, by what the parts tell them.

A part keeps the state that belongs to it alone: pre-votes, the progress of followers, outcomes that are waited for.
"""

from raft.config import RaftConfig
from raft.distrust import Distrust
from raft.journal import Journal
from raft.knowledge import Knowledge
from raft.library import PinnedSyncObj
from raft.membership import Configuration, Membership
from store.properties import reads


class RaftState:
    """Reading is for everybody; the list above says who changes which field. Loop-only."""

    def __init__(self, config: RaftConfig, journal: Journal, membership: Membership, library: PinnedSyncObj) -> None:
        self.config = config
        self.node_id = config.node_id
        self.journal = journal
        self.log = journal.log
        self.membership = membership
        self.library = library
        self.knowledge = Knowledge(journal.watermarks)
        self.distrust = Distrust()
        """Counts what contradicts the entries that are committed here."""
        self._commit_term = 0, 0  # commit index and term, as of the last question

    # --- this node's place in the term ----------------------------------------------------------------------------

    role: int = reads("library.role")
    """FOLLOWER, CANDIDATE or LEADER (raft/library.py)."""
    term: int = reads("library.term")

    @property
    def leader_id(self) -> int | None:
        """Node id of the leader of the current term; None while this node knows of none."""
        return self.library.leader_id

    # --- how far the log is committed and applied -----------------------------------------------------------------

    commit_index: int = reads("library.commit_index")
    """Index of the last entry that is committed and on this node's own disk; never decreases."""
    last_applied: int = reads("library.last_applied")
    """Index of the last entry that the state machine has applied."""

    @property
    def commit_term(self) -> int:
        """Term of the entry at the commit index; 0 while nothing is committed."""
        index = self.commit_index
        if index != self._commit_term[0]:  # a committed entry keeps its term
            self._commit_term = index, self.log.term_at(index)
        return self._commit_term[1]

    @property
    def has_blank_log(self) -> bool:
        """True when the log holds nothing but the genesis record, as in a new cluster or on a new disk in an old one. A
        log with a base belongs to neither.
        """
        return self.log.last_index == 1 and self.log.base.index == 0

    # --- the nodes ------------------------------------------------------------------------------------------------

    @property
    def configuration(self) -> Configuration:
        """The configuration in force here: the last one in the log, committed or not."""
        return self.membership.current

    @property
    def peer_ids(self) -> list[int]:
        """Node ids of the other nodes, learners included."""
        return [member.node_id for member in self.configuration.members if member.node_id != self.node_id]

    @property
    def other_voters(self) -> list[int]:
        """Node ids of the other voters, in order."""
        return sorted(self.configuration.voters - {self.node_id})

    @property
    def is_voter(self) -> bool:
        """True when the configuration in force gives this node a vote.

        A node without one still grants votes: a candidate goes by its own configuration, which may be a later one.
        """
        return self.node_id in self.configuration.voters

    @property
    def majority(self) -> int:
        return self.configuration.majority

    # --- who is connected -----------------------------------------------------------------------------------------

    def connected(self, node_id: int) -> bool:
        return self.library.connected(node_id)
